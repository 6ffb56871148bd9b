"""Devices, slots and workloads of the cuda plugin, over written answers of NVML."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from ai.backend.accelerator.cuda.gpus import memory_gb, slice_name
from ai.backend.accelerator.cuda.host import parse_loader_cache
from ai.backend.accelerator.cuda.nvml import Code
from ai.backend.accelerator.cuda.plugin import CudaPlugin
from ai.backend.accelerator.cuda.replay import Recording
from ai.backend.accelerator.cuda.settings import CudaSettings
from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceHealth, LinkKind
from ai.backend.common.errors import CreationDeferred, InvalidInput, NotFound, PluginError
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.plugin.accelerator import (
    HookContext,
    LifecycleCause,
    ManagedState,
    StatContext,
    Workload,
    WorkloadConfig,
)
from ai.backend.plugin.accelerator.hooks import check_config
from tests.support.cuda import A100, FIXTURES, H100, NO_GPU, T4, Machine, plugin_on

MOTHER, PLAIN = "GPU-a1000000-0000-4000-8000-000000000001", "GPU-a1000001-0000-4000-8000-000000000002"
SLICE = "MIG-a1000000-0000-4000-8000-000000000011"
T4_A, T4_B = "GPU-74000000-0000-4000-8000-000000000001", "GPU-74000001-0000-4000-8000-000000000002"
Start = Callable[..., Awaitable[CudaPlugin]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[CudaPlugin] = []

    async def make(machine: Machine | str, **settings: object) -> CudaPlugin:
        found = Machine(machine) if isinstance(machine, str) else machine
        plugin = plugin_on(found, CudaSettings.model_validate(settings))
        await plugin.init()
        started.append(plugin)
        return plugin

    yield make
    for plugin in started:
        await plugin.cleanup()


async def by_id(plugin: CudaPlugin) -> dict[str, ComputeDevice]:
    return {d.device_id: d for d in await plugin.list_devices()}


def holding(**slots: dict[str, str]) -> DeviceAllocation:
    return DeviceAllocation(
        slots={
            SlotName(name.replace("__", ":").replace("_", ".", 1)): {DeviceId(d): Decimal(q) for d, q in held.items()}
            for name, held in slots.items()
        }
    )


async def hooked(plugin: CudaPlugin, alloc: DeviceAllocation, *, is_diagnostic: bool = False) -> WorkloadConfig:
    """What the agent would take of it."""
    workload = Workload(id="", type="process_tree", kernel_id=KernelId(UUID(int=1)), session_id=SessionId(UUID(int=2)))
    context = HookContext(cause=LifecycleCause.CREATE, attempt=1, state=ManagedState(), is_diagnostic=is_diagnostic)
    return check_config(await plugin.create_lifecycle_hook(workload, alloc, context).pre_create())


class TestDevices:
    async def test_an_h100_is_described_in_full(self, start: Start) -> None:
        plugin = await start(H100)
        first, *others = await plugin.list_devices()
        assert len(others) == 7
        assert first.device_id == "GPU-11000000-0000-4000-8000-000000000100"
        assert (first.hw_location, first.numa_node) == ("0000:1b:00.0", 0)
        assert others[-1].numa_node == 1
        assert first.processing_units == 132
        assert {u.name: u.count for u in first.compute_units} == {"SM": 132, "CUDA Core": 16896, "Tensor Core": 528}
        assert first.memory_spec is not None
        assert first.memory_spec.memory_type == "HBM3"
        assert first.memory_spec.bandwidth == pytest.approx(3352 * 1e9 / 2**30, rel=0.001)
        stated = {str(v) for v in first.variant_properties}
        assert {
            "nvidia::cuda_version::12.4",
            "nvidia::compute_capability::9.0",
            "nvidia::gpu_arch::hopper",
            "nvidia::precision::FP8",
            "nvidia::partitioning::MIG",
            "nvidia::model::NVIDIA H100 80GB HBM3",
        } <= stated
        assert "nvidia::precision::FP4" not in stated

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("NVIDIA A100-SXM4-40GB", "HBM2"),
            ("NVIDIA A100-SXM4-80GB", "HBM2E"),
            ("NVIDIA A100 80GB PCIe", "HBM2E"),
            ("NVIDIA A10", "GDDR6"),
            ("NVIDIA H100 PCIe", "HBM2E"),
            ("NVIDIA H200", "HBM3E"),
            ("NVIDIA L40S", "GDDR6"),
            ("NVIDIA L4", "GDDR6"),
            ("NVIDIA RTX A6000", "GDDR6"),
            ("NVIDIA GeForce RTX 4090", "GDDR6X"),
            ("NVIDIA GeForce GTX 1080", None),
        ],
    )
    async def test_the_type_of_memory_follows_from_the_model(self, start: Start, name: str, kind: str | None) -> None:
        machine = Machine(T4)
        machine.say("nvmlDeviceGetName *", name)
        device = (await by_id(await start(machine)))[T4_A]
        assert device.memory_spec is not None
        assert device.memory_spec.memory_type == kind

    async def test_behind_a_switch_every_gpu_reaches_every_other(self, start: Start) -> None:
        for device in await (await start(H100)).list_devices():
            assert len(device.links) == 7
            assert {link.kind for link in device.links} == {LinkKind.DIRECT}
            assert {link.bandwidth_gib_s for link in device.links} == {419.1}, "18 links of 25 GB/s"

    async def test_bridged_gpus_count_the_links_between_them(self, start: Start) -> None:
        (link,) = (await by_id(await start(A100)))[PLAIN].links
        assert (link.peer, link.kind) == (MOTHER, LinkKind.DIRECT)
        assert link.bandwidth_gib_s == pytest.approx(12 * 25e9 / 2**30, abs=0.1)

    async def test_a_switch_is_known_by_not_being_a_gpu_where_the_driver_is_old(self, start: Start) -> None:
        machine = Machine(H100)
        machine.fail("nvmlDeviceGetNvLinkRemoteDeviceType * *", Code.FUNCTION_NOT_FOUND)
        assert {link.kind for d in await (await start(machine)).list_devices() for link in d.links} == {LinkKind.DIRECT}

    @pytest.mark.parametrize(
        ("level", "kind"),
        [(10, "pcie-switch"), (20, "pcie-switch"), (30, "pcie-root"), (40, "numa"), (50, "system")],
    )
    async def test_without_nvlink_the_pci_tree_counts(self, start: Start, level: int, kind: str) -> None:
        machine = Machine(T4)
        machine.say("nvmlDeviceGetTopologyCommonAncestor * *", level)
        devices = await (await start(machine)).list_devices()
        assert [[(link.kind.value, link.bandwidth_gib_s) for link in d.links] for d in devices] == [[(kind, None)]] * 2

    async def test_what_a_driver_cannot_tell_is_left_out(self, start: Start) -> None:
        devices = await by_id(await start(T4))
        assert devices[T4_A].numa_node is None, "sysfs says -1"
        assert devices[T4_A].processing_units == 40
        assert devices[T4_B].processing_units == 0
        assert [d.memory_spec and d.memory_spec.bandwidth for d in devices.values()] == [298.1, None]

    @pytest.mark.parametrize("code", [Code.NOT_SUPPORTED, Code.NO_PERMISSION, Code.FUNCTION_NOT_FOUND, Code.UNKNOWN])
    async def test_no_optional_answer_is_needed(self, start: Start, code: Code) -> None:
        machine = Machine(H100)
        needed = {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetPciInfo", "nvmlDeviceGetName"}
        for key in machine.recording.answers:
            if key.split(" ")[0] not in needed | {"nvmlDeviceGetMemoryInfo"}:
                machine.fail(key, code)
        plugin = await start(machine)
        assert len(await plugin.list_devices()) == 8
        assert await plugin.available_slots() == {"cuda.device": 8}
        assert {m.key for m in await plugin.gather_node_metrics(StatContext(at=1000.0))} == {"cuda_mem", "cuda_xid"}

    async def test_the_mask_hides_by_uuid_everywhere(self, start: Start) -> None:
        plugin = await start(T4, device_mask=(T4_A,))
        (device,) = await plugin.list_devices()
        assert device.device_id == T4_B
        assert device.links == ()
        assert await plugin.available_slots() == {"cuda.device": 1}
        assert {m.device_id for m in await plugin.gather_node_metrics(StatContext(at=1000.0))} == {T4_B}
        assert [d["name"] for d in (await plugin.cdi_spec())["devices"]] == [T4_B]
        assert not await plugin.gather_process_metrics(StatContext(at=1000.0), {4242: KernelId(UUID(int=1))})
        with pytest.raises(NotFound):
            await plugin.partition_profiles(DeviceId(T4_A))

    async def test_a_masked_gpu_takes_its_instances_along(self, start: Start) -> None:
        plugin = await start(A100, device_mask=(MOTHER,))
        assert list(await by_id(plugin)) == [PLAIN]
        assert [d["name"] for d in (await plugin.cdi_spec())["devices"]] == [PLAIN]
        assert SLICE not in await by_id(await start(A100, device_mask=(SLICE,)))


class TestSlots:
    async def test_whole_gpus_and_slices_stand_side_by_side(self, start: Start) -> None:
        plugin = await start(A100)
        assert {k: v for k, v in (await plugin.available_slots()).items() if v} == {
            "cuda.device": 1,
            "cuda.device:20g-mig": 1,
            "cuda.device:10g-mig": 1,
            "cuda.device:5g-mig": 1,
        }
        assert [s.slot_name for s in await plugin.configurable_slots()] == [
            "cuda.device",
            "cuda.shares",
            "cuda.device:5g-mig",
            "cuda.device:10g-mig",
            "cuda.device:20g-mig",
            "cuda.device:40g-mig",
        ]
        assert "nvidia::mig_profile::2g.10gb" in {str(v) for v in (await by_id(plugin))[SLICE].variant_properties}

    async def test_shares_follow_the_scarcer_of_memory_and_processors(self, start: Start) -> None:
        plugin = await start(T4, allocation_mode="fractional", unit_mem=2**30, unit_proc=8, reserved_memory=0)
        amounts = {d.device_id: d.slots[0].amount for d in await plugin.list_devices()}
        assert amounts == {T4_A: Decimal(5), T4_B: Decimal(15)}, "40 SMs of 8; without a count only memory"

    async def test_reserved_memory_is_not_shared_out(self, start: Start) -> None:
        plugin = await start(T4, allocation_mode="fractional", unit_mem=2**30, unit_proc=1, reserved_memory=2**30)
        assert {s.amount for d in await plugin.list_devices() for s in d.slots} == {Decimal(14)}

    async def test_one_gpu_is_given_whole_or_in_shares(self, start: Start) -> None:
        plugin = await start(T4, allocation_mode="either", unit_proc=40)
        alloc_map = await plugin.create_alloc_map()
        part = alloc_map.allocate({SlotName("cuda.shares"): Decimal("0.25")})
        alloc_map.allocate({SlotName("cuda.device"): Decimal(1)})
        assert alloc_map.available()[SlotName("cuda.device")] == 0
        alloc_map.free(part)
        assert alloc_map.available()[SlotName("cuda.device")] == 1

    @pytest.mark.parametrize(
        ("mib", "total_mib", "gb"), [(4864, 40960, 5), (9856, 40960, 10), (19968, 40960, 20), (40192, 40960, 40)]
    )
    def test_the_sizes_of_profiles_are_nvidias(self, mib: int, total_mib: int, gb: int) -> None:
        assert memory_gb(mib * 2**20, total_mib * 2**20) == gb

    @pytest.mark.parametrize(("profile", "name"), [("1g.10gb+me", "10g"), ("1c.3g.20gb", "20g"), ("odd", "odd")])
    def test_a_slice_is_named_by_its_memory(self, profile: str, name: str) -> None:
        assert slice_name(profile) == name


class TestWorkload:
    async def test_whole_gpus_come_as_files_and_cdi_names(self, start: Start) -> None:
        config = await hooked(await start(T4), holding(cuda_device={T4_B: "1", T4_A: "1"}))
        assert [(d.source, d.cdi_name) for d in config.devices] == [
            ("/dev/nvidia0", f"nvidia.com/gpu={T4_A}"),
            ("/dev/nvidia1", f"nvidia.com/gpu={T4_B}"),
            ("/dev/nvidiactl", None),
            ("/dev/nvidia-uvm", None),
            ("/dev/nvidia-uvm-tools", None),
        ]
        both = f"{T4_A},{T4_B}"
        assert config.env_vars["CUDA_VISIBLE_DEVICES"] == config.env_vars["NVIDIA_VISIBLE_DEVICES"] == both
        assert config.env_vars["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert not [name for name in config.env_vars if "MPS" in name]
        assert config.resource_data == {
            "CUDA_GLOBAL_DEVICE_IDS": f"0:{T4_A},1:{T4_B}",
            "CUDA_RESOURCE_VIRTUALIZED": "0",
        }
        assert config.mounts == ()

    async def test_a_slice_brings_its_capabilities(self, start: Start) -> None:
        config = await hooked(await start(A100), holding(**{"cuda_device__10g-mig": {SLICE: "1"}}))
        assert [(d.source, d.cdi_name) for d in config.devices][:3] == [
            ("/dev/nvidia0", None),
            ("/dev/nvidia-caps/nvidia-cap30", None),
            ("/dev/nvidia-caps/nvidia-cap31", f"nvidia.com/gpu={SLICE}"),
        ]
        assert config.env_vars["CUDA_VISIBLE_DEVICES"] == SLICE

    async def test_a_slice_whose_files_are_unknown_waits(self, start: Start) -> None:
        machine = Machine(A100)
        machine.recording.files = {}
        with pytest.raises(CreationDeferred, match="no device file"):
            await hooked(await start(machine), holding(**{"cuda_device__10g-mig": {SLICE: "1"}}))

    async def test_closed_device_files_bring_their_groups(self, start: Start) -> None:
        machine = Machine(T4)
        machine.recording.groups = {"/dev/nvidia0": 44, "/dev/nvidiactl": 44, "/dev/nvidia-uvm": 0, "/dev/nvidia1": 45}
        config = await hooked(await start(machine), holding(cuda_device={T4_A: "1"}))
        assert config.extra_gids == (44,)

    async def test_shares_say_their_limits(self, start: Start) -> None:
        settings = {"allocation_mode": "fractional", "unit_mem": 2**30, "unit_proc": 4, "reserved_memory": 5 * 2**30}
        plugin = await start(T4, **settings)
        config = await hooked(plugin, holding(cuda_shares={T4_A: "2.5"}))
        assert config.resource_data == {
            "CUDA_GLOBAL_DEVICE_IDS": f"0:{T4_A}",
            "CUDA_RESOURCE_VIRTUALIZED": "1",
            "CUDA_MEMORY_LIMITS": f"0:{5 * 2**29}",
            "CUDA_PROCESSOR_LIMITS": "0:10",
            "CUDA_RESERVED_MEMORY": str(5 * 2**30),
        }, "a quarter of 10 shares"
        assert config.env_vars["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2560M"
        assert config.env_vars["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
        (attached,) = await plugin.alloc_to_devices(holding(cuda_shares={T4_A: "2.5"}))
        assert attached.data == {"smp": 10, "mem": 5 * 2**29}

    async def test_the_libraries_are_shown_where_an_image_has_its_own_root(self, start: Start) -> None:
        config = await hooked(await start(T4, mount_libraries=True), holding(cuda_device={T4_A: "1"}))
        assert ("/usr/lib/x86_64-linux-gnu/libcuda.so.470.223.02", "/opt/cuda-driver/lib/libcuda.so.1") in [
            (m.source, m.target) for m in config.mounts
        ]
        assert all(m.read_only for m in config.mounts)
        assert config.env_vars["LD_LIBRARY_PATH"] == "/opt/cuda-driver/lib"

    async def test_a_gpu_that_failed_or_went_since_is_not_given_out(self, start: Start) -> None:
        machine = Machine(T4)
        plugin = await start(machine)
        machine.lost.add(T4_B)
        with pytest.raises(CreationDeferred, match="fell off the bus"):
            await hooked(plugin, holding(cuda_device={T4_B: "1"}))
        seen = await hooked(plugin, holding(cuda_device={T4_B: "1"}), is_diagnostic=True)
        assert seen.env_vars["CUDA_VISIBLE_DEVICES"], "who looks into it sees it"
        with pytest.raises(CreationDeferred, match="does not offer this any more"):
            await hooked(plugin, holding(cuda_device={"GPU-gone": "1"}))
        assert (await hooked(plugin, holding(cuda_device={T4_A: "1"}))).devices

    async def test_cdi_describes_what_can_be_used(self, start: Start) -> None:
        machine = Machine(A100)
        plugin = await start(machine)
        spec = await plugin.cdi_spec()
        assert (spec["cdiVersion"], spec["kind"]) == ("0.6.0", "nvidia.com/gpu")
        names = [d["name"] for d in spec["devices"]]
        assert MOTHER not in names, "a GPU in MIG mode has no use itself"
        assert {SLICE, PLAIN} < set(names)
        edits = spec["containerEdits"]
        assert {"path": "/dev/nvidiactl"} in edits["deviceNodes"]
        assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in [m["containerPath"] for m in edits["mounts"]]
        assert "hooks" not in edits
        machine.recording.programs["nvidia-cdi-hook"] = "/usr/bin/nvidia-cdi-hook"
        machine.lost.add(PLAIN)
        spec = await plugin.cdi_spec()
        assert PLAIN not in [d["name"] for d in spec["devices"]]
        assert spec["containerEdits"]["hooks"][0]["args"][-1] == "/usr/lib/x86_64-linux-gnu"

    def test_the_loader_cache_is_read_for_this_kind_of_machine(self) -> None:
        text = (
            "3 libs found in cache `/etc/ld.so.cache'\n"
            "\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n"
            "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
            "\tlibcuda.so.1 (libc6,x86-64) => /opt/other/libcuda.so.1\n"
            "Cache generated by: ldconfig (GNU libc) stable release version 2.36\n"
        )
        assert parse_loader_cache(text, "x86_64") == {"libcuda.so.1": "/usr/lib/x86_64-linux-gnu/libcuda.so.1"}


class TestStart:
    @pytest.mark.parametrize(
        ("code", "sentence"),
        [
            (Code.LIBRARY_NOT_FOUND, "there is no NVIDIA driver here: libnvidia-ml.so.1 was not found"),
            (Code.DRIVER_NOT_LOADED, "the NVIDIA driver is not loaded"),
            (Code.LIB_RM_VERSION_MISMATCH, "different versions"),
            (Code.NO_PERMISSION, "NVML refuses this user"),
            (4711, r"nvmlInit failed with error 4711 \(UNKNOWN\)"),
        ],
    )
    async def test_without_a_driver_it_says_so_in_a_sentence(self, code: int, sentence: str) -> None:
        plugin = plugin_on(Machine(T4, opens_with=code))
        with pytest.raises(PluginError, match=sentence):
            await plugin.init()
        with pytest.raises(PluginError, match="was not started"):
            await plugin.list_devices()

    async def test_a_node_without_gpus_is_no_failure(self, start: Start) -> None:
        plugin = await start(NO_GPU)
        assert list(await plugin.list_devices()) == []
        assert await plugin.available_slots() == {}

    async def test_a_gpu_that_never_answered_is_named_for_people(self, start: Start) -> None:
        machine = Machine(T4)
        machine.lost.add(T4_B)
        plugin = await start(machine)
        assert list(await by_id(plugin)) == [T4_A]
        assert "GPU 1: the GPU fell off the bus" in (await plugin.get_node_info()).extra["unreadable"]
        assert "unreadable" not in (await (await start(T4)).get_node_info()).extra

    async def test_a_reloaded_driver_is_opened_again(self, start: Start) -> None:
        machine = Machine(T4)
        plugin = await start(machine)
        machine.close()
        machine.say("nvmlSystemGetDriverVersion", "999.1")
        assert len(await plugin.list_devices()) == 2
        assert machine.opened == 2
        assert (await plugin.get_node_info()).driver_version == "999.1"

    async def test_what_does_not_change_is_asked_once(self, start: Start) -> None:
        machine = Machine(H100)
        plugin = await start(machine)
        machine.asked.clear()
        await plugin.list_devices()
        assert not [q for q in machine.asked if "NvLink" in q or "GetName" in q or "Topology" in q]
        assert len(machine.asked) < 8 * 10

    def test_settings_name_the_wrong_key(self) -> None:
        with pytest.raises(ValueError, match="unit_men"):
            CudaSettings.model_validate({"unit_men": 1})
        assert CudaSettings.model_validate({"unit-mem": "4g"}).unit_mem == 4 * 2**30


class TestFixtures:
    @pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.glob("*.json")))
    def test_every_fixture_names_its_origin(self, name: str) -> None:
        origin = Recording.load(FIXTURES / name).origin
        assert origin["kind"] in ("written", "recorded")
        assert {"hardware", "driver", "command", "date"} <= origin.keys()
        if origin["kind"] == "written":
            assert CudaPlugin.verified_on is None
            assert origin["command"] == "written from documentation; not recorded"

    @pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "else": 1}'])
    def test_a_bad_recording_is_refused(self, tmp_path: Path, text: str) -> None:
        path = tmp_path / "recording.json"
        path.write_text(text)
        with pytest.raises(InvalidInput, match="is no recording"):
            Recording.load(path)


async def test_a_lost_gpu_stays_listed_with_its_instances(start: Start) -> None:
    machine = Machine(A100)
    plugin = await start(machine)
    before = list(await by_id(plugin))
    machine.lost.add(MOTHER)
    devices = await by_id(plugin)
    assert list(devices) == before
    assert {d for d, device in devices.items() if device.health is DeviceHealth.HEALTHY} == {PLAIN}
    assert "fell off the bus" in devices[SLICE].health_reason
    assert {k for k, v in (await plugin.available_slots()).items() if v} == {"cuda.device"}
