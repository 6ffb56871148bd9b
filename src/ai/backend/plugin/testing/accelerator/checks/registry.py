"""How a check is written down."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ai.backend.plugin.testing.accelerator.checks.results import CheckFailed

if TYPE_CHECKING:
    from ai.backend.plugin.testing.accelerator.checks.subject import Subject

    Run = Callable[[Subject], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """Describes one check.

    Attributes:
        name: of the function; ``test_`` and it is the test's.
        proves: one sentence.
        source: where it is promised.
        run: the check itself.
        power: the capability flag that it belongs to.
        is_basic: the others mean nothing where it fails.
        starts: whether ``init`` was called before it.
        alters: whether devices are altered for good, or everybody's: cut, reset, switched off.
    """

    name: str
    proves: str
    source: str
    run: Run
    power: str | None = None
    is_basic: bool = False
    starts: bool = True
    alters: bool = False


class Checks(list[Check]):
    """The checks of one module, in order."""

    def add(self, source: str, **facts: Any) -> Callable[[Run], Run]:
        """Note a function as a check; its docstring is what it proves."""

        def register(run: Run) -> Run:
            proves = " ".join((run.__doc__ or "").split())
            self.append(Check(name=run.__name__, proves=proves, source=source, run=run, **facts))
            return run

        return register


def expect(condition: object, problem: str) -> None:
    """Raises CheckFailed unless the condition holds. It holds also under ``python -O``."""
    if not condition:
        raise CheckFailed(problem)
