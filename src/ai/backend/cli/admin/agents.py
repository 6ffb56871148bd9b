"""Commands about agents: `backend.ai admin agent`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import fetch_slot_displays
from ai.backend.cli.framework.lazy import LazyGroup, ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import change, required_changes
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.values import (
    SlotDisplays,
    describe_metrics,
    format_cell,
    parse_if_json,
    readable_amount,
    unit_suffix,
)

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

agent = LazyGroup("agent", help="Agents.")
AGENT_COLUMNS = columns(
    "id: Agent | status | scaling_group: Resource Group | used: Used / Available | accelerators/wide | plugins/wide | "
    "runtime/wide | enforced/wide | watched/wide: Watched Only | none/wide: Not Limited"
)
DEVICE_COLUMNS = columns(
    "device_name: Plugin | device_id: Device | model_name: Model | numa_node: NUMA | health | used: Used / Offered | "
    "now"
)
_FIELDS_SHOWN_ELSEWHERE = frozenset(
    ("available_slots", "occupied_slots", "enforcement", "plugins", "tier", "devices", "hardware_metadata", "live_stat")
)
"""Fields of GraphQL that `info` shows in other lines, or in its table."""
_JSON_FIELDS = frozenset(
    (
        "available_slots", "occupied_slots", "enforcement", "overlay", "compute_plugins", "devices",
        "hardware_metadata", "live_stat",
    )
)  # fmt: skip
_LABELS = {
    "scaling_group": "resource group",
    "compute_plugins": "plugins",
    "used": "used / available",
    "watched": "watched only",
    "none": "not limited",
    "overlay": "networks over nodes",
}
_INTRINSIC_DEVICES = frozenset({"cpu", "mem"})
_TAINT = "taint"
"""The namespace of taints among the properties of a device."""


def read_agent(agent: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an agent with its JSON texts parsed."""
    return {name: parse_if_json(value) if name in _JSON_FIELDS else value for name, value in agent.items()}


def _describe_amounts(
    used_amounts: Mapping[str, Any], offered_amounts: Mapping[str, Any], displays: SlotDisplays
) -> str:
    """Returns used and offered amounts: ``cpu 1/4 Core, mem 256m/8g``."""
    return ", ".join(
        f"{slot} {readable_amount(slot, used_amounts.get(slot, 0), displays)}/"
        f"{readable_amount(slot, offered_amount, displays)}{unit_suffix(slot, displays)}"
        for slot, offered_amount in offered_amounts.items()
    )


def _offered_amounts(device: Mapping[str, Any]) -> dict[str, Any]:
    return {slot["slot_name"]: slot["amount"] for slot in device.get("slots") or ()}


def metrics_of_device(agent: Mapping[str, Any], device: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the newest metrics of one device of an agent, by metric name.

    Of two plugins' devices with one id, those metrics whose key begins with the name of the plugin are the device's.
    """
    device_id = str(device["device_id"])
    is_unique_id = sum(str(other_device["device_id"]) == device_id for other_device in agent.get("devices") or ()) == 1
    return {
        key: metrics_by_device[device_id]
        for key, metrics_by_device in ((agent.get("live_stat") or {}).get("devices") or {}).items()
        if device_id in metrics_by_device and (is_unique_id or key.startswith(str(device["device_name"])))
    }


def _count_devices(devices: list[Mapping[str, Any]]) -> list[str]:
    """Returns how many devices there are besides cores and memory: ``mock 2``, ``cuda 8 (1 unhealthy)``."""
    count_texts = []
    for name in sorted({str(d["device_name"]) for d in devices} - _INTRINSIC_DEVICES):
        health_states = [d.get("health") for d in devices if d["device_name"] == name]
        unhealthy_count = len(health_states) - health_states.count("healthy")
        count_texts.append(
            f"{name} {len(health_states)}" + (f" ({unhealthy_count} unhealthy)" if unhealthy_count else "")
        )
    return count_texts


def _describe_overlay(overlay: Mapping[str, Any] | None) -> str:
    """Returns as text the address and encryption that an agent offers for session networks over several agents.

    An example is ``10.0.3.17:4789, plain only: ...``.
    """
    if overlay is None:
        return "not reported"
    if overlay.get("why_not"):
        return f"none: {overlay['why_not']}"
    encryption_text = f", plain only: {overlay['why_plain']}" if overlay.get("why_plain") else ", also encrypted"
    return f"{overlay.get('address')}:{overlay.get('port')}{encryption_text}"


def describe_agent(agent: Mapping[str, Any], displays: SlotDisplays) -> dict[str, Any]:
    """Returns an agent for printing, with its slots, plugins, devices and enforced limits as readable text.

    The agent is one that :func:`read_agent` returned.
    """
    enforcement: Mapping[str, str] = agent.get("enforcement") or {}
    plugins: Mapping[str, Any] = agent.get("compute_plugins") or {}
    limits_by_level = {
        level: [limit for limit, actual_level in enforcement.items() if actual_level == level]
        for level in ("enforced", "watched")
    }
    return {
        **agent,
        **limits_by_level,
        "none": [limit for limit, actual_level in enforcement.items() if actual_level == "none"],
        "used": _describe_amounts(agent.get("occupied_slots") or {}, agent.get("available_slots") or {}, displays),
        "accelerators": _count_devices(agent.get("devices") or []),
        "plugins": [name if plugin.get("healthy", True) else f"{name} (failed)" for name, plugin in plugins.items()],
        "overlay": _describe_overlay(agent.get("overlay")),
        "usage": describe_metrics((agent.get("live_stat") or {}).get("node") or {}),
        "runtime": " ".join(str(agent[field]) for field in ("runtime", "tier") if agent.get(field)),
    }


def trouble_lines(agent: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for every plugin and device of a parsed agent that is not healthy, and for every tainted device."""
    for plugin_name, plugin in (agent.get("compute_plugins") or {}).items():
        reason = plugin.get("reason")
        if not plugin.get("healthy", True):
            yield f"{agent['id']}: the plugin {plugin_name} has failed: {reason or 'no reason is known'}"
        elif reason:
            yield f"{agent['id']}: the plugin {plugin_name}: {reason}"
    for device in agent.get("devices") or ():
        prefix = f"{agent['id']}: the device {device['device_name']} {device['device_id']}"
        if device.get("health") != "healthy":
            yield f"{prefix} is unhealthy: {device.get('health_reason') or 'no reason is known'}"
        taints = [
            variant_property["value"]
            for variant_property in device.get("variant_properties") or ()
            if variant_property.get("namespace") == _TAINT
        ]
        if taints:
            yield f"{prefix} is tainted: {', '.join(taints)}"


@agent.command("list", cls=ListCommand)
@click.option("-s", "--status", default="ALIVE", show_default=True, help="Only agents of this status.")
@click.option("--scaling-group", "--resource-group", "scaling_group", help="Only agents of this resource group.")
async def agent_list(api: AsyncSession, status: str, scaling_group: str | None) -> None:
    """List agents: their resources, which limits they really enforce, and what is wrong with plugins and devices."""
    screen = screen_of()
    agents: list[dict[str, Any]] = []
    while True:
        page = await api.Agent.paginated_list(status.upper(), scaling_group, page_offset=len(agents))
        agents += map(read_agent, page.items)
        if not page.items or len(agents) >= page.total_count:
            break
    if screen.is_json:
        screen.print_json({"count": len(agents), "items": agents})
    elif not agents:
        screen.print_line(
            f"There is no agent with status {status}, or these keys are not an administrator's (env-admin.sh)."
        )
    else:
        displays = await fetch_slot_displays(api)
        screen.print_table([describe_agent(agent_row, displays) for agent_row in agents], AGENT_COLUMNS)
        for agent_row in agents:
            for trouble in trouble_lines(agent_row):
                screen.print_line(format_cell(trouble))


@agent.command("info")
@click.argument("agent_id")
async def agent_info(api: AsyncSession, agent_id: str) -> int:
    """Show the agent AGENT_ID, its plugins, and its devices with what of them is allocated and what they do now."""
    screen = screen_of()
    agent_detail = await api.Agent.detail(agent_id)
    if agent_detail is None:
        screen.error(f"there is no agent {agent_id}; `backend.ai admin agent list` names them", code="not-found")
        return 1
    agent_facts = read_agent(agent_detail)
    if screen.is_json:
        screen.print_json(agent_facts)
        return 0
    displays = await fetch_slot_displays(api)
    screen.print_facts(
        (_LABELS.get(fact_name, fact_name.replace("_", " ")), value)
        for fact_name, value in describe_agent(agent_facts, displays).items()
        if fact_name not in _FIELDS_SHOWN_ELSEWHERE and value not in (None, "", [], {})
    )
    rows = [
        {
            **device,
            "used": _describe_amounts(device.get("allocated") or {}, _offered_amounts(device), displays),
            "now": describe_metrics(metrics_of_device(agent_facts, device), prefix=f"{device['device_name']}_"),
        }
        for device in agent_facts.get("devices") or ()
    ]
    if rows:
        screen.print_line("")
        screen.print_table(rows, DEVICE_COLUMNS)
    for trouble in trouble_lines(agent_facts):
        screen.print_line(format_cell(trouble))
    return 0


@agent.command("operations")
@click.argument("agent_id")
@click.argument("device_name")
async def agent_operations(api: AsyncSession, agent_id: str, device_name: str) -> None:
    """Show what `operate` can do with the devices of the plugin DEVICE_NAME on the agent AGENT_ID."""
    screen = screen_of()
    device_options = await api.Agent.device_options(agent_id, device_name)
    if screen.is_json:
        screen.print_json(device_options)
        return
    screen.print_facts(
        [("actions", device_options["actions"] or "none"), ("attachable", device_options["attachable"] or None)]
    )
    rows = [
        {
            "device": device,
            "profiles": [
                f"{profile['name']} ({profile['available']} more)"
                for profile in device_options["profiles"].get(device, ())
            ],
            "image": device_options["images"].get(device),
            "cordon": (device_options.get("cordons") or {}).get(device),
            "diagnosed by": (device_options.get("diagnosed") or {}).get(device),
        }
        for device in device_options["devices"]
    ]
    screen.print_table(rows, columns("device | profiles | image | cordon | diagnosed by"))


@agent.command("operate")
@click.argument("agent_id")
@click.argument("device_name")
@click.argument("action")
@click.argument("device_id")
@click.argument("argument", default="")
@click.option("--for", "hours", type=click.FloatRange(0, min_open=True), metavar="HOURS", help="When a cordon ends.")
@click.option("--start-over", is_flag=True, help="Let batch sessions of a drained device wait again.")
async def agent_operate(
    api: AsyncSession,
    agent_id: str,
    device_name: str,
    action: str,
    device_id: str,
    argument: str,
    hours: float | None,
    start_over: bool,
) -> Outcome:
    """Do ACTION to the device DEVICE_ID of the plugin DEVICE_NAME on the agent AGENT_ID; the device must be unused.

    Actions: partition (ARGUMENT is the profile), unpartition, power-on, power-off, reset, program (ARGUMENT is the
    image, a path on the agent's node), attach, detach. `operations` shows what a plugin knows. Any device, also one in
    use: cordon (ARGUMENT is the reason), so that nothing new comes onto it; taint (ARGUMENT is a key and the reason),
    so that only sessions come whose device request says tolerates("KEY"); drain, a cordon that ends the sessions on
    it; and uncordon, which ends any of these.
    """
    expires_after_s = None if hours is None else hours * 3600
    result_id = await api.Agent.operate_device(
        agent_id, device_name, action, device_id, argument, expires_after_s, start_over=start_over
    )
    result_text = f"Done: {action} of {device_id}." if result_id == device_id else f"Made {result_id} of {device_id}."
    return {"device_id": result_id}, result_text


@agent.command("update")
@click.argument("agent_id")
@click.option("--schedulable", type=bool, help="Whether it takes sessions.")
@click.option("--scaling-group", "--resource-group", help="Another resource group; its sessions go on.")
def agent_update(agent_id: str, **props: Any) -> None:
    """Let an agent take sessions or not, or move it to another resource group."""
    changed_values = required_changes(props, "--schedulable")
    change(lambda api: api.Agent.update(agent_id, **changed_values), {"updated": agent_id}, f"updated {agent_id}")
