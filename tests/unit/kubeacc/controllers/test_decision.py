"""What the controllers decide of an operation, and the status that they store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ai.backend.common.device_operations import OperationPhase as P
from ai.backend.common.device_operations import OperationVerb as V
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.device_operation import OperationTrigger as T
from ai.backend.kubeacc.controllers.decision import EXECUTOR_SILENCE_S, Situation, Step, next_step
from ai.backend.kubeacc.controllers.progress import advance, timestamp
from ai.backend.kubeacc.crd.accelerators import (
    AcceleratorSpec,
    AcceleratorStatus,
    DeviceDescription,
    Holder,
    OperationRef,
    Program,
)
from ai.backend.kubeacc.crd.fields import Condition
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorOperation
from ai.backend.kubeacc.crd.operations import (
    AcceleratorOperationSpec,
    AcceleratorOperationStatus,
    Artifact,
    AttachParameters,
    Order,
    PowerParameters,
    ProgramParameters,
    Report,
)
from ai.backend.kubeacc.crd.vocabulary import (
    AcceleratorType,
    Attachment,
    AttachState,
    DrainMode,
    LifecycleOwner,
    Outcome,
    PowerState,
)
from ai.backend.kubeacc.policies.coexistence import ownership
from ai.backend.kubeacc.policies.evaluation import Decision
from ai.backend.node.kube_api.objects import ObjectMeta

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
SPEC = AcceleratorOperationSpec(
    accelerator="dev", operation=V.POWER, requested_by="alice", power=PowerParameters(state=PowerState.OFF)
)
ALLOWED = Decision(is_allowed=True, reason="PolicyAllows", message="", policy="p", cost_per_hour="1.5")
MINE = OperationRef(namespace="lab", name="op", uid="1")
HOLDER = Holder(namespace="lab", pod="job", uid="9")
ORDER = Order(sequence=3, issued_at=timestamp(NOW))


def device(**status: Any) -> Accelerator:
    spec = AcceleratorSpec(driver="mock", device_id="0", type=AcceleratorType.FPGA, node_name="n")
    description = DeviceDescription(operations=tuple(V))
    return Accelerator(
        metadata=ObjectMeta(name="dev", uid="7"),
        spec=spec,
        status=AcceleratorStatus(**{"device": description, **status}),
    )


def situation(
    phase: P,
    spec: AcceleratorOperationSpec = SPEC,
    *,
    status: dict[str, Any] | None = None,
    acc: Accelerator | None = None,
    deleted: str = "",
    **more: Any,
) -> Situation:
    operation = AcceleratorOperation(
        metadata=ObjectMeta(name="op", namespace="lab", uid="1", generation=2, deletion_timestamp=deleted),
        spec=spec,
        status=AcceleratorOperationStatus(phase=phase, executor="node/n", **(status or {})),
    )
    values: dict[str, Any] = {
        "device": acc or device(),
        "ownership": ownership(Attachment.LOCAL, LifecycleOwner.KUBE_ACC, other_plugin=False),
        "policy": ALLOWED,
        "retry_limit": 2,
        "deadline": NOW + timedelta(minutes=5),
        "now": NOW,
        "executor": "node/n",
        **more,
    }
    return Situation(operation=operation, **values)


def variant(**changes: Any) -> AcceleratorOperationSpec:
    return replace(SPEC, **changes)


def reported(outcome: Outcome | None = None, sequence: int = 3, **report: Any) -> dict[str, Any]:
    return {"order": ORDER, "report": Report(sequence=sequence, outcome=outcome, **report)}


PROGRAM = variant(
    operation=V.PROGRAM,
    power=None,
    program=ProgramParameters(artifact=Artifact(uri="https://a", sha256="0" * 64)),
)
ATTACH = variant(operation=V.ATTACH, power=None, attach=AttachParameters(node_name="n"))
WAITS = Decision(is_allowed=False, reason="QuotaExceeded", message="full", must_wait=True)
NEVER = Decision(is_allowed=False, reason="SubjectNotAllowed", message="no")
THEIRS = ownership(Attachment.LOCAL, LifecycleOwner.KUBE_ACC, other_plugin=True)
QUARANTINE = Condition(type="Quarantined", status="True", reason="X", last_transition_time=timestamp(NOW))
NO_CLASS = Condition(type="Managed", status="False", reason="NoClass", last_transition_time=timestamp(NOW))
LATE = {"order": replace(ORDER, issued_at=timestamp(NOW - timedelta(seconds=EXECUTOR_SILENCE_S)))}

DECISIONS: list[tuple[str, Situation, T | None, str]] = [
    ("admitted", situation(P.PENDING), T.ADMITTED, "PolicyAllows"),
    ("quota lets in", situation(P.PENDING, policy=WAITS), T.ADMITTED, "QuotaExceeded"),
    ("forbidden", situation(P.PENDING, policy=NEVER), T.REFUSED, "SubjectNotAllowed"),
    ("no class", situation(P.PENDING, ownership=None, acc=device(conditions=(NO_CLASS,))), T.REFUSED, "NotManaged"),
    ("class not known yet", situation(P.PENDING, ownership=None), None, "NotClassifiedYet"),
    ("other plugin", situation(P.PENDING, ownership=THEIRS), T.REFUSED, "OtherDevicePlugin"),
    ("report", situation(P.PENDING, variant(operation=V.DIAGNOSE), ownership=THEIRS), T.ADMITTED, "PolicyAllows"),
    ("unable", situation(P.PENDING, acc=device(device=DeviceDescription())), T.REFUSED, "NotSupported"),
    ("nobody acts", situation(P.PENDING, executor=""), T.REFUSED, "NoExecutor"),
    ("unsigned", situation(P.PENDING, PROGRAM, artifact_problem="no"), T.REFUSED, "ImageRejected"),
    ("quarantined", situation(P.PENDING, acc=device(conditions=(QUARANTINE,))), T.REFUSED, "Quarantined"),
    (
        "reset cures",
        situation(P.PENDING, variant(operation=V.RESET), acc=device(conditions=(QUARANTINE,))),
        T.ADMITTED,
        "PolicyAllows",
    ),
    ("quota", situation(P.QUEUED, policy=WAITS), None, "QuotaExceeded"),
    ("forbidden meanwhile", situation(P.QUEUED, policy=NEVER), T.REFUSED, "SubjectNotAllowed"),
    ("acquired", situation(P.QUEUED, acc=device(operation=MINE)), T.DEVICE_ACQUIRED, "DeviceAcquired"),
    (
        "busy",
        situation(P.QUEUED, acc=device(operation=OperationRef(namespace="a", name="b", uid="2"))),
        None,
        "DeviceBusy",
    ),
    ("drained", situation(P.DRAINING), T.DRAINED, "Executing"),
    ("forbidden while it drained", situation(P.DRAINING, policy=NEVER), T.REFUSED, "SubjectNotAllowed"),
    ("the window closed while it drained", situation(P.DRAINING, policy=WAITS), None, "QuotaExceeded"),
    ("held", situation(P.DRAINING, acc=device(holders=(HOLDER,))), T.HELD_BY_WORKLOAD, "HeldByWorkload"),
    (
        "held, waits",
        situation(P.DRAINING, variant(drain=DrainMode.WAIT), acc=device(holders=(HOLDER,))),
        None,
        "WaitingForWorkloads",
    ),
    (
        "held, but allowed",
        situation(
            P.DRAINING,
            acc=device(holders=(HOLDER,)),
            policy=Decision(is_allowed=True, reason="", message="", may_run_while_held=True),
        ),
        T.DRAINED,
        "Executing",
    ),
    ("not begun", situation(P.RUNNING, status={"order": ORDER}), None, ""),
    ("never begun", situation(P.RUNNING, status=LATE), T.EXECUTOR_LOST, "ExecutorLost"),
    ("begun, slow", situation(P.RUNNING, status={**LATE, "report": Report(sequence=3)}), None, ""),
    ("done", situation(P.RUNNING, status=reported(Outcome.SUCCEEDED)), T.COMPLETED, "Succeeded"),
    ("old report", situation(P.RUNNING, status=reported(Outcome.SUCCEEDED, sequence=2)), None, ""),
    ("future report", situation(P.RUNNING, status=reported(Outcome.SUCCEEDED, sequence=4)), None, ""),
    ("failed", situation(P.RUNNING, status=reported(Outcome.FAILED, reason="Broken")), T.FAILED, "Broken"),
    ("again", situation(P.RUNNING, status=reported(Outcome.FAILED, retryable=True)), T.FAILED_FOR_NOW, "Failed"),
    (
        "no more attempts",
        situation(P.RUNNING, status={**reported(Outcome.FAILED, retryable=True), "attempts": 3}),
        T.FAILED,
        "Failed",
    ),
    (
        "node away",
        situation(P.RUNNING, status=reported(), executor_silent_s=EXECUTOR_SILENCE_S),
        T.EXECUTOR_LOST,
        "ExecutorLost",
    ),
    ("retry later", situation(P.RETRYING, status={"retry_at": timestamp(NOW + timedelta(seconds=3))}), None, ""),
    ("retry now", situation(P.RETRYING, status={"retry_at": timestamp(NOW)}), T.RETRY_DUE, "Executing"),
    ("shown", situation(P.VERIFYING, acc=device(power_state=PowerState.OFF)), T.CONFIRMED, "Succeeded"),
    ("cannot tell", situation(P.VERIFYING), T.CONFIRMED, "Succeeded"),
    (
        "not shown yet",
        situation(
            P.VERIFYING, status={"order": ORDER, "retry_at": timestamp(NOW)}, acc=device(power_state=PowerState.ON)
        ),
        None,
        "Verifying",
    ),
    (
        "never shown",
        situation(
            P.VERIFYING,
            status={"order": ORDER, "retry_at": timestamp(NOW - timedelta(minutes=2))},
            acc=device(power_state=PowerState.ON),
        ),
        T.CONTRADICTED,
        "NotConfirmed",
    ),
    (
        "image",
        situation(P.VERIFYING, PROGRAM, acc=device(program=Program(image="a", sha256="0" * 64))),
        T.CONFIRMED,
        "Succeeded",
    ),
    ("other image", situation(P.VERIFYING, PROGRAM, acc=device(program=Program(image="b"))), None, "Verifying"),
    (
        "attached",
        situation(P.VERIFYING, ATTACH, acc=device(attach_state=AttachState.ATTACHED)),
        T.CONFIRMED,
        "Succeeded",
    ),
    ("not attached", situation(P.VERIFYING, ATTACH, acc=device(attach_state=AttachState.DETACHED)), None, "Verifying"),
    ("stopped", situation(P.CANCELLING, status=reported(Outcome.ABORTED)), T.ABORTED, "Aborted"),
    (
        "stop ignored",
        situation(
            P.CANCELLING,
            status={
                "order": replace(ORDER, issued_at=timestamp(NOW - timedelta(minutes=6))),
                "report": Report(sequence=3),
            },
        ),
        T.EXECUTOR_LOST,
        "ExecutorLost",
    ),
    ("undone", situation(P.ROLLING_BACK, status=reported(Outcome.SUCCEEDED)), T.UNDONE, ""),
    ("nothing to undo", situation(P.ROLLING_BACK, variant(operation=V.RESET)), T.UNDONE, ""),
    ("undo failed", situation(P.ROLLING_BACK, status=reported(Outcome.FAILED)), T.UNDO_FAILED, "RollbackFailed"),
    ("cancelled", situation(P.RUNNING, variant(cancel=True)), T.CANCEL_REQUESTED, "Cancelled"),
    ("deleted", situation(P.DRAINING, deleted="2026-01-01T00:00:00Z"), T.CANCEL_REQUESTED, "Cancelled"),
    ("cancelled at once", situation(P.PENDING, variant(cancel=True)), T.CANCEL_REQUESTED, "Cancelled"),
    ("cancelled in the queue", situation(P.QUEUED, variant(cancel=True)), T.CANCEL_REQUESTED, "Cancelled"),
    ("cancelled between", situation(P.RETRYING, variant(cancel=True)), T.CANCEL_REQUESTED, "Cancelled"),
    ("cancelled at the end", situation(P.VERIFYING, variant(cancel=True)), T.CANCEL_REQUESTED, "Cancelled"),
    ("cancelled twice", situation(P.CANCELLING, variant(cancel=True), status=reported()), None, ""),
    ("cancelled late, undoing", situation(P.ROLLING_BACK, variant(cancel=True), status=reported()), None, ""),
    ("cancelled late", situation(P.ROLLING_BACK, variant(cancel=True), status=LATE), T.EXECUTOR_LOST, "ExecutorLost"),
    ("deadline", situation(P.QUEUED, deadline=NOW), T.DEADLINE_PASSED, "DeadlineExceeded"),
]


@pytest.mark.parametrize(
    ("case", "trigger", "reason"), [row[1:] for row in DECISIONS], ids=[row[0] for row in DECISIONS]
)
def test_each_situation_has_its_step(case: Situation, trigger: T | None, reason: str) -> None:
    step = next_step(case)
    assert (step.trigger, step.reason) == (trigger, reason)
    if trigger is None:
        assert step.again_s is not None
        assert step.again_s <= (case.deadline - case.now).total_seconds()


def test_a_free_device_is_acquired_and_evictions_are_asked_for() -> None:
    assert next_step(situation(P.QUEUED)).acquire
    assert next_step(situation(P.DRAINING, variant(drain=DrainMode.EVICT), acc=device(holders=(HOLDER,)))).evict


def test_an_unknown_device_ends_the_operation() -> None:
    for phase, trigger in ((P.PENDING, T.DEVICE_GONE), (P.DRAINING, T.DEVICE_GONE), (P.RUNNING, T.EXECUTOR_LOST)):
        case = situation(phase)
        gone = Situation(**{**{name: getattr(case, name) for name in case.__struct_fields__}, "device": None})
        assert next_step(gone).trigger is trigger


def test_orders_carry_what_is_needed_to_undo_them() -> None:
    before = device(program=Program(image="old"), power_state=PowerState.ON)
    status, _ = advance(situation(P.DRAINING, acc=before), Step(trigger=T.DRAINED, reason="Executing"))
    assert (status.phase, status.attempts, status.executor, status.cost_per_hour) == (P.RUNNING, 1, "node/n", "1.5")
    assert status.order == Order(
        sequence=1,
        issued_at=timestamp(NOW),
        previous_program=Program(image="old"),
        previous_power=PowerState.ON,
    )
    failed = situation(P.RUNNING, status={"order": status.order, "attempts": 1}, acc=device())
    undone, _ = advance(failed, Step(trigger=T.FAILED, reason="Broken", message="smoke"))
    assert undone.order is not None
    assert (undone.order.sequence, undone.order.rollback) == (2, True)
    assert undone.order.previous_power is PowerState.ON
    assert (undone.verdict, undone.reason, undone.message) == (P.FAILED, "Broken", "smoke")


def test_an_abort_keeps_the_sequence_that_it_stops() -> None:
    status, _ = advance(
        situation(P.RUNNING, status={"order": ORDER}), Step(trigger=T.CANCEL_REQUESTED, reason="Cancelled")
    )
    assert status.order is not None
    assert (status.order.sequence, status.order.abort, status.verdict) == (3, True, P.CANCELLED)


def test_waiting_says_nothing_new_without_a_reason() -> None:
    case = situation(P.ROLLING_BACK, status={"reason": "Broken", "message": "smoke"})
    status, effects = advance(case, Step(again_s=1))
    assert (status.reason, status.message, effects) == ("Broken", "smoke", ())


def test_conditions_are_of_the_generation_that_was_looked_at() -> None:
    case = situation(P.RUNNING, status={"order": ORDER, "attempts": 1})
    old = Condition(type="Admitted", status="True", reason="PolicyAllows", last_transition_time="2026-01-01T00:00:00Z")
    operation = replace(case.operation, status=replace(case.operation.status, conditions=(old,)))
    status, _ = advance(replace(case, operation=operation), Step(trigger=T.COMPLETED, reason="Succeeded"))
    assert {(c.type, c.observed_generation) for c in status.conditions} == {("Admitted", 2), ("Complete", 2)}
    waiting, _ = advance(replace(case, operation=operation), Step(again_s=1))
    assert [c.observed_generation for c in waiting.conditions] == [2]


@pytest.mark.parametrize(
    ("phase", "trigger", "admitted"),
    [
        (P.PENDING, T.CANCEL_REQUESTED, "False"),
        (P.PENDING, T.DEADLINE_PASSED, "False"),
        (P.PENDING, T.ADMITTED, "True"),
        (P.QUEUED, T.CANCEL_REQUESTED, "True"),
        (P.QUEUED, T.REFUSED, "False"),
    ],
)
def test_only_what_was_admitted_says_so(phase: P, trigger: T, admitted: str) -> None:
    status, _ = advance(situation(phase), Step(trigger=trigger, reason="Any"))
    assert {c.type: c.status for c in status.conditions}["Admitted"] == admitted


def test_the_first_reason_decides_how_an_operation_ends() -> None:
    late = situation(P.CANCELLING, status={"order": ORDER, "reason": "DeadlineExceeded", "verdict": P.FAILED})
    for trigger in (T.ABORTED, T.COMPLETED, T.FAILED):
        assert advance(late, Step(trigger=trigger, reason="Other"))[0].reason == "DeadlineExceeded"
    lost, _ = advance(late, Step(trigger=T.EXECUTOR_LOST, reason="ExecutorLost"))
    assert lost.reason == "ExecutorLost"


def test_delays_between_attempts_grow() -> None:
    delays = []
    for attempts in (1, 2, 3, 9):
        case = situation(P.RUNNING, status={"order": ORDER, "attempts": attempts})
        status, _ = advance(case, Step(trigger=T.FAILED_FOR_NOW, reason="Failed"))
        assert status.retry_at is not None
        delays.append((datetime.fromisoformat(status.retry_at) - NOW).total_seconds())
    assert delays == [2, 4, 8, 60]
