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

_LEADING = ("cpu_util", "mem", "cpu_used")
_COMMAND_LENGTH = 30


def _shortened(command: Any) -> str:
    command_text = cell(command)
    return command_text if len(command_text) <= _COMMAND_LENGTH else command_text[: _COMMAND_LENGTH - 1] + "…"


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
    metrics = {metric for process in processes for metric in process["metrics"]}
    ordered = [*(metric for metric in _LEADING if metric in metrics), *sorted(metrics.difference(_LEADING))]
    rows = [
        {**process, **{metric: readable_metric(process["metrics"].get(metric)) for metric in ordered}}
        for process in processes
    ]
    usage = [Column(metric, metric, is_number=True) for metric in ordered]
    screen.table(rows, [*columns("kernel | pid: Process"), *usage, Column("command", "Command", _shortened)])
