"""Measurements of v1 keep value, unit, stats and what they are of."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from ai.backend.common.ids import DeviceId
from ai.backend.plugin.accelerator import Measurement, MetricKind
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.pluginhost.v1.api import statistics as v1
from ai.backend.pluginhost.v1.values import KINDS, keyed_measurements, node_measurements


def node(**changes: Any) -> v1.NodeMeasurement:
    facts: dict[str, Any] = {
        "key": "npu_mem",
        "type": v1.MetricTypes.USAGE,
        "per_node": v1.Measurement(Decimal(3), Decimal(8)),
        "unit_hint": "bytes",
    }
    return v1.NodeMeasurement(**{**facts, **changes})


def test_a_metric_of_the_node_is_a_total_and_its_parts() -> None:
    given = node(per_device={"d": v1.Measurement(Decimal("1.5"))}, stats_filter=frozenset({"max"}))
    common: dict[str, Any] = {"key": "npu_mem", "unit_hint": "bytes", "stats": frozenset({"max"})}
    assert list(node_measurements([given])) == [
        Measurement(value=3.0, capacity=8.0, **common),
        Measurement(value=1.5, device_id=DeviceId("d"), **common),
    ]


@pytest.mark.parametrize(
    ("given", "ours"), [("Celsius", "celsius"), ("Watts", "watt"), (None, "count"), ("bps", "bps")]
)
def test_units_are_written_our_way(given: str | None, ours: str) -> None:
    (made,) = node_measurements([node(unit_hint=given)])
    assert made.unit_hint == ours


def test_every_type_has_a_kind() -> None:
    assert set(KINDS) == {kind.name for kind in v1.MetricTypes}
    (made,) = node_measurements([node(type=v1.MetricTypes.RATE, unit_hint="bps", current_hook=lambda m: m.stats.rate)])
    assert made.kind is MetricKind.RATE


def test_what_only_a_hook_can_read_is_left_out() -> None:
    assert list(node_measurements([node(type=v1.MetricTypes.UTILIZATION, current_hook=lambda m: m)])) == []


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (None, "NoneType"),
        (7, "7"),
        (node(type="usage"), "no measurement"),
        (node(per_device=[1]), "per_device"),
        (node(per_node=v1.Measurement("much")), "npu_mem is 'much'"),  # type: ignore[arg-type]  # that is the test
        (node(stats_filter=3), "no measurement"),
    ],
)
def test_nonsense_is_named(wrong: Any, named: str) -> None:
    with pytest.raises(InvalidResponse, match=named if wrong is not None else "None is no measurement"):
        list(node_measurements([wrong]))


def test_those_of_containers_keep_their_names() -> None:
    metric = v1.ContainerMeasurement("u", v1.MetricTypes.USAGE, {"c": v1.Measurement(Decimal(1))}, "percent")
    assert [(name, m.value) for name, m in keyed_measurements([metric], "per_container")] == [("c", 1.0)]
