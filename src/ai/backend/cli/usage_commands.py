"""`backend.ai admin resource`: what there is, and what was used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.administering import list_them
from ai.backend.cli.calling import call
from ai.backend.cli.lazy import Leaf, screen_of
from ai.backend.cli.output import Screen, readable_amount

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_CONTAINERS = (
    ("name", "Session"), ("email", "User"), ("image_name", "Image"), ("smp", "Cores"), ("mem_allocated", "Memory"),
    ("device_type", "Devices"), ("cpu_used", "CPU Used (s)"), ("started_at", "From"), ("terminated_at", "To"),
)  # fmt: skip


@click.command("vfolder-types", cls=Leaf)
def vfolder_types() -> None:
    """Show who may own virtual folders."""

    async def load(api: AsyncSession) -> list[dict[str, Any]]:
        return [{"type": name} for name in await api.Resource.get_vfolder_types()]

    list_them(load, [("type", "Owner")], "no folders are kept here")


@click.command("docker-registries", cls=Leaf)
def docker_registries() -> None:
    """List registries of images."""

    async def load(api: AsyncSession) -> list[dict[str, Any]]:
        return [{"name": name, "url": url} for name, url in (await api.Resource.get_docker_registries()).items()]

    list_them(load, [("name", "Name"), ("url", "URL")], "there are no registries")


@click.command("recalculate-usage", cls=Leaf)
def recalculate_usage() -> None:
    """Count again what sessions hold, and compare it with the records of the agents."""
    screen = screen_of()

    async def work(api: AsyncSession) -> int:
        found = await api.Resource.recalculate_usage()
        drift = found.get("drift") or {}
        if screen.is_json:
            screen.json(found)
        elif drift:
            screen.table(
                [{"agent": agent, **told} for agent, told in drift.items()],
                [("agent", "Agent"), ("recorded", "Recorded"), ("counted", "Counted")],
            )
        else:
            screen.say("The records are right.")
        return 1 if drift else 0

    call(screen, work)


@click.command("usage-per-month", cls=Leaf)
@click.argument("month", metavar="YYYYMM")
@click.argument("groups", metavar="[GROUP_ID]...", nargs=-1)
def usage_per_month(month: str, groups: tuple[str, ...]) -> None:
    """Show what groups used in a month, in UTC; all that you may see without their ids."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        _show(screen, await api.Resource.usage_per_month(month, groups))

    call(screen, work)


@click.command("usage-per-period", cls=Leaf)
@click.argument("group", metavar="GROUP_ID")
@click.argument("start_date", metavar="YYYYMMDD")
@click.argument("end_date", metavar="YYYYMMDD")
def usage_per_period(group: str, start_date: str, end_date: str) -> None:
    """Show what a group used from one day to another, both included, in UTC; 100 days at most."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.Resource.usage_per_period(group, start_date, end_date)
        _show(screen, [found] if found else [])

    call(screen, work)


def _show(screen: Screen, found: list[dict[str, Any]]) -> None:
    if screen.is_json:
        screen.json(found)
        return
    if not found:
        screen.note("nothing was used")
    for group in found:
        moved = [readable_amount("mem", group[name]) for name in ("g_io_read", "g_io_write")]
        held = {
            name: f"{float(seconds) / 3600:.1f}" for name, seconds in group["g_slot_seconds"].items() if name != "mem"
        }
        screen.facts(
            {
                "group": f"{group['g_name']} ({group['g_id']})",
                "domain": group["domain_name"],
                "containers": group["c_count"],
                "given": ", ".join(f"{name}={readable_amount(name, text)}" for name, text in group["g_slots"].items()),
                "held (hours)": held,
                "CPU used (s)": group["g_cpu_used"],
                "read, written": ", ".join(moved),
            }.items()
        )
        rows = [{**one, "mem_allocated": readable_amount("mem", one["mem_allocated"])} for one in group["c_infos"]]
        screen.table(rows, _CONTAINERS)
