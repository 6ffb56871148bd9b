"""What the agent has of a kernel in memory."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from ai.backend.agent.model.kernel import KernelRecord, PluginState
from ai.backend.agent.services.kernel import Kernel
from ai.backend.common.states import KernelStatus, SessionType
from ai.backend.common.wire.agent import FileBlob, KernelSpec, UnhealthyDevice
from ai.backend.core.lifecycle.kernel_phase import Phase


class Records:
    """Keeps the newest record."""

    kept: KernelRecord | None = None

    def put(self, record: KernelRecord) -> None:
        self.kept = record

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


SPEC = KernelSpec(
    session_id=str(UUID(int=1)),
    kernel_id=str(UUID(int=2)),
    attempt=1,
    session_name="s",
    session_type=SessionType.INTERACTIVE,
    image="python",
    architecture="x86_64",
    access_key="AK",
    user_id=str(UUID(int=3)),
    user_email="user@example.com",
    slots={"cpu": "1"},
    environ={"A": "1"},
    dotfiles=[FileBlob(path="a", data=b"\x00\xff")],
)


def test_of_one_that_runs_nothing_is_lost() -> None:
    records = Records()
    kernel = Kernel(KernelRecord(spec=SPEC, phase=Phase.CREATING, status=KernelStatus.CREATING), records)
    kernel.save(
        phase=Phase.RUNNING,
        status=KernelStatus.RUNNING,
        states={"cuda": PluginState(data={"n": 1, "half": 0.5, "none": None})},
        unhealthy=[UnhealthyDevice(device_name="cpu", device_id="0", reason="hot")],
        allocation={"cpu": {"0": "1"}},
    )
    assert kernel.record == records.kept
    assert kernel.record is not records.kept
    kernel.save(note="a word")
    assert kernel.record.note == "a word"
    assert kernel.record == records.kept
    assert (kernel.id, kernel.attempt, kernel.phase, kernel.status) == (
        SPEC.kernel_id,
        1,
        Phase.RUNNING,
        KernelStatus.RUNNING,
    )


def test_a_restart_has_another_key() -> None:
    kernel = Kernel(KernelRecord(spec=SPEC, phase=Phase.RUNNING, status=KernelStatus.RUNNING), Records())
    before = kernel.key
    kernel.save(spec=msgspec.structs.replace(SPEC, attempt=2), phase=Phase.RESTARTING, restarted_from=1)
    assert (before.attempt, kernel.key.attempt, kernel.attempt) == (1, 2, 2)
    assert kernel.key == kernel.record.key
