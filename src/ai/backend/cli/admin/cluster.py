"""Commands about the cluster: keypairs, the manager, resource slots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.admin.policies import PRESET_COLUMNS, preset_row
from ai.backend.cli.framework.invoke import call, slot_displays
from ai.backend.cli.framework.lazy import Leaf, ListCommand, screen_of
from ai.backend.cli.framework.objects import list_them, show_one
from ai.backend.cli.framework.output import Column

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_SLOT_COLUMNS = (
    Column("slot", "Slot"),
    Column("type", "Type"),
    Column("human_readable_name", "Name"),
    Column("display_unit", "Unit"),
    Column("description", "Description", is_wide=True),
)
_VARIANT_COLUMNS = (
    Column("property", "Property"),
    Column("meets", "Meets a Requirement of"),
    Column("device_names", "Devices"),
    Column("devices", "Healthy, by Resource Group"),
)


@click.command("info", cls=Leaf)
def keypair_info() -> None:
    """Show your own keypair."""
    show_one(lambda api: api.KeyPair.info(), "you have no keypair")


@click.command("status", cls=Leaf)
def manager_status() -> None:
    """Show whether the manager takes sessions, and how many it has."""
    show_one(lambda api: api.Manager.status(), "the manager has no status")


@click.command("query-slots", cls=ListCommand)
def query_slots() -> None:
    """List the resource slots of the cluster."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        slots, displays = await api.Resource.list_slots(), await slot_displays(api)
        if screen.is_json:
            screen.json(slots)
        else:
            rows = [{**displays.get(slot, {}), "slot": slot, "type": kind} for slot, kind in slots.items()]
            screen.table(rows, _SLOT_COLUMNS)

    call(screen, work)


@click.command("variants", cls=ListCommand)
@click.option("--resource-group", "--scaling-group", "resource_group", help="Only devices of this resource group.")
def variants(resource_group: str | None) -> None:
    """List what a session may require of its devices (--variant of `run` and `start`), and how many there are."""
    empty = "no device here states anything that a session could require"
    list_them(
        lambda api: api.Resource.variant_properties(resource_group), _VARIANT_COLUMNS, empty, describe=_describe_variant
    )


def _describe_variant(variant: dict[str, Any]) -> dict[str, Any]:
    meets = {"exact": "this value", "minimum": "this or an older one", "compatible": "this or a part of it"}
    return {**variant, "meets": meets.get(variant["match_mode"])}


@click.command("presets", cls=ListCommand)
def presets() -> None:
    """List resource presets."""

    async def load(api: AsyncSession) -> list[dict[str, Any]]:
        return (await api.Resource.list_presets()).get("presets") or []

    list_them(load, PRESET_COLUMNS, "there are no presets", describe=preset_row)
