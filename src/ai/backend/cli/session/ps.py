"""`backend.ai ps` and its long name `backend.ai admin session list` (spec 03-11, "Listing sessions")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import fetch_slot_displays, run_and_exit
from ai.backend.cli.framework.lazy import ListCommand, screen_of
from ai.backend.cli.framework.output import Column, Screen
from ai.backend.cli.framework.values import (
    SlotDisplays,
    describe_slots,
    format_cell,
    parse_if_json,
    relative_time,
    shorten_id,
)

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

ACTIVE_STATUSES = (
    "PENDING", "SCHEDULED", "PREPARING", "PULLING", "PREPARED", "CREATING", "RUNNING", "RUNNING_DEGRADED", "RESTARTING",
    "TERMINATING", "RESIZING", "SUSPENDED", "ERROR",
)  # fmt: skip
"""The spec's default set, with the statuses between its PENDING and PREPARING."""
RUNNING_STATUSES = ("CREATING", "PULLING", "RUNNING", "RUNNING_DEGRADED")
DEAD_STATUSES = ("CANCELLED", "TERMINATED")

_HEADINGS = {
    "id": "Session ID", "access_key": "Owner", "main_kernel_id": "Main Kernel ID", "group_name": "Project/Group",
    "status_changed": "Last Updated", "domain_name": "Domain", "group_id": "Project/Group ID", "agent_ids": "Agents",
    "user_email": "User", "user_id": "User ID", "resource_opts": "Resource Options", "scaling_group": "Resource Group",
}  # fmt: skip
FIELDS = {
    name: _HEADINGS.get(name, name.replace("_", " ").title())
    for name in (
        "id", "name", "access_key", "main_kernel_id", "group_name", "image", "type", "status", "status_info",
        "status_changed", "result", "tag", "created_at", "occupying_slots", "registry", "cluster_template",
        "cluster_mode", "cluster_size", "domain_name", "group_id", "agent_ids", "user_email", "user_id",
        "terminated_at", "starts_at", "scheduled_at", "startup_command", "variant_requirements", "device_requests",
        "plugin_options", "claim", "resource_opts", "scaling_group", "service_ports", "mounts", "dependencies",
        "abusing_reports", "idle_checks",
    )
}  # fmt: skip
"""Field of a session -> heading of its column."""
_GRAPHQL_SELECTIONS = {"dependencies": "dependencies { name id }"}
_FIELD_ALIASES = {"session_id": "id", "project": "group_name", "group": "group_name"}

DEFAULT_FIELDS = (
    "name", "access_key", "id", "group_name", "main_kernel_id", "image", "type", "status", "status_info",
    "status_changed", "result", "claim",
)  # fmt: skip
CONSOLE_FIELDS = ("name", "id", "image", "status", "status_info", "status_changed")
DEAD_FIELDS = ("name", "id", "image", "status", "result", "status_changed")
ROOMY_FIELDS = ("claim", "type", "group_name", "access_key", "main_kernel_id")
"""Fields that are shown where the terminal has room (docs/decisions/0033)."""
DETAIL_FIELDS = (
    "name", "id", "group_name", "main_kernel_id", "image", "type", "status", "status_info", "status_changed", "result",
    "tag", "created_at", "occupying_slots", "claim",
)  # fmt: skip
PAGE_SIZE = 20
LIMIT = 10


def image_name(image: Any) -> str:
    """Returns an image without its registry and project."""
    return format_cell(image).rpartition("/")[2]


_SHORTENERS = {
    **dict.fromkeys(("id", "main_kernel_id", "group_id", "user_id"), shorten_id),
    **dict.fromkeys(("status_changed", "created_at", "terminated_at", "starts_at", "scheduled_at"), relative_time),
    "image": image_name,
}
_NARROW_HEADINGS = {
    "id": "ID", "status_info": "Reason", "status_changed": "Changed", "group_name": "Project",
    "main_kernel_id": "Main Kernel",
}  # fmt: skip


def columns_of(fields: Sequence[str], *, is_wide: bool, roomy_fields: Sequence[str] = ()) -> list[Column]:
    """Returns the table columns for fields of sessions. Columns of ``roomy_fields`` are shown only if there is room."""
    headings = FIELDS if is_wide else {**FIELDS, **_NARROW_HEADINGS}
    return [Column(name, headings[name], _SHORTENERS.get(name), is_roomy=name in roomy_fields) for name in fields]


def parse_format(text: str) -> tuple[str, ...]:
    """Parses the fields of ``--format``.

    Raises click.BadParameter if one is unknown; the message names those that exist.
    """
    names = tuple(_FIELD_ALIASES.get(name.strip(), name.strip()) for name in text.split(",") if name.strip())
    for name in names:
        if name not in FIELDS:
            raise click.BadParameter(
                f"there is no field {name!r}; there are {', '.join(FIELDS)}", param_hint="--format"
            )
    if not names:
        raise click.BadParameter("name at least one field", param_hint="--format")
    return tuple(dict.fromkeys(names))


async def fetch_sessions(
    api: AsyncSession,
    statuses: Sequence[str],
    fields: Sequence[str],
    *,
    limit: int | None,
    offset: int,
    **filters: Any,
) -> tuple[list[dict[str, Any]], int]:
    """Returns at most ``limit`` sessions from ``offset`` on, or all of them, and the total number of sessions."""
    sessions: list[dict[str, Any]] = []
    selections = [_GRAPHQL_SELECTIONS.get(name, name) for name in fields]
    while True:
        page_size = PAGE_SIZE if limit is None else min(PAGE_SIZE, limit - len(sessions))
        page = await api.ComputeSession.paginated_list(
            statuses, fields=selections, page_offset=offset + len(sessions), page_size=page_size, **filters
        )
        sessions += page.items
        if (
            not page.items
            or offset + len(sessions) >= page.total_count
            or (limit is not None and len(sessions) >= limit)
        ):
            return sessions, page.total_count


def describe_slot_fields(session: Mapping[str, Any], displays: SlotDisplays) -> dict[str, str]:
    """Formats the slot amounts of a session (``occupying_slots``, ``resource_opts``) as readable text by field."""
    slots_by_field = {field: parse_if_json(session.get(field)) for field in ("occupying_slots", "resource_opts")}
    return {
        field: describe_slots(slots, displays) for field, slots in slots_by_field.items() if isinstance(slots, Mapping)
    }


def _choose_fields(screen: Screen, *, format_: str | None, is_detailed: bool, is_dead: bool) -> Sequence[str]:
    """Returns the names of the session fields to print, as the options of the command say.

    With ``--format``, the table has its full width.
    """
    if format_:
        screen.is_wide = True
        return parse_format(format_)
    if is_detailed:
        return DETAIL_FIELDS
    if screen.is_json or screen.is_wide:
        return DEFAULT_FIELDS
    return (*(DEAD_FIELDS if is_dead else CONSOLE_FIELDS), *ROOMY_FIELDS)


def _make_list_command(name: str) -> click.Command:
    @click.command(name, cls=ListCommand)
    @click.option("-s", "--status", metavar="STATUSES", help="Statuses, separated by commas.  [default: all but dead]")
    @click.option("--running", is_flag=True, help="Only CREATING, PULLING and RUNNING.")
    @click.option("--dead", is_flag=True, help="Only CANCELLED and TERMINATED.")
    @click.option("--name-only", is_flag=True, help="Print names only.")
    @click.option("--detail", is_flag=True, help="Print more fields, a block for each session.")
    @click.option("-f", "--format", "format_", metavar="FIELDS", help="Print these fields, separated by commas.")
    @click.option("--all", "all_", is_flag=True, help="Print all pages, not the first 10 sessions.")
    @click.option("--limit", type=click.IntRange(1, 1000), default=LIMIT, show_default=True, help="How many at most.")
    @click.option("--offset", type=click.IntRange(0), default=0, help="How many to skip.")
    @click.option("--filter", "filter", metavar="EXPR", help='Such as: name ilike "a%" & status == "RUNNING".')
    @click.option("--order", metavar="FIELDS", help="Such as -created_at.  [default: last changed first]")
    @click.option("--array", "array", metavar="NAME", help="The elements of an array, each for itself.")
    @click.option("--access-key", help="Another user's sessions; for administrators.")
    def listing(
        status: str | None, running: bool, dead: bool, name_only: bool, detail: bool, format_: str | None, all_: bool,
        limit: int, offset: int, order: str | None, array: str | None, **filters: Any,
    ) -> None:  # fmt: skip
        """List sessions, the latest change of status first.

        Without options all but the dead: PENDING to TERMINATING, and ERROR. Every command takes an ID as it is shown,
        or any other beginning that no other session has. Arrays are shown in one line each; with options that select
        sessions, so are their elements.
        """
        if sum((bool(status), running, dead)) > 1:
            raise click.UsageError("give one of --status, --running and --dead")
        if sum((bool(format_), name_only, detail)) > 1:
            raise click.UsageError("give one of --format, --name-only and --detail")
        screen = screen_of()
        statuses: Sequence[str] = RUNNING_STATUSES if running else DEAD_STATUSES if dead else ACTIVE_STATUSES
        if status:
            statuses = [status_name.strip().upper() for status_name in status.split(",") if status_name.strip()]
        fields = ("name",) if name_only else _choose_fields(screen, format_=format_, is_detailed=detail, is_dead=dead)
        is_folded = not (status or running or dead or array or filters["filter"] or filters["access_key"])
        order = order or ("array_index" if array else "-status_changed")
        filters |= {"limit": None if all_ else limit, "offset": offset, "order": order}
        if is_folded:
            filters["filter"] = "array_id == null"
        elif array and not (status or running or dead):
            statuses = (*ACTIVE_STATUSES, *DEAD_STATUSES)

        async def print_sessions(api: AsyncSession) -> None:
            arrays = (await api.SessionArray.list(live=True))["items"] if is_folded else []
            if array:
                array_id = (await api.SessionArray(array, filters["access_key"]).info())["id"]
                own_filter = f'array_id == "{array_id}"'
                filters["filter"] = f"({filters['filter']}) & {own_filter}" if filters["filter"] else own_filter
            items, total_count = await fetch_sessions(api, statuses, fields, **filters)
            if screen.is_json:
                array_fields = {"arrays": arrays} if arrays else {}
                screen.print_json({"count": len(items), "total_count": total_count, "items": items, **array_fields})
                return
            if arrays and not name_only:
                from ai.backend.cli.array.group import ARRAY_COLUMNS, array_row

                screen.print_table(map(array_row, arrays), ARRAY_COLUMNS)
                if not items:
                    return
                screen.print_line("")
            if name_only:
                for item in items:
                    screen.print_line(str(item["name"]))
            elif not items:
                screen.print_line("There are no sessions here. `backend.ai start python` starts one.")
            else:
                displays = await fetch_slot_displays(api) if "occupying_slots" in fields else {}
                rows = [{**item, **describe_slot_fields(item, displays)} for item in items]
                shows_own_only = all(item.get("access_key") == api.config.access_key for item in items)
                omitted_fields = {name for name, is_omitted in (
                    ("access_key", shows_own_only and not screen.is_wide),
                    ("claim", not format_ and not any(item.get("claim") for item in items)),
                ) if is_omitted}  # fmt: skip
                shown_fields = [name for name in fields if name not in omitted_fields]
                columns = columns_of(shown_fields, is_wide=screen.is_wide, roomy_fields=ROOMY_FIELDS)
                (screen.print_blocks if detail else screen.print_table)(rows, columns)
                if total_count > offset + len(items):
                    screen.inform(f"{total_count - offset - len(items)} more: use --all")

        run_and_exit(screen, print_sessions)

    return listing


ps = _make_list_command("ps")
session_list = _make_list_command("list")
