"""Agents and sessions for tests, short to write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from uuid import UUID

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceHealth, DeviceSlot
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, KernelId, SessionId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClusterMode, SlotType
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.core.scheduling.snapshot import AgentView, HeldKernel, PendingKernel, PendingSession

NOW = datetime(2026, 1, 1, tzinfo=UTC)
_ids = count(1)


def devices(
    kind: str, slot: str, amounts: list[str | int], *, quantum: str | int = 1, per_node: int | None = None
) -> tuple[ComputeDevice, ...]:
    return tuple(
        ComputeDevice(
            device_name=DeviceName(kind),
            device_id=DeviceId(str(i)),
            hw_location="root",
            numa_node=None if per_node is None else i // per_node,
            slots=(
                DeviceSlot(
                    slot_name=SlotName(slot),
                    slot_type=SlotType.COUNT,
                    amount=Decimal(amount),
                    quantum=Decimal(quantum),
                ),
            ),
        )
        for i, amount in enumerate(amounts)
    )


def agent(
    name: str, *, cpu: int = 4, mem: str = "8g", cuda: int = 0, shares: list[str | int] | None = None, **more: object
) -> AgentView:
    memory = ResourceSlot.parse({"mem": mem})["mem"]
    discrete = AllocMapSpec(kind="discrete")
    plugins = [
        PluginDevices(name=DeviceName("cpu"), devices=devices("cpu", "cpu", [1] * cpu), alloc_map=discrete),
        PluginDevices(name=DeviceName("mem"), devices=devices("mem", "mem", [int(memory)]), alloc_map=discrete),
    ]
    if cuda:
        given = devices("cuda", "cuda.device", [1] * cuda)
        plugins.append(PluginDevices(name=DeviceName("cuda"), devices=given, alloc_map=discrete))
    if shares:
        given = devices("cuda", "cuda.shares", shares, quantum="0.1")
        fractional = AllocMapSpec(kind="fractional")
        plugins.append(PluginDevices(name=DeviceName("cuda"), devices=given, alloc_map=fractional))
    view = AgentView(agent_id=AgentId(name), architecture="x86_64", plugins=tuple(plugins), generation=7)
    return replace(view, **more)  # type: ignore[arg-type]  # a builder


def slots(**quantities: str | int) -> ResourceSlot:
    return ResourceSlot.parse({name.replace("_", "."): q for name, q in quantities.items()})


def holding(view: AgentView, **quantities: str | int) -> AgentView:
    """The agent with one more kernel on it, whose devices nobody has told yet."""
    kernel = HeldKernel(kernel_id=KernelId(UUID(int=next(_ids))), slots=slots(**quantities))
    return replace(view, held=(*view.held, kernel))


def failing(view: AgentView, plugin: str, **reasons: str) -> AgentView:
    """The agent with failed devices of a plugin: ``_0="Xid 79"``."""
    sick = {name.lstrip("_"): reason for name, reason in reasons.items()}

    def judged(device: ComputeDevice) -> ComputeDevice:
        reason = sick.get(device.device_id)
        return device if reason is None else replace(device, health=DeviceHealth.UNHEALTHY, health_reason=reason)

    plugins = (replace(p, devices=tuple(map(judged, p.devices))) if p.name == plugin else p for p in view.plugins)
    return replace(view, plugins=tuple(plugins))


def session(name: str, *kernels: ResourceSlot, age_s: float = 0, multi: bool = False, **more: object) -> PendingSession:
    made = PendingSession(
        session_id=SessionId(UUID(int=next(_ids))),
        name=name,
        kernels=tuple(
            PendingKernel(kernel_id=KernelId(UUID(int=next(_ids))), slots=s, image="python") for s in kernels
        ),
        enqueued_at=NOW - timedelta(seconds=age_s),
        cluster_mode=ClusterMode.MULTI_NODE if multi else ClusterMode.SINGLE_NODE,
    )
    return replace(made, **more)  # type: ignore[arg-type]  # a builder
