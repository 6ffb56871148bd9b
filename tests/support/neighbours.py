"""A plugin that misbehaves as its settings say: ``faults`` maps a method to what it does instead of its work."""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, cast

from pydantic import BaseModel, ConfigDict, Field

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    DeviceLink,
    DeviceSlot,
    LinkKind,
    SlotDisplay,
    VariantNamespace,
)
from ai.backend.common.errors import CreationDeferred, CreationDenied
from ai.backend.common.ids import DeviceId, DeviceName, KernelId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.core.allocation.stock_maps import DiscreteAllocMap
from ai.backend.plugin.accelerator import (
    AbstractAllocMap,
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    DeviceHealthChange,
    Measurement,
    NodeInfo,
    PluginCapabilities,
    TerminationDeferred,
    WorkloadConfig,
    slot_totals,
)

DETACH = "setsid sh -c 'setsid sh -c \"echo \\$\\$; exec sleep 60 >&2\" & echo $$; exec sleep 60 >&2' &"
"""Starts a daemon that starts another one; both say their numbers once they have sessions of their own."""
REFERENCE = "tests.support.neighbours:Neighbour"
SLOT = SlotName("bad.device")


class NeighbourSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")
    devices: int = 2
    faults: dict[str, str] = Field(default_factory=dict)
    while_file: str = ""
    """Faults are only there while this file is."""
    journal: str = ""
    own_map: bool = False


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def _misbehave(what: str) -> None:
    match what:
        case "raise":
            raise OSError("the driver is gone")
        case "exit":
            raise SystemExit(5)
        case "hang":
            await asyncio.Event().wait()
        case "stubborn":
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    continue
        case "block":
            time.sleep(60)  # noqa: ASYNC251  # as a vendor's library does
        case "thread":
            await asyncio.to_thread(time.sleep, 60)
        case "die":
            os._exit(7)
        case "crash":
            ctypes.string_at(0)
        case "print":
            sys.stdout.write("x" * 5000 + "\n")
            sys.stdout.write("line\n" * 1000)
            sys.stdout.flush()
        case "deny":
            raise CreationDenied("no, never")
        case "defer":
            raise CreationDeferred("not now", retry_after=7.0)
        case "defer-end":
            raise TerminationDeferred("wait", retry_after=0.05)
        case "defer-never":
            raise CreationDeferred("not now", retry_after=cast("float", None))
        case "defer-end-never":
            raise TerminationDeferred("wait", retry_after=cast("float", None))
        case "unspeakable":
            raise UnspeakableError
        case "undecodable":
            raise OSError("no such file: \udcff")


def device(name: str, **changes: Any) -> ComputeDevice:
    slot = DeviceSlot(slot_name=SLOT, slot_type=SlotType.COUNT, amount=Decimal(1))
    made = ComputeDevice(device_name=DeviceName("bad"), device_id=DeviceId(name), hw_location="x", slots=(slot,))
    return replace(made, **changes)


def _slot(**changes: Any) -> tuple[DeviceSlot, ...]:
    return (replace(device("x").slots[0], **changes),)


def _many(count: int) -> list[ComputeDevice]:
    return [device(str(n)) for n in range(count)]


DEVICES: Mapping[str, Any] = {
    "none": lambda: None,
    "text": lambda: "devices",
    "numbers": lambda: [1, 2],
    "generator": lambda: (device(n) for n in "ab"),
    "dicts": lambda: [{"device_id": "a"}],
    "negative": lambda: [device("a", slots=_slot(amount=Decimal(-1)))],
    "nan": lambda: [device("a", slots=_slot(amount=Decimal("NaN")))],
    "snan": lambda: [device("a", slots=_slot(amount=Decimal("sNaN")))],
    "infinite": lambda: [device("a", slots=_slot(amount=Decimal("Infinity")))],
    "float": lambda: [device("a", slots=_slot(amount=1.5))],
    "zero-quantum": lambda: [device("a", slots=_slot(quantum=Decimal(0)))],
    "twice": lambda: [device("a"), device("a")],
    "malformed-slot": lambda: [device("a", slots=_slot(slot_name=SlotName("Bad Device!")))],
    "slot-of-cpu": lambda: [device("a", slots=_slot(slot_name=SlotName("cpu")))],
    "unknown-slot": lambda: [device("a", slots=_slot(slot_name=SlotName("bad.other")))],
    "other-type": lambda: [device("a", slots=_slot(slot_type=SlotType.UNIQUE))],
    "numa": lambda: [device("a", numa_node=-1)],
    "peer": lambda: [device("a", links=(DeviceLink(peer=DeviceId("z"), kind=LinkKind.DIRECT),))],
    "other-name": lambda: [device("a", device_name=DeviceName("cuda"))],
    "empty-id": lambda: [device("")],
    "wrong-type": lambda: [device("a", memory_size="much")],
    "too-many": lambda: _many(20_000),
    "huge-text": lambda: [device("a", model_name="x" * (10 << 20))],
    "detach": lambda: [device(pid) for pid in subprocess.check_output(["sh", "-c", DETACH], text=True).split()],
    "spawn": lambda: [device(str(subprocess.Popen(["sleep", "60"]).pid))],
    "gigantic": lambda: [device("a", model_name="x" * (32 << 20))],
}
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "list_devices": DEVICES,
    "configurable_slots": {
        "none": lambda: None,
        "twice": lambda: [SlotDisplay(slot_name=SLOT, slot_type=SlotType.COUNT)] * 2,
        "slot-of-mem": lambda: [SlotDisplay(slot_name=SlotName("mem"), slot_type=SlotType.BYTES)],
    },
    "available_slots": {
        "none": lambda: None,
        "lie": lambda: {SLOT: Decimal(64)},
        "unknown": lambda: {SLOT: Decimal(2), "bad.other": Decimal(1)},
        "negative": lambda: {SLOT: Decimal(-1)},
        "float": lambda: {SLOT: 2.0},
    },
    "variant_namespaces": {"numbers": lambda: [1]},
    "get_node_info": {"none": lambda: None, "huge": lambda: NodeInfo(extra={"x": "y" * 100_000})},
    "gather_node_metrics": {"none": lambda: None, "text": lambda: "metrics"},
}


class Neighbour(AbstractComputePlugin):
    """One kind of device ``bad`` with slot ``bad.device``."""

    key: ClassVar[DeviceName] = DeviceName("bad")
    version: ClassVar[str] = "1"
    settings_model: ClassVar[type[BaseModel] | None] = NeighbourSettings
    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities(health_watching=True)

    def __init__(self, settings: BaseModel | None = None) -> None:
        super().__init__(settings)
        assert isinstance(settings, NeighbourSettings)
        self._own = settings
        if self._fault("construct"):
            raise RuntimeError("no constructor today")

    def _fault(self, method: str) -> str:
        is_on = not self._own.while_file or Path(self._own.while_file).exists()
        return self._own.faults.get(method, "") if is_on else ""

    async def _do(self, method: str, cause: str = "") -> Any:
        """What the method answers instead; None: do the work. ``cause``: of a hook's call, for the journal."""
        if self._own.journal:
            with Path(self._own.journal).open("a") as journal:  # noqa: ASYNC230  # one line
                journal.write(f"{method} {os.getpid()} {cause}\n")
        fault = self._fault(method)
        if fault in ANSWERS.get(method, {}):
            return ANSWERS[method][fault]
        await _misbehave(fault)
        return None

    async def init(self) -> None:
        await self._do("init")

    def _devices(self) -> list[ComputeDevice]:
        if self._fault("ids") == "change":
            return [device(f"other-{n}") for n in range(self._own.devices)]
        return [device(f"bad-{n}") for n in range(self._own.devices)]

    async def list_devices(self) -> Sequence[ComputeDevice]:
        instead = await self._do("list_devices")
        return self._devices() if instead is None else instead()

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        instead = await self._do("configurable_slots")
        return [SlotDisplay(slot_name=SLOT, slot_type=SlotType.COUNT)] if instead is None else instead()

    async def available_slots(self) -> Mapping[SlotName, Decimal]:
        instead = await self._do("available_slots")
        return slot_totals(self._devices()) if instead is None else instead()

    async def variant_namespaces(self) -> Sequence[VariantNamespace]:
        instead = await self._do("variant_namespaces")
        return () if instead is None else instead()

    async def get_node_info(self) -> NodeInfo:
        instead = await self._do("get_node_info")
        return NodeInfo() if instead is None else instead()

    async def gather_node_metrics(self, ctx: Any) -> Sequence[Measurement]:
        instead = await self._do("gather_node_metrics")
        return () if instead is None else instead()

    async def gather_workload_metrics(self, ctx: Any, kernels: Sequence[KernelId]) -> Mapping[KernelId, Any]:
        await self._do("gather_workload_metrics")
        return {}

    def alloc_map_spec(self) -> AllocMapSpec | None:
        match self._fault("alloc_map_spec"):
            case "raise":
                raise OSError("no map")
            case "unknown":
                return AllocMapSpec(kind="no-such-kind")
        return None if self._own.own_map else AllocMapSpec(kind="discrete")

    async def create_alloc_map(self) -> AbstractAllocMap:
        await self._do("create_alloc_map")
        return LastFirstMap(self._devices(), self._fault("allocate"))

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        await self._do("alloc_to_devices")
        return [AttachedDevice(device_id=d, model_name="Bad") for d in sorted(device_alloc.device_ids())]

    def create_lifecycle_hook(self, workload: Any, device_alloc: Any, context: Any) -> AbstractLifecycleHook:
        return NeighbourHook(workload, device_alloc, context, self)

    async def watch_health(self) -> AsyncIterator[DeviceHealthChange]:
        await self._do("watch_health")
        while True:
            await asyncio.sleep(0.02)
            broken = self._fault("health")
            if broken:
                yield DeviceHealthChange(device_id=DeviceId("bad-1"), health=DeviceHealth.UNHEALTHY, reason=broken)


class NeighbourHook(AbstractLifecycleHook):
    def __init__(self, workload: Any, device_alloc: Any, context: Any, plugin: Neighbour) -> None:
        super().__init__(workload, device_alloc, context)
        self._plugin = plugin

    async def _do(self, method: str) -> None:
        state = self.context.state
        state.data[method] = state.data.get(method, 0) + 1
        if self._plugin._fault("save") == method:
            await state.save()
        if self._plugin._fault("state") == method:
            state.data["x"] = object()
        if self._plugin._fault("listed") == method:
            state.data = cast("dict[str, Any]", [1])
        await self._plugin._do(method, self.context.cause.value)

    async def pre_create(self) -> WorkloadConfig:
        await self._do("pre_create")
        return WorkloadConfig(env_vars={"BAD_DEVICES": ",".join(sorted(self.device_alloc.device_ids()))})

    async def post_create(self) -> None:
        await self._do("post_create")

    async def pre_terminate(self) -> None:
        await self._do("pre_terminate")

    async def post_terminate(self) -> None:
        await self._do("post_terminate")


class LastFirstMap(DiscreteAllocMap):
    """A map of the plugin's own: the last device first, or a lie."""

    def __init__(self, devices: Sequence[ComputeDevice], fault: str) -> None:
        super().__init__(list(reversed(devices)))
        self._lie = fault

    def allocate(self, request: Mapping[SlotName, Decimal], **options: Any) -> DeviceAllocation:
        match self._lie:
            case "raise":
                raise RuntimeError("no map today")
            case "none":
                return None  # type: ignore[return-value]  # that is the lie
            case "block":
                time.sleep(60)
            case "foreign":
                return DeviceAllocation(slots={SLOT: {DeviceId("of somebody else"): request[SLOT]}})
            case "more":
                return DeviceAllocation(
                    slots={SLOT: {DeviceId("bad-0"): request[SLOT], DeviceId("bad-1"): request[SLOT]}}
                )
            case "twice":
                return DeviceAllocation(slots={SLOT: {DeviceId("bad-0"): request[SLOT]}})
        chosen: list[DeviceId] = []
        options["eligible"] = options.get("eligible") or frozenset(f"bad-{n}" for n in range(9))
        held = self.available()[SLOT]
        free = [f"bad-{n}" for n in range(9) if f"bad-{n}" in options["eligible"]]
        for name in sorted(free, reverse=True):
            probe = DeviceAllocation(slots={SLOT: {DeviceId(name): Decimal(1)}})
            try:
                self.apply(probe)
            except Exception:  # noqa: BLE001  # this one is taken, or not there
                continue
            chosen.append(DeviceId(name))
            if len(chosen) == int(request[SLOT]):
                return DeviceAllocation(slots={SLOT: dict.fromkeys(chosen, Decimal(1))})
        raise RuntimeError(f"{held} left")


class BlockingNeighbour(Neighbour):
    """Says that it may block."""

    capabilities: ClassVar[PluginCapabilities] = PluginCapabilities(health_watching=True, blocking=True)
