"""Declares checks, and runs each check on a new plugin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ai.backend.common.errors import BackendError
from ai.backend.plugin.tracebacks import description_of

if TYPE_CHECKING:
    from ai.backend.plugin.testing.accelerator.checks.subject import Subject

    Run = Callable[[Subject], Awaitable[None]]


class CheckFailed(AssertionError):
    """Raised when the plugin breaks a promise. The message names the promise and the values that show it."""


class NotApplicable(Exception):
    """Raised when the plugin lacks the power that a check needs. The message begins with ``capability:``."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"capability: {reason}")


def format_value(value: object, limit: int = 120) -> str:
    """Formats any value for the message of a failed check, cut to a limit of characters."""
    value_text = repr(value)
    return value_text if len(value_text) <= limit else f"{value_text[:limit]}..."


@dataclass(frozen=True, slots=True)
class Check:
    """Describes one check of an accelerator plugin.

    Attributes:
        name: of the function; its test has ``test_`` in front.
        proves: one sentence; ``source``: where it is promised.
        power: the capability flag that it belongs to.
        is_basic: the others mean nothing where it fails.
        needs_start: whether ``init`` was called before it.
        changes_devices: whether devices are cut, reset or switched off.
    """

    name: str
    proves: str
    source: str
    run: Run
    power: str | None = None
    is_basic: bool = False
    needs_start: bool = True
    changes_devices: bool = False


class Checks(list[Check]):
    """Holds the checks of one module in order."""

    def add(self, source: str, **check_fields: Any) -> Callable[[Run], Run]:
        """Registers a function as a check. Its docstring says what the check proves."""

        def register(run: Run) -> Run:
            proves = " ".join((run.__doc__ or "").split())
            self.append(Check(name=run.__name__, proves=proves, source=source, run=run, **check_fields))
            return run

        return register


def expect(condition: object, problem: str) -> None:
    """Asserts a condition, also under ``python -O``. Raises CheckFailed unless the condition holds."""
    if not condition:
        raise CheckFailed(problem)


class Result(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The plugin does not claim it."""
    NOT_RUN = "not run"
    """A check that it depends on has failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    check: str
    result: Result
    reason: str = ""


async def run_check(check: Check, subject: Subject) -> None:
    """Runs a check, between ``init`` and ``cleanup`` if the check needs an initialised plugin.

    Raises CheckFailed, NotApplicable, or a BackendError of the plugin that the check did not expect.
    """
    if check.power is not None and not getattr(subject.plugin.capabilities, check.power):
        raise NotApplicable(f"the plugin is not {check.power}")
    if check.changes_devices and not subject.may_alter:
        raise NotApplicable("this would alter devices, which is not allowed here")
    if check.needs_start:
        await subject.call("init")
    try:
        await check.run(subject)
    finally:
        if check.needs_start:
            await subject.end_workloads()
            await subject.call("cleanup")


async def outcome_of(check: Check, make_subject: Callable[[], Awaitable[Subject]]) -> Outcome:
    """Runs a check on a new plugin and returns its outcome."""
    try:
        await run_check(check, await make_subject())
    except NotApplicable as e:
        return Outcome(check.name, Result.SKIPPED, str(e))
    except CheckFailed as e:
        return Outcome(check.name, Result.FAILED, str(e))
    except BackendError as e:
        return Outcome(check.name, Result.FAILED, e.message)
    except (Exception, SystemExit) as e:  # noqa: BLE001  # whatever a plugin raises is the result
        return Outcome(check.name, Result.FAILED, description_of(e))
    return Outcome(check.name, Result.PASSED)


async def run_all(
    checks: Sequence[Check],
    make_subject: Callable[[], Awaitable[Subject]],
    *,
    on_begun: Callable[[Check], None] = lambda _: None,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Runs checks in their order, each on a new plugin, and reports their beginnings and outcomes.

    After a basic check has failed, the checks that need a started plugin are not run.
    """
    outcomes: list[Outcome] = []
    for check in checks:
        on_begun(check)
        failed_check = next((outcome.check for outcome in outcomes if outcome.result is Result.FAILED), None)
        is_basic_failure = failed_check is not None and any(
            check.name == failed_check and check.is_basic for check in checks
        )
        outcome = (
            Outcome(check.name, Result.NOT_RUN, f"{failed_check} has failed")
            if is_basic_failure and check.needs_start
            else await outcome_of(check, make_subject)
        )
        outcomes.append(outcome)
        on_outcome(outcome)
    return outcomes
