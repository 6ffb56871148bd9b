"""The records of workloads that hold devices, as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.kubeacc.node_plugin.checkpoint import Checkpoint, WorkloadRecord


@pytest.mark.parametrize("damage", [b"", b"{", b'{"uid":"\xff","way":"dra"}', b"\x00" * 64])
def test_a_damaged_record_stays_and_costs_no_other_one(tmp_path: Path, damage: bytes) -> None:
    checkpoint = Checkpoint(tmp_path)
    for uid in ("a-1", "b-2"):
        checkpoint.put(WorkloadRecord(uid=uid, way="dra"))
    damaged_path = next(path for path in tmp_path.iterdir() if path.name.startswith("a-1"))
    damaged_path.write_bytes(damage)
    assert checkpoint.load().keys() == {"b-2"}
    assert damaged_path.read_bytes() == damage
