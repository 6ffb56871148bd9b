"""Simulates a node that outlives its agents, with a runtime and plugins that fail, hang and return wrong values."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, ClassVar, TypeVar

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceAllocation,
    DeviceHealth,
    DeviceSlot,
    SlotDisplay,
)
from ai.backend.common.errors import CreationDeferred, Unavailable, WorkloadError
from ai.backend.common.ids import DeviceId, DeviceName, KernelId, SessionId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.core.allocation.stock_maps import build_alloc_map
from ai.backend.plugin.accelerator import (
    AbstractAllocMap,
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    Measurement,
    TerminationDeferred,
    WorkloadConfig,
)
from ai.backend.plugin.discovery import PluginSource
from ai.backend.plugin.runtime import (
    NetworkView,
    Overlay,
    RunnerChannel,
    RuntimeInfo,
    WorkloadExit,
    WorkloadExited,
    WorkloadKey,
    WorkloadSpec,
    WorkloadView,
)
from ai.backend.plugin.testing.runtime.fake_runtime import FakeBehaviour, FakeNode, FakeRuntime
from ai.backend.simulator.virtual_time import Process
from ai.backend.simulator.world import World

T = TypeVar("T")
DEVICE_KINDS = {
    "cpu": ("cpu", 8, Decimal(1), "discrete"),
    "mock": ("mock.shares", 2, Decimal("0.1"), "fractional"),
}
"""Device name -> slot, number of devices with one unit each, quantum, kind of the allocation map."""
HOOK_NAMES = frozenset({"pre_create", "post_create", "pre_terminate", "post_terminate"})
_MAX_HANG_S = 45.0


class Node:
    """Stores the workloads and devices of a node, and the violations that its runtime has seen (``broken``).

    Attributes:
        process: everything that runs on the node besides the agent; it does not die.
        plugins: the class of each plugin, by its key.
        partitions: those that exist of devices: their id -> the device and the slot.
        owed: kernel, attempt and plugin whose ``pre_create`` has begun and whose ``post_terminate`` has not succeeded.
        removed: workloads that were ended; each attempt of a kernel runs once at most.
        unwanted: workloads whose removal was called, also before a slow creation of a dead agent made them.
        ended_alive: workloads that the agent has ended while they ran.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process = Process(name)
        self.fake = FakeNode()
        self.unhealthy: set[tuple[str, str]] = set()
        self.owed: dict[tuple[KernelId, int, str], None] = {}
        self.allocations: dict[tuple[KernelId, int], dict[str, DeviceAllocation]] = {}
        self.removed: set[WorkloadKey] = set()
        self.unwanted: set[WorkloadKey] = set()
        self.ended_alive: set[WorkloadKey] = set()
        self.broken: list[str] = []
        self.is_plugin_broken = False
        self.plugins: dict[str, type[SimulatedPlugin]] = dict.fromkeys(DEVICE_KINDS, SimulatedPlugin)
        self.partitions: dict[str, tuple[str, str]] = {}
        self.claims_holding: Callable[[str], list[str]] = lambda device_id: []

    def runtime(self) -> SimulatedRuntime:
        """Returns a runtime for one process of the agent."""
        return SimulatedRuntime(self)

    def sources(self) -> list[PluginSource]:
        return [PluginSource(key, partial(_plugin, self, key)) for key in self.plugins]

    def holders_of(self, device_id: str) -> list[WorkloadKey]:
        """Returns the live workloads that have a device or partition."""
        return [
            key
            for key in self.live()
            for allocation in self.allocations.get((key.kernel_id, key.attempt), {}).values()
            if device_id in allocation.device_ids()
        ]

    def reboot(self) -> None:
        """Removes every workload and every network; the agent must have died before."""
        for workload in list(self.fake.workloads.values()):
            self.process.context.run(self.fake.end, workload, WorkloadExit(signal=9, reason="reboot"))
        self.fake.workloads.clear()
        self.fake.networks.clear()

    def end_half(self) -> None:
        """Ends every second workload, as if its program had exited."""
        for key in self.live()[::2]:
            self.process.context.run(self.fake.end, self.fake.workloads[key], WorkloadExit(code=1, reason="died"))

    def live(self) -> list[WorkloadKey]:
        return [key for key, workload in self.fake.workloads.items() if workload.exit is None]

    def check(self) -> list[str]:
        """Returns the violations on a node: kernels with two live workloads, and devices that are given twice.

        A device is given twice if workloads share it, or if a workload has it whole while a partition of it exists.
        """
        used_amounts: dict[tuple[str, str], Decimal] = {}
        violations = []
        attempt_by_kernel: dict[KernelId, int] = {}
        for key in self.live():
            if key.kernel_id in attempt_by_kernel:
                violations.append(
                    f"{self.name} runs attempts {attempt_by_kernel[key.kernel_id]} and {key.attempt} of one kernel"
                )
            attempt_by_kernel[key.kernel_id] = key.attempt
            for allocation in self.allocations.get((key.kernel_id, key.attempt), {}).values():
                for slot, devices in allocation.slots.items():
                    for device, quantity in devices.items():
                        device_key = str(slot), str(device)
                        used_amounts[device_key] = used_amounts.get(device_key, Decimal(0)) + quantity
        violations += [
            f"{self.name} shares device {device_key}: {amount}"
            for device_key, amount in used_amounts.items()
            if amount > 1
        ]
        held_ids = {device for _, device in used_amounts}
        violations += [
            f"{self.name} gives {parent_device} whole, of which {partition_id} is cut"
            for partition_id, (parent_device, _) in self.partitions.items()
            if parent_device in held_ids
        ]
        return violations


# ---- the runtime


class SimulatedRuntime(FakeRuntime):
    """Simulates the runtime of one agent process. Its operations go on if the agent dies meanwhile."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.fake, behave=self._random_behaviour)
        self._node = node
        self._world = node.world

    def _random_behaviour(self, spec: WorkloadSpec) -> FakeBehaviour:
        world = self._world
        fault_probability = world.faults.misbehave
        return FakeBehaviour(
            create_delay_s=world.rng.uniform(0.01, 1.0),
            is_ready=not world.chance(fault_probability),
            dies_after_s=world.rng.uniform(0.0, 60.0) if world.chance(5 * fault_probability) else None,
            stubborn=world.chance(5 * fault_probability),
        )

    async def _run_operation(self, operation: str, make_coroutine: Callable[[], Coroutine[Any, Any, T]]) -> T:
        world, rng = self._world, self._world.rng
        await asyncio.sleep(rng.uniform(0.0005, 0.02))
        if world.chance(world.faults.misbehave):
            failure_kind = rng.randrange(3)
            world.trace("runtime", operation, ("fails", "fails late", "hangs")[failure_kind])
            if failure_kind == 0:
                raise WorkloadError(f"{operation} failed")
            if failure_kind == 2:
                await asyncio.sleep(rng.uniform(1.0, _MAX_HANG_S))
            result = await world.call(self._node.process, make_coroutine)
            if failure_kind == 1:
                raise Unavailable(f"nobody knows whether {operation} was done")
            return result
        return await world.call(self._node.process, make_coroutine)

    def info(self) -> RuntimeInfo:
        return RuntimeInfo(
            name=self.name,
            version="1",
            workload_type="process_tree",
            tier="fake",
            enforcement={},
            capabilities=frozenset({"keep-home", "session-networks", "multi-node-networks"}),
        )

    async def create(self, spec: WorkloadSpec) -> WorkloadView:
        make_workload, node = super().create, self._node

        async def create_on_node() -> WorkloadView:
            view = await make_workload(spec)
            self._world.trace("runs", spec.key)
            if spec.key in node.removed:
                node.broken.append(f"{node.name} runs {spec.key} once more after its end")
            node.broken += node.check()
            return view

        return await self._run_operation("create", create_on_node)

    async def stop(self, key: WorkloadKey, *, grace_s: float) -> WorkloadExit | None:
        stop_workload, node = super().stop, self._node

        async def stop_on_node() -> WorkloadExit | None:
            if key in node.live():
                node.ended_alive.add(key)
            return await stop_workload(key, grace_s=grace_s)

        return await self._run_operation("stop", stop_on_node)

    async def remove(self, key: WorkloadKey, *, keep_home: bool = False) -> None:
        remove_workload, node = super().remove, self._node

        async def remove_on_node() -> None:
            if key in node.fake.workloads:
                node.removed.add(key)
            node.unwanted.add(key)
            await remove_workload(key, keep_home=keep_home)
            self._world.trace("removed", key)

        await self._run_operation("remove", remove_on_node)

    async def inspect(self, key: WorkloadKey) -> WorkloadView | None:
        inspect_workload = super().inspect
        return await self._run_operation("inspect", lambda: inspect_workload(key))

    async def list_workloads(self) -> Sequence[WorkloadView]:
        return await self._run_operation("list", super().list_workloads)

    async def create_network(
        self, session_id: SessionId, hosts: Sequence[str], overlay: Overlay | None = None
    ) -> NetworkView:
        make_network = super().create_network
        return await self._run_operation("create_network", lambda: make_network(session_id, hosts))

    async def remove_network(self, session_id: SessionId) -> None:
        base_remove_network, node = super().remove_network, self._node

        async def remove_network_on_node() -> None:
            used_networks = {
                workload.spec.session_id
                for key, workload in node.fake.workloads.items()
                if workload.exit is None and key not in node.unwanted
            }
            if session_id in used_networks:
                node.broken.append(f"{node.name} removes the network of {session_id}, which is in use")
            await base_remove_network(session_id)

        await self._run_operation("remove_network", remove_network_on_node)

    async def broken_networks(self) -> Sequence[SessionId]:
        return ()

    async def events(self) -> AsyncIterator[WorkloadExited]:
        """Yields the exits of workloads, and loses some exits."""
        async for event in super().events():
            if not self._world.chance(5 * self._world.faults.misbehave):
                yield event

    async def open_channel(self, key: WorkloadKey, *, epoch: int, last_seq: int = 0) -> RunnerChannel:
        make_channel = super().open_channel
        channel = await self._run_operation("open_channel", lambda: make_channel(key, epoch=epoch, last_seq=last_seq))
        return _Channel(self._world, self._node.process, channel)


class _Channel(RunnerChannel):
    """Passes the agent's frames to the simulated runner, which handles a frame even if the agent dies meanwhile."""

    def __init__(self, world: World, process: Process, inner_channel: RunnerChannel) -> None:
        self._world = world
        self._process = process
        self._inner = inner_channel

    async def send(self, frame: Mapping[str, Any]) -> None:
        await self._world.call(self._process, lambda: self._inner.send(frame))

    def recv(self) -> AsyncIterator[dict[str, Any]]:
        return self._inner.recv()

    async def ack(self, seq: int) -> None:
        await self._inner.ack(seq)

    async def close(self) -> None:
        await self._inner.close()


# ---- the plugins


def _plugin(node: Node, kind: str) -> type[SimulatedPlugin]:
    return type(f"Simulated{kind.title()}", (node.plugins[kind],), {"key": DeviceName(kind), "node": node})


class SimulatedPlugin(AbstractComputePlugin):
    """Simulates the devices of one kind on one node. ``key`` and ``node`` are class attributes."""

    key: ClassVar[DeviceName]
    node: ClassVar[Node]
    version = "1.0"

    async def _misbehave(self, hook: str) -> bool:
        """Makes a plugin's call fail, hang or return a wrong value at random.

        Returns True if the caller must return a wrong value.
        """
        world = self.node.world
        if self.node.is_plugin_broken and world.faults.misbehave and hook in HOOK_NAMES:
            raise RuntimeError(f"{hook} is broken")
        if not world.chance(world.faults.misbehave):
            return False
        failure = world.rng.randrange(3)
        world.trace(self.node.name, "plugin", self.key, hook, ("fails", "hangs", "lies")[failure])
        if failure == 0:
            raise RuntimeError(f"{hook} failed")
        if failure == 1:
            await asyncio.sleep(_MAX_HANG_S)
        return failure == 2

    def _devices(self) -> list[ComputeDevice]:
        slot, count, quantum, _ = DEVICE_KINDS[self.key]
        return [
            ComputeDevice(
                device_name=self.key,
                device_id=DeviceId(str(device_number)),
                hw_location="root",
                numa_node=device_number % 2,
                slots=(
                    DeviceSlot(slot_name=SlotName(slot), slot_type=SlotType.COUNT, amount=Decimal(1), quantum=quantum),
                ),
                health=DeviceHealth.UNHEALTHY
                if (self.key, str(device_number)) in self.node.unhealthy
                else DeviceHealth.HEALTHY,
            )
            for device_number in range(count)
        ]

    async def list_devices(self) -> Sequence[ComputeDevice]:
        devices = self._devices()
        return devices[1:] if await self._misbehave("list_devices") else devices

    async def configurable_slots(self) -> Sequence[SlotDisplay]:
        return [SlotDisplay(slot_name=SlotName(DEVICE_KINDS[self.key][0]), slot_type=SlotType.COUNT)]

    async def available_slots(self) -> Mapping[SlotName, Any]:
        slot, count, _, _ = DEVICE_KINDS[self.key]
        unhealthy_count = sum(plugin_key == self.key for plugin_key, _ in self.node.unhealthy)
        return {SlotName(slot): Decimal(count - unhealthy_count)}

    def alloc_map_spec(self) -> AllocMapSpec | None:
        return AllocMapSpec(kind=DEVICE_KINDS[self.key][3])

    async def create_alloc_map(self) -> AbstractAllocMap:
        return build_alloc_map(AllocMapSpec(kind=DEVICE_KINDS[self.key][3]), self._devices())

    async def alloc_to_devices(self, device_alloc: DeviceAllocation) -> Sequence[AttachedDevice]:
        if await self._misbehave("alloc_to_devices"):
            return [AttachedDevice(device_id=DeviceId("of-nobody"), model_name="Lie")]
        return [AttachedDevice(device_id=id_, model_name="Simulated") for id_ in sorted(device_alloc.device_ids())]

    def create_lifecycle_hook(self, workload: Any, device_alloc: Any, context: Any) -> AbstractLifecycleHook:
        return _Hook(self, workload, device_alloc, context)

    async def gather_workload_metrics(
        self, ctx: Any, kernels: Sequence[KernelId]
    ) -> Mapping[KernelId, Sequence[Measurement]]:
        return {}


class _Hook(AbstractLifecycleHook):
    def __init__(self, plugin: SimulatedPlugin, workload: Any, device_alloc: DeviceAllocation, context: Any) -> None:
        super().__init__(workload, device_alloc, context)
        self._plugin = plugin
        self._node = plugin.node
        self._world = plugin.node.world
        self._place = workload.kernel_id, context.attempt
        self._allocation = device_alloc

    async def pre_create(self) -> WorkloadConfig:
        self._node.owed[(*self._place, self._plugin.key)] = None
        self._node.allocations.setdefault(self._place, {})[self._plugin.key] = self._allocation
        await asyncio.sleep(self._world.rng.uniform(0.001, 0.05))
        if await self._plugin._misbehave("pre_create"):
            raise CreationDeferred("not now", retry_after=2.0)
        return WorkloadConfig(env_vars={f"SIMULATED_{self._plugin.key.upper()}": "1"})

    async def post_create(self) -> None:
        await self._plugin._misbehave("post_create")

    async def pre_terminate(self) -> None:
        if await self._plugin._misbehave("pre_terminate"):
            raise TerminationDeferred("saving", retry_after=1.0)

    async def post_terminate(self) -> None:
        if await self._plugin._misbehave("post_terminate"):
            raise CreationDeferred("it cannot be said here")
        self._world.trace(self._node.name, "post_terminate", self._plugin.key, *self._place)
        self._node.owed.pop((*self._place, self._plugin.key), None)
