from __future__ import annotations

import random
from pathlib import Path

import pytest

from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot, dump_json, load_json
from ai.backend.simulator.replay import main, replay
from tests.unit.core.scheduling.builders import NOW, agent, session, slots


def test_a_dumped_snapshot_gives_the_same_plan() -> None:
    agents = tuple(agent(f"i-{n}", cuda=2) for n in range(4))
    pending = tuple(session(f"s{n}", slots(cpu=2, cuda_device=1), age_s=n) for n in range(9))
    snapshot = Snapshot(resource_group="default", agents=agents, pending=pending)
    live = decide(snapshot, Policy(), now=NOW, rng=random.Random(5))
    assert replay(load_json(dump_json(snapshot)), Policy(), now=NOW, seed=5) == live


def test_the_command_prints_a_line_for_each_session(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pending = (session("fits", slots(cpu=2)), session("large", slots(cpu=9)))
    path = tmp_path / "snapshot.json"
    path.write_bytes(dump_json(Snapshot(resource_group="default", agents=(agent("i-1"),), pending=pending)))
    assert main([str(path), "--placement", "concentrated", "--now", NOW.isoformat()]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "placed   fits: i-1 (cpu on 0, 1)",
        "waiting  large: needs 9 cpu on one node; the largest node, i-1, has 4 [never-fits]",
    ]
