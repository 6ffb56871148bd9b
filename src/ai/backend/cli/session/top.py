"""`top`: what the processes of a session use now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import ListCommand, screen_of
from ai.backend.cli.framework.output import Column, columns
from ai.backend.cli.framework.values import format_cell, readable_metric
from ai.backend.cli.session.commands import owner_option
from ai.backend.cli.session.progress import describe_usage

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_HEADINGS = {"cpu_util": "CPU", "mem": "Memory", "cpu_used": "CPU Time"}
_USAGE_FIELDS = ("cluster_hostname", "live_stat", "last_stat")
_COMMAND_LENGTH = 34
_SANDBOX_PROGRAMS = frozenset({"bwrap"})
"""Programs that stand around every workload and are none of the user's."""


def short_command(command: Any) -> str:
    """Returns a command line without the folders of its words, cut at a length that fits a table."""
    command_text = " ".join(word.rpartition("/")[2] or word for word in format_cell(command).split())
    return command_text if len(command_text) <= _COMMAND_LENGTH else command_text[: _COMMAND_LENGTH - 1] + "…"


def _is_of_user(process: Mapping[str, Any]) -> bool:
    return short_command(process.get("command")).partition(" ")[0] not in _SANDBOX_PROGRAMS


@click.command(cls=ListCommand)
@click.argument("session")
@owner_option
async def top(api: AsyncSession, session: str, owner: str | None) -> None:
    """Show the busiest processes of SESSION, at most 20 of each kernel, and what they use now.

    Below them what the kernels use in all, their devices too. With --wide all metrics, whole command lines, and the
    programs of the sandbox.
    """
    screen = screen_of()
    found_session = api.ComputeSession(session, owner)
    processes = await found_session.processes()
    if screen.is_json:
        screen.print_json(processes)
        return
    if not screen.is_wide:
        processes = [process for process in processes if _is_of_user(process)]
    metric_names = {metric for process in processes for metric in process["metrics"]}
    ordered_metrics = [
        *(metric for metric in _HEADINGS if metric in metric_names),
        *sorted(metric_names.difference(_HEADINGS)),
    ]
    rows = [
        {**process, **{metric: readable_metric(process["metrics"].get(metric)) for metric in ordered_metrics}}
        for process in processes
    ]
    metric_columns = [
        Column(metric, _HEADINGS.get(metric, metric), format_cell, is_number=True, is_wide=metric not in _HEADINGS)
        for metric in ordered_metrics
    ]
    screen.print_table(
        rows,
        [
            *columns("kernel/plain | pid/plain/number: PID"),
            *metric_columns,
            Column("command", "Command", short_command),
        ],
    )
    detail = await found_session.detail([f"containers {{ {' '.join(_USAGE_FIELDS)} }}"]) or {}
    if total_usage := describe_usage(detail.get("containers") or ()):
        screen.print_line(f"\nin all: {total_usage}")
