"""The optional powers of the mock accelerator: links, partitions, power, images, attachment, CDI."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from ai.backend.accelerator.mock.declaration import Declaration, Link, MockDevice, Partition
from ai.backend.accelerator.mock.plugin import MockPlugin, MockSettings
from ai.backend.common.devices import DeviceAllocation, DeviceHealth, LinkKind
from ai.backend.common.errors import Conflict, InsufficientResource, InvalidInput, NotFound, PluginError
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.plugin.accelerator import POWERS, HookContext, LifecycleCause, ManagedState, Workload, build_alloc_map

GIB = 2**30
CUT = MockDevice(
    mother_uuid="cut",
    model_name="A100",
    memory_size=40 * GIB,
    partitions=(
        Partition(name="1g.10gb", memory_size=10 * GIB, max=4),
        Partition(name="2g.20gb", memory_size=20 * GIB, max=2),
    ),
)
PLAIN = MockDevice(mother_uuid="plain", model_name="A100")
REMOTE = MockDevice(mother_uuid="remote", model_name="A100", is_attached=False)
C, P = DeviceId("cut"), DeviceId("plain")


async def ready(*devices: MockDevice, settings: MockSettings | None = None, links: tuple[Link, ...] = ()) -> MockPlugin:
    plugin = MockPlugin(settings, declaration=Declaration(slot_name="gpu", devices=devices, links=links))
    await plugin.init()
    return plugin


def hook_of(plugin: MockPlugin, slot: str, device: str):  # type: ignore[no-untyped-def]  # a hook
    held = DeviceAllocation(slots={SlotName(slot): {DeviceId(device): Decimal(1)}})
    workload = Workload(id="", type="container", kernel_id=KernelId(UUID(int=1)), session_id=SessionId(UUID(int=2)))
    context = HookContext(cause=LifecycleCause.CREATE, attempt=1, state=ManagedState())
    return plugin.create_lifecycle_hook(workload, held, context)


async def test_it_has_every_power_that_it_says() -> None:
    plugin = await ready(PLAIN)
    for flag, protocol in POWERS.items():
        assert getattr(plugin.capabilities, flag)
        assert isinstance(plugin, protocol)


async def test_a_cut_device_offers_its_partitions_instead_of_itself() -> None:
    plugin = await ready(CUT, PLAIN)
    assert {p.name: p.available for p in await plugin.partition_profiles(C)} == {"1g.10gb": 4, "2g.20gb": 2}
    first = await plugin.create_partition(C, "1g.10gb")
    await plugin.create_partition(C, "2g.20gb")
    assert {p.name: p.available for p in await plugin.partition_profiles(C)} == {"1g.10gb": 1, "2g.20gb": 0}
    assert await plugin.available_slots() == {"gpu.device": 1, "gpu.device:10g-mig": 1, "gpu.device:20g-mig": 1}
    with pytest.raises(Conflict, match="no room"):
        await plugin.create_partition(C, "2g.20gb")
    with pytest.raises(NotFound):
        await plugin.create_partition(C, "7g.80gb")
    await plugin.destroy_partition(first)
    await plugin.destroy_partition(first)
    assert first not in {d.device_id for d in await plugin.list_devices()}


async def test_what_is_in_use_is_neither_cut_nor_switched_off_nor_destroyed() -> None:
    plugin = await ready(CUT)
    await hook_of(plugin, "gpu.device", "cut").pre_create()
    for act in (plugin.create_partition(C, "1g.10gb"), plugin.power_off(C), plugin.reset(C)):
        with pytest.raises(Conflict, match="in use"):
            await act
    await hook_of(plugin, "gpu.device", "cut").post_terminate()
    part = await plugin.create_partition(C, "1g.10gb")
    await hook_of(plugin, "gpu.device:10g-mig", part).pre_create()
    for act in (plugin.destroy_partition(part), plugin.power_off(C)):
        with pytest.raises(Conflict, match="in use"):
            await act


async def test_the_hardware_remembers_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    settings = MockSettings(state_path=tmp_path / "hardware.json")
    plugin = await ready(CUT, settings=settings)
    part = await plugin.create_partition(C, "1g.10gb")
    await hook_of(plugin, "gpu.device:10g-mig", part).pre_create()
    again = await ready(CUT, settings=settings)
    assert [d.device_id for d in await again.list_devices()] == ["cut", part]
    with pytest.raises(Conflict):
        await again.destroy_partition(part)
    (tmp_path / "hardware.json").write_text("[1]")
    with pytest.raises(PluginError, match=r"hardware\.json"):
        await ready(CUT, settings=settings)


async def test_slots_of_one_device_hide_each_other() -> None:
    plugin = await ready(MockDevice(mother_uuid="x", model_name="m", offers=("device", "shares", "10g-mig")))
    alloc_map = build_alloc_map(plugin.alloc_map_spec(), await plugin.list_devices())
    for taken, others in {
        "gpu.device": ("gpu.shares", "gpu.device:10g-mig"),
        "gpu.shares": ("gpu.device", "gpu.device:10g-mig"),
        "gpu.device:10g-mig": ("gpu.device", "gpu.shares"),
    }.items():
        quantity = Decimal("0.5") if taken == "gpu.shares" else Decimal(1)
        held = alloc_map.allocate({SlotName(taken): quantity})
        for other in others:
            with pytest.raises(InsufficientResource):
                alloc_map.allocate({SlotName(other): Decimal(1)})
        alloc_map.free(held)


async def test_power_images_and_resets() -> None:
    plugin = await ready(PLAIN)
    await plugin.power_off(P)
    assert (await plugin.list_devices())[0].health_reason == "the power is off"
    await plugin.power_on(P)
    assert (await plugin.list_devices())[0].health is DeviceHealth.HEALTHY
    await plugin.program(P, "/images/a.bit")
    assert await plugin.programmed_image(P) == "/images/a.bit"
    await plugin.reset(P)
    assert await plugin.programmed_image(P) is None
    with pytest.raises(InvalidInput):
        await plugin.program(P, "a.exe")
    with pytest.raises(NotFound):
        await plugin.power_on(DeviceId("other"))


async def test_devices_of_another_box() -> None:
    plugin = await ready(PLAIN, REMOTE)
    remote = DeviceId("remote")
    assert [d.device_id for d in await plugin.list_devices()] == ["plain"]
    assert list(await plugin.attachable_devices()) == ["remote"]
    await plugin.attach(remote)
    await plugin.attach(remote)
    assert [d.device_id for d in await plugin.list_devices()] == ["plain", "remote"]
    assert list(await plugin.attachable_devices()) == []
    await plugin.detach(remote)
    await plugin.detach(remote)
    assert [d.device_id for d in await plugin.list_devices()] == ["plain"]
    with pytest.raises(Conflict):
        await plugin.detach(P)


async def test_cdi_names_healthy_devices_only() -> None:
    plugin = await ready(PLAIN, MockDevice(mother_uuid="bad", model_name="m", is_healthy=False))
    spec = await plugin.cdi_spec()
    assert (spec["cdiVersion"], spec["kind"]) == ("0.6.0", "backend.ai/mock")
    nodes = {d["name"]: d["containerEdits"]["deviceNodes"] for d in spec["devices"]}
    assert nodes == {"plain": [{"path": "/dev/mock/00", "hostPath": "/dev/null"}]}


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        ("nvlink-all", ["direct", "direct", "direct", "direct", "direct", "direct", "direct"]),
        ("nvlink-pairs", ["direct", "pcie-root", "pcie-root", "system", "system", "system", "system"]),
        ("pcie-tree", ["pcie-switch", "pcie-root", "pcie-root", "system", "system", "system", "system"]),
        (None, []),
    ],
)
async def test_the_shapes_of_eight_devices_on_two_nodes(topology: str | None, expected: list[str]) -> None:
    devices = MockDevice(mother_uuid="g", model_name="m", count=8, numa_node=(0, 1))
    declaration = Declaration.model_validate({"devices": [devices], "topology": topology})
    plugin = MockPlugin(declaration=declaration)
    found = await plugin.list_devices()
    assert [d.numa_node for d in found] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [link.kind.value for link in found[0].links] == expected
    kinds = {(d.device_id, link.peer): link.kind for d in found for link in d.links}
    assert all(kinds[b, a] is kind for (a, b), kind in kinds.items())


async def test_a_declared_link_is_told_and_an_absent_peer_is_not() -> None:
    devices = (PLAIN, CUT, REMOTE)
    link = Link(a="plain", b="cut", kind=LinkKind.DIRECT, bandwidth=25)
    plugin = await ready(*devices, links=(link, Link(a="cut", b="remote", kind=LinkKind.SYSTEM)))
    found = {d.device_id: d.links for d in await plugin.list_devices()}
    assert [(x.peer, x.kind, x.bandwidth_gib_s) for x in found[C]] == [("plain", LinkKind.DIRECT, 25)]
