"""`backend.ai ps` and its long name `backend.ai admin session list` (spec 03-11, "Listing sessions")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.calling import call, slot_displays
from ai.backend.cli.lazy import Leaf, screen_of
from ai.backend.cli.output import SlotDisplays, decoded, describe_slots

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

ACTIVE = (
    "PENDING", "SCHEDULED", "PREPARING", "PULLING", "PREPARED", "CREATING", "RUNNING", "RUNNING_DEGRADED", "RESTARTING",
    "TERMINATING", "RESIZING", "SUSPENDED", "ERROR",
)  # fmt: skip
"""The spec's default set, with the statuses between its PENDING and PREPARING."""
RUNNING = ("CREATING", "PULLING", "RUNNING", "RUNNING_DEGRADED")
DEAD = ("CANCELLED", "TERMINATED")

FIELDS = {
    "id": "Session ID",
    "name": "Name",
    "access_key": "Owner",
    "main_kernel_id": "Main Kernel ID",
    "group_name": "Project/Group",
    "image": "Image",
    "type": "Type",
    "status": "Status",
    "status_info": "Status Info",
    "status_changed": "Last Updated",
    "result": "Result",
    "tag": "Tag",
    "created_at": "Created At",
    "occupying_slots": "Occupying Slots",
    "registry": "Registry",
    "cluster_template": "Cluster Template",
    "cluster_mode": "Cluster Mode",
    "cluster_size": "Cluster Size",
    "domain_name": "Domain",
    "group_id": "Project/Group ID",
    "agent_ids": "Agents",
    "user_email": "User",
    "user_id": "User ID",
    "terminated_at": "Terminated At",
    "starts_at": "Starts At",
    "scheduled_at": "Scheduled At",
    "startup_command": "Startup Command",
    "variant_requirements": "Variant Requirements",
    "resource_opts": "Resource Options",
    "scaling_group": "Resource Group",
    "service_ports": "Service Ports",
    "mounts": "Mounts",
    "dependencies": "Dependencies",
    "abusing_reports": "Abusing Reports",
    "idle_checks": "Idle Checks",
}
_SELECTIONS = {"dependencies": "dependencies { name id }"}
_ALIASES = {"session_id": "id", "project": "group_name", "group": "group_name"}

DEFAULT_FIELDS = (
    "name", "access_key", "id", "group_name", "main_kernel_id", "image", "type", "status", "status_info",
    "status_changed", "result",
)  # fmt: skip
CONSOLE_FIELDS = ("name", "id", "image", "type", "status", "status_info", "status_changed", "result")
DETAIL_FIELDS = (
    "name", "id", "group_name", "main_kernel_id", "image", "type", "status", "status_info", "status_changed", "result",
    "tag", "created_at", "occupying_slots",
)  # fmt: skip
PAGE = 20
FIRST = 10


def parse_format(text: str) -> tuple[str, ...]:
    """The fields of ``--format``.

    Raises:
        click.BadParameter: one is unknown; the message names those that are known.
    """
    names = tuple(_ALIASES.get(name.strip(), name.strip()) for name in text.split(",") if name.strip())
    for name in names:
        if name not in FIELDS:
            raise click.BadParameter(
                f"there is no field {name!r}; known are {', '.join(FIELDS)}", param_hint="--format"
            )
    if not names:
        raise click.BadParameter("name at least one field", param_hint="--format")
    return tuple(dict.fromkeys(names))


async def fetch(
    api: AsyncSession,
    statuses: Sequence[str],
    fields: Sequence[str],
    *,
    limit: int | None,
    offset: int,
    **narrowed: Any,
) -> tuple[list[dict[str, Any]], int]:
    """Sessions from ``offset`` on, ``limit`` of them or all; and how many there are."""
    items: list[dict[str, Any]] = []
    selected = [_SELECTIONS.get(name, name) for name in fields]
    while True:
        size = PAGE if limit is None else min(PAGE, limit - len(items))
        page = await api.ComputeSession.paginated_list(
            statuses, fields=selected, page_offset=offset + len(items), page_size=size, **narrowed
        )
        items += page.items
        if not page.items or offset + len(items) >= page.total_count or (limit is not None and len(items) >= limit):
            return items, page.total_count


def described_slots(item: Mapping[str, Any], displays: SlotDisplays) -> dict[str, str]:
    """The fields that are JSON texts of amounts, in words."""
    found = {name: decoded(item.get(name)) for name in ("occupying_slots", "resource_opts")}
    return {name: describe_slots(slots, displays) for name, slots in found.items() if isinstance(slots, Mapping)}


def _list(name: str) -> click.Command:
    @click.command(name, cls=Leaf)
    @click.option("-s", "--status", metavar="STATUSES", help="Statuses, separated by commas.  [default: all but dead]")
    @click.option("--running", is_flag=True, help="Only CREATING, PULLING and RUNNING.")
    @click.option("--dead", is_flag=True, help="Only CANCELLED and TERMINATED.")
    @click.option("--name-only", is_flag=True, help="Print names only.")
    @click.option("--detail", is_flag=True, help="Print more fields.")
    @click.option("-f", "--format", "format_", metavar="FIELDS", help="Print these fields, separated by commas.")
    @click.option("--all", "all_", is_flag=True, help="Print all pages, not the first 10 sessions.")
    @click.option("--limit", type=click.IntRange(1, 1000), default=FIRST, show_default=True, help="How many at most.")
    @click.option("--offset", type=click.IntRange(0), default=0, help="How many to skip.")
    @click.option("--filter", "filter_", metavar="EXPR", help='Such as: name ilike "a%" & status == "RUNNING".')
    @click.option("--order", metavar="FIELDS", help="Such as -created_at.  [default: last changed first]")
    @click.option("--access-key", help="Another user's sessions; for administrators.")
    def listing(
        status: str | None, running: bool, dead: bool, name_only: bool, detail: bool, format_: str | None, all_: bool,
        limit: int, offset: int, filter_: str | None, order: str | None, access_key: str | None,
    ) -> None:  # fmt: skip
        """List sessions, those whose status changed last first.

        Without options all but the dead: PENDING to TERMINATING, and ERROR.
        """
        if sum((bool(status), running, dead)) > 1:
            raise click.UsageError("give one of --status, --running and --dead")
        if sum((bool(format_), name_only, detail)) > 1:
            raise click.UsageError("give one of --format, --name-only and --detail")
        screen = screen_of()
        statuses: Sequence[str] = RUNNING if running else DEAD if dead else ACTIVE
        if status:
            statuses = [part.strip().upper() for part in status.split(",") if part.strip()]
        fields: Sequence[str] = CONSOLE_FIELDS if not screen.is_json else DEFAULT_FIELDS
        if name_only:
            fields = ("name",)
        elif detail:
            fields = DETAIL_FIELDS
        elif format_:
            fields = parse_format(format_)

        async def work(api: AsyncSession) -> None:
            items, total = await fetch(
                api, statuses, fields, limit=None if all_ else limit, offset=offset, access_key=access_key,
                filter=filter_, order=order or "-status_changed",
            )  # fmt: skip
            if screen.is_json:
                screen.json({"count": len(items), "total_count": total, "items": items})
            elif name_only:
                for item in items:
                    screen.say(str(item["name"]))
            elif not items:
                screen.say("There are no sessions here. `backend.ai start python` starts one.")
            else:
                displays = await slot_displays(api) if "occupying_slots" in fields else {}
                rows = [{**item, **described_slots(item, displays)} for item in items]
                screen.table(rows, [(name, FIELDS[name]) for name in fields])
                if total > offset + len(items):
                    screen.note(f"{total - offset - len(items)} more: use --all")

        call(screen, work)

    return listing


ps = _list("ps")
session_list = _list("list")
