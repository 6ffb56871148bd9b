"""GraphQL fields of agents."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from msgspec import to_builtins

from ai.backend.common.errors import NotFound
from ai.backend.common.slots import format_quantity
from ai.backend.common.wire.reports import PluginReport
from ai.backend.manager.agents.model import Agent, KernelOccupancy, counted_ids
from ai.backend.manager.agents.service import AgentService
from ai.backend.manager.graphql.context import Info, context_of, page_fields_of, run_mutation
from ai.backend.manager.graphql.resolvers import field, mutation, query
from ai.backend.manager.graphql.values import View, current_value, json_or_null, slots_json
from ai.backend.manager.query.model import ListQuery

_SAME_NAME_FIELDS = (
    *("id", "status_changed", "region", "architecture", "scaling_group", "schedulable", "addr", "first_contact"),
    *("lost_at", "version", "runtime", "tier", "location", "devices"),
)
"""The fields that have the same name and value as the agent's."""
_ZERO = Decimal(0)
_PUBLISHED_UNITS = {
    "percent": "pct",
    "celsius": "Celsius",
    **{unit: unit for unit in ("pct", "Celsius", "bytes", "bps")},
}


def published_units(live_stat: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Converts an agent's statistics to the units that published clients know (wire contract, Agent).

    They crash on any other unit, so such a metric becomes a percentage, with its own unit as ``unit``.
    """
    if live_stat is None:
        return None

    def with_published_unit(metric: Mapping[str, Any]) -> dict[str, Any]:
        unit = str(metric.get("unit_hint"))
        published_unit = _PUBLISHED_UNITS.get(unit)
        return {**metric, "unit_hint": published_unit or "pct", **({} if published_unit else {"unit": unit})}

    return {
        "node": {key: with_published_unit(metric) for key, metric in live_stat.get("node", {}).items()},
        "devices": {
            key: {device: with_published_unit(metric) for device, metric in metric_of_device.items()}
            for key, metric_of_device in live_stat.get("devices", {}).items()
        },
    }


def _hardware_metadata(plugin: PluginReport) -> View:
    status = "healthy" if plugin.healthy else "unavailable"
    return {"status": status, "status_info": plugin.reason, "metadata": plugin.info}


def agent_view(agent: Agent) -> View:
    available_slots, occupied_slots = agent.available_slots, agent.occupied_slots
    node_metrics = (agent.live_stat or {}).get("node", {})
    return {
        **{name: getattr(agent, name) for name in _SAME_NAME_FIELDS},
        "status": agent.status.value,
        "available_slots": slots_json(available_slots),
        "occupied_slots": slots_json(occupied_slots),
        "live_stat": json_or_null(published_units(agent.live_stat)),
        "overlay": json.dumps(to_builtins(agent.overlay)) if agent.overlay is not None else None,
        "runtime_classes": json.dumps([to_builtins(runtime_class) for runtime_class in agent.runtime_classes]),
        "max_kernels": agent.kernel_limit,
        "enforcement": json.dumps({name: str(level) for name, level in agent.enforcement.items()}),
        "compute_plugins": json.dumps({name: dict(info) for name, info in agent.compute_plugins.items()}, default=str),
        "hardware_metadata": json.dumps({plugin.name: _hardware_metadata(plugin) for plugin in agent.plugins}),
        "local_config": None,
        "cpu_cur_pct": current_value(node_metrics, "cpu_util"),
        "mem_cur_bytes": current_value(node_metrics, "mem"),
        "mem_slots": int(available_slots["mem"]),
        "cpu_slots": float(available_slots["cpu"]),
        "gpu_slots": float(available_slots["cuda.device"] or available_slots["cuda.shares"]),
        "tpu_slots": float(available_slots["tpu.device"]),
        "used_mem_slots": int(occupied_slots["mem"]),
        "used_cpu_slots": float(occupied_slots["cpu"]),
        "used_gpu_slots": float(occupied_slots["cuda.device"] or occupied_slots["cuda.shares"]),
        "used_tpu_slots": float(occupied_slots["tpu.device"]),
    }


def devices_json(devices: Sequence[Mapping[str, Any]], holdings: Sequence[KernelOccupancy]) -> str:
    """Returns devices as JSON, as their plugins report them, with ``allocated``: slot -> amount that kernels occupy."""
    allocated_amounts: dict[tuple[str, str], Decimal] = {}
    for holding in holdings:
        for slot, quantity_of_device in holding.devices.items():
            for device_id, quantity in quantity_of_device.items():
                allocated_amounts[slot, device_id] = allocated_amounts.get((slot, device_id), Decimal(0)) + Decimal(
                    quantity
                )

    def allocated_of(device: Mapping[str, Any]) -> dict[str, str]:
        slot_names = [str(slot_json.get("slot_name")) for slot_json in device.get("slots", ())]
        amounts = {
            slot_name: sum(
                (allocated_amounts.get((slot_name, counted_id), _ZERO) for counted_id in counted_ids(device)), _ZERO
            )
            for slot_name in slot_names
        }
        return {slot_name: format_quantity(amount) for slot_name, amount in amounts.items() if amount}

    return json.dumps([{**device, "allocated": allocated_of(device)} for device in devices], default=str)


class AgentResolvers:
    """Answers the GraphQL fields of agents."""

    def __init__(self, agents: AgentService) -> None:
        self._agents = agents

    @mutation("modify_agent")
    async def modify_agent(self, info: Info, id: str, props: View) -> View:  # noqa: A002  # the wire's name
        context = context_of(info)
        return await run_mutation(
            info,
            "agent",
            id,
            lambda: self._agents.modify_agent(
                context.caller, id, schedulable=props.get("schedulable"), scaling_group=props.get("scaling_group")
            ),
        )

    @query("agent")
    async def agent(self, info: Info, agent_id: str) -> View | None:
        context = context_of(info)
        try:
            return agent_view(await self._agents.agent(context.caller, agent_id))
        except NotFound:
            return None

    @query("agent_list")
    async def agent_list(self, info: Info, **args: Any) -> View:
        context = context_of(info)
        page = await self._agents.agents(
            context.caller,
            ListQuery(**page_fields_of(args)),
            status=args.get("status"),
            scaling_group=args.get("scaling_group"),
        )
        return {"items": [agent_view(agent) for agent in page.items], "total_count": page.total_count}

    @field("Agent", "devices")
    async def agent_devices(self, view: View, info: Info) -> str:
        context = context_of(info)

        def load_holdings(agent_ids: Sequence[str]) -> Awaitable[Mapping[str, Sequence[KernelOccupancy]]]:
            return self._agents.holdings(context.caller, agent_ids)

        loader = context.loader("occupancy", load_holdings)
        return devices_json(view["devices"], await loader.get(view["id"]) or ())
