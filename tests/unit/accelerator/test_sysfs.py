"""The engine below every plugin over sysfs: trees that lie, hang and vanish, data files that are wrong, recordings."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from ai.backend.accelerator.sysfs import SysfsPlugin, families
from ai.backend.accelerator.sysfs.family import load_family, parse_family
from ai.backend.accelerator.sysfs.plugin import SysfsSettings
from ai.backend.common.devices import ComputeDevice, DeviceAllocation, DeviceHealth
from ai.backend.common.errors import CreationDeferred, InvalidInput, PluginError
from ai.backend.common.ids import DeviceId, KernelId, SessionId, SlotName
from ai.backend.plugin.accelerator import (
    HookContext,
    LifecycleCause,
    ManagedState,
    StatContext,
    Workload,
    WorkloadConfig,
)  # fmt: skip
from ai.backend.plugin.sysfs.base import Raw, measurements
from ai.backend.plugin.sysfs.record import main, record
from ai.backend.plugin.sysfs.tree import LIMIT, Missing, Tree, Unreadable, natural_sort_key, parse_number, unpack
from tests.support.trees import roots

FAMILY = """
key = "chip"
name = "Chip"
[find]
by = "class"
class = "chip"
name = "chip(\\\\d+)"
[id]
attribute = "serial"
[values]
slot = "slot"
[[models]]
name = "C1"
[[healthy-if]]
value = "errors"
at-most = 3
[[devices]]
path = "/dev/chip{slot}"
[env]
CHIPS = "{slot}"
[[metrics]]
key = "power"
value = "power"
unit = "watt"
scale = 0.001
"""
GAUDI: type[SysfsPlugin] = getattr(families, "gaudi2")  # noqa: B009  # made when it is asked for
WORKLOAD = Workload(id="", type="process_tree", kernel_id=KernelId(UUID(int=1)), session_id=SessionId(UUID(int=2)))


class Chips:
    """Two chips of a made-up family, and a plugin that reads them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for n in range(2):
            for name, text in (("serial", f"S{n}"), ("slot", f"{n + 4}"), ("errors", "0"), ("power", "1500")):
                self.write(n, name, text)
            self.node(n + 4).parent.mkdir(exist_ok=True)
            self.node(n + 4).touch()
        (place / "chip.toml").write_text(FAMILY, encoding="utf-8")
        self.plugin = self.again()

    def again(self) -> SysfsPlugin:
        return SysfsPlugin(
            SysfsSettings(
                sysfs_root=self.place / "sys", dev_root=self.place / "dev", families=(self.place / "chip.toml",)
            )
        )

    def at(self, n: int, name: str) -> Path:
        return self.place / f"sys/class/chip/chip{n}" / name

    def node(self, n: int) -> Path:
        return self.place / f"dev/chip{n}"

    def write(self, n: int, name: str, text: str) -> None:
        self.at(n, name).parent.mkdir(parents=True, exist_ok=True)
        self.at(n, name).unlink(missing_ok=True)
        self.at(n, name).write_text(text, encoding="utf-8")

    def spoil(self, n: int, name: str) -> None:
        """From now on the attribute answers EIO."""
        self.at(n, name).unlink()
        self.at(n, name).symlink_to("/proc/self/mem")

    async def devices(self) -> dict[str, ComputeDevice]:
        return {d.device_id: d for d in await self.plugin.list_devices()}

    async def configure(self, *ids: str) -> WorkloadConfig:
        held = {SlotName("chip.device"): dict.fromkeys(map(DeviceId, ids), Decimal(1))}
        return await self.plugin.configure(WORKLOAD, DeviceAllocation(slots=held))


@pytest.fixture
async def chips(tmp_path: Path) -> AsyncIterator[Chips]:
    made = Chips(tmp_path)
    await made.plugin.init()
    yield made
    await made.plugin.cleanup()


# ---- devices


async def test_a_well_node(chips: Chips) -> None:
    assert {i: d.health for i, d in (await chips.devices()).items()} == {
        "S0": DeviceHealth.HEALTHY,
        "S1": DeviceHealth.HEALTHY,
    }
    config = await chips.configure("S0", "S1")
    assert config.env_vars == {"CHIPS": "4,5"}
    assert [n.source for n in config.devices] == ["/dev/chip4", "/dev/chip5"]


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("errors", "4", "errors is 4"),
        ("errors", "many", "errors is not a number: 'many'"),
        ("errors", "nan", "errors is"),
        ("errors", "", "errors is not a number"),
        ("errors", None, "errors: Input/output error"),
        ("slot", "../../etc/shadow", "slot is garbage"),
        ("slot", "4\n5", "slot is garbage"),
        ("slot", "..", "slot is garbage"),
        ("slot", None, "slot: Input/output error"),
        ("slot", "9", "no device node /dev/chip9"),
        ("serial", "\x01\x02", "serial number is garbage"),
        ("serial", None, "serial number cannot be read"),
        ("slot", "x" * (LIMIT + 1), "is larger than 65536 bytes"),
    ],
)
async def test_what_cannot_be_used_makes_its_device_unhealthy(
    chips: Chips, name: str, text: str | None, reason: str
) -> None:
    if text is None:
        chips.spoil(0, name)
    else:
        chips.write(0, name, text)
    devices = list((await chips.devices()).values())
    assert [d.health for d in devices] == [DeviceHealth.UNHEALTHY, DeviceHealth.HEALTHY]
    assert reason in devices[0].health_reason
    assert len(devices[0].health_reason) <= 500
    assert await chips.plugin.available_slots() == {"chip.device": 1}


async def test_a_missing_attribute_is_unhealthy_where_it_is_not_optional(chips: Chips) -> None:
    chips.at(0, "errors").unlink()
    assert (await chips.devices())["S0"].health_reason == "errors is missing"


async def test_metrics_that_cannot_be_read_are_left_out(chips: Chips) -> None:
    for at, text in enumerate(("hot", "-1000", "1e400", "0x", "")):
        chips.write(0, "power", text)
        measured = await chips.plugin.gather_node_metrics(StatContext(at=float(at)))
        assert [(m.device_id, m.value) for m in measured] == [(None, 1.5), ("S1", 1.5)], text
    chips.spoil(0, "power")
    chips.spoil(1, "power")
    assert not await chips.plugin.gather_node_metrics(StatContext(at=10.0))
    chips.write(1, "power", "2000")
    assert not await chips.plugin.gather_node_metrics(StatContext(at=10.0)), "one time is read once"
    assert len(await chips.plugin.gather_node_metrics(StatContext(at=11.0))) == 2


async def test_a_serial_that_cannot_be_read_for_a_while_changes_no_id(chips: Chips) -> None:
    assert list(await chips.devices()) == ["S0", "S1"]
    chips.spoil(0, "serial")
    devices = await chips.devices()
    assert list(devices) == ["S0", "S1"]
    assert devices["S0"].health is DeviceHealth.UNHEALTHY
    with pytest.raises(CreationDeferred, match="cannot be used now: S0: its serial number"):
        await chips.configure("S0")
    chips.write(0, "serial", "S0")
    assert (await chips.devices())["S0"].health is DeviceHealth.HEALTHY


async def test_a_serial_that_changes_in_its_place_is_no_other_device(chips: Chips) -> None:
    """Whoever holds the one must not share it with somebody who gets the other."""
    await chips.devices()
    chips.write(0, "serial", "S9")
    devices = await chips.devices()
    assert list(devices) == ["S0", "S1"]
    assert "changed from S0 to S9" in devices["S0"].health_reason
    chips.at(0, "").rename(chips.place / "away")
    assert (await chips.devices())["S0"].health_reason == "the device is gone"
    (chips.place / "away").rename(chips.at(0, ""))
    assert {i: d.health for i, d in (await chips.devices()).items() if i != "S0"} == {
        "S9": DeviceHealth.HEALTHY,
        "S1": DeviceHealth.HEALTHY,
    }, "it was replaced"


async def test_two_devices_with_one_serial_are_named_by_their_places(chips: Chips) -> None:
    chips.write(1, "serial", "S0")
    assert list(await chips.devices()) == ["chip0", "chip1"]


async def test_a_device_that_has_failed_is_shown_for_a_diagnosis(chips: Chips) -> None:
    chips.write(0, "errors", "9")
    with pytest.raises(CreationDeferred):
        await chips.configure("S0")
    held = DeviceAllocation(slots={SlotName("chip.device"): {DeviceId("S0"): Decimal(1)}})
    context = HookContext(cause=LifecycleCause.CREATE, attempt=1, state=ManagedState(), is_diagnostic=True)
    config = await chips.plugin.create_lifecycle_hook(WORKLOAD, held, context).pre_create()
    assert [node.source for node in config.devices] == ["/dev/chip4"]


async def test_a_device_that_vanishes_is_listed_as_gone_and_comes_back(chips: Chips) -> None:
    await chips.devices()
    chips.at(0, "").rename(chips.place / "away")
    devices = await chips.devices()
    assert devices["S0"].health_reason == "the device is gone"
    assert await chips.plugin.available_slots() == {"chip.device": 1}
    with pytest.raises(CreationDeferred, match="cannot be used now: S0: the device is gone") as caught:
        await chips.configure("S1", "S0")
    assert caught.value.retry_after > 0
    attached = await chips.plugin.alloc_to_devices(
        DeviceAllocation(slots={SlotName("chip.device"): {DeviceId("S0"): Decimal(1), DeviceId("never"): Decimal(1)}})
    )
    assert [(a.device_id, a.model_name) for a in attached] == [("S0", "C1"), ("never", "unknown sysfs")]
    assert [m.device_id for m in await chips.plugin.gather_node_metrics(StatContext(at=1.0))] == [None, "S1"]
    (chips.place / "away").rename(chips.at(0, ""))
    assert (await chips.devices())["S0"].health is DeviceHealth.HEALTHY
    fresh = chips.again()
    await fresh.init()
    assert [d.device_id for d in await fresh.list_devices()] == ["S0", "S1"]
    await fresh.cleanup()


async def test_a_driver_that_hangs_stops_neither_the_agent_nor_the_plugin_for_ever(chips: Chips) -> None:
    hanging, reads = threading.Event(), []
    plain = chips.plugin.tree.read

    def read(path: str) -> str:
        reads.append(path)
        hanging.wait(20)
        return plain(path)

    chips.plugin.tree.read = read  # type: ignore[method-assign]  # a driver that hangs
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await chips.plugin.list_devices()
    assert len(reads) == 1, "the calls behind the one that hangs were dropped"
    hanging.set()
    assert list(await chips.devices()) == ["S0", "S1"]


async def test_devices_that_are_known_by_their_nodes_alone(tmp_path: Path) -> None:
    text = FAMILY.replace('by = "class"\nclass = "chip"', 'by = "dev"\nglob = "/dev/chips/*"')
    text = text[: text.index("[id]")] + '[[models]]\nname = "C1"\n[[devices]]\npath = "/dev/chips/{name}"\n'
    (tmp_path / "chip.toml").write_text(text, encoding="utf-8")
    (tmp_path / "dev/chips").mkdir(parents=True)
    for name in ("chip10", "chip9", "chips"):
        (tmp_path / "dev/chips" / name).touch()
    settings = SysfsSettings(sysfs_root=tmp_path / "sys", dev_root=tmp_path / "dev", families=(tmp_path / "chip.toml",))
    plugin = SysfsPlugin(settings)
    await plugin.init()
    assert [d.device_id for d in await plugin.list_devices()] == ["chip9", "chip10"]
    held = DeviceAllocation(slots={SlotName("chip.device"): {DeviceId("chip10"): Decimal(1)}})
    assert [n.source for n in (await plugin.configure(WORKLOAD, held)).devices] == ["/dev/chips/chip10"]
    await plugin.cleanup()


async def test_masked_devices_are_left_out(chips: Chips) -> None:
    settings = chips.plugin.settings
    assert settings is not None
    masked = SysfsPlugin(settings.model_copy(update={"device_mask": ("S0", "chip1")}))
    await masked.init()
    assert not await masked.list_devices()
    await masked.cleanup()


async def test_the_groups_of_the_nodes_are_given(chips: Chips) -> None:
    for n, mode in ((4, 0o660), (5, 0o666)):
        if os.getuid() == 0:
            os.chown(chips.node(n), -1, 44)
        chips.node(n).chmod(mode)
    group = 44 if os.getuid() == 0 else os.getgid()
    assert (await chips.configure("S0")).extra_gids == (group,)
    assert (await chips.configure("S1")).extra_gids == (), "everybody may use it"


# ---- trees


def test_only_files_of_a_reasonable_size_are_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path, tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "big").write_bytes(b"1" * (LIMIT + 1))
    (tmp_path / "whole").write_bytes(b"1" * LIMIT)
    (tmp_path / "bytes").write_bytes(b"\xff\x00 x \n")
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("loop", "levels of symbolic"),
        ("big", "larger than"),
        ("pipe", "not a file"),
        ("", "not a f"),
    ):
        with pytest.raises(Unreadable, match=reason):
            tree.read(f"/sys/{name}")
    for name in ("nothing", "whole/below"):
        with pytest.raises(Missing):
            tree.read(f"/sys/{name}")
    assert len(tree.read("/sys/whole")) == LIMIT
    assert tree.read("/sys/bytes") == "\ufffd x"
    assert tree.resolve("/sys/loop") is None
    assert not tree.exists("/sys/loop")
    assert tree.names("/sys/whole") == tree.names("/sys/nothing") == []


def test_an_attribute_without_permission_is_unreadable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("1")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(Unreadable, match="/sys/secret: Permission denied"):
        Tree(tmp_path, tmp_path).read("/sys/secret")


def test_numbers() -> None:
    assert [parse_number(text, "x") for text in ("12", "-3.5", "0x1F", "+1")] == [12, -3.5, 31, 1]
    for text in ("", "1 2", "nan", "inf", "1e9", "0x", "٣", "9" * 40):
        with pytest.raises(Unreadable):
            parse_number(text, "x")
    assert sorted(["accel10", "accel2", "b", "1", "accel"], key=natural_sort_key) == [
        "1",
        "accel",
        "accel2",
        "accel10",
        "b",
    ]


def test_the_capacity_follows_a_value_above_it() -> None:
    (together, one) = measurements(
        [Raw(key="k", device_id=DeviceId("d"), value=310.0, unit="watt", capacity=300.0), _raw(float("inf"))]
    )
    assert (one.value, one.capacity, together.capacity) == (310.0, 310.0, 310.0)
    assert measurements([_raw(1.0)])[1].capacity is None


def _raw(value: float) -> Raw:
    return Raw(key="k", device_id=DeviceId("e"), value=value, unit="watt", capacity=0.0)


# ---- data files


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[find]", "[find", "x.toml is not TOML"),
        ('key = "chip"', 'key = "chip.device"', "x.toml: key: the key has no dot"),
        ('key = "chip"', 'key = "Chip"', "key: not a name of a resource slot: 'Chip'"),
        ('name = "Chip"', "", "name: it is missing"),
        ('name = "Chip"', 'name = "Chip"\nnmae = "x"', "nmae: there is no such key"),
        ('by = "class"', 'by = "usb"', "find.by: Input should be 'class', 'pci' or 'dev'"),
        ('by = "class"', 'by = "pci"', 'find: by = "pci" needs the key vendor'),
        ("chip(\\\\d+)", "chip", "find.name: put exactly one group"),
        ("chip(\\\\d+)", "chip(", "find.name: not a regular expression"),
        ('class = "chip"', 'class = "../chip"', "find.class: String should match"),
        ('attribute = "serial"', 'attribute = "../../serial"', "id.attribute: write a path like"),
        ('attribute = "serial"', 'attribute = "/etc/passwd"', "id.attribute: write a path like"),
        ('attribute = "serial"', 'name-of = "a"\nattribute = "b"', "id: give one of attribute and name-of"),
        ("at-most = 3", "", "healthy-if.0: give one of is-one-of"),
        ("/dev/chip{slot}", "/etc/chip{slot}", "devices.0.path: a device node is below /dev/"),
        ("/dev/chip{slot}", "/dev/../chip", "devices.0.path: a device node is below /dev/"),
        ("/dev/chip{slot}", "/dev/chip{slto}", "devices.0.path names {slto}; known are id, index"),
        ("/dev/chip{slot}", "/dev/chip{slot", "devices.0.path: expected '}' before end of string"),
        ('"{slot}"', '"{slot.__class__}"', "env.CHIPS"),
        ("CHIPS =", '"CH=IPS" =', "env: not a name of an environment variable: 'CH=IPS'"),
        ("[env]", '[[mounts]]\nsource = "/sys/x"\n[env]', "mounts.0: nothing can be mounted at /sys/x"),
        ("[env]", '[[mounts]]\nsource = "/x"\ntarget = "/dev/x"\n[env]', "nothing can be mounted at /dev/x"),
        ("slot =", "id =", "values.id has the name of a placeholder"),
        ('unit = "watt"', 'unit = "horse"', "metrics.0.unit: Input should be 'bytes'"),
        ('[[models]]\nname = "C1"', "", "models: it is missing"),
    ],
)
def test_a_wrong_data_file_is_told_by_file_key_and_reason(old: str, new: str, message: str) -> None:
    assert old in FAMILY
    with pytest.raises(InvalidInput) as caught:
        parse_family(FAMILY.replace(old, new), "x.toml")
    assert message in caught.value.message
    assert caught.value.message.startswith("x.toml")


async def test_files_that_do_not_fit_stop_their_plugin(tmp_path: Path) -> None:
    (tmp_path / "chip.toml").write_text(FAMILY, encoding="utf-8")
    twice = SysfsPlugin(SysfsSettings(families=(tmp_path / "chip.toml",) * 2))
    with pytest.raises(InvalidInput, match="two files describe chip"):
        await twice.init()
    with pytest.raises(InvalidInput, match="the plugin gaudi2 takes no other key than gaudi2, not chip"):
        await GAUDI(SysfsSettings(families=(tmp_path / "chip.toml",))).init()
    with pytest.raises(PluginError, match="cannot read"):
        await SysfsPlugin(SysfsSettings(families=(tmp_path / "none.toml",))).init()
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(PluginError, match="cannot read"):
        load_family(tmp_path / "bytes.toml")


# ---- recordings


@pytest.mark.parametrize("key", ["gaudi2", "warboy", "rngd", "lpu", "tpu"])
async def test_a_recording_is_all_that_the_plugin_needs(key: str, tmp_path: Path) -> None:
    made: type[SysfsPlugin] = getattr(families, key)
    settings = SysfsSettings(**roots(key, tmp_path / "a"))
    lines = list(await record(made(settings), "a test"))
    assert lines[:3] == [
        "# hardware: a test",
        lines[1],
        f"# command: python -m ai.backend.plugin.sysfs.record {key}",
    ]
    assert len(lines) > 10
    unpack("\n".join(lines), tmp_path / "b")
    again = made(SysfsSettings(sysfs_root=tmp_path / "b/sys", dev_root=tmp_path / "b/dev"))
    first = made(settings)
    assert await again.list_devices() == await first.list_devices()
    ctx = StatContext(at=1.0)
    assert await again.gather_node_metrics(ctx) == await first.gather_node_metrics(ctx)
    healthy = [d.device_id for d in await first.list_devices() if d.health is DeviceHealth.HEALTHY]
    held = DeviceAllocation(slots={SlotName(f"{key}.device"): dict.fromkeys(healthy, Decimal(1))})
    assert await again.configure(WORKLOAD, held) == await first.configure(WORKLOAD, held)
    for plugin in (again, first):
        await plugin.cleanup()


@pytest.mark.parametrize("line", ["/etc/passwd = x", "/sys/../etc/x = 1", "sys/x = 1", "/sys/x y", "/sys/a b = 1"])
def test_a_malformed_recording_is_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="line 2 of the recording is malformed"):
        unpack(f"# head\n{line}", tmp_path)


def test_the_recorder_runs_on_any_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "chip.toml").write_text(FAMILY, encoding="utf-8")
    assert main(["sysfs", "--data-file", str(tmp_path / "chip.toml"), "--hardware", "none"]) == 0
    assert capsys.readouterr().out.startswith("# hardware: none\n# driver: unknown, kernel ")
    for name, problem in (("cpu", "is not one that reads sysfs alone"), ("no.such", "has no module no;")):
        assert main([name]) == 1
        assert problem in capsys.readouterr().err
