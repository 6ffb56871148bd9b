"""What the families of the package make of the trees of `tests/data/sysfs`, and the page that explains data files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from ai.backend.accelerator.sysfs import SysfsPlugin, families
from ai.backend.accelerator.sysfs.family import packaged_family, packaged_names
from ai.backend.accelerator.sysfs.plugin import SysfsSettings
from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceHealth, LinkKind
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.plugin.accelerator import StatContext, Workload, WorkloadConfig
from ai.backend.plugin.accelerator.hooks import check_config
from ai.backend.plugin.sysfs.tree import unpack
from tests.support.trees import TREES, roots

ROOT = Path(__file__).parents[3]
WORKLOAD = Workload(id="", type="process_tree", kernel_id=KernelId(UUID(int=1)), session_id=SessionId(UUID(int=2)))


def plugin_of(key: str, place: Path) -> SysfsPlugin:
    made: type[SysfsPlugin] = getattr(families, key.replace("-", "_"))
    return made(SysfsSettings(**roots(key, place)))


async def config_of(plugin: SysfsPlugin, devices: Sequence[ComputeDevice]) -> WorkloadConfig:
    allocation: dict[SlotName, dict[str, int]] = {}
    for device in devices:
        allocation.setdefault(device.slots[0].slot_name, {})[device.device_id] = 1
    return await plugin.configure(WORKLOAD, DeviceAllocation(slots=allocation))  # type: ignore[arg-type]  # ids count


EXPECTED = {
    # key: (ids, index of the ill one, a word of its reason, nodes of the first well one, variables of the first two)
    "gaudi2": (
        ["0000:19:00.0", "0000:1a:00.0", "0000:9a:00.0", "0000:9b:00.0"],
        2,
        "Malfunction",
        ["/dev/accel/accel0", "/dev/accel/accel_controlD0"],
        {"HABANA_VISIBLE_DEVICES": "0,1", "HABANA_VISIBLE_MODULES": "3,1"},
    ),
    "tpu": (
        ["0000:19:00.0", "0000:1a:00.0", "0000:9a:00.0", "0000:9b:00.0"],
        3,
        "no device node",
        ["/dev/accel0", "/dev/vfio/vfio"],
        {"TPU_VISIBLE_CHIPS": "0,1", "TPU_PROCESS_BOUNDS": "1,1,1", "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,2,1"},
    ),
    "ipu": (["0000:19:00.0", "0000:1a:00.0", "0000:9a:00.0", "0000:9b:00.0"], 3, "/dev/ipu3", None, {}),
    "warboy": (
        ["WBYB00000", "WBYB00001", "WBYB00002", "WBYB00003"],
        1,
        "alive is '0'",
        ["/dev/npu0_mgmt", "/dev/npu0", "/dev/npu0pe0", "/dev/npu0pe0-1", "/dev/npu0pe1", "/dev/npu0ch0"],
        {"FURIOSA_DEVICES": "npu:0:*,npu:2:*"},
    ),
    "rngd": (
        ["RNGD000", "RNGD001", "RNGD002", "RNGD003"],
        2,
        "alive: Input/output error",
        None,
        {"FURIOSA_DEVICES": "npu:0,npu:1"},
    ),
    "lpu": (
        ["0000:19:00.0", "0000:1a:00.0", "0000:9a:00.0", "0000:9b:00.0"],
        3,
        "/dev/dri/renderD131",
        ["/dev/dri/renderD128"],
        {},
    ),
    "atom": (
        ["0000:19:00.0", "0000:1a:00.0", "0000:9a:00.0", "0000:9b:00.0"],
        3,
        "status is '3'",
        ["/dev/rbln0", "/dev/rsd0"],
        {"RBLN_DEVICES": "0,1"},
    ),
    "tt-n300": (
        [f"0x10001451170{n}0" for n in range(4)],
        1,
        "/dev/tenstorrent/1",
        ["/dev/tenstorrent/0"],
        {"TT_VISIBLE_DEVICES": "0,2"},
    ),
}
EXPECTED["gaudi3"] = EXPECTED["gaudi2"]
EXPECTED["atom-plus"] = EXPECTED["atom-max"] = EXPECTED["atom"]


@pytest.mark.parametrize("key", packaged_names())
async def test_a_family_makes_of_its_tree(key: str, tmp_path: Path) -> None:
    ids, ill, reason, nodes, env = EXPECTED[key]
    plugin = plugin_of(key, tmp_path)
    devices = await plugin.list_devices()
    assert [d.device_id for d in devices] == ids
    assert [d.numa_node for d in devices] == [0, 0, 1, 1]
    assert [d.device_id for d in devices if d.health is DeviceHealth.UNHEALTHY] == [ids[ill]]
    assert reason in devices[ill].health_reason
    assert await plugin.available_slots() == {f"{key}.device": 3}
    well = [d for d in devices if d.health is DeviceHealth.HEALTHY]
    config = await config_of(plugin, well[:2])
    assert check_config(config) == config, "the agent takes it"
    assert config.env_vars == env
    assert config.resource_data[f"{key.upper().replace('-', '_')}_GLOBAL_DEVICE_IDS"] == ",".join(
        f"{rank}:{d.device_id}" for rank, d in enumerate(well[:2])
    )
    if nodes is not None:
        assert [n.source for n in (await config_of(plugin, well[:1])).devices] == nodes
    await plugin.cleanup()


@pytest.mark.parametrize("key", packaged_names())
async def test_links_follow_the_pci_tree(key: str, tmp_path: Path) -> None:
    """Two devices below each of two switches, one on each NUMA node."""
    plugin = plugin_of(key, tmp_path)
    first = (await plugin.list_devices())[0]
    assert [link.kind for link in first.links] == [LinkKind.PCIE_SWITCH, LinkKind.SYSTEM, LinkKind.SYSTEM]
    await plugin.cleanup()


async def test_metrics_have_units_capacities_and_a_sum(tmp_path: Path) -> None:
    plugin = plugin_of("gaudi2", tmp_path)
    found = {(m.key, m.device_id): m for m in await plugin.gather_node_metrics(StatContext(at=1.0))}
    one = found["gaudi2_temperature", DeviceId("0000:1a:00.0")]
    assert (one.value, one.unit_hint) == (42.0, "celsius")
    assert found["gaudi2_temperature", None].value == 44.0, "the hottest"
    assert found["gaudi2_power", None].value == pytest.approx(420.000006)
    assert found["gaudi2_clock_mhz", DeviceId("0000:19:00.0")].capacity == 1650
    assert found["gaudi2_resets", None].kind == "accumulated"
    kernel = WORKLOAD.kernel_id
    held = DeviceAllocation(slots={SlotName("gaudi2.device"): {"0000:19:00.0": 1, "0000:1a:00.0": 1}})  # type: ignore[dict-item]  # plain text is an id
    measured = await plugin.gather_workload_metrics(StatContext(at=1.0, allocations={kernel: held}), [kernel])
    assert {m.key: m.value for m in measured[kernel]}["gaudi2_power"] == pytest.approx(210.000001)
    await plugin.cleanup()


async def test_models_memory_and_versions_can_be_required(tmp_path: Path) -> None:
    plugin = plugin_of("gaudi3", tmp_path)
    device = (await plugin.list_devices())[0]
    assert (device.model_name, device.memory_size, device.processing_units) == ("Gaudi 3", 128 << 30, 64)
    said = {str(p) for p in device.variant_properties}
    assert {"intel-gaudi::memory_gib::128", "intel-gaudi::precision::FP8"} <= said
    assert "intel-gaudi::driver_version::1.17.1-78932ae" in said
    described = {f.name for ns in await plugin.variant_namespaces() for f in ns.features}
    assert {p.feature for p in device.variant_properties} <= described
    assert (await plugin.get_node_info()).driver_version == "1.17.1-78932ae"
    await plugin.cleanup()


def test_every_family_says_where_its_facts_come_from_and_what_is_a_guess() -> None:
    for key in packaged_names():
        family = packaged_family(key)
        assert family.key == key
        assert family.facts
        assert family.unverified
        assert getattr(families, key.replace("-", "_")).verified_on is None
    for tree in TREES.glob("*.tree"):
        head = tree.read_text(encoding="utf-8").splitlines()[:3]
        assert [line.split(":")[0] for line in head] == ["# hardware", "# driver", "# command"], tree.name


def test_every_family_has_an_entry_point() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["backendai_accelerator_v30"]
    module = families.__name__
    mine = {name: value for name, value in points.items() if value.startswith(module)}
    assert mine == {key: f"{module}:{key.replace('-', '_')}" for key in packaged_names()}
    with pytest.raises(AttributeError, match="no data file"):
        getattr(families, "nothing")  # noqa: B009  # no such name is known


async def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    page = (ROOT / "docs/reference/accelerators/sysfs.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"^```(toml|tree)\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    (tmp_path / "acme.toml").write_text(blocks["toml"], encoding="utf-8")
    unpack(blocks["tree"], tmp_path)
    plugin = SysfsPlugin(
        SysfsSettings(sysfs_root=tmp_path / "sys", dev_root=tmp_path / "dev", families=(tmp_path / "acme.toml",))
    )
    await plugin.init()
    (device,) = await plugin.list_devices()
    assert (device.device_id, device.model_name, device.memory_size) == ("A1", "X1 Pro", 32 << 30)
    assert device.health is DeviceHealth.HEALTHY, device.health_reason
    config = await config_of(plugin, [device])
    assert [n.source for n in config.devices] == ["/dev/acme/card7", "/dev/dri/renderD128"]
    assert config.env_vars == {"ACME_VISIBLE_DEVICES": "0", "ACME_RANKS": "0:A1", "ACME_MODE": "single"}
    measured = {(m.key, m.device_id): m for m in await plugin.gather_node_metrics(StatContext(at=1.0))}
    assert measured["acme_x1_temperature", device.device_id].value == 45.5
    assert measured["acme_x1_mem", None].capacity == 32 << 30
    await plugin.cleanup()
