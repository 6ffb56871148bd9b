"""Device claims on nodes of a cluster: a later session gets the very same device by its ResourceClaim."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any, cast

import pytest

from ai.backend.agent.config.kubernetes import CountedSettings, DriverSettings, KubernetesSettings
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.devices.holdings import ClaimedDevices
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.agent.shard.devices import numbered_devices
from ai.backend.agent.shard.nodes import NodeFacts
from ai.backend.agent.shard.plugins import node_plugins
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import InsufficientResource
from ai.backend.common.slots import ResourceSlot
from ai.backend.runtime.kubernetes.claims import compose_claim
from tests.unit.agent.shard.test_plugins import DRIVER, SLOT, gpu

RESOURCE = "vendor.example/gpu"


async def test_the_resource_claims_of_sessions_in_turn_name_one_device() -> None:
    facts = NodeFacts(
        name="n1", uid="u", agent_id="c.n1", architecture="x86_64", cores=6, memory_bytes=8 << 30,
        devices={DRIVER: (gpu("G0"), gpu("G1"), gpu("G2"))},
    )  # fmt: skip
    settings = KubernetesSettings(drivers={DRIVER: DriverSettings()})
    plugins = PluginSet(node_plugins(lambda: facts, settings), AgentSettings())
    inventory = Inventory(plugins, 0)
    request = ResourceSlot({SLOT: Decimal(1)})

    async def resource_claim(kernel_id: str) -> list[str]:
        allocation = inventory.holding_of(kernel_id, "gpu-example-com")
        handle = plugins.get("gpu-example-com")
        config = await handle.call("configure", lambda plugin: plugin.configure(cast("Any", None), allocation))
        composed = compose_claim(kernel_id, {}, config.devices, {})
        assert composed is not None
        return [
            selector["cel"]["expression"]
            for device in composed["spec"]["devices"]["requests"]
            for selector in device["exactly"]["selectors"]
        ]

    try:
        await inventory.refresh(asyncio.get_running_loop().time())
        claim = ClaimedDevices(claim_id="c", slots=frozenset({SLOT}))
        inventory.bind("k-1", request, DeviceAllocation(), -1, claim=claim)
        held = inventory.holding("k-1")
        first = await resource_claim("k-1")
        bound = ClaimedDevices(claim_id="c", slots=frozenset({SLOT}), bound_devices=held)
        with pytest.raises(InsufficientResource, match="not shared"):
            inventory.bind("k-2", request, held, -1, claim=bound)
        inventory.free("k-1")
        inventory.bind("other", request, held, -1, devices_of_claims={"c": held})
        assert await resource_claim("other") != first
        inventory.bind("k-3", request, held, -1, claim=bound)
        assert await resource_claim("k-3") == first
        (device_id,) = held.device_ids()
        assert first == [
            f'device.driver == "{DRIVER}" && device.attributes["{DRIVER}"].uuid == "{device_id}"',
        ]
    finally:
        await inventory.close()
        await plugins.stop()


async def test_what_the_kubelet_chooses_is_said_to_have_no_identity() -> None:
    settings = CountedSettings()
    facts = NodeFacts(
        name="n1", uid="u", agent_id="c.n1", architecture="x86_64", cores=6, memory_bytes=8 << 30,
        devices={RESOURCE: numbered_devices(2, RESOURCE, settings, None)},
    )  # fmt: skip
    plugins = PluginSet(node_plugins(lambda: facts, KubernetesSettings(counted={RESOURCE: settings})), AgentSettings())
    inventory = Inventory(plugins, 0)
    try:
        await inventory.refresh(asyncio.get_running_loop().time())
        specs = {key: kind.alloc_map_spec for key, kind in inventory.kinds.items() if key not in ("cpu", "mem")}
        assert [spec is not None and spec.anonymous for spec in specs.values()] == [True]
    finally:
        await inventory.close()
        await plugins.stop()
