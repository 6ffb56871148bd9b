"""Rules over metrics: what lasts too long takes a device out of scheduling, and what has passed gives it back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from ai.backend.agent.config.settings import AgentSettings, DeviceRuleSettings
from ai.backend.agent.devices import metric_rules
from ai.backend.agent.devices.cordons import Cordons
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.metric_rules import MetricRules, Reading
from ai.backend.agent.devices.operations import DeviceOperations
from ai.backend.common.devices import ComputeDevice
from ai.backend.common.ids import DeviceId, DeviceName

HOT = {"name": "hot", "when": "metric.temperature > 90", "seconds": 30.0, "until": "metric.temperature < 70"}


class Node:
    """Devices of one plugin, a clock, and the cordons of this node."""

    def __init__(self, *rules: dict[str, Any], plugin: str = "cuda", ids: tuple[str, ...] = ("a", "b")) -> None:
        self.now = 0.0
        self.plugin = plugin
        devices = tuple(
            ComputeDevice(
                device_name=DeviceName(plugin), device_id=DeviceId(name), hw_location="", slots=(), model_name="H100"
            )
            for name in ids
        )
        kind = SimpleNamespace(devices_with_health=devices, listed_devices=devices)
        self.inventory = SimpleNamespace(kinds={plugin: kind}, set_cordons=lambda *_: None, rebuild=self._nothing)
        store: dict[str, bytes] = {}
        self.cordons = Cordons(
            cast("Any", SimpleNamespace(items=store.copy, put=store.__setitem__, delete=store.__delitem__)),
            lambda: self.now,
        )
        self.operations = DeviceOperations(
            cast("Any", None), cast("Inventory", self.inventory), self.cordons, refresh=self._nothing
        )
        self.settings = [DeviceRuleSettings.model_validate(rule) for rule in rules]
        inventory = cast("Inventory", self.inventory)
        self.rules = MetricRules(self.settings, inventory, self.operations, clock=lambda: self.now)

    async def _nothing(self) -> None:
        return None

    async def measure(self, seconds: float, rates: dict[str, float] | None = None, **values: float) -> dict[str, str]:
        """Measures every ten seconds; returns the cordons afterwards."""
        for _ in range(int(seconds // 10)):
            self.now += 10.0
            readings = {
                DeviceId(name): {"temperature": Reading(value, (rates or {}).get(name, 0.0))}
                for name, value in values.items()
            }
            self.rules.observe(self.plugin, readings)
            await self.rules.apply()
        return {device_id: text for (_, device_id), text in self.cordons.descriptions().items()}


async def test_what_lasts_takes_the_device_out_and_says_why() -> None:
    node = Node(HOT)
    assert await node.measure(30, a=95, b=50) == {}, "it has lasted for 20 seconds"
    assert await node.measure(10, a=50, b=50) == {}
    assert await node.measure(30, a=95, b=50) == {}, "it began anew"
    assert await node.measure(10, a=96, b=50) == {
        "a": "cordoned: rule hot: metric.temperature > 90 for 30 s (metric.temperature is 96)"
    }


async def test_between_both_thresholds_nothing_changes() -> None:
    node = Node(HOT)
    assert (await node.measure(40, a=95)).keys() == {"a"}
    assert (await node.measure(600, a=80)).keys() == {"a"}, "it is no longer hot, and has not cooled down"
    assert (await node.measure(60, a=60)).keys() == {"a"}, "it has recovered for 50 seconds"
    assert (await node.measure(10, a=80)).keys() == {"a"}
    assert (await node.measure(70, a=60)) == {}
    assert (await node.measure(30, a=95)) == {}, "after that it counts from the beginning"


async def test_without_until_the_end_of_the_condition_counts() -> None:
    node = Node({**HOT, "until": None, "recovery": 20.0, "seconds": 0.0, "taint": "hot"})
    assert (await node.measure(10, a=95))["a"].startswith("tainted hot: rule hot: metric.temperature > 90 (")
    assert node.cordons.taints() == {("cuda", DeviceId("a")): "hot"}
    assert (await node.measure(20, a=90)).keys() == {"a"}
    assert await node.measure(10, a=90) == {}


async def test_a_metric_that_is_missing_changes_nothing() -> None:
    node = Node({**HOT, "until": None, "seconds": 20.0, "recovery": 0.0})
    await node.measure(20, a=95)
    assert await node.measure(10) == {}
    assert await node.measure(20, a=95) == {}, "the time without a value does not count"
    assert (await node.measure(10, a=95)).keys() == {"a"}
    assert (await node.measure(100)).keys() == {"a"}


async def test_it_expires_and_comes_back_while_the_condition_lasts() -> None:
    node = Node({**HOT, "seconds": 0.0, "duration": 50.0})
    assert "until 1970-01-01 00:01Z" in (await node.measure(10, a=95))["a"]
    await node.measure(60, a=95)
    await node.operations.expire_cordons()
    assert not node.cordons.descriptions()
    assert (await node.measure(10, a=95)).keys() == {"a"}


async def test_what_an_operator_has_set_stays() -> None:
    node = Node({**HOT, "seconds": 0.0, "recovery": 0.0})
    node.cordons.put("cuda", DeviceId("a"), "fan replaced", None)
    assert await node.measure(20, a=95) == {"a": "cordoned: fan replaced"}
    assert await node.measure(20, a=50) == {"a": "cordoned: fan replaced"}
    other = Node({**HOT, "seconds": 0.0, "recovery": 0.0}, {"name": "warm", "when": "metric.temperature > 60"})
    assert "rule hot" in (await other.measure(20, a=95))["a"], "the first rule in force counts"
    assert "rule warm" in (await other.measure(20, a=65))["a"]


async def test_growth_and_what_the_device_states_are_there_too() -> None:
    node = Node({"name": "ecc", "plugin": "cuda", "when": 'rate.temperature > 0.5 && model == "H100" && id != "b"'})
    assert (await node.measure(10, {"a": 0.6, "b": 0.6}, a=1, b=1)).keys() == {"a"}
    assert await Node({"name": "ecc", "plugin": "rocm", "when": "metric.temperature > 0"}).measure(10, a=1) == {}
    intrinsic = Node({"name": "ecc", "when": "metric.temperature > 0"}, plugin="cpu")
    assert await intrinsic.measure(10, a=1) == {}, "cores are no accelerator"


async def test_one_round_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(metric_rules, "MAX_EVALUATIONS", 2)
    node = Node({**HOT, "seconds": 0.0}, ids=("a", "b", "c"))
    assert (await node.measure(20, a=95, b=95, c=95)).keys() == {"a", "b"}
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        "rules are evaluated for 2 of 3 devices of cuda"
    ]


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"when": "metric.temperature >"}, "ends too early"),
        ({"when": "same(model)"}, "judges one device"),
        ({"when": 'model == "A" && tolerates("x")'}, "judges one device"),
        ({"when": "metric.temperature > 1", "until": 'amount("cuda.device", 1)'}, "judges one device"),
        ({"when": "metric.temperature > 1", "taint": "a key"}, "pattern"),
        ({"when": "metric.temperature > 1", "name": "hot"}, "two rules are named hot"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_with_its_key(rule: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        AgentSettings.model_validate({"agent": {"device-rules": [HOT, {"name": "other", **rule}]}})
