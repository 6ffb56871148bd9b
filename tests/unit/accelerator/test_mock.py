"""What a workload sees of the mock accelerator, and how its declaration is read."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from pydantic import ValidationError

from ai.backend.accelerator.mock import metrics
from ai.backend.accelerator.mock.declaration import Declaration, MockDevice, default_declaration, read_table
from ai.backend.accelerator.mock.plugin import MockPlugin, MockSettings
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import InvalidInput, PluginError
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.plugin.accelerator import (
    HookContext,
    LifecycleCause,
    ManagedState,
    StatContext,
    Workload,
    WorkloadConfig,
)

SPEC_STYLE = """
slot_name = "mydevice"
device_plugin_name = "MockDevice"

[attributes]
driver = "1.2"

[[devices]]
mother_uuid = "a"
model_name = "My Device"
numa_node = 0
subproc_count = 20
memory_size = "2g"

[[devices]]
mother_uuid = "b"
model_name = "My Device"
numa_node = 1
subproc_count = 10
memory_size = "1G"
is_mig_devices = false

[formats.device]
display_icon = "gpu1"
display_unit = "GPU"
human_readable_name = "GPU"
description = "A device"
number_format = { binary = false, round_length = 0 }

[formats.shares]
display_unit = "fGPU"
human_readable_name = "Fractional GPU"
number_format = { binary = false, round_length = 1 }
"""


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    path = tmp_path / "mock-accelerator.toml"
    path.write_text(SPEC_STYLE)
    return path


async def ready(plugin: MockPlugin) -> MockPlugin:
    await plugin.init()
    return plugin


async def config_of(plugin: MockPlugin, slots: dict[str, dict[str, str]]) -> WorkloadConfig:
    held = {SlotName(s): {DeviceId(d): Decimal(q) for d, q in per.items()} for s, per in slots.items()}
    workload = Workload(id="", type="container", kernel_id=KernelId(UUID(int=1)), session_id=SessionId(UUID(int=2)))
    context = HookContext(cause=LifecycleCause.CREATE, attempt=1, state=ManagedState())
    return await plugin.create_lifecycle_hook(workload, DeviceAllocation(slots=held), context).pre_create()


async def test_the_example_of_the_spec_as_whole_devices(declared: Path) -> None:
    plugin = await ready(MockPlugin(MockSettings(config_path=declared)))
    assert await plugin.available_slots() == {"mydevice.device": 2}
    shown = {s.slot_name: s for s in await plugin.configurable_slots()}
    assert shown[SlotName("mydevice.device")].display_unit == "GPU"
    assert shown[SlotName("mydevice.shares")].number_round_length == 1
    config = await config_of(plugin, {"mydevice.device": {"b": "1"}})
    assert config.env_vars == {"MYDEVICE_VISIBLE_DEVICES": "b", "MYDEVICE_DEVICE_COUNT": "1"}
    assert config.resource_data == {"MYDEVICE_GLOBAL_DEVICE_IDS": "0:b", "MYDEVICE_RESOURCE_VIRTUALIZED": "0"}
    assert (await plugin.get_node_info()).driver_version == "1.2"


@pytest.fixture
def declared_cudas(declared: Path) -> Path:
    declared.write_text(declared.read_text().replace('"MockDevice"', '"CUDADevice"'))
    return declared


async def test_devices_that_stand_in_for_cudas_have_its_variables(declared_cudas: Path) -> None:
    """``device_plugin_name`` is which implementation is pretended (spec 03-06)."""
    plugin = await ready(MockPlugin(MockSettings(config_path=declared_cudas)))
    config = await config_of(plugin, {"mydevice.device": {"b": "1"}})
    assert config.env_vars == {"CUDA_VISIBLE_DEVICES": "b", "CUDA_DEVICE_COUNT": "1"}
    assert config.resource_data["CUDA_GLOBAL_DEVICE_IDS"] == "0:b"


async def test_the_example_of_the_spec_as_shares(declared: Path) -> None:
    """10 subprocessors and 1 GiB are 1.0 (spec 03-06)."""
    text = {"allocation_mode": "fractional", "unit_mem": 1073741824, "unit_proc": 10, "quantum-size": "0.1"}
    plugin = await ready(MockPlugin(MockSettings.model_validate({**text, "config-path": str(declared)})))
    amounts = {d.device_id: d.slots[0].amount for d in await plugin.list_devices()}
    assert amounts == {"a": 2, "b": 1}
    config = await config_of(plugin, {"mydevice.shares": {"b": "0.5", "a": "0.5"}})
    assert config.env_vars["MYDEVICE_VISIBLE_DEVICES"] == "a,b"
    assert config.resource_data == {
        "MYDEVICE_GLOBAL_DEVICE_IDS": "0:a,1:b",
        "MYDEVICE_RESOURCE_VIRTUALIZED": "1",
        "MYDEVICE_MEMORY_LIMITS": f"0:{2**29},1:{2**29}",
        "MYDEVICE_PROCESSOR_LIMITS": "0:5,1:5",
    }


async def test_without_a_declaration_there_are_default_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    plugin = await ready(MockPlugin())
    assert await plugin.available_slots() == {"mock.device": 4}
    config = await config_of(plugin, {"mock.device": {str(plugin.declaration.devices[1].mother_uuid): "1"}})
    assert config.env_vars["MOCK_VISIBLE_DEVICES"].endswith("001")


async def test_the_declaration_is_found_in_the_working_directory(
    declared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(declared.parent)
    assert (await ready(MockPlugin())).declaration.slot_name == "mydevice"


async def test_slices_have_unique_slots_named_by_their_size() -> None:
    slice_ = MockDevice(mother_uuid="s", model_name="Slice", memory_size=10 * 2**30, is_mig_device=True)
    plugin = await ready(MockPlugin(declaration=Declaration(slot_name="cuda", devices=(slice_,))))
    assert await plugin.available_slots() == {"cuda.device:10g-mig": 1}


async def test_masked_devices_are_left_out() -> None:
    first = default_declaration().devices[0].mother_uuid
    plugin = await ready(MockPlugin(MockSettings(device_mask=(first,)), declaration=default_declaration()))
    assert first not in {d.device_id for d in await plugin.list_devices()}


@pytest.mark.parametrize(
    ("text", "error", "names"),
    [
        ("devices = 1", InvalidInput, "devices"),
        ("slot_name = 'x'", InvalidInput, "devices"),
        ("devices = []\ncolour = 1", InvalidInput, "colour"),
        ("devices = []\nslot_name = 'Not A Slot'", InvalidInput, "slot_name"),
        ("[[devices]]\nmother_uuid = 'a'\nmodel_name = 'm'\nmemory_size = 'much'", InvalidInput, "memory_size"),
        ("[[devices]]\nmother_uuid = 'a'\nmodel_name = 'm'\n" * 2, InvalidInput, "mother_uuid"),
        ("= nonsense", InvalidInput, "TOML"),
        ("devices = []\ndevice_plugin_name = 'Other'", InvalidInput, "device_plugin_name"),
    ],
)
def test_a_bad_declaration_is_refused_by_the_name_of_the_key(
    tmp_path: Path, text: str, error: type[Exception], names: str
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(error, match=names):
        read_table(path, Declaration)


def test_a_named_declaration_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PluginError):
        read_table(tmp_path / "none.toml", Declaration)


@pytest.mark.parametrize("wrong", [{"unit-mem": "lots"}, {"quantum-size": 2}, {"allocation-mode": "wild"}, {"x": 1}])
def test_bad_settings_name_their_key(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        MockSettings.model_validate(wrong)


def test_the_script_of_the_metrics_depends_on_time_alone() -> None:
    assert [metrics.simulated_load(at, 0, 4) for at in (0.0, 15.0, 30.0, 45.0, 60.0)] == [0.0, 0.5, 1.0, 0.5, 0.0]
    assert metrics.simulated_load(0.0, 2, 4) == 1.0


async def test_a_workload_is_measured_by_what_it_holds() -> None:
    settings = MockSettings(allocation_mode="fractional")
    plugin = await ready(MockPlugin(settings, declaration=default_declaration(1)))
    device = DeviceId(default_declaration(1).devices[0].mother_uuid)
    kernel = KernelId(UUID(int=1))
    held = DeviceAllocation(slots={SlotName("mock.shares"): {device: Decimal("0.5")}})
    found = await plugin.gather_workload_metrics(StatContext(at=30.0, allocations={kernel: held}), [kernel])
    assert {m.key: (m.value, m.capacity) for m in found[kernel]} == {
        "mock_mem": (0.9 * 2**30, 2.0**30),
        "mock_util": (50.0, 50.0),
    }
