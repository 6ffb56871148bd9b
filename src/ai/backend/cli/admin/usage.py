"""`backend.ai admin resource`: what there is, and what was used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import Leaf, ListCommand, screen_of
from ai.backend.cli.framework.objects import list_them
from ai.backend.cli.framework.output import Column, Screen
from ai.backend.cli.framework.values import describe_slots, readable_size, relative_time

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

CONTAINERS = (
    Column("name", "Session"),
    Column("email", "User", is_wide=True),
    Column("image_name", "Image"),
    Column("smp", "Cores"),
    Column("mem_allocated", "Memory"),
    Column("device_type", "Devices", is_wide=True),
    Column("cpu_used", "CPU Used (s)"),
    Column("started_at", "From", relative_time),
    Column("terminated_at", "To", relative_time),
)


@click.command("vfolder-types", cls=ListCommand)
def vfolder_types() -> None:
    """Show who may own virtual folders."""

    async def load(api: AsyncSession) -> list[dict[str, Any]]:
        return [{"type": name} for name in await api.Resource.get_vfolder_types()]

    list_them(load, [Column("type", "Owner")], "no folders are kept here")


@click.command("docker-registries", cls=ListCommand)
def docker_registries() -> None:
    """List registries of images."""

    async def load(api: AsyncSession) -> list[dict[str, Any]]:
        return [{"name": name, "url": url} for name, url in (await api.Resource.get_docker_registries()).items()]

    list_them(load, [Column("name", "Name"), Column("url", "URL")], "there are no registries")


@click.command("recalculate-usage", cls=Leaf)
def recalculate_usage() -> None:
    """Count again what sessions hold, and compare it with the records of the agents."""
    screen = screen_of()

    async def work(api: AsyncSession) -> int:
        reply = await api.Resource.recalculate_usage()
        drift = reply.get("drift") or {}
        if screen.is_json:
            screen.json(reply)
        elif drift:
            screen.table(
                [{"agent": agent, **amounts} for agent, amounts in drift.items()],
                [Column("agent", "Agent"), Column("recorded", "Recorded"), Column("counted", "Counted")],
            )
        else:
            screen.say("The records are right.")
        return 1 if drift else 0

    call(screen, work)


@click.command("usage-per-month", cls=ListCommand)
@click.argument("month", metavar="YYYYMM")
@click.argument("groups", metavar="[GROUP_ID]...", nargs=-1)
def usage_per_month(month: str, groups: tuple[str, ...]) -> None:
    """Show what groups used in a month, in UTC; all that you may see without their ids."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        _show(screen, await api.Resource.usage_per_month(month, groups))

    call(screen, work)


@click.command("usage-per-period", cls=ListCommand)
@click.argument("group", metavar="GROUP_ID")
@click.argument("start_date", metavar="YYYYMMDD")
@click.argument("end_date", metavar="YYYYMMDD")
def usage_per_period(group: str, start_date: str, end_date: str) -> None:
    """Show what a group used from one day to another, both included, in UTC; 100 days at most."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        usage = await api.Resource.usage_per_period(group, start_date, end_date)
        _show(screen, [usage] if usage else [])

    call(screen, work)


def _show(screen: Screen, usages: list[dict[str, Any]]) -> None:
    if screen.is_json:
        screen.json(usages)
        return
    if not usages:
        screen.inform("nothing was used")
    for usage in usages:
        hours = {slot: float(seconds) / 3600 for slot, seconds in usage["g_slot_seconds"].items() if slot != "mem"}
        screen.facts(
            {
                "group": f"{usage['g_name']} ({usage['g_id']})",
                "domain": usage["domain_name"],
                "containers": usage["c_count"],
                "allocated": describe_slots(usage["g_slots"]),
                "held (hours)": {slot: f"{number:.1f}" for slot, number in hours.items()},
                "CPU used (s)": usage["g_cpu_used"],
                "read": readable_size(int(usage["g_io_read"])),
                "written": readable_size(int(usage["g_io_write"])),
            }.items()
        )
        screen.table([_describe(container) for container in usage["c_infos"]], CONTAINERS)


def _describe(container: dict[str, Any]) -> dict[str, Any]:
    memory = container["mem_allocated"]
    return {**container, "mem_allocated": None if memory is None else readable_size(int(memory))}
