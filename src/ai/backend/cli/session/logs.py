"""`backend.ai logs`: the console log of a session, also while it grows."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from ai.backend.cli.framework.lazy import Leaf, screen_of
from ai.backend.cli.framework.values import coloured
from ai.backend.cli.session.commands import find_session, owner_option

if TYPE_CHECKING:
    from ai.backend.client.func.session import AsyncComputeSession
    from ai.backend.client.session import AsyncSession

_POLL_S = 1.0
_OVERLAP_LENGTH = 4096


def new_part(printed: str, log: str) -> str:
    """Returns what a log has beyond ``printed``, the log as it was; its oldest lines may be gone meanwhile."""
    if log.startswith(printed):
        return log[len(printed) :]
    tail = printed[-_OVERLAP_LENGTH:]
    _, overlap, rest = log.partition(tail)
    return rest if overlap else log


def _shown(log: str) -> str:
    """Returns a log as it is printed: the session of somebody else must not control the reader's terminal."""
    return coloured(log) if sys.stdout.isatty() else log


class GrowingLog:
    """Prints the console log of a session piece by piece."""

    def __init__(self, session: AsyncComputeSession, kernel: str | None = None) -> None:
        self._session = session
        self._kernel = kernel
        self._printed = ""

    async def print_new(self) -> None:
        """Prints what the log has more than at the last call."""
        log = await self._session.get_logs(self._kernel)
        sys.stdout.write(_shown(new_part(self._printed, log)))
        sys.stdout.flush()
        self._printed = log


@click.command(cls=Leaf)
@click.argument("session")
@click.option("--kernel", metavar="HOST", help="Of this kernel, such as sub1.  [default: main1]")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is printed until the session ends.")
@owner_option
async def logs(api: AsyncSession, session: str, kernel: str | None, follow: bool, owner: str | None) -> None:
    """Print the console log of SESSION."""
    screen = screen_of()
    handle = await find_session(api, session, owner)
    if follow:
        if screen.is_json:
            raise click.UsageError("--follow prints text: it cannot go with --output json")
        await _follow(handle, kernel, api.transport.pause)
        return
    log_text = await handle.get_logs(kernel)
    if screen.is_json:
        screen.json({"session": session, "logs": log_text})
    elif log_text:
        click.echo(_shown(log_text), nl=not log_text.endswith("\n"))
    else:
        screen.inform(f"{session} has printed nothing since it was started")


async def _follow(session: AsyncComputeSession, kernel: str | None, pause: Callable[[float], Awaitable[None]]) -> None:
    from ai.backend.cli.session.progress import FINAL_STATUSES

    log = GrowingLog(session, kernel)
    while True:
        status = (await session.detail(("status",)) or {}).get("status")
        await log.print_new()
        if status in FINAL_STATUSES:
            return
        await pause(_POLL_S)
