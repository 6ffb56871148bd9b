from __future__ import annotations

import pickle

from ai.backend.common.errors import Conflict, from_wire
from ai.backend.core.lifecycle.transition import (
    MAX_RECENT_TRANSITIONS,
    InvalidTransition,
    Transition,
    TransitionHistories,
)

MOVES = tuple(Transition(str(n), "next", str(n + 1), "loop") for n in range(MAX_RECENT_TRANSITIONS + 5))


def test_the_stories_of_the_last_objects_are_remembered() -> None:
    stories = TransitionHistories(limit=2)
    stories.extend("a", MOVES)
    assert stories.of("a") == MOVES[5:]
    stories.extend("b", MOVES[:1])
    stories.extend("a", ())
    stories.extend("c", MOVES[:1])
    assert (stories.of("a"), stories.of("b"), stories.of("c")) == (MOVES[5:], (), MOVES[:1])


def test_an_invalid_transition_crosses_processes_and_is_a_conflict_on_the_wire() -> None:
    error = InvalidTransition(
        "no", subject="s", state="A", trigger="go", stimulus_id="me", recent_transitions=MOVES[:2]
    )
    again = pickle.loads(pickle.dumps(error))
    assert (again.message, again.recent_transitions, again.data, again.explain()) == (
        "no",
        MOVES[:2],
        {"status": "A"},
        error.explain(),
    )
    assert error.explain() == "s is A and does not admit go (me): 0 -> 1 by next (loop); 1 -> 2 by next (loop)"
    assert type(from_wire(error.code, error.message, error.data)) is Conflict
