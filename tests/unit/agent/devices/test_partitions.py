"""Partitions come and go with kernels, in any order and at once: never two owners of one piece, nothing lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ai.backend.accelerator.mock import MockPlugin
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.devices.cordons import Cordons
from ai.backend.agent.devices.holdings import ClaimedDevices
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.operations import DeviceOperations
from ai.backend.agent.devices.partitions import Partitioner
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.agent.devices.whole_devices import WholeDevices
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import Conflict, CreationDeferred, ResourceError
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.slots import ResourceSlot
from ai.backend.plugin.discovery import PluginSource

GIB = 2**30
WHOLE = SlotName("mock.device")
SIZES = {SlotName(f"mock.device:{size}g-mig"): size for size in (10, 20, 40)} | {WHOLE: 40}
DECLARATION = 'slot_name = "mock"\n' + "".join(
    f'[[devices]]\nmother_uuid = "{name}"\nmodel_name = "Mock GPU"\nmemory_size = "40g"\n'
    + "".join(
        f'[[devices.partitions]]\nname = "{size}g"\nmemory_size = "{size}g"\nsubproc_count = 1\nmax = {40 // size}\n'
        for size in (10, 20, 40)
    )
    for name in "abc"
)


class Values:
    """A store in memory, which outlives an agent."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def items(self) -> dict[str, bytes]:
        return dict(self.values)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


class Node:
    """The devices of a mock plugin that refuses now and then, and that takes its time."""

    def __init__(self, path: Path, rng: random.Random, *, refusals: float) -> None:
        self.rng = rng
        self.violations: list[str] = []
        self.now = 0.0
        node = self

        async def falter() -> None:
            for _ in range(rng.randrange(3)):
                await asyncio.sleep(0)
            if rng.random() < refusals:
                raise Conflict("not now")

        class Plugin(MockPlugin):
            async def create_partition(self, device_id: DeviceId, profile: str) -> DeviceId:
                await falter()
                return await super().create_partition(device_id, profile)

            async def destroy_partition(self, partition_id: DeviceId) -> None:
                await falter()
                if node.inventory.holders("mock", partition_id):
                    node.violations.append(f"{partition_id} was joined under a kernel")
                if any(partition_id == device_id for _, device_id in node.claims.values()):
                    node.violations.append(f"{partition_id} was joined, and a claim keeps it")
                await super().destroy_partition(partition_id)

        (path / "mock-accelerator.toml").write_text(DECLARATION)
        settings = AgentSettings.model_validate(
            {"plugins": {"mock": {"config-path": str(path / "mock-accelerator.toml"), "state-path": str(path / "s")}}}
        )
        self.plugins = PluginSet([PluginSource("mock", partial(_same, Plugin))], settings)
        self.inventory = Inventory(self.plugins, 0, cut_on_demand=["mock"], whole_devices=WholeDevices(Values()))
        self.operations = DeviceOperations(
            self.plugins, self.inventory, Cordons(Values(), lambda: 0.0), refresh=self.refresh
        )
        self.partitioner = Partitioner(
            self.plugins,
            self.inventory,
            self.operations,
            names=["mock"],
            idle_s=5.0,
            clock=lambda: self.now,
            read_kept_ids=self.kept_ids,
        )
        self.running: dict[str, SlotName] = {}
        self.claims: dict[str, tuple[SlotName, DeviceId]] = {}
        self.holders: dict[str, str] = {}

    async def kept_ids(self) -> list[DeviceId]:
        """Returns the devices that claims keep, after other tasks have run."""
        ids = [device_id for _, device_id in self.claims.values()]
        await asyncio.sleep(0)
        return ids

    async def refresh(self) -> None:
        await self.inventory.refresh(asyncio.get_running_loop().time())

    async def start_kernel(self, kernel_id: str) -> None:
        slot = self.rng.choice(list(SIZES))
        kept = {
            claim_id: DeviceAllocation(slots={claimed: {device_id: Decimal(1)}})
            for claim_id, (claimed, device_id) in self.claims.items()
        }
        claim = None
        if self.rng.random() < 0.4:
            claim_id = self.rng.choice("xy")
            if claim_id in self.holders.values():
                return
            slot = self.claims[claim_id][0] if claim_id in self.claims else slot
            claim = ClaimedDevices(claim_id=claim_id, slots=frozenset({slot}), bound_devices=kept.get(claim_id))
        try:
            self.inventory.bind(
                kernel_id, ResourceSlot({slot: Decimal(1)}), DeviceAllocation(), -1, claim=claim, devices_of_claims=kept
            )
        except ResourceError as e:
            if claim is not None and claim.bound_devices is not None and "missing" in e.message:
                self.violations.append(f"the claim {claim.claim_id} has lost its device: {e.message}")
            return
        if claim is not None:
            self.holders[kernel_id] = claim.claim_id
        try:
            await self.partitioner.cut(kernel_id)
        except CreationDeferred:
            self.inventory.free(kernel_id)
            self.holders.pop(kernel_id, None)
            return
        self.running[kernel_id] = slot
        if claim is not None:  # at once, as the agent asks for it when the manager has heard of the kernel
            (device_id,) = self.inventory.holding(kernel_id).device_ids()
            if claim.bound_devices is not None and device_id not in claim.bound_devices.device_ids():
                self.violations.append(f"the claim {claim.claim_id} got {device_id} instead of its own")
            self.claims[claim.claim_id] = slot, DeviceId(device_id)

    async def end_kernel(self) -> None:
        if self.running:
            kernel_id = self.rng.choice(sorted(self.running))
            del self.running[kernel_id]
            self.inventory.free(kernel_id)
            claim_id = self.holders.pop(kernel_id, None)
            if claim_id is not None and self.rng.random() < 0.3:
                del self.claims[claim_id]

    def check(self) -> None:
        """Every running kernel holds one whole device or a partition that exists, and no piece has two owners."""
        listed = {device.device_id: device for device in self.inventory.kinds["mock"].listed_devices}
        owned: list[str] = []
        for kernel_id, slot in self.running.items():
            (device_id,) = self.inventory.holding(kernel_id).device_ids()
            device = listed[device_id]
            assert (device.parent_id is None) == (slot == WHOLE), (kernel_id, device_id)
            assert device.memory_size == SIZES[slot] * GIB
            if slot == WHOLE:
                assert all(other.parent_id != device_id for other in listed.values()), "the device is still cut"
            owned.append(device_id)
        assert len(owned) == len(set(owned))
        assert self.violations == []


def _same(plugin: type[MockPlugin]) -> type[MockPlugin]:
    return plugin


@pytest.mark.parametrize("refusals", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(10))
async def test_any_order_of_kernels_leaves_one_owner_for_each_piece(tmp_path: Path, seed: int, refusals: float) -> None:
    rng = random.Random(seed)
    node = Node(tmp_path, rng, refusals=refusals)
    await node.refresh()
    try:
        for round_number in range(40):
            calls: list[Callable[[], Awaitable[Any]]] = [
                *(partial(node.start_kernel, f"{round_number}-{n}") for n in range(rng.randrange(4))),
                *(node.end_kernel for _ in range(rng.randrange(3))),
                *(rng.choice([node.refresh, node.partitioner.join_idle]) for _ in range(rng.randrange(2))),
            ]
            rng.shuffle(calls)
            await asyncio.gather(*(call() for call in calls))
            await node.inventory.rebuild()
            node.now += rng.choice([0.0, 3.0, 6.0])
            node.check()
        for kernel_id in list(node.running):
            node.inventory.free(kernel_id)
        node.running.clear()
        node.claims.clear()
        await node.refresh()
        if not refusals:  # whatever is left in pieces, nobody holds it
            for name in "abc":
                node.inventory.bind(name, ResourceSlot({WHOLE: Decimal(1)}), DeviceAllocation(), -1)
                await node.partitioner.cut(name)
                node.running[name] = WHOLE
            node.check()
    finally:
        await node.inventory.close()
        await node.plugins.stop()
