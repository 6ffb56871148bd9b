"""Plugins of a node offer what the cluster tells of it, and name devices as the runtime of pods claims them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, cast

import pytest

from ai.backend.agent.config.kubernetes import CountedSettings, DriverSettings, KubernetesSettings
from ai.backend.agent.shard.devices import numbered_devices
from ai.backend.agent.shard.nodes import NodeFacts
from ai.backend.agent.shard.plugins import node_plugins
from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceSlot
from ai.backend.common.ids import DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.plugin.accelerator import check_config
from ai.backend.plugin.discovery import make_plugin

DRIVER = "gpu.example.com"
SLOT = SlotName("gpu-example-com.device")


def gpu(device_id: str) -> ComputeDevice:
    slot = DeviceSlot(slot_name=SLOT, slot_type=SlotType.COUNT, amount=Decimal(1))
    name = DeviceName("gpu-example-com")
    return ComputeDevice(device_name=name, device_id=DeviceId(device_id), hw_location="", slots=(slot,))


@pytest.fixture
def facts() -> list[NodeFacts]:
    devices = {DRIVER: (gpu("G0"), gpu("G1"))}
    return [
        NodeFacts(
            name="n1", uid="u", agent_id="c.n1", architecture="x86_64", cores=6, memory_bytes=8 << 30, devices=devices
        )
    ]


@pytest.fixture
def plugins(facts: list[NodeFacts]) -> dict[str, Any]:
    settings = KubernetesSettings(drivers={DRIVER: DriverSettings()})
    sources = node_plugins(lambda: facts[0], settings)
    return {source.name: make_plugin(source.load(), {}) for source in sources}


def allocated(slot: str, **amounts: int) -> DeviceAllocation:
    return DeviceAllocation(slots={SlotName(slot): {DeviceId(d): Decimal(a) for d, a in amounts.items()}})


async def test_slots_follow_the_node(plugins: dict[str, Any], facts: list[NodeFacts]) -> None:
    assert await plugins["cpu"].available_slots() == {"cpu": 6}
    assert await plugins["mem"].available_slots() == {"mem": 8 << 30}
    assert await plugins["gpu-example-com"].available_slots() == {SLOT: 2}
    facts[0] = replace(facts[0], cores=0, devices={})
    assert await plugins["cpu"].available_slots() == {"cpu": 0}
    assert await plugins["gpu-example-com"].available_slots() == {SLOT: 0}


async def test_a_session_gets_its_limits_and_exactly_its_devices(plugins: dict[str, Any]) -> None:
    workload: Any = None
    assert (await plugins["cpu"].configure(workload, allocated("cpu", node=2))).cpu_limit == 2.0
    assert (await plugins["mem"].configure(workload, allocated("mem", node=1 << 20))).memory_limit_bytes == 1 << 20
    config = await plugins["gpu-example-com"].configure(workload, allocated(SLOT, G1=1))
    assert [device.cdi_name for device in config.devices] == [f"{DRIVER}/uuid=G1"]
    assert (await plugins["cpu"].configure(workload, DeviceAllocation())).cpu_limit is None


async def test_two_nodes_keep_their_plugins_apart(facts: list[NodeFacts], plugins: dict[str, Any]) -> None:
    other = replace(facts[0], cores=99)
    sources = node_plugins(lambda: other, KubernetesSettings())
    assert await make_plugin(sources[0].load(), {}).available_slots() == {"cpu": 99}
    assert await plugins["cpu"].available_slots() == {"cpu": 6}


async def test_a_session_asks_for_a_number_of_what_the_kubelet_chooses(facts: list[NodeFacts]) -> None:
    settings = KubernetesSettings(counted={"nvidia.com/gpu": CountedSettings(device_name="cuda")})
    facts[0] = replace(
        facts[0],
        devices={"nvidia.com/gpu": numbered_devices(3, "nvidia.com/gpu", settings.counted["nvidia.com/gpu"], "H")},
    )
    sources = node_plugins(lambda: facts[0], settings)
    plugin = make_plugin(next(source for source in sources if source.name == "cuda").load(), {})
    assert await plugin.available_slots() == {"cuda.device": 3}
    allocation = DeviceAllocation(
        slots={SlotName("cuda.device"): {DeviceId("any-0"): Decimal(1), DeviceId("any-2"): Decimal(1)}}
    )
    config = await plugin.configure(cast("Any", None), allocation)
    assert [device.cdi_name for device in config.devices] == [
        "COUNTED.nvidia.com/gpu=any-0",
        "COUNTED.nvidia.com/gpu=any-2",
    ]
    assert check_config(config) == config, "the agent takes it from a hook"
    attached = await plugin.alloc_to_devices(allocation)
    assert [(device.device_id, device.model_name) for device in attached] == [("any-0", "H"), ("any-2", "H")]
