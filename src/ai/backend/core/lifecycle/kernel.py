"""Defines the state machine of one kernel.

Rules:

1. A kernel moves forward only: PENDING < SCHEDULED < PREPARING < PULLING < BUILDING < PREPARED < CREATING < RUNNING
   < TERMINATING < a final status. An observation of something that lies behind is late and ignored. The ways back are
   two: RESTARTING -> RUNNING, and RETURNED (or an observed PENDING: the agent defers) -> PENDING before its session has
   run, or once nothing is left of a session that starts over; the session's machine knows when that is.
2. A final status never changes.
3. ``attempt`` names the incarnation. It grows when the kernel is scheduled and when it is restarted; what is observed
   of any other attempt is ignored.
4. Slots are held exactly in the statuses of :data:`HOLDING`: taken when it becomes SCHEDULED, released once when it
   becomes PENDING again or final.
5. PENDING + destroy is CANCELLED: there is nothing to end. Otherwise a kernel is TERMINATING until its agent has seen
   that nothing is left, or the manager gives the agent up (ABANDONED).
6. BUILDING, RESIZING and SUSPENDED are entered only because an agent says so.
7. To schedule a kernel and to restart it are requests: where they have no row, they are refused.

The session's machine (``session.py``) drives this one; nothing else should call :func:`step`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import msgspec

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AgentId, KernelId
from ai.backend.common.states import FINAL_KERNEL_STATUSES, KernelEventReason, KernelStatus
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.effects import KernelTarget, ReleaseSlots, TakeSlots
from ai.backend.core.lifecycle.transition import Transition, Transitions, find_row

S = KernelStatus


class KernelTrigger(StrEnum):
    """Lists the triggers of a kernel. ``observed-X``: the agent reports that the kernel is X."""

    SCHEDULED = "scheduled"
    DISPATCHED = "dispatched"
    RETURNED = "returned"
    RESTART_REQUESTED = "restart-requested"
    DESTROY_REQUESTED = "destroy-requested"
    ABANDONED = "abandoned"
    OBSERVED_PENDING = "observed-PENDING"
    OBSERVED_SCHEDULED = "observed-SCHEDULED"
    OBSERVED_PREPARING = "observed-PREPARING"
    OBSERVED_BUILDING = "observed-BUILDING"
    OBSERVED_PULLING = "observed-PULLING"
    OBSERVED_PREPARED = "observed-PREPARED"
    OBSERVED_CREATING = "observed-CREATING"
    OBSERVED_RUNNING = "observed-RUNNING"
    OBSERVED_RESTARTING = "observed-RESTARTING"
    OBSERVED_RESIZING = "observed-RESIZING"
    OBSERVED_SUSPENDED = "observed-SUSPENDED"
    OBSERVED_TERMINATING = "observed-TERMINATING"
    OBSERVED_TERMINATED = "observed-TERMINATED"
    OBSERVED_ERROR = "observed-ERROR"
    OBSERVED_CANCELLED = "observed-CANCELLED"

    @classmethod
    def for_observed(cls, status: KernelStatus) -> KernelTrigger:
        return cls(f"observed-{status}")


T = KernelTrigger

#: Before the user's program runs, in order.
PROGRESS = (S.PENDING, S.SCHEDULED, S.PREPARING, S.PULLING, S.BUILDING, S.PREPARED, S.CREATING)
#: The user's program exists.
UP = frozenset({S.RUNNING, S.RESIZING, S.SUSPENDED})
#: All and only the statuses in which a kernel occupies slots of its agent.
HOLDING = frozenset(KernelStatus) - FINAL_KERNEL_STATUSES - {S.PENDING}


class KernelState(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the parts of a kernel's state that the state machine needs.

    Attributes:
        attempt: 0 until it is scheduled for the first time; more if it waits in a database that was restored.
        agent_id: its present or last agent; None until it is scheduled for the first time.
        is_main: True for the kernel whose program decides the session's result (``main1``).
    """

    kernel_id: KernelId
    status: KernelStatus = KernelStatus.PENDING
    attempt: int = 0
    agent_id: AgentId | None = None
    is_main: bool = True
    reason: KernelEventReason = KernelEventReason.UNKNOWN
    exit_code: int | None = None

    @property
    def target(self) -> KernelTarget:
        """Returns the agent and the attempt of the kernel. Raises Conflict while it has no agent."""
        if self.agent_id is None:
            raise Conflict(f"kernel {self.kernel_id} has no agent")
        return KernelTarget(kernel_id=self.kernel_id, agent_id=self.agent_id, attempt=self.attempt)


class KernelStep(msgspec.Struct, frozen=True, kw_only=True):
    """Holds a trigger of a kernel, and the values that come with the trigger, for :func:`step`."""

    trigger: KernelTrigger
    reason: KernelEventReason = KernelEventReason.UNKNOWN
    attempt: int | None = None
    agent_id: AgentId | None = None
    exit_code: int | None = None
    stimulus_id: str = ""


SlotEffect = TakeSlots | ReleaseSlots
Moved = tuple[KernelState, tuple[SlotEffect, ...]]
Handler = Callable[[KernelState, KernelState, KernelStep], Moved]
"""A handler: takes the state before, the state with its next status, and the event."""
Row = tuple[KernelStatus, Handler | None]


def _take_slots(old_state: KernelState, new_state: KernelState, event: KernelStep) -> Moved:
    if event.agent_id is None:
        raise Conflict(f"kernel {old_state.kernel_id} was scheduled to no agent")
    new_state = replace(new_state, agent_id=event.agent_id, attempt=old_state.attempt + 1, exit_code=None)
    return new_state, (TakeSlots(target=new_state.target),)


def _begin_restart(old_state: KernelState, new_state: KernelState, _: KernelStep) -> Moved:
    """Begins the restart of a kernel as a new attempt. The slots that the kernel holds stay taken.

    Slots are counted by kernel, not by attempt.
    """
    return replace(new_state, attempt=old_state.attempt + 1), ()


def _release_slots(old_state: KernelState, new_state: KernelState, _: KernelStep) -> Moved:
    return new_state, (ReleaseSlots(target=old_state.target),)


#: The rows of every status in which a workload may exist and is not being ended.
_ENDS: Mapping[KernelTrigger, Row] = {
    T.DESTROY_REQUESTED: (S.TERMINATING, None),
    T.OBSERVED_TERMINATING: (S.TERMINATING, None),
    T.OBSERVED_TERMINATED: (S.TERMINATED, _release_slots),
    T.OBSERVED_ERROR: (S.ERROR, _release_slots),
    T.OBSERVED_CANCELLED: (S.CANCELLED, _release_slots),
    T.ABANDONED: (S.ERROR, _release_slots),
}
#: The rows of every status between SCHEDULED and CREATING.
_ENDS_BEFORE_START: Mapping[KernelTrigger, Row] = {
    T.RETURNED: (S.PENDING, _release_slots),
    T.OBSERVED_PENDING: (S.PENDING, _release_slots),
    **_ENDS,
}
TRANSITIONS: Mapping[KernelStatus, Mapping[KernelTrigger, Row]] = {
    S.PENDING: {
        T.SCHEDULED: (S.SCHEDULED, _take_slots),
        T.DESTROY_REQUESTED: (S.CANCELLED, None),
    },
    S.SCHEDULED: {
        T.DISPATCHED: (S.PREPARING, None),
        T.OBSERVED_PREPARING: (S.PREPARING, None),
        T.OBSERVED_PULLING: (S.PULLING, None),
        T.OBSERVED_BUILDING: (S.BUILDING, None),
        T.OBSERVED_PREPARED: (S.PREPARED, None),
        T.OBSERVED_CREATING: (S.CREATING, None),
        T.OBSERVED_RUNNING: (S.RUNNING, None),
        **_ENDS_BEFORE_START,
    },
    S.PREPARING: {
        T.OBSERVED_PULLING: (S.PULLING, None),
        T.OBSERVED_BUILDING: (S.BUILDING, None),
        T.OBSERVED_PREPARED: (S.PREPARED, None),
        T.OBSERVED_CREATING: (S.CREATING, None),
        T.OBSERVED_RUNNING: (S.RUNNING, None),
        **_ENDS_BEFORE_START,
    },
    S.PULLING: {
        T.OBSERVED_BUILDING: (S.BUILDING, None),
        T.OBSERVED_PREPARED: (S.PREPARED, None),
        T.OBSERVED_CREATING: (S.CREATING, None),
        T.OBSERVED_RUNNING: (S.RUNNING, None),
        **_ENDS_BEFORE_START,
    },
    S.BUILDING: {
        T.OBSERVED_PREPARED: (S.PREPARED, None),
        T.OBSERVED_CREATING: (S.CREATING, None),
        T.OBSERVED_RUNNING: (S.RUNNING, None),
        **_ENDS_BEFORE_START,
    },
    S.PREPARED: {T.OBSERVED_CREATING: (S.CREATING, None), T.OBSERVED_RUNNING: (S.RUNNING, None), **_ENDS_BEFORE_START},
    S.CREATING: {T.OBSERVED_RUNNING: (S.RUNNING, None), **_ENDS_BEFORE_START},
    S.RUNNING: {
        T.OBSERVED_RESIZING: (S.RESIZING, None),
        T.OBSERVED_SUSPENDED: (S.SUSPENDED, None),
        T.RESTART_REQUESTED: (S.RESTARTING, _begin_restart),
        T.RETURNED: (S.PENDING, _release_slots),
        **_ENDS,
    },
    S.RESTARTING: {
        T.OBSERVED_RUNNING: (S.RUNNING, None),
        **_ENDS,
    },
    S.RESIZING: {
        T.OBSERVED_RUNNING: (S.RUNNING, None),
        T.OBSERVED_SUSPENDED: (S.SUSPENDED, None),
        T.RESTART_REQUESTED: (S.RESTARTING, _begin_restart),
        T.RETURNED: (S.PENDING, _release_slots),
        **_ENDS,
    },
    S.SUSPENDED: {
        T.OBSERVED_RUNNING: (S.RUNNING, None),
        T.OBSERVED_RESIZING: (S.RESIZING, None),
        T.RESTART_REQUESTED: (S.RESTARTING, _begin_restart),
        T.RETURNED: (S.PENDING, _release_slots),
        **_ENDS,
    },
    S.TERMINATING: {
        T.OBSERVED_TERMINATED: (S.TERMINATED, _release_slots),
        T.OBSERVED_ERROR: (S.ERROR, _release_slots),
        T.OBSERVED_CANCELLED: (S.CANCELLED, _release_slots),
        T.ABANDONED: (S.TERMINATED, _release_slots),
        T.RETURNED: (S.PENDING, _release_slots),
    },
    S.TERMINATED: {},
    S.ERROR: {},
    S.CANCELLED: {},
}
#: A request without a row is refused; any other trigger without a row is late or repeated.
REQUESTS = frozenset({T.SCHEDULED, T.RESTART_REQUESTED})


def step(
    state: KernelState, event: KernelStep, *, recent_transitions: Transitions = ()
) -> tuple[KernelState, Transitions, tuple[SlotEffect, ...]]:
    """Applies one trigger to a kernel.

    ``recent_transitions`` tells how the session came to its state, for the error.

    Returns:
        The next state, the transitions that led there, and the effects. The same object, and nothing else, if the
        event is ignored.

    Raises:
        InvalidTransition: the present status does not admit this request.
    """
    if event.attempt is not None and event.attempt != state.attempt:
        return state, (), ()
    row = find_row(
        TRANSITIONS,
        REQUESTS,
        state.status,
        event.trigger,
        message=f"A kernel that is {state.status} cannot be {event.trigger}.",
        subject=f"kernel {state.kernel_id}",
        stimulus_id=event.stimulus_id,
        recent_transitions=recent_transitions,
        data={"kernel": str(state.kernel_id)},
    )
    if row is None:
        return state, (), ()
    next_status, handler = row
    new_state = replace(
        state,
        status=next_status,
        reason=event.reason if event.reason is not KernelEventReason.UNKNOWN else state.reason,
        exit_code=event.exit_code if event.exit_code is not None else state.exit_code,
    )
    effects: tuple[SlotEffect, ...] = ()
    if handler is not None:
        new_state, effects = handler(state, new_state, event)
    return new_state, (Transition(state.status, event.trigger, next_status, event.stimulus_id),), effects


def check(state: KernelState) -> list[str]:
    """Returns a sentence for each invariant that the state of a kernel violates; empty if it is valid."""
    violations = []
    if state.status in HOLDING and (state.agent_id is None or state.attempt < 1):
        violations.append(f"kernel {state.kernel_id} is {state.status} without agent or attempt")
    if state.attempt < 0:
        violations.append(f"kernel {state.kernel_id} has a negative attempt")
    return violations


def is_orphan(state: KernelState | None, *, agent_id: AgentId, attempt: int) -> bool:
    """Returns True if the agent should destroy this attempt, because another attempt is the present one.

    The attempt before the present one is no orphan while the restart in place, which will end it, is on its way.
    """
    if state is None or state.status not in HOLDING or state.agent_id != agent_id:
        return True
    oldest_valid = state.attempt - 1 if state.status in (S.RESTARTING, S.TERMINATING) else state.attempt
    return attempt < oldest_valid
