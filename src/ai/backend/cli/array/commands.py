"""`backend.ai submit` and the commands of `backend.ai array`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.array.group import ARRAY_COLUMNS, array, array_row, describe_counts
from ai.backend.cli.framework.lazy import LeafCommand, ListCommand, Outcome, screen_of
from ai.backend.cli.framework.values import readable_time
from ai.backend.cli.session.commands import owner_option
from ai.backend.cli.session.options import create_options_of, creation_options, random_name

if TYPE_CHECKING:
    from ai.backend.client.func.array import AsyncSessionArray
    from ai.backend.client.session import AsyncSession

_FIRST_POLL_S, _LAST_POLL_S = 0.1, 2.0
_LIMIT = 20
_wait_options = click.option(
    "--max-wait", type=click.FloatRange(0), default=0, metavar="SECONDS", help="Wait no longer."
)


@click.command(cls=LeafCommand)
@click.argument("image")
@click.argument("command")
@click.option("-a", "--array", "indices", metavar="INDICES", help="1-1000, 0-99:5 or 1,3,7-9; with %N, N at a time.")
@click.option("--batch-timeout", metavar="TIME", help="End each program after seconds, or 30m, 2h, 1d.")
@click.option("--wait", is_flag=True, help="With --array: wait for the end; exit with 1 if an element has failed.")
@_wait_options
@creation_options
async def submit(
    api: AsyncSession, image: str, command: str, indices: str | None, wait: bool, max_wait: float, **options: Any
) -> Outcome:
    """Enqueue COMMAND as a batch session of IMAGE, or with --array as many at once.

    Element I of an array is the session NAME-I, and finds I in BACKENDAI_ARRAY_INDEX.

    \b
      backend.ai submit -t sweep --array 1-1000%50 python 'python train.py $BACKENDAI_ARRAY_INDEX'
    """
    screen = screen_of()
    create_options = create_options_of({**options, "startup_command": command, "type_": "batch"})
    if indices is None:
        if wait:
            raise click.UsageError("--wait is for arrays: `backend.ai watch SESSION` waits for one session")
        session = await api.ComputeSession.get_or_create(image, **create_options | {"enqueue_only": True})
        document = {"id": str(session.id), "name": session.name, "status": session.status}
        return document, f"session {session.name} ({session.id}) is {session.status or 'queued'}"
    array_handle = await api.SessionArray.create(
        image, indices, **create_options | {"name": options["name"] or random_name()}
    )
    if wait:
        return await _wait_for_array(api, array_handle, max_wait)
    array_info = await array_handle.info()
    screen.inform(f"next: backend.ai ps --array {array_info['name']} | backend.ai array wait {array_info['name']}")
    return array_info, f"array {array_info['name']} ({array_info['id']}) of {array_info['size']} sessions is queued"


@array.command("list", cls=ListCommand)
@click.option("--all", "all_", is_flag=True, help="Also those whose elements have all ended.")
@click.option("--limit", type=click.IntRange(1, 1000), default=_LIMIT, show_default=True, help="How many at most.")
@click.option("--offset", type=click.IntRange(0), default=0, help="How many to skip.")
@owner_option
async def list_(api: AsyncSession, all_: bool, limit: int, offset: int, owner: str | None) -> None:
    """List arrays, the newest first."""
    page = await api.SessionArray.list(live=not all_, limit=limit, offset=offset, owner_access_key=owner)
    empty_hint = "There are no arrays here. `backend.ai submit --array 1-10 IMAGE COMMAND` enqueues one."
    screen_of().print_rows(page["items"], ARRAY_COLUMNS, empty_hint, describe=array_row)


@array.command("info")
@click.argument("name")
@owner_option
async def info(api: AsyncSession, name: str, owner: str | None) -> None:
    """Show the array NAME, a name or an id."""
    screen = screen_of()
    detail = await api.SessionArray(name, owner).info()
    if screen.is_json:
        screen.print_json(detail)
        return
    screen.print_facts(
        (
            ("name", detail["name"]),
            ("array id", detail["id"]),
            ("status", detail["status"]),
            ("elements", f"{detail['size']}: {describe_counts(detail['counts'])}"),
            ("at a time", detail["maxParallel"] or "all"),
            ("image", detail["image"]),
            ("created at", readable_time(detail["createdAt"])),
        )
    )


@array.command("cancel")
@click.argument("name")
@click.option("-f", "--forced", is_flag=True, help="Do not wait for a graceful end.")
@owner_option
async def cancel(api: AsyncSession, name: str, forced: bool, owner: str | None) -> Outcome:
    """End all elements of the array NAME that live."""
    detail = await api.SessionArray(name, owner).cancel(forced=forced)
    return detail, f"{detail['name']}: {describe_counts(detail['counts'])}"


@array.command("retry")
@click.argument("name")
@owner_option
async def retry(api: AsyncSession, name: str, owner: str | None) -> Outcome:
    """Enqueue the elements of the array NAME that have ended without success again."""
    reply = await api.SessionArray(name, owner).retry()
    return reply, f"{reply['array']['name']}: {reply['retried']} elements are queued again"


@array.command("wait")
@click.argument("name")
@_wait_options
@owner_option
async def wait(api: AsyncSession, name: str, max_wait: float, owner: str | None) -> Outcome:
    """Wait until all elements of the array NAME have ended.

    Exits with 1 if one has failed, and with 124 where --max-wait ran out.
    """
    return await _wait_for_array(api, api.SessionArray(name, owner), max_wait)


async def _wait_for_array(api: AsyncSession, array_handle: AsyncSessionArray, max_wait: float) -> int:
    from ai.backend.client.func.array import LIVE_STATUSES

    screen, pause_s, printed_text = screen_of(), _FIRST_POLL_S, ""
    deadline = time.monotonic() + max_wait
    while True:
        detail = await array_handle.info()
        progress_text = f"{detail['name']}: {describe_counts(detail['counts'])}"
        if detail["status"] not in LIVE_STATUSES:
            screen.print_result(detail, progress_text)
            return 0 if detail["status"] == "SUCCESS" else 1
        if progress_text != printed_text:
            screen.inform(progress_text)
            printed_text, pause_s = progress_text, _FIRST_POLL_S
        if max_wait and time.monotonic() >= deadline:
            screen.error(f"{detail['name']} has not ended within {max_wait:g} s", code="timeout")
            return 124
        await api.transport.pause(pause_s)
        pause_s = min(_LAST_POLL_S, pause_s * 1.5)
