"""Defines the state machine of a device claim: when the claim holds devices of an agent, and when the claim ends.

Rules:

1. A claim holds nothing until the first session that names it is placed. The placement takes the devices (ALLOCATING);
   from then on they count as occupied on the agent, and as its owner's.
2. The agent may bind other devices than planned. What it has bound when the session runs, the claim keeps (IN_USE). If
   no session runs before all that hold the claim have ended or wait again, the devices are returned.
3. A claim that no session holds is IDLE and keeps its devices for the next session, until its owner releases them, its
   idle time is over, its agent is lost or removed, or the agent has one of the devices no longer. Then the next session
   allocates anew.
4. Devices are never taken from a session: while one holds the claim, a release is refused, and whatever else would end
   the allocation waits for its end.
5. No new session may name a claim that is to be deleted. Those that do already go on, waiting ones too; the claim is
   DELETED with the end of the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ai.backend.common.states import ClaimStatus
from ai.backend.core.lifecycle.transition import InvalidTransition, Transition, Transitions

S = ClaimStatus


class ClaimTrigger(StrEnum):
    PLACED = "placed"
    BOUND = "bound"
    LEFT = "left"
    RELEASE_REQUESTED = "release-requested"
    IDLE_TIME_OVER = "idle-time-over"
    AGENT_LOST = "agent-lost"
    DEVICE_GONE = "device-gone"
    DELETE_REQUESTED = "delete-requested"
    NO_LONGER_NAMED = "no-longer-named"


T = ClaimTrigger

TRANSITIONS: Mapping[ClaimStatus, Mapping[ClaimTrigger, ClaimStatus]] = {
    S.UNALLOCATED: {
        T.PLACED: S.ALLOCATING,
        T.DELETE_REQUESTED: S.UNALLOCATED,
        T.NO_LONGER_NAMED: S.DELETED,
    },
    S.ALLOCATING: {
        T.BOUND: S.IN_USE,
        T.LEFT: S.UNALLOCATED,
        T.DELETE_REQUESTED: S.ALLOCATING,
    },
    S.IN_USE: {
        T.PLACED: S.IN_USE,
        T.LEFT: S.IDLE,
        T.DELETE_REQUESTED: S.IN_USE,
    },
    S.IDLE: {
        T.PLACED: S.IN_USE,
        T.RELEASE_REQUESTED: S.UNALLOCATED,
        T.IDLE_TIME_OVER: S.UNALLOCATED,
        T.AGENT_LOST: S.UNALLOCATED,
        T.DEVICE_GONE: S.UNALLOCATED,
        T.DELETE_REQUESTED: S.IDLE,
        T.NO_LONGER_NAMED: S.DELETED,
    },
    S.DELETED: {},
}
#: The pairs without a row that are refused, with the reason in half a sentence. All others change nothing.
REFUSALS: Mapping[tuple[ClaimStatus, ClaimTrigger], str] = {
    (S.UNALLOCATED, T.RELEASE_REQUESTED): "it holds no devices",
    (S.ALLOCATING, T.RELEASE_REQUESTED): "a session holds it; end that first",
    (S.IN_USE, T.RELEASE_REQUESTED): "a session holds it; end that first",
}


class ClaimState(msgspec.Struct, frozen=True):
    """Holds the state of one device claim. ``is_deleting``: its deletion was requested."""

    status: ClaimStatus = ClaimStatus.UNALLOCATED
    is_deleting: bool = False


def step(
    state: ClaimState, trigger: ClaimTrigger, *, subject: str = "", stimulus_id: str = ""
) -> tuple[ClaimState, Transitions, tuple[()]]:
    """Applies one trigger to a device claim.

    Returns:
        The next state and the transition that led there; the same state and an empty path for a late trigger, and for
        NO_LONGER_NAMED while no deletion was requested. There are no effects: what is held follows from the state.

    Raises:
        InvalidTransition: the status does not admit what is requested; the message says why, in half a sentence.
    """
    if (reason := REFUSALS.get((state.status, trigger))) is not None:
        raise InvalidTransition(reason, subject=subject, state=state.status, trigger=trigger, stimulus_id=stimulus_id)
    next_status = TRANSITIONS[state.status].get(trigger)
    if next_status is None or (trigger is T.NO_LONGER_NAMED and not state.is_deleting):
        return state, (), ()
    transitions = (Transition(state.status, trigger, next_status, stimulus_id),)
    return ClaimState(next_status, state.is_deleting or trigger is T.DELETE_REQUESTED), transitions, ()
