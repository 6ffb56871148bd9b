"""The machine of a folder: every pair of its table."""

from __future__ import annotations

from itertools import product

import pytest

from ai.backend.common.folders import FolderStatus as S
from ai.backend.core.lifecycle.folder import TRANSITIONS, FolderEffect, sources_of, step
from ai.backend.core.lifecycle.folder import FolderTrigger as T
from ai.backend.core.lifecycle.transition import InvalidTransition, Transition

REMOVE = (FolderEffect.REMOVE_FILES,)
MOVES = {
    (S.PERFORMING, T.MADE): (S.READY, ()),
    (S.PERFORMING, T.FAILED): (S.DELETE_ONGOING, REMOVE),
    (S.PERFORMING, T.OWNER_REMOVED): (S.DELETE_ONGOING, REMOVE),
    (S.CLONING, T.FILLED): (S.READY, ()),
    (S.CLONING, T.FAILED): (S.DELETE_ONGOING, REMOVE),
    (S.CLONING, T.OWNER_REMOVED): (S.DELETE_ONGOING, REMOVE),
    (S.READY, T.TRASH_REQUESTED): (S.DELETE_PENDING, ()),
    (S.READY, T.OWNER_REMOVED): (S.DELETE_ONGOING, REMOVE),
    (S.ERROR, T.TRASH_REQUESTED): (S.DELETE_PENDING, ()),
    (S.ERROR, T.OWNER_REMOVED): (S.DELETE_ONGOING, REMOVE),
    (S.DELETE_PENDING, T.RESTORE_REQUESTED): (S.READY, ()),
    (S.DELETE_PENDING, T.PURGE_REQUESTED): (S.DELETE_ONGOING, REMOVE),
    (S.DELETE_PENDING, T.EXPIRED): (S.DELETE_ONGOING, ()),
    (S.DELETE_PENDING, T.OWNER_REMOVED): (S.DELETE_ONGOING, REMOVE),
    (S.DELETE_ERROR, T.PURGE_REQUESTED): (S.DELETE_ONGOING, REMOVE),
    (S.DELETE_ERROR, T.OWNER_REMOVED): (S.DELETE_ONGOING, REMOVE),
    (S.DELETE_ONGOING, T.REMOVED): (S.DELETE_COMPLETE, ()),
    (S.DELETE_ONGOING, T.REMOVAL_FAILED): (S.DELETE_ERROR, ()),
}
ASKED_BY_USERS = {T.TRASH_REQUESTED, T.RESTORE_REQUESTED, T.PURGE_REQUESTED}


@pytest.mark.parametrize(("status", "trigger"), list(product(S, T)))
def test_every_pair(status: S, trigger: T) -> None:
    expected = MOVES.get((status, trigger))
    if expected is not None:
        target, effects = expected
        assert step(status, trigger, stimulus_id="x") == (target, (Transition(status, trigger, target, "x"),), effects)
    elif trigger in ASKED_BY_USERS:
        recent_transitions = (Transition("performing", "made", status),)
        with pytest.raises(InvalidTransition, match="The folder 'data' is") as refused:
            step(status, trigger, name="data", stimulus_id="request of AKIA", recent_transitions=recent_transitions)
        assert (refused.value.state, refused.value.trigger, refused.value.recent_transitions) == (
            status,
            trigger,
            recent_transitions,
        )
        assert refused.value.data == {"status": status}
    else:
        assert step(status, trigger) == (status, (), ())


def test_the_table_knows_every_status() -> None:
    assert set(TRANSITIONS) == set(S)
    assert sources_of(T.PURGE_REQUESTED) == {S.DELETE_PENDING, S.DELETE_ERROR}
