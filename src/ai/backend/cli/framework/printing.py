"""Prints what most commands end with: a result, a list, or the progress of a background task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ai.backend.cli.framework.output import Column, Screen

if TYPE_CHECKING:
    from uuid import UUID

    from ai.backend.client.func.bgtask import Progress
    from ai.backend.client.session import AsyncSession


def print_result(screen: Screen, value: Any, text: str) -> None:
    """Print a document in JSON mode, otherwise the text, if there is any."""
    if screen.is_json:
        screen.json(value)
    elif text:
        screen.say(text)


Row = Mapping[str, Any]


def print_rows(
    screen: Screen,
    rows: Sequence[Row],
    columns: Sequence[Column],
    empty: str,
    *,
    describe: Callable[[dict[str, Any]], Row] | None = None,
) -> None:
    """Print a list in JSON mode, otherwise a table, or the note ``empty`` where there are no rows.

    ``describe`` makes a row of the table of an object.
    """
    if screen.is_json:
        screen.json(list(rows))
    elif rows:
        screen.table([describe(dict(row)) for row in rows] if describe else rows, columns)
    else:
        screen.inform(empty)


def _describe_step(step: Progress) -> str:
    return f"{int(step.current)}/{int(step.total)} {step.message or ''}".strip()


async def follow_task(
    api: AsyncSession,
    screen: Screen,
    task_id: UUID | str,
    *,
    name: str,
    on_step: Callable[[Progress], None] | None = None,
    describe: Callable[[Progress], str] = _describe_step,
) -> str:
    """Wait for the end of a background task and return its last message.

    The command fails if the task does. Every step is given to ``on_step``, or printed by ``describe``.
    """
    printed = ""
    async for step in api.BackgroundTask(task_id).progress():
        if step.is_final:
            if step.state != "done":
                outcome = "failed" if step.state == "failed" else f"was {step.state}"
                screen.fail(f"{name} {outcome}: {step.message}")
            return step.message or ""
        if on_step is not None:
            on_step(step)
        elif (text := describe(step)) != printed:
            screen.inform(text)
            printed = text
    return ""
