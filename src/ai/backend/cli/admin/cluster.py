"""`backend.ai admin resource` and `backend.ai resource`: what the cluster has, and what was used of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.admin.policies import PRESET_COLUMNS, preset_row
from ai.backend.cli.framework.invoke import fetch_slot_displays
from ai.backend.cli.framework.lazy import LazyGroup, ListCommand, screen_of
from ai.backend.cli.framework.objects import list_objects, parse_json_values
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.values import describe_slots, readable_size

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

admin_resource = LazyGroup("resource", help="What there is, and what was used.")
resource = LazyGroup("resource", help="Resource slots and presets.")
CONTAINERS = columns(
    "name: Session | email/wide: User | image_name: Image | smp: Cores | mem_allocated: Memory | "
    "device_type/wide: Devices | cpu_used: CPU Used (s) | started_at/time: From | terminated_at/time: To"
)
_SLOT_COLUMNS = columns("slot | type | human_readable_name: Name | display_unit: Unit | description/wide")
_QUEUE_COLUMNS = columns(
    "position/number: Place | name | id/short/wide | user_email/roomy: User | requested_slots: Requested | "
    "cluster_size/number/wide: Kernels | priority/number/wide | reason | message/wide | enqueued_at/time: Waiting Since"
)
_SHARE_COLUMNS = columns(
    "level | name | weight/number | share/number | weighted_share/number: Weighted | occupied: Now | used/wide: Lately"
)
_VARIANT_COLUMNS = columns(
    "property | meets: Meets a Requirement of | device_names: Devices | devices: Healthy, by Resource Group"
)


@resource.command("query-slots", cls=ListCommand)
async def query_slots(api: AsyncSession) -> None:
    """List the resource slots of the cluster."""
    screen = screen_of()
    slots, displays = await api.Resource.list_slots(), await fetch_slot_displays(api)
    if screen.is_json:
        screen.print_json(slots)
    else:
        rows = [{**displays.get(slot, {}), "slot": slot, "type": slot_type} for slot, slot_type in slots.items()]
        screen.print_table(rows, _SLOT_COLUMNS)


admin_resource.add_command(query_slots)


@resource.command("queue", cls=ListCommand)
@click.argument("resource_group", default="default")
@click.option("--limit", type=click.IntRange(1, 100), default=50, show_default=True, help="How many sessions.")
@click.option("--offset", type=click.IntRange(0), default=0, help="How many to skip.")
async def queue(api: AsyncSession, resource_group: str, limit: int, offset: int) -> None:
    """List the sessions that wait in RESOURCE_GROUP, in the order of their turn: yours, or all that you may see."""
    screen = screen_of()
    queue_page = await api.Resource.queue(resource_group, limit=limit, offset=offset)
    if screen.is_json:
        screen.print_json(queue_page)
        return
    displays = await fetch_slot_displays(api)
    rows = [
        {**waiting_session, "requested_slots": describe_slots(waiting_session["requested_slots"], displays)}
        for waiting_session in queue_page["items"]
    ]
    if rows:
        screen.print_table(rows, _QUEUE_COLUMNS)
    hidden_count = queue_page["waiting"] - queue_page["total_count"]
    shown_text = (
        f"{len(rows)} of {queue_page['total_count']} sessions are shown" if rows else "no session of yours waits"
    )
    screen.inform(f"{shown_text}; {hidden_count} of others wait too" if hidden_count else shown_text)


@resource.command("shares", cls=ListCommand)
@click.argument("resource_group", default="default")
async def shares(api: AsyncSession, resource_group: str) -> None:
    """List fair shares in RESOURCE_GROUP: of your domain, projects and user, or of all that you may see."""
    screen = screen_of()
    share_report = await api.Resource.shares(resource_group)
    if screen.is_json:
        screen.print_json(share_report)
        return
    displays = await fetch_slot_displays(api)
    rows = [
        {
            **share_item,
            "share": f"{share_item['share']:.1%}",
            "weighted_share": f"{share_item['weighted_share']:.1%}",
            "occupied": describe_slots(share_item["occupied"], displays),
            "used": describe_slots(share_item["used"], displays),
        }
        for share_item in share_report["items"]
    ]
    screen.print_table(rows, _SHARE_COLUMNS)
    if share_report["order"] not in ("fair-share", "drf"):
        screen.inform(f"{resource_group} schedules by {share_report['order']}: shares do not decide")


@resource.command("variants", cls=ListCommand)
@click.option("--resource-group", "--scaling-group", "resource_group", help="Only devices of this resource group.")
def variants(resource_group: str | None) -> None:
    """List the variants that a session may require (--variant of `run` and `start`), with counts of such devices."""
    empty_hint = "no device here states anything that a session could require"
    list_objects(
        lambda api: api.Resource.variant_properties(resource_group),
        _VARIANT_COLUMNS,
        empty_hint,
        describe=_describe_variant,
    )


def _describe_variant(variant: dict[str, Any]) -> dict[str, Any]:
    match_texts = {"exact": "this value", "minimum": "this or an older one", "compatible": "this or a part of it"}
    return {**variant, "meets": match_texts.get(variant["match_mode"])}


@resource.command("plugin-options", cls=ListCommand)
async def plugin_options(api: AsyncSession) -> None:
    """List what a session may say to accelerator plugins (--plugin-option of `run` and `start`)."""
    schemas_by_plugin = await api.Resource.plugin_options()
    screen = screen_of()
    if screen.is_json:
        screen.print_json(schemas_by_plugin)
        return
    rows = [
        {
            "option": f"{plugin}.{option_name}",
            "values": _describe_values(option_schema),
            "description": option_schema.get("description", ""),
        }
        for plugin, schemas in schemas_by_plugin.items()
        for schema in schemas
        for option_name, option_schema in (schema.get("properties") or {}).items()
    ]
    screen.print_rows(rows, columns("option | values | description"), "no accelerator plugin here takes options")


def _describe_values(schema: dict[str, Any]) -> str:
    """Returns as text the values that a JSON Schema permits: a list of values, or types and bounds."""
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if "anyOf" in schema:
        return " or ".join(
            _describe_values(alternative) for alternative in schema["anyOf"] if alternative.get("type") != "null"
        )
    bounds = [
        f"{preposition} {schema[key]}" for key, preposition in (("minimum", "from"), ("maximum", "to")) if key in schema
    ]
    return " ".join([str(schema.get("type", "any")), *bounds])


@resource.command("presets", cls=ListCommand)
async def presets(api: AsyncSession) -> None:
    """List resource presets."""
    preset_rows = (await api.Resource.list_presets()).get("presets") or []
    screen_of().print_rows(
        list(map(parse_json_values, preset_rows)), PRESET_COLUMNS, "there are no presets", describe=preset_row
    )


@admin_resource.command("vfolder-types", cls=ListCommand)
async def vfolder_types(api: AsyncSession) -> None:
    """Show who may own virtual folders."""
    rows = [{"type": owner_type} for owner_type in await api.Resource.get_vfolder_types()]
    screen_of().print_rows(rows, columns("type: Owner"), "no folders are kept here")


@admin_resource.command("docker-registries", cls=ListCommand)
async def docker_registries(api: AsyncSession) -> None:
    """List registries of images."""
    rows = [{"name": name, "url": url} for name, url in (await api.Resource.get_docker_registries()).items()]
    screen_of().print_rows(rows, columns("name | url: URL"), "there are no registries")


@admin_resource.command("recalculate-usage")
async def recalculate_usage(api: AsyncSession) -> int:
    """Recount the slots that sessions hold, and compare them with the records of the agents."""
    screen = screen_of()
    reply = await api.Resource.recalculate_usage()
    drift_by_agent = reply.get("drift") or {}
    if screen.is_json:
        screen.print_json(reply)
    elif drift_by_agent:
        rows = [{"agent": agent, **amounts} for agent, amounts in drift_by_agent.items()]
        screen.print_table(rows, columns("agent | recorded | counted"))
    else:
        screen.print_line("The records are right.")
    return 1 if drift_by_agent else 0


@admin_resource.command("usage-per-month", cls=ListCommand)
@click.argument("month", metavar="YYYYMM")
@click.argument("groups", metavar="[GROUP_ID]...", nargs=-1)
async def usage_per_month(api: AsyncSession, month: str, groups: tuple[str, ...]) -> None:
    """Show the usage of groups in a month, in UTC; without ids, of all groups that you may see."""
    _print_usage(await api.Resource.usage_per_month(month, groups))


@admin_resource.command("usage-per-period", cls=ListCommand)
@click.argument("group", metavar="GROUP_ID")
@click.argument("start_date", metavar="YYYYMMDD")
@click.argument("end_date", metavar="YYYYMMDD")
async def usage_per_period(api: AsyncSession, group: str, start_date: str, end_date: str) -> None:
    """Show the usage of a group from one day to another, both included, in UTC; 100 days at most."""
    usage = await api.Resource.usage_per_period(group, start_date, end_date)
    _print_usage([usage] if usage else [])


def _print_usage(usages: list[dict[str, Any]]) -> None:
    screen = screen_of()
    if screen.is_json:
        screen.print_json(usages)
        return
    if not usages:
        screen.inform("nothing was used")
    for usage in usages:
        hours_by_slot = {
            slot: float(seconds) / 3600 for slot, seconds in usage["g_slot_seconds"].items() if slot != "mem"
        }
        screen.print_facts(
            {
                "group": f"{usage['g_name']} ({usage['g_id']})",
                "domain": usage["domain_name"],
                "containers": usage["c_count"],
                "allocated": describe_slots(usage["g_slots"]),
                "held (hours)": {slot: f"{hour_count:.1f}" for slot, hour_count in hours_by_slot.items()},
                "CPU used (s)": usage["g_cpu_used"],
                "read": readable_size(int(usage["g_io_read"])),
                "written": readable_size(int(usage["g_io_write"])),
            }.items()
        )
        screen.print_table(map(_describe_container, usage["c_infos"]), CONTAINERS)


def _describe_container(container: dict[str, Any]) -> dict[str, Any]:
    memory = container["mem_allocated"]
    return {**container, "mem_allocated": None if memory is None else readable_size(int(memory))}
