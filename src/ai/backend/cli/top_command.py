"""`top`: what the processes of a session use now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.calling import call
from ai.backend.cli.lazy import Leaf, screen_of
from ai.backend.cli.session_commands import owner_option

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_FIRST = ("cpu_util", "mem", "cpu_used")
_UNITS = {"percent": "%", "pct": "%", "msec": " ms", "celsius": " C", "watt": " W", "bps": "/s", "count": ""}


@click.command(cls=Leaf)
@click.argument("session")
@owner_option
def top(session: str, owner: str | None) -> None:
    """Show the busiest processes of SESSION, at most 20 of each kernel, and what they use now."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.ComputeSession(session, owner).processes()
        if screen.is_json:
            screen.json(found)
            return
        told = {key for row in found for key in row["metrics"]}
        keys = [*(key for key in _FIRST if key in told), *sorted(told.difference(_FIRST))]
        rows = [{**row, **{k: shown(row["metrics"].get(k)) for k in keys}, "command": row["command"]} for row in found]
        screen.table(rows, [("kernel", "Kernel"), ("pid", "Process"), *((k, k) for k in keys), ("command", "Command")])

    call(screen, work)


def shown(metric: Mapping[str, Any] | None) -> str:
    """A metric's current value with its unit, short enough for a table."""
    if metric is None:
        return "-"
    value, unit = float(metric["current"]), metric["unit_hint"]
    if unit in {"bytes", "bps"}:
        for prefix in ("", "Ki", "Mi", "Gi"):
            if value < 1024 or prefix == "Gi":
                return f"{value:.4g} {prefix}B{_UNITS.get(unit, '')}"
            value /= 1024
    return f"{value:.4g}{_UNITS.get(unit, ' ' + unit)}"
