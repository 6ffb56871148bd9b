"""`backend.ai logs`: the console log of a session, also while it grows."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import click

from ai.backend.cli.framework.lazy import LeafCommand, screen_of
from ai.backend.cli.framework.values import keep_colours
from ai.backend.cli.session.commands import find_session, owner_option

if TYPE_CHECKING:
    from ai.backend.client.func.session import AsyncComputeSession
    from ai.backend.client.session import AsyncSession

_POLL_S = 1.0
_OVERLAP_LENGTH = 4096


def new_log_text(printed_log: str, log: str) -> str:
    """Returns the text that a log has beyond ``printed_log``, an earlier state that may begin with older lines.

    Returns the whole log if it no longer contains the end of ``printed_log``.
    """
    if log.startswith(printed_log):
        return log[len(printed_log) :]
    printed_tail = printed_log[-_OVERLAP_LENGTH:]
    _, overlap, new_text = log.partition(printed_tail)
    return new_text if overlap else log


def _format_log(log: str) -> str:
    """Returns a session's log for printing. On a terminal, control characters are removed, but colours stay.

    The session of somebody else must not control the reader's terminal.
    """
    return keep_colours(log) if sys.stdout.isatty() else log


class GrowingLog:
    """Prints the console log of a session piece by piece."""

    def __init__(self, session: AsyncComputeSession, kernel: str | None = None) -> None:
        self._session = session
        self._kernel = kernel
        self._printed = ""

    async def print_new(self) -> None:
        """Prints the text that was added to the log since the last call."""
        log = await self._session.get_logs(self._kernel)
        sys.stdout.write(_format_log(new_log_text(self._printed, log)))
        sys.stdout.flush()
        self._printed = log


@click.command(cls=LeafCommand)
@click.argument("session")
@click.option("--kernel", metavar="HOST", help="Of this kernel, such as sub1.  [default: main1]")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is printed until the session ends.")
@owner_option
async def logs(api: AsyncSession, session: str, kernel: str | None, follow: bool, owner: str | None) -> None:
    """Print the console log of SESSION."""
    screen = screen_of()
    compute_session = await find_session(api, session, owner)
    if follow:
        if screen.is_json:
            raise click.UsageError("--follow prints text: it cannot go with --output json")
        await _follow_log(compute_session, kernel, api.transport.pause)
        return
    log_text = await compute_session.get_logs(kernel)
    if screen.is_json:
        screen.print_json({"session": session, "logs": log_text})
    elif log_text:
        click.echo(_format_log(log_text), nl=not log_text.endswith("\n"))
    else:
        screen.inform(f"{session} has printed nothing since it was started")


async def _follow_log(
    session: AsyncComputeSession, kernel: str | None, pause: Callable[[float], Awaitable[None]]
) -> None:
    from ai.backend.cli.session.progress import FINAL_STATUSES

    growing_log = GrowingLog(session, kernel)
    while True:
        status = (await session.detail(("status",)) or {}).get("status")
        await growing_log.print_new()
        if status in FINAL_STATUSES:
            return
        await pause(_POLL_S)
