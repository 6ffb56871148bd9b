"""Commands about sessions that exist: info, rm, restart, rename, interrupt, complete, status-history, commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import describe_api_error, fetch_slot_displays, run_in_event_loop
from ai.backend.cli.framework.lazy import LeafCommand, Outcome, screen_of
from ai.backend.cli.framework.references import find_id, is_short_id
from ai.backend.cli.framework.values import SlotDisplays, describe_slots, parse_if_json, readable_time
from ai.backend.cli.session.ps import DEAD_STATUSES, PAGE_SIZE

if TYPE_CHECKING:
    from ai.backend.client.exceptions import BackendAPIError
    from ai.backend.client.func.session import AsyncComputeSession
    from ai.backend.client.session import AsyncSession

INFO_FIELDS = (
    "name", "id", "type", "status", "status_info", "status_data", "result", "image", "tag", "domain_name", "group_name",
    "user_email", "access_key", "scaling_group", "agent_ids", "cluster_mode", "cluster_size", "runtime_class",
    "occupying_slots", "variant_requirements", "device_requests", "plugin_options", "claim", "resource_opts", "mounts",
    "startup_command", "service_ports", "created_at", "status_changed", "terminated_at", "status_history",
)  # fmt: skip
CONTAINER_FIELDS = (
    "id", "cluster_hostname", "cluster_role", "cluster_idx", "local_rank", "status", "status_data", "agent",
    "container_id", "occupied_slots", "attached_devices", "live_stat", "last_stat",
)  # fmt: skip
_JSON_FIELDS = frozenset({"occupying_slots", "plugin_options", "resource_opts", "service_ports"})

owner_option = click.option("--owner", metavar="ACCESS_KEY", help="Whose session it is; for administrators.")


async def find_session(api: AsyncSession, reference: str, owner: str | None) -> AsyncComputeSession:
    """Returns the session that has a name or id, or whose name or id begins with the given text.

    A session that has ended is also found by a beginning of its id.

    Raises click.ClickException if several sessions that have ended have such ids.
    """
    from ai.backend.client.exceptions import BackendAPIError

    session = api.ComputeSession(reference, owner)
    if not is_short_id(reference):
        return session
    try:
        await session.resolve_id()
    except BackendAPIError as error:
        if error.status != 404:
            raise
        dead_sessions = await api.ComputeSession.paginated_list(
            DEAD_STATUSES, owner, fields=("id", "name"), filter=f'id ilike "{reference}%"', page_size=PAGE_SIZE
        )
        return api.ComputeSession(find_id(reference, dead_sessions.items, kind="session"), owner)
    return session


@click.command(cls=LeafCommand)
@click.argument("session")
@owner_option
async def info(api: AsyncSession, session: str, owner: str | None) -> None:
    """Show the details of SESSION: a name, an id, or a beginning of either."""
    from ai.backend.client.exceptions import BackendClientError

    screen = screen_of()
    found_session = await find_session(api, session, owner)
    detail = await found_session.detail((*INFO_FIELDS, f"containers {{ {' '.join(CONTAINER_FIELDS)} }}"))
    if detail is None:
        raise BackendClientError(f"the session {session} is not visible in the list of sessions")
    if screen.is_json:
        screen.print_json({name: parse_if_json(value) for name, value in detail.items()})
    else:
        screen.print_facts(describe_info(detail, await fetch_slot_displays(api)))


def describe_info(session: Mapping[str, Any], displays: SlotDisplays) -> Iterator[tuple[str, Any]]:
    """Yields the facts of a session that are not empty, the most interesting first."""
    from ai.backend.cli.session import progress

    titles_by_field = {
        "id": "session id",
        "agent_ids": "agents",
        "scaling_group": "resource group",
        "access_key": "owner",
    }
    for name in INFO_FIELDS:
        value = parse_if_json(session.get(name)) if name in _JSON_FIELDS else session.get(name)
        if name in {"status_data", "status_info", "status_history"} or value in (None, "", [], {}):
            continue
        if name in {"occupying_slots", "resource_opts"}:
            value = describe_slots(value, displays)
        elif name == "service_ports":
            value = [port.get("name") for port in value]
        yield titles_by_field.get(name, name.replace("_", " ")), value
    containers = session.get("containers") or ()
    texts_by_field = {
        "why": progress.status_reason(session),
        "devices": progress.describe_devices(containers),
        "failed devices": progress.describe_failures(session.get("status_data")),
        "plugins": progress.describe_hook_failures(containers),
        "usage": progress.describe_usage(containers),
        "life cycle": progress.describe_history(parse_if_json(session.get("status_history")) or {}),
    }
    yield from ((name, text) for name, text in texts_by_field.items() if text)
    if len(containers) > 1:
        for kernel in containers:
            yield (
                str(kernel.get("cluster_hostname")),
                f"{kernel.get('status')} {progress.describe_devices([kernel])}".strip(),
            )


async def _for_each_session(
    api: AsyncSession,
    sessions: tuple[str, ...],
    owner: str | None,
    past_verb: str,
    action: Callable[[AsyncComputeSession], Awaitable[Any]],
) -> int:
    """Applies ``action`` to several sessions at once, and prints failures. Returns 1 if any failed, else 0."""
    from ai.backend.client.exceptions import BackendAPIError, BackendError

    screen = screen_of()

    async def run_action(api: AsyncSession, name: str) -> dict[str, Any]:
        try:
            action_reply = await action(api.ComputeSession(name, owner))
        except BackendError as error:
            error_text = describe_api_error(error) if isinstance(error, BackendAPIError) else str(error)
            if not screen.is_json:
                screen.error(f"{name}: {error_text}")
            return {"session": name, "ok": False, "error": error_text}
        status = str(action_reply.get("status") or "").lower() if isinstance(action_reply, Mapping) else ""
        screen.print_line(f"{name}: {'cancelled' if status == 'cancelled' else past_verb}")
        return {"session": name, "ok": True, **({"result": action_reply} if action_reply else {})}

    names = list(dict.fromkeys(sessions))
    if len(names) == 1:
        results = [await run_action(api, names[0])]
    else:

        async def run_actions(api: AsyncSession) -> list[dict[str, Any]]:
            import asyncio

            return await asyncio.gather(*(run_action(api, name) for name in names))

        results = await run_in_event_loop(api, run_actions)
    if screen.is_json:
        screen.print_json(results)
    return 0 if all(result["ok"] for result in results) else 1


@click.command(cls=LeafCommand)
@click.argument("sessions", nargs=-1, required=True)
@click.option("-f", "--forced", is_flag=True, help="Do not wait for a graceful end.")
@click.option("--recursive", is_flag=True, help="Also the sessions that depend on it.")
@click.option("-s", "--stats", is_flag=True, help="Show what the session used.")
@owner_option
async def rm(
    api: AsyncSession, sessions: tuple[str, ...], forced: bool, recursive: bool, stats: bool, owner: str | None
) -> int:
    """Terminate SESSIONS (names or ids), or all elements of arrays. Pending sessions are cancelled."""
    from ai.backend.client.exceptions import BackendAPIError

    async def destroy(session: AsyncComputeSession) -> dict[str, Any]:
        from ai.backend.cli.session.progress import describe_stats

        try:
            destroy_reply = await session.destroy(forced=forced, recursive=recursive)
        except BackendAPIError as error:
            # The name of an array is the beginning of the names of its elements.
            if error.status != 404 and error.code != "too-many-sessions-matched":
                raise
            return await _cancel_array(api, session.name, owner, forced=forced, error=error)
        if stats:
            screen_of().print_line(f"{session.name}: {describe_stats(destroy_reply.get('stats') or {})}")
        return destroy_reply

    return await _for_each_session(api, sessions, owner, "terminated", destroy)


async def _cancel_array(
    api: AsyncSession, name: str, owner: str | None, *, forced: bool, error: BackendAPIError
) -> dict[str, Any]:
    """Ends the job array that has the given name. Raises the given ``error`` if the server refuses that.

    It is called for a name that no session has, and the usual refusal is that no array has it either.
    """
    from ai.backend.client.exceptions import BackendAPIError

    try:
        return await api.SessionArray(name, owner).cancel(forced=forced)
    except BackendAPIError:
        raise error from None


@click.command(cls=LeafCommand)
@click.argument("sessions", nargs=-1, required=True)
@owner_option
async def restart(api: AsyncSession, sessions: tuple[str, ...], owner: str | None) -> int:
    """Restart SESSIONS in place: same devices, same home, fresh processes."""
    return await _for_each_session(api, sessions, owner, "restarted", lambda session: session.restart())


@click.command(cls=LeafCommand)
@click.argument("session")
@click.argument("new_name")
@owner_option
async def rename(api: AsyncSession, session: str, new_name: str, owner: str | None) -> int:
    """Give SESSION the name NEW_NAME."""
    return await _for_each_session(api, (session,), owner, f"is now {new_name}", lambda handle: handle.rename(new_name))


@click.command(cls=LeafCommand)
@click.argument("session")
@owner_option
async def interrupt(api: AsyncSession, session: str, owner: str | None) -> int:
    """Interrupt the code that SESSION runs, as Ctrl-C would."""
    return await _for_each_session(api, (session,), owner, "interrupted", lambda handle: handle.interrupt())


@click.command(cls=LeafCommand)
@click.argument("session")
@click.argument("code")
@owner_option
async def complete(api: AsyncSession, session: str, code: str, owner: str | None) -> Outcome:
    """Print completions of CODE in SESSION."""
    completions = await api.ComputeSession(session, owner).complete(code)
    return completions, "\n".join(completions)


@click.command("status-history", cls=LeafCommand)
@click.argument("session")
@owner_option
async def status_history(api: AsyncSession, session: str, owner: str | None) -> None:
    """Show the time at which SESSION last entered each status, in order."""
    screen = screen_of()
    history = await (await find_session(api, session, owner)).status_history()
    entries = [(entered_at, status) for status, entered_at in history.items() if entered_at]
    sorted_entries = sorted(entries, key=lambda entry: entry[0])  # statuses of one moment stay in their order
    if screen.is_json:
        screen.print_json({status: entered_at for entered_at, status in sorted_entries})
    else:
        screen.print_facts(
            (status.upper(), readable_time(entered_at, timespec="milliseconds"))
            for entered_at, status in sorted_entries
        )


@click.command("commit", cls=LeafCommand)
@click.argument("session")
@click.option("--image", "name", default=None, help="Push an image with NAME in its tag instead, which only you use.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is done.")
async def commit(api: AsyncSession, session: str, name: str | None, no_wait: bool) -> Outcome:
    """Keep the root file system of SESSION. Its home and folders are not a part of it."""
    from ai.backend.cli.framework.objects import follow_to_end

    compute_session = api.ComputeSession(session)
    commit_reply = await (compute_session.imagify(name) if name else compute_session.commit())
    if no_wait:
        return commit_reply, f"{session} becomes {commit_reply['path']} (background task {commit_reply['bgtask_id']})"
    return await follow_to_end(api, commit_reply["bgtask_id"], name="the commit")
