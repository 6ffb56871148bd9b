"""Following a session: events, watch."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import LeafCommand, screen_of
from ai.backend.cli.framework.values import escape_control_characters, format_cell
from ai.backend.cli.session.commands import find_session, owner_option
from ai.backend.cli.session.logs import GrowingLog

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_ENDING_EVENTS = frozenset({"session_terminated", "session_cancelled", "kernel_cancelled"})


@click.command(cls=LeafCommand, needs_loop=True)
@click.argument("session")
@click.option("--scope", type=click.Choice(["*", "session", "kernel"]), default="*", show_default=True)
@click.option("--follow", is_flag=True, help="Go on after the session has ended.")
@owner_option
async def events(api: AsyncSession, session: str, scope: str, follow: bool, owner: str | None) -> None:
    """Print the events of SESSION as they happen, until it ends; `*` is all sessions.

    Events before "Listening" is printed (to stderr, with the status of SESSION) are not shown.

    With --output json every event is one JSON document on a line of its own.
    """
    screen = screen_of()
    compute_session = api.ComputeSession(session, owner)
    status = (await compute_session.detail(("status",)) or {}).get("status") if session != "*" else None
    subject_text = (
        escape_control_characters(session)
        if status is None
        else f"{escape_control_characters(session)}, which is {status}"
    )

    def say_listening() -> None:
        print(f"Listening to {subject_text}; Ctrl-C ends that.", file=sys.stderr, flush=True)

    async for event in compute_session.events(scope, opened=say_listening):
        if screen.is_json:
            print(json.dumps({"event": event.name, "data": event.data}), flush=True)
        else:
            event_texts = [
                f"{subject_text}={value}"
                for subject_text, value in event.data.items()
                if value not in (None, "", {}, [])
            ]
            print(format_cell(f"{event.name} {' '.join(event_texts)}"), flush=True)
        if event.name in _ENDING_EVENTS and session != "*" and not follow:
            return


@click.command(cls=LeafCommand, needs_loop=True)
@click.argument("session")
@click.option("--max-wait", type=click.FloatRange(0), default=0, metavar="SECONDS", help="Give up after that time.")
@click.option("-l", "--log", "with_log", is_flag=True, help="Print its console log meanwhile.")
@owner_option
async def watch(api: AsyncSession, session: str, max_wait: float, with_log: bool, owner: str | None) -> int:
    """Wait until SESSION ends.

    Exits as its program did: with its exit code, or 1 for any failure; with 124 where --max-wait ran out.
    """
    try:
        async with asyncio.timeout(max_wait or None):
            return await _print_statuses(api, session, owner, with_log=with_log and not screen_of().is_json)
    except TimeoutError:
        screen_of().error(f"{session} has not ended within {max_wait:g} s", code="timeout")
        return 124


async def _print_statuses(api: AsyncSession, session: str, owner: str | None, *, with_log: bool) -> int:
    """Prints each new status of a session until the session ends, and its log on request. Returns the exit code."""
    from ai.backend.cli.session.progress import FINAL_STATUSES

    screen = screen_of()
    found_session = await find_session(api, session, owner)
    await found_session.resolve_id()
    event_stream = found_session.events("session")
    next_event = asyncio.ensure_future(anext(event_stream, None))
    growing_log = GrowingLog(found_session)
    last_status = ""
    try:
        while True:
            detail = await found_session.detail(("status", "result", "containers { cluster_role exit_code }")) or {}
            if detail.get("status") != last_status:
                last_status = str(detail.get("status"))
                screen.inform(last_status)
            if with_log:
                await growing_log.print_new()
            if last_status in FINAL_STATUSES:
                exit_code, result = _exit_code(detail), detail.get("result")
                document = {"session": session, "status": last_status, "result": result, "exit_code": exit_code}
                screen.print_result(document, f"{session}: {last_status}, {result or 'no result'}")
                return exit_code or (0 if last_status == "TERMINATED" and result != "FAILURE" else 1)
            await asyncio.wait({next_event}, timeout=2.0)
            if next_event.done():
                if next_event.result() is not None:
                    next_event = asyncio.ensure_future(anext(event_stream, None))
                else:
                    await asyncio.sleep(0.5)
    finally:
        next_event.cancel()


def _exit_code(session: Mapping[str, Any]) -> int | None:
    """Returns the exit code of a batch session's program; None if it had none or did not end by itself."""
    if session.get("result") not in ("SUCCESS", "FAILURE"):
        return None
    containers: list[Mapping[str, Any]] = session.get("containers") or []
    main_kernel: Mapping[str, Any] = next((kernel for kernel in containers if kernel.get("cluster_role") == "main"), {})
    program_code = main_kernel.get("exit_code")
    return int(program_code) if program_code is not None else None
