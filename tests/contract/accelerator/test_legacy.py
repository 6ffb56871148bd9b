"""A vendor's v1 plugin in its host process: its promises, what its answers become, what is said of bad ones."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID

import pytest

from ai.backend.common.devices import AllocationStrategy, AllocMapSpec, DeviceAllocation, DeviceHealth
from ai.backend.common.errors import CreationDenied, PluginError
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.core.allocation.alloc_map import AbstractAllocMap
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AbstractLifecycleHook,
    AttachedDevice,
    DeviceMapping,
    HookContext,
    LifecycleCause,
    ManagedState,
    Measurement,
    Mount,
    StatContext,
    Workload,
    WorkloadConfig,
)
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.plugin.discovery import find_plugins
from ai.backend.pluginhost import HostedPlugin, launch
from ai.backend.pluginhost.process import HostedCallFailed
from tests.contract.accelerator.test_hosted import HostedContract
from tests.support.legacy import SITE

SLOT = SlotName("acme.device")
BOTH = DeviceAllocation(slots={SLOT: {DeviceId("ACME-0"): Decimal(1), DeviceId("ACME-1"): Decimal(1)}})
KERNEL = KernelId(UUID(int=77))
Launch = Callable[..., Awaitable[HostedPlugin]]


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all tests: hosts of one environment are forked from one zygote."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> Path:
    """The vendor's package is installed; where its plugin may write for :data:`KERNEL`."""
    monkeypatch.syspath_prepend(str(SITE))
    monkeypatch.setenv("TMPDIR", str(temporary))
    ours = temporary / f"backendai-v1-{os.geteuid()}"
    shutil.rmtree(ours, ignore_errors=True)
    return ours / f"acme-{KERNEL}"


class LegacyContract(HostedContract):
    spec: ClassVar[AllocMapSpec | None]

    async def test_the_map_is_described(self, ready: AbstractComputePlugin) -> None:
        assert ready.alloc_map_spec() == self.spec


class TestWholeDevices(LegacyContract):
    reference = "acme_npu.plugin:AcmePlugin"
    spec = AllocMapSpec(kind="discrete", strategy=AllocationStrategy.EVENLY)


class TestAMapOfItsOwn(LegacyContract):
    reference = "acme_npu.own_map:AcmeOwnMapPlugin"
    spec = None


# ---- how it is found, and what becomes of its answers


@pytest.fixture
async def plugin_of() -> AsyncIterator[Launch]:
    made: list[HostedPlugin] = []

    async def start(reference: str = "acme_npu.plugin:AcmePlugin", *, init: bool = True, **settings: Any) -> Any:
        plugin = await launch(reference, lambda _: settings, deadline_s=10.0, on_ended=lambda _: None)
        made.append(plugin)
        if init:
            await plugin.init()
        return plugin

    yield start
    for plugin in made:
        await plugin.close()


def hook(plugin: AbstractComputePlugin, held: DeviceAllocation = BOTH) -> AbstractLifecycleHook:
    workload = Workload(id="", type="process_tree", kernel_id=KERNEL, session_id=SessionId(UUID(int=1)))
    context = HookContext(cause=LifecycleCause.CREATE, attempt=1, state=ManagedState())
    return plugin.create_lifecycle_hook(workload, held, context)


def test_it_is_found_by_its_entry_point_or_its_package() -> None:
    found = find_plugins(["acme-shares", "acme_npu.own_map", "acme-old", "cuda", "json"], [], [])
    assert [(source.name, source.reference, source.isolated) for source in found] == [
        ("acme-shares", "acme_npu.shares:AcmeSharesPlugin", True),
        ("acme_npu.own_map", "acme_npu.own_map:AcmeOwnMapPlugin", True),
        ("acme-old", "acme_npu.plugin:AcmePlugin", True),
        ("cuda", "ai.backend.accelerator.cuda:CudaPlugin", False),
        ("json", "json", False),
    ]
    assert not [s for s in find_plugins(["*"], ["acme"], []) if "acme" in s.name]


async def test_a_module_that_shows_one_v1_plugin_is_enough(plugin_of: Launch) -> None:
    plugin = await plugin_of("acme_npu.plugin", device_mask="ACME-0")
    assert (plugin.key, plugin.version) == ("acme", "1.2")
    assert plugin.capabilities.blocking
    assert [d.device_id for d in await plugin.list_devices()] == ["ACME-1"]


async def test_its_devices_and_slots_are_ours(plugin_of: Launch, tmp_path: Path) -> None:
    plugin = await plugin_of(status_file=str(tmp_path / "status"))
    first, second = await plugin.list_devices()
    assert (first.device_name, first.device_id, first.model_name) == ("acme", "ACME-0", "Acme N1")
    assert (first.hw_location, first.memory_size, first.processing_units) == ("0000:10:00.0", 16 << 30, 64)
    assert (first.numa_node, second.numa_node) == (0, None)
    assert first.slots[0].exclusive_group == "exclusive"
    (display,) = await plugin.configurable_slots()
    assert (display.human_readable_name, display.display_unit, display.display_icon) == ("Acme NPU", "NPU", "npu")
    assert (await plugin.get_node_info()).extra == {
        "plugin_version": "1.2", "acme_driver": "5.1", "firmware": "7", "status": "healthy",
    }  # fmt: skip
    (tmp_path / "status").write_text("the firmware hangs")
    assert {(d.health, d.health_reason) for d in await plugin.list_devices()} == {
        (DeviceHealth.UNHEALTHY, "the firmware hangs")
    }
    assert await plugin.available_slots() == {SLOT: 0}


async def test_shares_are_offered_in_whole_quanta(plugin_of: Launch) -> None:
    plugin = await plugin_of("acme_npu.shares:AcmeSharesPlugin")
    assert [(d.slots[0].amount, d.slots[0].quantum) for d in await plugin.list_devices()] == [
        (Decimal("1.5"), Decimal("0.1")), (Decimal("1.25"), Decimal("0.1")),
    ]  # fmt: skip
    assert await plugin.available_slots() == {"acme-shares.shares": Decimal("2.7")}


async def test_its_own_map_chooses_of_what_may_be_given(plugin_of: Launch) -> None:
    plugin = await plugin_of("acme_npu.own_map:AcmeOwnMapPlugin")
    one = {SlotName("acme-own.device"): Decimal(1)}
    books: AbstractAllocMap = await plugin.create_alloc_map()
    assert books.allocate(one).device_ids() == {"ACME-1"}, "the last one first"
    books = await plugin.create_alloc_map()
    assert books.allocate(one, eligible=frozenset({DeviceId("ACME-0")})).device_ids() == {"ACME-0"}


async def test_its_wishes_are_a_config(plugin_of: Launch, tmp_path: Path, files: Path) -> None:
    plugin = await plugin_of(library=str(tmp_path), hooks="/opt/acme/libhook.so,/opt/acme/libtwo.so")
    config = await hook(plugin).pre_create()
    assert config == WorkloadConfig(
        mounts=(
            Mount(source=str(tmp_path), target="/opt/acme/lib"),
            Mount(source=str(files / "acme.conf"), target="/etc/acme.conf"),
            Mount(source="/opt/acme/libhook.so", target="/opt/kernel/libhook.so"),
            Mount(source="/opt/acme/libtwo.so", target="/opt/kernel/libtwo.so"),
        ),
        devices=tuple(DeviceMapping(source="/dev/null", target=f"/dev/acme{n}", permissions="mrw") for n in range(2)),
        env_vars={
            "ACME_VISIBLE_DEVICES": "0,1",
            "ACME_RUNTIME": "v1",
            "LD_PRELOAD": "/opt/kernel/libhook.so:/opt/kernel/libtwo.so",
        },
        resource_data={"ACME_GLOBAL_DEVICE_IDS": "0:0,1:1"},
    )
    assert (files / "acme.conf").read_text() == "devices=2\n"
    await hook(plugin).post_terminate()
    assert not files.exists()  # noqa: ASYNC240  # one look
    assert await plugin.alloc_to_devices(BOTH) == tuple(
        AttachedDevice(device_id=DeviceId(f"ACME-{n}"), model_name="Acme N1", data={"mem": 16 << 30, "smp": 64})
        for n in range(2)
    )


async def test_what_cannot_be_translated_denies_with_its_name(plugin_of: Launch) -> None:
    plugin = await plugin_of(ulimits="memlock")
    with pytest.raises(CreationDenied) as caught:
        await hook(plugin).pre_create()
    assert caught.value.message == (
        "the v1 plugin acme wants the Docker argument HostConfig.Ulimits, which has no counterpart here"
    )
    assert caught.value.data == {"plugin": "acme", "argument": "HostConfig.Ulimits"}
    asking = await plugin_of(ask_docker="yes")
    with pytest.raises(
        CreationDenied, match=r"acme asks the Docker engine \(docker\.system\), which there is not here"
    ):
        await hook(asking).pre_create()


async def test_slots_that_exclude_each_other_are_denied(plugin_of: Launch) -> None:
    other = {SlotName("acme.device:half"): {DeviceId("ACME-1"): Decimal(1)}}
    held = DeviceAllocation(slots={SLOT: {DeviceId("ACME-0"): Decimal(1)}, **other})
    with pytest.raises(CreationDenied, match=r"the v1 plugin acme: acme\.device and acme\.device:half cannot be had"):
        await hook(await plugin_of(), held).pre_create()


async def test_its_measurements_are_ours(plugin_of: Launch) -> None:
    plugin = await plugin_of()
    memory, power = "acme_mem", "acme_power"
    top = frozenset({"max"})
    assert list(await plugin.gather_node_metrics(StatContext(at=1.0))) == [
        Measurement(key=memory, value=2.0**31, unit_hint="bytes", capacity=2.0**35, stats=top),
        *(
            Measurement(
                key=memory, value=2.0**30, unit_hint="bytes", capacity=2.0**34, stats=top, device_id=DeviceId(d)
            )
            for d in ("ACME-0", "ACME-1")
        ),
        Measurement(key=power, value=75.5, unit_hint="watt", stats=frozenset({"avg", "max"})),
    ]
    ctx = StatContext(at=1.0, allocations={KERNEL: BOTH})
    of_workload = await plugin.gather_workload_metrics(ctx, [KERNEL])
    assert [(m.key, m.value, m.capacity) for m in of_workload[KERNEL]] == [("acme_util", 50.0, 100.0)]
    of_process = await plugin.gather_process_metrics(ctx, {4242: KERNEL})
    assert [(m.key, m.value) for m in of_process[4242]] == [(memory, 2.0**20)]


# ---- bad ones


BAD = {
    "create_alloc_map=none": ("init", "create_alloc_map returned None instead of an AbstractAllocMap"),
    "create_alloc_map=raise": ("init", "create_alloc_map raised OSError: the driver is gone"),
    "init=raise": ("init", "init raised OSError: the driver is gone"),
    "init=config": ("init", "container.scratch-root of the local configuration: set it in local-config"),
    "get_metadata=text": ("init", "get_metadata returned 'text' instead of a mapping"),
    "list_devices=none": ("list_devices", "list_devices returned None instead of a list"),
    "list_devices=text": ("list_devices", "list_devices returned 'text' instead of a list"),
    "list_devices=int-ids": ("list_devices", "list_devices: the device_id 0 is no text"),
    "list_devices=twice": ("list_devices", "list_devices: the device 'ACME-0' is listed twice"),
    "list_devices=numbers": ("list_devices", "list_devices: the device_id None is no text"),
    "list_devices=one-device": ("list_devices", "has the device 'ACME-1', which list_devices does not list"),
    "list_devices=float-memory": ("list_devices", "memory_size of ACME-0 is the float 1.5"),
    "list_devices=raise": ("list_devices", "list_devices raised OSError: the driver is gone"),
    "create_alloc_map=float-map": (
        "list_devices",
        "the amount of 'ACME-0' is the float 0.5; quantities with fractions",
    ),
    "create_alloc_map=unified-map": ("list_devices", "is of the slot type unified, which there is not here"),
    "available_slots=none": ("available_slots", "returned None instead of a mapping"),
    "available_slots=float": ("available_slots", "acme.device is the float 1.7; quantities with fractions are Decimal"),
    "available_slots=nan": ("available_slots", "acme.device is Decimal('NaN'), which is no quantity"),
    "available_slots=lie": ("available_slots", "offers 64 acme.device; its alloc map has 2"),
    "get_node_hwinfo=text": ("get_node_info", "get_node_hwinfo returned 'text' instead of a mapping"),
    "extra_info=number": ("get_node_info", "extra_info returned 7 instead of a mapping"),
    "gather_node_measures=none": ("gather_node_metrics", "gather_node_measures returned None instead of a list"),
    "gather_node_measures=text": ("gather_node_metrics", "gather_node_measures returned 'text' instead of a list"),
    "generate_docker_args=none": ("pre_create", "the Docker argument as a whole, which is None instead of a mapping"),
    "generate_docker_args=raise": ("pre_create", "generate_docker_args raised OSError: the driver is gone"),
    "generate_mounts=bad-mount": ("pre_create", "generate_mounts: [0] is '/etc/acme.conf' instead of a MountInfo"),
    "generate_resource_data=number": ("pre_create", "generate_resource_data returned 7 instead of a mapping"),
    "get_hooks=text": ("pre_create", "get_hooks returned 'text' instead of a list"),
    "get_additional_gids=gids-as-text": ("pre_create", "extra_gids"),
    "get_attached_devices=ints": ("alloc_to_devices", "get_attached_devices: an item is malformed"),
}


async def call(plugin: HostedPlugin, method: str) -> Any:
    match method:
        case "init":
            return await plugin.init()
        case "pre_create":
            return await hook(plugin).pre_create()
        case "alloc_to_devices":
            return await plugin.alloc_to_devices(BOTH)
        case "gather_node_metrics":
            return await plugin.gather_node_metrics(StatContext(at=1.0))
    return await getattr(plugin, method)()


@pytest.mark.parametrize("fault", BAD)
async def test_a_bad_answer_has_one_clear_reason(plugin_of: Launch, fault: str) -> None:
    method, reason = BAD[fault]
    plugin = await plugin_of("acme_npu.bad:AcmeBadPlugin", init=method != "init", fault=fault)
    with pytest.raises((HostedCallFailed, InvalidResponse, CreationDenied), match=re.escape(reason)):
        await call(plugin, method)


async def test_attached_devices_that_are_left_out_are_told(plugin_of: Launch) -> None:
    plugin = await plugin_of("acme_npu.bad:AcmeBadPlugin", fault="get_attached_devices=nothing")
    assert [(d.device_id, d.model_name) for d in await plugin.alloc_to_devices(BOTH)] == [
        ("ACME-0", "Acme N1"), ("ACME-1", "Acme N1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fault", ["available_slots=ints", "available_slots=whole-float", "create_alloc_map=int-map", "list_devices=sync"]
)
async def test_what_loses_nothing_is_taken(plugin_of: Launch, fault: str) -> None:
    plugin = await plugin_of("acme_npu.bad:AcmeBadPlugin", fault=fault)
    assert await plugin.available_slots() == {SLOT: Decimal(2)}
    assert len(await plugin.list_devices()) == 2


async def test_a_broken_status_takes_no_devices_away(plugin_of: Launch) -> None:
    plugin = await plugin_of("acme_npu.bad:AcmeBadPlugin", fault="get_node_hwinfo=raise")
    assert {d.health for d in await plugin.list_devices()} == {DeviceHealth.HEALTHY}


async def test_nobody_else_can_put_files_into_a_workload(plugin_of: Launch, files: Path) -> None:
    files.parent.mkdir()
    files.parent.chmod(0o777)
    with pytest.raises(PluginError, match="is not a directory that this user alone can write to"):
        await hook(await plugin_of()).pre_create()
