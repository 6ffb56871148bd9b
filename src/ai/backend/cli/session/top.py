"""`top`: what the processes of a session use now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import ListCommand, screen_of
from ai.backend.cli.framework.output import Column, columns
from ai.backend.cli.framework.values import cell, readable_metric
from ai.backend.cli.session.commands import owner_option

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_FIRST = ("cpu_util", "mem", "cpu_used")
_COMMAND_LENGTH = 30


def _shortened(command: Any) -> str:
    text = cell(command)
    return text if len(text) <= _COMMAND_LENGTH else text[: _COMMAND_LENGTH - 1] + "…"


@click.command(cls=ListCommand)
@click.argument("session")
@owner_option
async def top(api: AsyncSession, session: str, owner: str | None) -> None:
    """Show the busiest processes of SESSION, at most 20 of each kernel, and what they use now."""
    screen = screen_of()
    processes = await api.ComputeSession(session, owner).processes()
    if screen.is_json:
        screen.json(processes)
        return
    metrics = {key for process in processes for key in process["metrics"]}
    keys = [*(key for key in _FIRST if key in metrics), *sorted(metrics.difference(_FIRST))]
    rows = [{**process, **{key: readable_metric(process["metrics"].get(key)) for key in keys}} for process in processes]
    usage = [Column(key, key, is_number=True) for key in keys]
    screen.table(rows, [*columns("kernel | pid: Process"), *usage, Column("command", "Command", _shortened)])
