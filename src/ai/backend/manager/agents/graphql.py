"""GraphQL fields of agents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from ariadne import MutationType, ObjectType, QueryType
from msgspec import to_builtins

from ai.backend.common.errors import NotFound
from ai.backend.common.slots import format_quantity
from ai.backend.manager.agents.model import Agent, KernelOccupancy
from ai.backend.manager.graphql import values
from ai.backend.manager.graphql.context import Info, answer, context_of, page_of
from ai.backend.manager.graphql.values import View, _current, json_or_null, slots_json
from ai.backend.manager.query.model import ListQuery

query = QueryType()
mutation = MutationType()


@mutation.field("modify_agent")
async def modify_agent(_: Any, info: Info, id: str, props: values.View) -> values.View:  # noqa: A002  # the wire's name
    context = context_of(info)
    return await answer(
        info,
        "agent",
        id,
        lambda: context.services.agents.modify_agent(
            context.caller, id, schedulable=props.get("schedulable"), scaling_group=props.get("scaling_group")
        ),
    )


agent_type = ObjectType("Agent")


@query.field("agent")
async def agent(_: Any, info: Info, agent_id: str) -> values.View | None:
    context = context_of(info)
    try:
        return context.agents([await context.services.agents.agent(context.caller, agent_id)])[0]
    except NotFound:
        return None


@query.field("agent_list")
async def agent_list(_: Any, info: Info, **args: Any) -> values.View:
    context = context_of(info)
    page = await context.services.agents.agents(
        context.caller,
        ListQuery(**page_of(args)),
        status=args.get("status"),
        scaling_group=args.get("scaling_group"),
    )
    return {"items": context.agents(page.items), "total_count": page.total_count}


@agent_type.field("devices")
async def agent_devices(view: values.View, info: Info) -> str:
    return devices_json(view["devices"], await context_of(info).holdings(view["id"]))


_PUBLISHED_UNITS = {"percent": "pct", "celsius": "Celsius", **{u: u for u in ("pct", "Celsius", "bytes", "bps")}}


def published_units(live_stat: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns an agent's statistics in the units that published clients accept (wire contract, Agent).

    They crash on any other unit, so such a metric is returned as a percentage, with its own unit as ``unit``.
    """
    if live_stat is None:
        return None

    def renamed(metric: Mapping[str, Any]) -> dict[str, Any]:
        unit = str(metric.get("unit_hint"))
        published = _PUBLISHED_UNITS.get(unit)
        return (
            {**metric, "unit_hint": published}
            if published is not None
            else {**metric, "unit_hint": "pct", "unit": unit}
        )

    return {
        "node": {key: renamed(metric) for key, metric in live_stat.get("node", {}).items()},
        "devices": {
            key: {device: renamed(metric) for device, metric in of.items()}
            for key, of in live_stat.get("devices", {}).items()
        },
    }


def agent_view(agent: Agent) -> View:
    total, used = agent.available_slots, agent.occupied_slots
    node = (agent.live_stat or {}).get("node", {})
    return {
        "id": agent.id,
        "status": agent.status.value,
        "status_changed": agent.status_changed,
        "region": agent.region,
        "architecture": agent.architecture,
        "scaling_group": agent.scaling_group,
        "schedulable": agent.schedulable,
        "available_slots": slots_json(total),
        "occupied_slots": slots_json(used),
        "addr": agent.addr,
        "first_contact": agent.first_contact,
        "lost_at": agent.lost_at,
        "live_stat": json_or_null(published_units(agent.live_stat)),
        "version": agent.version,
        "runtime": agent.runtime,
        "tier": agent.tier,
        "overlay": json.dumps(to_builtins(agent.overlay)) if agent.overlay is not None else None,
        "runtime_classes": json.dumps([to_builtins(one) for one in agent.runtime_classes]),
        "location": agent.location,
        "max_kernels": agent.kernel_limit,
        "enforcement": json.dumps({name: str(mode) for name, mode in agent.enforcement.items()}),
        "compute_plugins": json.dumps({name: dict(info) for name, info in agent.compute_plugins.items()}, default=str),
        "hardware_metadata": json.dumps(
            {
                p.name: {
                    "status": "healthy" if p.healthy else "unavailable",
                    "status_info": p.reason,
                    "metadata": p.info,
                }
                for p in agent.plugins
            }
        ),
        "local_config": None,
        "devices": agent.devices,
        "cpu_cur_pct": _current(node, "cpu_util"),
        "mem_cur_bytes": _current(node, "mem"),
        "mem_slots": int(total["mem"]),
        "cpu_slots": float(total["cpu"]),
        "gpu_slots": float(total["cuda.device"] or total["cuda.shares"]),
        "tpu_slots": float(total["tpu.device"]),
        "used_mem_slots": int(used["mem"]),
        "used_cpu_slots": float(used["cpu"]),
        "used_gpu_slots": float(used["cuda.device"] or used["cuda.shares"]),
        "used_tpu_slots": float(used["tpu.device"]),
    }


def devices_json(devices: Sequence[Mapping[str, Any]], holdings: Sequence[KernelOccupancy]) -> str:
    """Returns the devices as their plugins reported them, with ``allocated``: slot -> amount that kernels hold."""
    allocated: dict[tuple[str, str], Decimal] = {}
    for holding in holdings:
        for slot, per_device in holding.devices.items():
            for device_id, quantity in per_device.items():
                allocated[slot, device_id] = allocated.get((slot, device_id), Decimal(0)) + Decimal(quantity)

    def held(device: Mapping[str, Any]) -> dict[str, str]:
        device_id, names = str(device.get("device_id")), [str(s.get("slot_name")) for s in device.get("slots", ())]
        return {name: format_quantity(allocated[name, device_id]) for name in names if (name, device_id) in allocated}

    return json.dumps([{**device, "allocated": held(device)} for device in devices], default=str)


AGENT_BINDABLES = (query, mutation, agent_type)
