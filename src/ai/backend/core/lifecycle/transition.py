"""Interprets transition tables, and builds the path of a step, the story of an object and the error of a refused
request.

Every machine has one literal table, ``state -> trigger -> row``, and :func:`find_row` reads all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Hashable, Mapping
from typing import Any, NamedTuple, TypeVar

from ai.backend.common.errors import Conflict

Row = TypeVar("Row")
STORY_LENGTH = 16
"""The number of transitions in the story of an object."""


class Transition(NamedTuple):
    """Describes one change of state. ``stimulus_id`` names its cause: a request, an agent's report, a loop's round."""

    before: str
    trigger: str
    after: str
    stimulus_id: str = ""

    def __str__(self) -> str:
        cause = f" ({self.stimulus_id})" if self.stimulus_id else ""
        return f"{self.before} -> {self.after} by {self.trigger}{cause}"


Path = tuple[Transition, ...]
"""The transitions of one step, or the last ones of an object, oldest first."""


def extend_story(story: Path, path: Path) -> Path:
    """Appends a path to a story, and drops transitions beyond the last :data:`STORY_LENGTH`."""
    return (*story, *path)[-STORY_LENGTH:]


class TransitionHistories:
    """Remembers the recent transitions of the objects that this owner changed last."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._paths: OrderedDict[Hashable, Path] = OrderedDict()

    def of(self, key: Hashable) -> Path:
        return self._paths.get(key, ())

    def extend(self, key: Hashable, path: Path) -> None:
        self._paths[key] = extend_story(self._paths.pop(key, ()), path)
        if len(self._paths) > self._limit:
            self._paths.popitem(last=False)


class InvalidTransition(Conflict):
    """Raised when the present state of an object does not permit a request.

    The other attributes describe the object, the pair without a row, the cause of the request and the object's story.
    """

    def __init__(
        self,
        message: str,
        *,
        subject: str = "",
        state: str = "",
        trigger: str = "",
        stimulus_id: str = "",
        story: Path = (),
        data: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, data={"status": state, **(data or {})})
        self.subject = subject
        self.state = state
        self.trigger = trigger
        self.stimulus_id = stimulus_id
        self.story = story

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in ("subject", "state", "trigger", "stimulus_id", "story", "data")}
        return _rebuild, (self.message, values)

    def explain(self) -> str:
        """Formats the whole story for a log."""
        cause = f" ({self.stimulus_id})" if self.stimulus_id else ""
        story = "; ".join(map(str, self.story)) or "no transitions are remembered"
        return f"{self.subject} is {self.state} and does not admit {self.trigger}{cause}: {story}"


def _rebuild(message: str, values: Mapping[str, Any]) -> InvalidTransition:
    return InvalidTransition(message, **values)


def find_row(
    table: Mapping[Any, Mapping[Any, Row]],
    requests: Collection[str],
    state: str,
    trigger: str,
    *,
    message: str,
    subject: str,
    stimulus_id: str,
    story: Path,
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
            message, subject=subject, state=state, trigger=trigger, stimulus_id=stimulus_id, story=story, data=data
        )
    return row
