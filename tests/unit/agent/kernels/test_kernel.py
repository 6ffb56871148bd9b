"""What the agent has of a kernel in memory."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import KernelRecord, PluginState
from ai.backend.common.states import KernelStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.execution import FileBlob
from ai.backend.common.wire.reports import UnhealthyDevice
from ai.backend.core.lifecycle.kernel_phase import Operation, Phase, PhaseTrigger
from ai.backend.core.lifecycle.transition import InvalidTransition, Transition


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
    kernel.move(
        PhaseTrigger.STARTED,
        cause="new-workload-started",
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
    spec = replace(SPEC, attempt=2)
    assert kernel.move(PhaseTrigger.RESTART_REQUESTED, cause="attempt 2", spec=spec, restarted_from=1) == (
        Operation.RESTART,
    )
    assert (before.attempt, kernel.key.attempt, kernel.attempt) == (1, 2, 2)
    assert kernel.key == kernel.record.key


def test_an_illegal_move_changes_nothing_and_tells_how_it_came_to_this() -> None:
    records = Records()
    kernel = Kernel(KernelRecord(spec=SPEC, phase=Phase.CREATING, status=KernelStatus.CREATING), records)
    kernel.move(PhaseTrigger.END_REQUESTED, cause="user-requested", status=KernelStatus.TERMINATING)
    written = records.kept
    with pytest.raises(InvalidTransition) as refused:
        kernel.move(PhaseTrigger.RESTART_REQUESTED, cause="attempt 2", status=KernelStatus.RESTARTING)
    assert records.kept is written
    assert refused.value.recent_transitions == (
        Transition("creating", "end-requested", "terminating", "user-requested"),
    )
    assert refused.value.data == {"status": "TERMINATING", "attempt": 1}
    assert kernel.move(PhaseTrigger.STARTED, cause="too late", status=KernelStatus.RUNNING) == ()
    assert (records.kept, kernel.phase) == (written, Phase.TERMINATING)


def test_the_start_of_an_agent_writes_only_what_changes() -> None:
    records = Records()
    kernel = Kernel(KernelRecord(spec=SPEC, phase=Phase.RUNNING, status=KernelStatus.RUNNING), records)
    assert kernel.move(PhaseTrigger.AGENT_RESTARTED, cause="start of the agent") == (Operation.ADOPT,)
    assert records.kept is None
    others = Records()
    creating = Kernel(KernelRecord(spec=SPEC, phase=Phase.CREATING, status=KernelStatus.CREATING), others)
    assert creating.move(PhaseTrigger.AGENT_RESTARTED, cause="start of the agent", resumes=1) == (Operation.CREATE,)
    assert others.kept is not None
    assert (others.kept.phase, others.kept.resumes) == (Phase.CREATING, 1)


def test_a_phase_changes_by_a_transition_alone() -> None:
    kernel = Kernel(KernelRecord(spec=SPEC, phase=Phase.RUNNING, status=KernelStatus.RUNNING), Records())
    with pytest.raises(ValueError, match="transition"):
        kernel.save(phase=Phase.ENDED)
