"""Interprets transition tables, records recent transitions of objects, and builds the error of a refused request.

Every machine has one literal table, ``state -> trigger -> row``, and :func:`find_row` reads all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from ai.backend.common.errors import Conflict

Row = TypeVar("Row")
MAX_RECENT_TRANSITIONS = 16
"""The number of an object's recent transitions that are kept."""


class Transition(NamedTuple):
    """Describes one change of state. ``stimulus_id`` names its cause: a request, an agent's report, a loop's round."""

    before: str
    trigger: str
    after: str
    stimulus_id: str = ""

    def __str__(self) -> str:
        cause_text = f" ({self.stimulus_id})" if self.stimulus_id else ""
        return f"{self.before} -> {self.after} by {self.trigger}{cause_text}"


Transitions = tuple[Transition, ...]
"""The transitions of one step, or the last ones of an object, oldest first."""


def append_transitions(recent_transitions: Transitions, new_transitions: Transitions) -> Transitions:
    """Appends transitions, and drops all but the last :data:`MAX_RECENT_TRANSITIONS`."""
    return (*recent_transitions, *new_transitions)[-MAX_RECENT_TRANSITIONS:]


class TransitionHistories:
    """Remembers the recent transitions of the objects that were changed last, of at most ``limit`` objects."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._paths: OrderedDict[Hashable, Transitions] = OrderedDict()

    def of(self, key: Hashable) -> Transitions:
        return self._paths.get(key, ())

    def extend(self, key: Hashable, new_transitions: Transitions) -> None:
        self._paths[key] = append_transitions(self._paths.pop(key, ()), new_transitions)
        if len(self._paths) > self._limit:
            self._paths.popitem(last=False)


class InvalidTransition(Conflict):
    """Raised when the present state of an object does not permit a request.

    The other attributes describe the object, the pair without a row, the cause of the request and the object's recent
    transitions.
    """

    def __init__(
        self,
        message: str,
        *,
        subject: str = "",
        state: str = "",
        trigger: str = "",
        stimulus_id: str = "",
        recent_transitions: Transitions = (),
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, data={"status": state, **(data or {})})
        self.subject = subject
        self.state = state
        self.trigger = trigger
        self.stimulus_id = stimulus_id
        self.recent_transitions = recent_transitions

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = {
            name: getattr(self, name)
            for name in ("subject", "state", "trigger", "stimulus_id", "recent_transitions", "data")
        }
        return _rebuild, (self.message, attributes)

    def explain(self) -> str:
        """Formats the refused request, its cause and the object's recent transitions for a log."""
        cause_text = f" ({self.stimulus_id})" if self.stimulus_id else ""
        transitions_text = "; ".join(map(str, self.recent_transitions)) or "no transitions are remembered"
        return f"{self.subject} is {self.state} and does not admit {self.trigger}{cause_text}: {transitions_text}"


def _rebuild(message: str, attributes: Mapping[str, Any]) -> InvalidTransition:
    return InvalidTransition(message, **attributes)


def find_row(
    table: Mapping[Any, Mapping[Any, Row]],
    requests: Collection[str],
    state: str,
    trigger: str,
    *,
    message: str,
    subject: str,
    stimulus_id: str,
    recent_transitions: Transitions,
    data: Mapping[str, Any] | None = None,
) -> Row | None:
    """Returns the row of a state and a trigger. Returns None if there is no row, because the trigger is late or
    repeated.

    Raises:
        InvalidTransition: one of the ``requests`` has no row. The other arguments describe the error.
    """
    row = table[state].get(trigger)
    if row is None and trigger in requests:
        raise InvalidTransition(
            message,
            subject=subject,
            state=state,
            trigger=trigger,
            stimulus_id=stimulus_id,
            recent_transitions=recent_transitions,
            data=data,
        )
    return row
