"""Commands about the cluster: keypairs, the manager, resource slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ai.backend.cli.calling import call, slot_displays
from ai.backend.cli.lazy import Leaf, ListCommand, screen_of
from ai.backend.cli.limit_commands import PRESET_COLUMNS, preset_row
from ai.backend.cli.output import Column

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession


@click.command("info", cls=Leaf)
def keypair_info() -> None:
    """Show your own keypair."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        keypair = await api.KeyPair.info()
        if screen.is_json:
            screen.json(keypair)
        else:
            screen.facts((name.replace("_", " "), value) for name, value in keypair.items())

    call(screen, work)


@click.command("status", cls=Leaf)
def manager_status() -> None:
    """Show whether the manager takes sessions, and how many it has."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        status = await api.Manager.status()
        if screen.is_json:
            screen.json(status)
        else:
            screen.facts((name.replace("_", " "), value) for name, value in status.items())

    call(screen, work)


@click.command("query-slots", cls=ListCommand)
def query_slots() -> None:
    """List the resource slots of the cluster."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        slots, displays = await api.Resource.list_slots(), await slot_displays(api)
        if screen.is_json:
            screen.json(slots)
        else:
            columns = (
                Column("slot", "Slot"),
                Column("type", "Type"),
                Column("human_readable_name", "Name"),
                Column("display_unit", "Unit"),
                Column("description", "Description", is_wide=True),
            )
            screen.table(
                [{**displays.get(slot, {}), "slot": slot, "type": kind} for slot, kind in slots.items()], columns
            )

    call(screen, work)


@click.command("variants", cls=ListCommand)
@click.option("--resource-group", "--scaling-group", "resource_group", help="Only devices of this resource group.")
def variants(resource_group: str | None) -> None:
    """List what a session may require of its devices (--variant of `run` and `start`), and how many there are."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        properties = await api.Resource.variant_properties(resource_group)
        if screen.is_json:
            screen.json(properties)
        elif properties:
            meets = {"exact": "this value", "minimum": "this or an older one", "compatible": "this or a part of it"}
            rows = [{**one, "meets": meets.get(one["match_mode"])} for one in properties]
            columns = (
                Column("property", "Property"),
                Column("meets", "Meets a Requirement of"),
                Column("device_names", "Devices"),
                Column("devices", "Healthy, by Resource Group"),
            )
            screen.table(rows, columns)
        else:
            screen.say("No device here states anything that a session could require.")

    call(screen, work)


@click.command("presets", cls=ListCommand)
def presets() -> None:
    """List resource presets."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        items = (await api.Resource.list_presets()).get("presets") or []
        if screen.is_json:
            screen.json(items)
        elif items:
            screen.table(map(preset_row, items), PRESET_COLUMNS)
        else:
            screen.say("There are no presets.")

    call(screen, work)
