"""The machine of a kernel on its agent: every pair of its table."""

from __future__ import annotations

from itertools import product

import pytest

from ai.backend.core.lifecycle.kernel_phase import TRANSITIONS, Operation, Phase, step
from ai.backend.core.lifecycle.kernel_phase import PhaseTrigger as T
from ai.backend.core.lifecycle.transition import InvalidTransition, Transition

P, Op = Phase, Operation
MOVES = {
    (P.CREATING, T.STARTED): (P.RUNNING, ()),
    (P.CREATING, T.END_REQUESTED): (P.TERMINATING, (Op.TERMINATE,)),
    (P.CREATING, T.FAILED): (P.TERMINATING, (Op.TERMINATE,)),
    (P.CREATING, T.AGENT_RESTARTED): (P.CREATING, (Op.CREATE,)),
    (P.RUNNING, T.RESTART_REQUESTED): (P.RESTARTING, (Op.RESTART,)),
    (P.RUNNING, T.END_REQUESTED): (P.TERMINATING, (Op.TERMINATE,)),
    (P.RUNNING, T.AGENT_RESTARTED): (P.RUNNING, (Op.ADOPT,)),
    (P.RESTARTING, T.STARTED): (P.RUNNING, ()),
    (P.RESTARTING, T.END_REQUESTED): (P.TERMINATING, (Op.TERMINATE,)),
    (P.RESTARTING, T.FAILED): (P.TERMINATING, (Op.TERMINATE,)),
    (P.RESTARTING, T.AGENT_RESTARTED): (P.RESTARTING, (Op.RESTART,)),
    (P.TERMINATING, T.RELEASED): (P.ENDED, ()),
    (P.TERMINATING, T.AGENT_RESTARTED): (P.TERMINATING, (Op.TERMINATE,)),
}


@pytest.mark.parametrize(("phase", "trigger"), list(product(P, T)))
def test_every_pair(phase: Phase, trigger: T) -> None:
    expected = MOVES.get((phase, trigger))
    if expected is not None:
        target, operations = expected
        path = (Transition(phase, trigger, target, "x"),) if target is not phase else ()
        assert step(phase, trigger, stimulus_id="x") == (target, path, operations)
    elif trigger is T.RESTART_REQUESTED:
        with pytest.raises(InvalidTransition, match="kernel 1 is") as refused:
            step(phase, trigger, subject="kernel 1", data={"attempt": 2})
        assert refused.value.data == {"attempt": 2, "status": phase}
    else:
        assert step(phase, trigger) == (phase, (), ())


def test_every_phase_has_its_rows_and_every_operation_a_cause() -> None:
    assert set(TRANSITIONS) == set(P)
    assert {o for rows in TRANSITIONS.values() for _, operations in rows.values() for o in operations} == set(Op)
