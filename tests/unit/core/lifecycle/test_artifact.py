"""The machine of a revision: every pair of its table, and what it leaves behind."""

from __future__ import annotations

from itertools import product

import pytest

from ai.backend.common.artifacts import RevisionStatus as S
from ai.backend.core.lifecycle.artifact import TRANSITIONS, RevisionState, step
from ai.backend.core.lifecycle.artifact import RevisionTrigger as T
from ai.backend.core.lifecycle.transition import InvalidTransition, Transition

MOVES = {
    (S.SCANNED, T.IMPORT_REQUESTED): S.PULLING,
    (S.PULLING, T.DOWNLOADED): S.PULLED,
    (S.PULLED, T.ARCHIVED): S.AVAILABLE,
    (S.PULLING, T.FAILED): S.SCANNED,
    (S.PULLED, T.FAILED): S.SCANNED,
    (S.PULLING, T.CANCEL_REQUESTED): S.SCANNED,
    (S.PULLED, T.CANCEL_REQUESTED): S.SCANNED,
    (S.AVAILABLE, T.CLEANUP_REQUESTED): S.SCANNED,
}
REFUSED = {
    (S.SCANNED, T.CANCEL_REQUESTED),
    (S.AVAILABLE, T.CANCEL_REQUESTED),
    (S.PULLING, T.CLEANUP_REQUESTED),
    (S.PULLED, T.CLEANUP_REQUESTED),
}


@pytest.mark.parametrize("residue", [False, True])
@pytest.mark.parametrize(("status", "trigger"), list(product(S, T)))
def test_every_pair(status: S, trigger: T, residue: bool) -> None:
    before = RevisionState(status, residue)
    if (status, trigger) in REFUSED:
        with pytest.raises(InvalidTransition, match=r"^[a-z]"):
            step(before, trigger)
        return
    after, path, effects = step(before, trigger, stimulus_id="loop")
    moved = MOVES.get((status, trigger))
    assert path == ((Transition(status, trigger, moved, "loop"),) if moved is not None else ())
    assert effects == ()
    assert after.status == (moved or status)
    assert after.residue == (residue or moved is S.SCANNED), "every way back to SCANNED leaves what must be removed"


def test_the_table_is_total_and_every_status_can_be_left_and_reached() -> None:
    assert set(TRANSITIONS) == set(S)
    moves = {(status, to) for status, rows in TRANSITIONS.items() for to in rows.values()}
    assert {a for a, _ in moves} == {b for _, b in moves} == set(S)
