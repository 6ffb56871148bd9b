"""The machine of a device claim: every pair of its table, what is refused, and what a deletion waits for."""

from __future__ import annotations

from itertools import product

import pytest

from ai.backend.common.states import HOLDING_CLAIM_STATUSES
from ai.backend.common.states import ClaimStatus as S
from ai.backend.core.lifecycle.claim import TRANSITIONS, ClaimState, step
from ai.backend.core.lifecycle.claim import ClaimTrigger as T
from ai.backend.core.lifecycle.transition import InvalidTransition, Transition

MOVES: dict[tuple[S, T], S] = {
    (S.UNALLOCATED, T.PLACED): S.ALLOCATING,
    (S.ALLOCATING, T.BOUND): S.IN_USE,
    (S.ALLOCATING, T.LEFT): S.UNALLOCATED,
    (S.IN_USE, T.PLACED): S.IN_USE,
    (S.IN_USE, T.LEFT): S.IDLE,
    (S.IDLE, T.PLACED): S.IN_USE,
    (S.IDLE, T.RELEASE_REQUESTED): S.UNALLOCATED,
    (S.IDLE, T.IDLE_TIME_OVER): S.UNALLOCATED,
    (S.IDLE, T.AGENT_LOST): S.UNALLOCATED,
    (S.IDLE, T.DEVICE_GONE): S.UNALLOCATED,
    **{(status, T.DELETE_REQUESTED): status for status in S if status is not S.DELETED},
}
REFUSED = {(status, T.RELEASE_REQUESTED) for status in (S.UNALLOCATED, S.ALLOCATING, S.IN_USE)}
ENDS = {(S.UNALLOCATED, T.NO_LONGER_NAMED), (S.IDLE, T.NO_LONGER_NAMED)}


@pytest.mark.parametrize("is_deleting", [False, True])
@pytest.mark.parametrize(("status", "trigger"), list(product(S, T)))
def test_every_pair(status: S, trigger: T, is_deleting: bool) -> None:
    before = ClaimState(status, is_deleting)
    if (status, trigger) in REFUSED:
        with pytest.raises(InvalidTransition, match=r"^[a-z]"):
            step(before, trigger)
        return
    after, path, effects = step(before, trigger, stimulus_id="loop")
    moved = S.DELETED if is_deleting and (status, trigger) in ENDS else MOVES.get((status, trigger))
    assert path == ((Transition(status, trigger, moved, "loop"),) if moved is not None else ())
    assert effects == ()
    assert after.status == (moved or status)
    assert after.is_deleting == (is_deleting or (trigger is T.DELETE_REQUESTED and status is not S.DELETED))


def test_the_table_is_total_and_devices_are_only_returned_when_no_session_holds_them() -> None:
    assert set(TRANSITIONS) == set(S)
    ends = {
        (status, trigger)
        for status, rows in TRANSITIONS.items()
        for trigger, target in rows.items()
        if status.holds_devices and not target.holds_devices
    }
    assert {trigger for status, trigger in ends if status is not S.IDLE} == {T.LEFT}
    assert {S.ALLOCATING, S.IN_USE, S.IDLE} == HOLDING_CLAIM_STATUSES
