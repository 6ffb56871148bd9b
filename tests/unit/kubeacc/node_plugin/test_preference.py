"""The choice of devices by links and NUMA nodes."""

from __future__ import annotations

from ai.backend.kubeacc.node_plugin.preference import DevicePreference
from tests.unit.kubeacc.node_plugin.devices import device

PAIRS = [device("a", peers=("d",)), device("b", peers=("c",)), device("c", peers=("b",)), device("d", peers=("a",))]


def _chooser() -> DevicePreference:
    return DevicePreference(PAIRS, ["a", "b", "c", "d"])


def test_linked_devices_come_together() -> None:
    assert _chooser().choose(["a", "b", "c"], [], 2) == ["b", "c"]
    assert _chooser().choose(["a", "b", "c", "d"], ["d"], 2) == ["d", "a"]


def test_a_single_device_leaves_pairs_whole() -> None:
    assert _chooser().choose(["a", "b", "c"], [], 1) == ["a"]


def test_devices_without_links_come_of_one_numa_node() -> None:
    devices = [device(name, numa_node=node) for name, node in (("a", 0), ("b", 1), ("c", 0), ("d", 1))]
    assert DevicePreference(devices, ["a", "b", "c", "d"]).choose(["b", "c", "d"], [], 2) == ["b", "d"]


def test_unknown_and_repeated_names_and_too_large_sizes_are_no_errors() -> None:
    assert sorted(_chooser().choose(["a", "a", "x", "b"], ["y"], 7)) == ["a", "b"]
    assert _chooser().choose([], [], -1) == []
