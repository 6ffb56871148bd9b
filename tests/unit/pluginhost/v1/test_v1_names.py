"""What v1 plugins import is there, and hides nothing of ours."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from decimal import Decimal
from types import ModuleType

import pytest

from ai.backend.accelerator.cpu import CPUPlugin
from ai.backend.common.errors import InsufficientResource, InvalidInput, PluginError
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.plugin.discovery import plugin_of
from ai.backend.pluginhost.v1.adapter import LegacyPluginAdapter
from ai.backend.pluginhost.v1.api import alloc_maps, exceptions, plugin, statistics, types
from ai.backend.pluginhost.v1.loader import MODULES, adapt_class
from ai.backend.pluginhost.v1.values import LocalConfig, settings_as_texts, to_decimal

SLOT = SlotName("a.device")


@pytest.mark.parametrize("name", [name for name in MODULES if name != "ai.backend.agent"])
def test_a_published_module_hides_none_of_ours(name: str) -> None:
    """But all of the agent: a host never needs it (decision 0068)."""
    parent = name.rpartition(".")[0]
    if parent != "ai.backend.agent":
        assert importlib.util.find_spec(name) is None


def imported(code: str) -> str:
    start = "from ai.backend.pluginhost.v1 import loader; loader.install(); loader.install()\n"
    done = subprocess.run([sys.executable, "-c", start + code], capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else done.stderr.splitlines()[-1]


def test_names_of_every_module_can_be_imported() -> None:
    code = "import importlib\n" + "".join(
        f"m = importlib.import_module({name!r}); m.{one}\n"
        for name, sources in MODULES.items()
        for source in sources
        for one in importlib.import_module(f"ai.backend.pluginhost.v1.api.{source}").__all__
    )
    both = "from ai.backend.common.types import SlotName\nfrom ai.backend.common.errors import NotFound\nprint('ok')"
    assert imported(code + both) == "ok\n"


def test_other_names_are_told() -> None:
    assert imported("import ai.backend.agent.kernel") == (
        "ModuleNotFoundError: v1 plugins have no module ai.backend.agent.kernel here"
    )
    assert imported("import ai.backend.agent.services").startswith("ModuleNotFoundError: v1 plugins have no module")
    told = imported("from ai.backend.agent.utils import get_subnet_ip")
    assert "cannot import name 'get_subnet_ip' from 'ai.backend.agent.utils'" in told


@pytest.mark.parametrize(
    ("given", "expected"),
    [(Decimal("0.10"), "0.10"), (2, "2"), (2.0, "2"), (types.BinarySize.from_str("2g"), "2147483648")],
)
def test_quantities_are_exact(given: object, expected: str) -> None:
    found = to_decimal(given, "x")
    assert type(found) is Decimal
    assert str(found) == expected


@pytest.mark.parametrize("given", [0.1, True, None, "1", Decimal("NaN"), Decimal("Infinity"), float("nan"), [1]])
def test_what_is_no_quantity_is_refused(given: object) -> None:
    with pytest.raises(InvalidResponse, match="the amount of d is"):
        to_decimal(given, "the amount of d")


def test_sizes_are_written_as_v1_plugins_write_them() -> None:
    size = types.BinarySize.finite_from_str("1536m")
    assert (f"{size}", f"{size:s}", f"{size:m}", f"{size:g}", f"{size:d}") == (
        "1.5g", "1.5g", "1536m", "1.5g", "1610612736",
    )  # fmt: skip


def test_devices_are_named_after_their_class() -> None:
    class FooDevice(plugin.AbstractComputeDevice):
        pass

    one, same = (FooDevice(DeviceId("1"), "", 0, 0) for _ in range(2))
    assert one.device_name == "foo"
    assert one == same
    assert hash(one) == hash(same)
    assert one != plugin.AbstractComputeDevice(DeviceId("1"), "", 0, 0, device_name=types.DeviceName("bar"))


def info(amount: Decimal, name: str = SLOT, kind: object = types.SlotTypes.COUNT) -> alloc_maps.DeviceSlotInfo:
    return alloc_maps.DeviceSlotInfo(kind, SlotName(name), amount)  # type: ignore[arg-type]  # tests give nonsense


def test_a_stock_map_of_v1_keeps_its_books() -> None:
    slots = {DeviceId("x"): info(Decimal("1.0")), DeviceId("y"): info(Decimal("1.0"))}
    own = alloc_maps.FractionAllocMap(device_slots=slots, quantum_size=Decimal("0.1"))
    first = own.allocate({SLOT: Decimal("0.7")})
    assert first == {SLOT: {"x": Decimal("0.7")}}
    second = own.allocate({SLOT: Decimal("0.7")}, affinity_hint=None, context_tag="t")
    assert second == {SLOT: {"y": Decimal("0.7")}}
    with pytest.raises(InsufficientResource):
        own.allocate({SLOT: Decimal("0.7")})
    own.free(first)
    assert own.allocations == {SLOT: {"x": 0, "y": Decimal("0.7")}}
    assert own.get_current_allocations(None, SLOT) == [("x", 0), ("y", Decimal("0.7"))]
    own.clear()
    assert own.allocations == {SLOT: {"x": 0, "y": 0}}


def test_slots_that_exclude_each_other_are_not_combined() -> None:
    slots = {
        DeviceId("x"): info(Decimal(1), "a.device"),
        DeviceId("y"): info(Decimal(1), "a.device:1g-mig", types.SlotTypes.UNIQUE),
        DeviceId("z"): info(Decimal(1), "a.memory"),
    }
    own = alloc_maps.DiscretePropertyAllocMap(device_slots=slots, exclusive_slot_types={"a.device", "a.device:*-mig"})
    assert own.check_exclusive("a.device", "a.device:1g-mig")
    assert not own.check_exclusive("a.device", "a.memory")
    assert not own.check_exclusive("a.device", "a.device")
    groups = {slot.slot_name: slot.exclusive_group for slot in alloc_maps.device_slots(own).values()}
    assert groups == {"a.device": "exclusive", "a.device:1g-mig": "exclusive", "a.memory": None}
    one = Decimal(1)
    with pytest.raises(exceptions.InvalidResourceCombination, match=r"a\.device and a\.device:1g-mig cannot be had"):
        own.allocate({SlotName("a.device"): one, SlotName("a.device:1g-mig"): one})
    assert own.allocate({SlotName("a.device"): one, SlotName("a.memory"): one})


def test_the_quantum_is_that_of_the_map() -> None:
    made = {
        "whole": alloc_maps.DiscretePropertyAllocMap(device_slots={DeviceId("x"): info(Decimal(2))}),
        "shares": alloc_maps.FractionAllocMap(
            device_slots={DeviceId("x"): info(Decimal(2))}, quantum_size=Decimal("0.25")
        ),
        "bytes": alloc_maps.FractionAllocMap(
            device_slots={DeviceId("x"): info(Decimal(2), kind=types.SlotTypes.BYTES)}
        ),
    }
    slots = {name: alloc_maps.device_slots(m)[DeviceId("x")] for name, m in made.items()}
    assert {name: str(slot.quantum) for name, slot in slots.items()} == {"whole": "1", "shares": "0.25", "bytes": "1"}
    assert slots["bytes"].slot_type is SlotType.BYTES


def test_settings_are_texts_as_in_etcd() -> None:
    given = {"unit_mem": 2048, "ratio": 0.5, "on": True, "nested": {"x": "y"}}
    assert settings_as_texts(given, "plugins.a") == {
        "unit_mem": "2048",
        "ratio": "0.5",
        "on": "true",
        "nested": {"x": "y"},
    }
    with pytest.raises(InvalidInput, match=r"plugins\.a\.nested\.x: a v1 plugin takes"):
        settings_as_texts({"nested": {"x": [1]}}, "plugins.a")


def test_the_local_configuration_is_what_the_settings_say() -> None:
    local = LocalConfig({"agent": {"mount-path": "/mnt"}})
    assert local["agent"]["mount-path"] == "/mnt"
    assert local["container"].get("scratch-root") is None
    with pytest.raises(KeyError, match=r"container\.scratch-root of the local configuration"):
        local["container"]["scratch-root"]
    with pytest.raises(KeyError, match="etcd of the local configuration"):
        local["etcd"]


def test_there_is_no_agent_behind_the_statistics() -> None:
    context = statistics.StatContext()
    assert context.mode is statistics.StatModes.CGROUP
    with pytest.raises(Exception, match=r"StatContext\.agent"):
        context.agent  # noqa: B018  # looking at it is the test


class Half(plugin.AbstractComputePlugin):
    """Lacks everything that a plugin must have."""

    key = types.DeviceName("half")


class Whole(Half):
    async def list_devices(self) -> list[plugin.AbstractComputeDevice]:
        return []

    async def available_slots(self) -> dict[SlotName, Decimal]:
        return {}

    async def create_alloc_map(self) -> alloc_maps.AbstractAllocMap:
        return alloc_maps.DiscretePropertyAllocMap()

    async def generate_docker_args(self, docker: object, device_alloc: object) -> dict[str, object]:
        return {}


def module(**names: object) -> ModuleType:
    made = ModuleType("vendor")
    vars(made).update(names)
    return made


def test_a_plugin_is_of_the_version_that_it_is_written_for() -> None:
    found = plugin_of(
        adapt_class(module(Half=Half, Whole=Whole, Base=plugin.AbstractComputePlugin), "vendor"), "vendor"
    )
    assert issubclass(found, LegacyPluginAdapter)
    assert (found.v1_class, found.key) == (Whole, "half")
    both = module(Whole=Whole, CPUPlugin=CPUPlugin)
    assert plugin_of(adapt_class(both, "vendor"), "vendor") is CPUPlugin
    empty = module()
    assert adapt_class(empty, "vendor") is empty


def test_what_is_no_whole_plugin_is_told() -> None:
    with pytest.raises(PluginError, match=r"vendor shows 0 v1 plugins instead of one \(without available_slots"):
        adapt_class(module(Half=Half), "vendor")
    with pytest.raises(PluginError, match="vendor shows 2 v1 plugins instead of one"):
        adapt_class(module(One=Whole, Two=type("Two", (Whole,), {})), "vendor")
