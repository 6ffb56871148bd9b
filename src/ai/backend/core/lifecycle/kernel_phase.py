"""Defines the state machine of one kernel on its agent: the present operation, and where a recovery continues.

Rules:

1. A kernel that the agent accepts is CREATING. It is RUNNING once its workload is up, RESTARTING while it is restarted
   in place, TERMINATING until nothing of it is left, and ENDED from then on.
2. Only a kernel that runs can be restarted. Every live kernel can be ended, whatever is done with it. Ending it again
   only hurries the end.
3. A creation or a restart that fails is TERMINATING: what it had acquired is released.
4. One operation at a time works on a kernel. Entering a phase ends the operation of the phase before.
5. After the agent was restarted, the operation of the present phase begins again: a creation or a restart is resumed, a
   workload that runs is adopted, a termination goes on.
6. ENDED never changes. A new attempt of the kernel is a new object.
7. To restart a kernel is a request: it is refused where it has no row. Any other trigger without a row is late or
   repeated and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from ai.backend.core.lifecycle.transition import Transition, Transitions, find_row


class Phase(StrEnum):
    """The operation that the agent performs on a kernel."""

    CREATING = "creating"
    RUNNING = "running"
    RESTARTING = "restarting"
    TERMINATING = "terminating"
    ENDED = "ended"


P = Phase


class PhaseTrigger(StrEnum):
    STARTED = "started"
    RESTART_REQUESTED = "restart-requested"
    END_REQUESTED = "end-requested"
    FAILED = "failed"
    RELEASED = "released"
    AGENT_RESTARTED = "agent-restarted"


T = PhaseTrigger


class Operation(StrEnum):
    """Lists the operations that the agent starts once a phase is stored."""

    CREATE = "create"
    RESTART = "restart"
    TERMINATE = "terminate"
    ADOPT = "adopt"


Row = tuple[Phase, tuple[Operation, ...]]

TRANSITIONS: Mapping[Phase, Mapping[PhaseTrigger, Row]] = {
    P.CREATING: {
        T.STARTED: (P.RUNNING, ()),
        T.END_REQUESTED: (P.TERMINATING, (Operation.TERMINATE,)),
        T.FAILED: (P.TERMINATING, (Operation.TERMINATE,)),
        T.AGENT_RESTARTED: (P.CREATING, (Operation.CREATE,)),
    },
    P.RUNNING: {
        T.RESTART_REQUESTED: (P.RESTARTING, (Operation.RESTART,)),
        T.END_REQUESTED: (P.TERMINATING, (Operation.TERMINATE,)),
        T.AGENT_RESTARTED: (P.RUNNING, (Operation.ADOPT,)),
    },
    P.RESTARTING: {
        T.STARTED: (P.RUNNING, ()),
        T.END_REQUESTED: (P.TERMINATING, (Operation.TERMINATE,)),
        T.FAILED: (P.TERMINATING, (Operation.TERMINATE,)),
        T.AGENT_RESTARTED: (P.RESTARTING, (Operation.RESTART,)),
    },
    P.TERMINATING: {
        T.RELEASED: (P.ENDED, ()),
        T.AGENT_RESTARTED: (P.TERMINATING, (Operation.TERMINATE,)),
    },
    P.ENDED: {},
}
#: A request without a row is refused; any other trigger without a row is late or repeated.
REQUESTS = frozenset({T.RESTART_REQUESTED})


def step(
    phase: Phase,
    trigger: PhaseTrigger,
    *,
    subject: str = "",
    stimulus_id: str = "",
    recent_transitions: Transitions = (),
    data: Mapping[str, Any] | None = None,
) -> tuple[Phase, Transitions, tuple[Operation, ...]]:
    """Applies one trigger to a kernel on its agent. ``subject``, ``recent_transitions`` and ``data`` are for the error.

    Returns:
        The next phase, the transition that led there (none if the phase stays), and the operations to start.

    Raises:
        InvalidTransition: the phase does not admit this request.
    """
    row = find_row(
        TRANSITIONS,
        REQUESTS,
        phase,
        trigger,
        message=f"{subject} is {phase} and cannot be {trigger}",
        subject=subject,
        stimulus_id=stimulus_id,
        recent_transitions=recent_transitions,
        data=data,
    )
    if row is None:
        return phase, (), ()
    next_phase, operations = row
    transitions = (Transition(phase, trigger, next_phase, stimulus_id),) if next_phase is not phase else ()
    return next_phase, transitions, operations
