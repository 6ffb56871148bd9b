"""`backend.ai service usage`: what tokens used at endpoints."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ai.backend.cli.framework.lazy import ListCommand, screen_of
from ai.backend.cli.framework.output import columns
from ai.backend.cli.service.plots import draw_usage

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_COLUMNS = columns(
    "group/plain: For | requests/number | errors/number | prompt_tokens/number: Prompt | cached_tokens/number: Cached"
    " | output_tokens/number: Output | busy_s/number: Busy s"
    " | tokens_per_s/number: Tokens/s"
)
_SECONDS_PER_DAY = 86_400
_GROUPINGS = ("endpoint", "token", "user", "project", "revision", "replica", "hour", "day")


@click.command("usage", cls=ListCommand)
@click.argument("name", required=False)
@click.option("--by", type=click.Choice(_GROUPINGS), help="Sum up by it.  [default: endpoint; day with NAME]")
@click.option("--days", type=click.IntRange(1, 400), default=30, show_default=True, help="How far back.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw it into a file, such as a PNG.",
)
async def usage(api: AsyncSession, name: str | None, by: str | None, days: int, plot: Path | None) -> None:
    """Show what tokens used at the service NAME, or at all services that you see."""
    since_s = int(time.time()) - days * _SECONDS_PER_DAY
    if name is None:
        report = await api.Service.usage(by=by or "endpoint", since=since_s)
    else:
        report = await api.Service(name).usage(by=by or "day", since=since_s)
    screen = screen_of()
    if plot is not None:
        draw_usage(report, plot, title=f"{name or 'services'}, {days} days")
        screen.inform(f"{plot} is drawn")
    if screen.is_json:
        screen.print_json(report)
        return
    usage_groups = [{**group, "group": group["name"] or group["key"] or "-"} for group in report["groups"]]
    if len(usage_groups) > 1:
        usage_groups.append({**report["total"], "group": "all"})
    screen.print_rows(usage_groups, _COLUMNS, "Nothing was used in that time.")
