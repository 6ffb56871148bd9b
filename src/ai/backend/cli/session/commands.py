"""Commands about sessions that exist: info, logs, rm, restart, rename, interrupt, complete, status-history."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ai.backend.cli.framework.invoke import call, describe_api_error, slot_displays
from ai.backend.cli.framework.lazy import Leaf, screen_of
from ai.backend.cli.framework.references import find_id, is_short_id
from ai.backend.cli.framework.values import SlotDisplays, decoded, describe_slots, readable_time
from ai.backend.cli.session.ps import DEAD, PAGE

if TYPE_CHECKING:
    from ai.backend.client.func.session import AsyncComputeSession
    from ai.backend.client.session import AsyncSession

F = TypeVar("F", bound=Callable[..., Any])

INFO_FIELDS = (
    "name", "id", "type", "status", "status_info", "status_data", "result", "image", "tag", "domain_name", "group_name",
    "user_email", "access_key", "scaling_group", "agent_ids", "cluster_mode", "cluster_size", "runtime_class",
    "occupying_slots",
    "variant_requirements", "resource_opts", "mounts", "startup_command", "service_ports", "created_at",
    "status_changed", "terminated_at", "status_history",
)  # fmt: skip
CONTAINER_FIELDS = (
    "id", "cluster_hostname", "cluster_role", "cluster_idx", "local_rank", "status", "status_data", "agent",
    "container_id", "occupied_slots", "attached_devices",
)  # fmt: skip
_ENCODED = frozenset({"occupying_slots", "resource_opts", "service_ports"})

owner_option = click.option("--owner", metavar="ACCESS_KEY", help="Whose session it is; for administrators.")


async def find_session(api: AsyncSession, reference: str, owner: str | None) -> AsyncComputeSession:
    """Return the session of a name, an id or a beginning of either; one that has ended by a beginning of its id too.

    Raises:
        click.ClickException: several sessions that have ended have such ids.
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
        page = await api.ComputeSession.paginated_list(
            DEAD, owner, fields=("id", "name"), filter=f'id ilike "{reference}%"', page_size=PAGE
        )
        return api.ComputeSession(find_id(reference, page.items, kind="session"), owner)
    return session


@click.command(cls=Leaf)
@click.argument("session")
@owner_option
def info(session: str, owner: str | None) -> None:
    """Show the details of SESSION: a name, an id, or a beginning of either."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        from ai.backend.client.exceptions import BackendClientError

        handle = await find_session(api, session, owner)
        await handle.resolve_id()
        detail = await handle.detail((*INFO_FIELDS, f"containers {{ {' '.join(CONTAINER_FIELDS)} }}"))
        if detail is None:
            raise BackendClientError(f"the session {session} is not visible in the list of sessions")
        if screen.is_json:
            screen.json({name: decoded(value) for name, value in detail.items()})
        else:
            screen.facts(describe_info(detail, await slot_displays(api)))

    call(screen, work)


def describe_info(session: Mapping[str, Any], displays: SlotDisplays) -> Iterator[tuple[str, Any]]:
    """Yield the facts of a session that are not empty, the most interesting first."""
    from ai.backend.cli.session.progress import (
        describe_devices,
        describe_failures,
        describe_history,
        describe_troubles,
        reason,
    )

    titles = {"id": "session id", "agent_ids": "agents", "scaling_group": "resource group", "access_key": "owner"}
    for name in INFO_FIELDS:
        value = decoded(session.get(name)) if name in _ENCODED else session.get(name)
        if name in {"status_data", "status_info", "status_history"} or value in (None, "", [], {}):
            continue
        if name in {"occupying_slots", "resource_opts"}:
            value = describe_slots(value, displays)
        elif name == "service_ports":
            value = [port.get("name") for port in value]
        yield titles.get(name, name.replace("_", " ")), value
    containers = session.get("containers") or ()
    more = {
        "why": reason(session),
        "devices": describe_devices(containers),
        "failed devices": describe_failures(session.get("status_data")),
        "plugins": describe_troubles(containers),
        "life cycle": describe_history(decoded(session.get("status_history")) or {}),
    }
    yield from ((name, text) for name, text in more.items() if text)
    if len(containers) > 1:
        for one in containers:
            yield str(one.get("cluster_hostname")), f"{one.get('status')} {describe_devices([one])}".strip()


@click.command(cls=Leaf)
@click.argument("session")
@click.option("--kernel", metavar="HOST", help="Of this kernel, such as sub1.  [default: main1]")
@owner_option
def logs(session: str, kernel: str | None, owner: str | None) -> None:
    """Print the console log of SESSION."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        text = await (await find_session(api, session, owner)).get_logs(kernel)
        if screen.is_json:
            screen.json({"session": session, "logs": text})
        elif text:
            click.echo(text, nl=not text.endswith("\n"))
        else:
            screen.inform(f"{session} has printed nothing since it was started")

    call(screen, work)


def _for_each(
    sessions: tuple[str, ...],
    owner: str | None,
    done: str,
    action: Callable[[AsyncComputeSession], Any],
) -> None:
    """Do something with several sessions at once; each failure is printed, and makes the exit code 1."""
    screen = screen_of()

    async def work(api: AsyncSession) -> int:
        import asyncio

        from ai.backend.client.exceptions import BackendAPIError, BackendError

        async def one(name: str) -> dict[str, Any]:
            try:
                answer = await action(api.ComputeSession(name, owner))
            except BackendError as error:
                text = describe_api_error(error) if isinstance(error, BackendAPIError) else str(error)
                if not screen.is_json:
                    screen.error(f"{name}: {text}")
                return {"session": name, "ok": False, "error": text}
            ended = str(answer.get("status") or "").lower() if isinstance(answer, Mapping) else ""
            screen.say(f"{name}: {'cancelled' if ended == 'cancelled' else done}")
            return {"session": name, "ok": True, **({"result": answer} if answer else {})}

        results = await asyncio.gather(*(one(name) for name in dict.fromkeys(sessions)))
        if screen.is_json:
            screen.json(results)
        return 0 if all(result["ok"] for result in results) else 1

    call(screen, work)


@click.command(cls=Leaf)
@click.argument("sessions", nargs=-1, required=True)
@click.option("-f", "--forced", is_flag=True, help="Do not wait for a graceful end.")
@click.option("--recursive", is_flag=True, help="Also the sessions that depend on it.")
@click.option("-s", "--stats", is_flag=True, help="Show what the session used.")
@owner_option
def rm(sessions: tuple[str, ...], forced: bool, recursive: bool, stats: bool, owner: str | None) -> None:
    """Terminate SESSIONS (names or ids). Pending ones are cancelled."""
    screen = screen_of()

    async def destroy(session: AsyncComputeSession) -> dict[str, Any]:
        from ai.backend.cli.session.progress import describe_stats

        answer = await session.destroy(forced=forced, recursive=recursive)
        if stats:
            screen.say(f"{session.name}: {describe_stats(answer.get('stats') or {})}")
        return answer

    _for_each(sessions, owner, "terminated", destroy)


@click.command(cls=Leaf)
@click.argument("sessions", nargs=-1, required=True)
@owner_option
def restart(sessions: tuple[str, ...], owner: str | None) -> None:
    """Restart SESSIONS in place: same devices, same home, fresh processes."""
    _for_each(sessions, owner, "restarted", lambda session: session.restart())


@click.command(cls=Leaf)
@click.argument("session")
@click.argument("new_name")
@owner_option
def rename(session: str, new_name: str, owner: str | None) -> None:
    """Give SESSION the name NEW_NAME."""
    _for_each((session,), owner, f"is now {new_name}", lambda handle: handle.rename(new_name))


@click.command(cls=Leaf)
@click.argument("session")
@owner_option
def interrupt(session: str, owner: str | None) -> None:
    """Interrupt the code that SESSION runs, as Ctrl-C would."""
    _for_each((session,), owner, "interrupted", lambda handle: handle.interrupt())


@click.command(cls=Leaf)
@click.argument("session")
@click.argument("code")
@owner_option
def complete(session: str, code: str, owner: str | None) -> None:
    """Print how CODE could go on in SESSION."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        matches = await api.ComputeSession(session, owner).complete(code)
        if screen.is_json:
            screen.json(matches)
        for match in matches:
            screen.say(match)

    call(screen, work)


@click.command("status-history", cls=Leaf)
@click.argument("session")
@owner_option
def status_history(session: str, owner: str | None) -> None:
    """Show when SESSION came to each of its statuses last, in that order."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        history = await (await find_session(api, session, owner)).status_history()
        times = sorted((when, name) for name, when in history.items() if when)
        if screen.is_json:
            screen.json({name: when for when, name in times})
        else:
            screen.facts((name.upper(), readable_time(when, timespec="milliseconds")) for when, name in times)

    call(screen, work)
