"""The best-linked set: machines as they are built, and every small machine against trying all sets."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.devices import AllocationStrategy, ComputeDevice, LinkKind
from ai.backend.core.allocation import links as links_module
from ai.backend.core.allocation.alloc_map import AffinityHint
from ai.backend.core.allocation.links import Links, links_of
from ai.backend.core.allocation.stock_maps import DiscreteAllocMap, FractionalAllocMap
from tests.unit.core.allocation.builders import alloc, device, plain, slot, want

Pairs = Mapping[tuple[int, int], tuple[str, float | None]]


def box(count: int, pairs: Pairs, *, nodes: int = 2, quantum: str = "1") -> list[ComputeDevice]:
    """``count`` devices named 0, 1 ..., in equal runs on NUMA nodes; a pair is named by its lower end only."""
    return [
        device(
            str(i),
            slot("x", 1, quantum),
            numa=i * nodes // count,
            links={str(b): link for (a, b), link in pairs.items() if a == i},
        )
        for i in range(count)
    ]


NVSWITCH = box(8, dict.fromkeys(combinations(range(8), 2), ("direct", 900.0)))
"""All-to-all NVLink, as in a DGX A100 or H100."""
BRIDGES = box(
    8,
    {pair: ("pcie-root", None) for run in (range(4), range(4, 8)) for pair in combinations(run, 2)}
    | {(i, i + 1): ("direct", 112.0) for i in range(0, 8, 2)},
)
"""A PCIe box: two sockets of four devices, each two of which share an NVLink bridge."""
SWITCHES = box(
    16,
    {pair: ("pcie-root", None) for run in (range(8), range(8, 16)) for pair in combinations(run, 2)}
    | {pair: ("pcie-switch", None) for i in range(0, 16, 4) for pair in combinations(range(i, i + 4), 2)},
)
"""Sixteen devices: four to a switch, two switches to a socket."""
CUBE_MESH = box(
    8,
    dict.fromkeys([(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)], ("direct", 50.0))
    | dict.fromkeys([(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)], ("direct", 25.0)),
)
"""A DGX-1 with V100: six links a device, some pairs with two of them, some with none."""


def chosen(devices: list[ComputeDevice], request: int, taken: str = "", *, near: int | None = None) -> str:
    """The devices that a request gets while others are taken, as digits."""
    alloc_map = DiscreteAllocMap(devices)
    if taken:
        alloc_map.apply(alloc({"x": dict.fromkeys(taken.split(), 1)}))
    hint = AffinityHint(numa_nodes=frozenset() if near is None else frozenset({near}))
    return " ".join(sorted(plain(alloc_map.allocate(want(x=request), hint=hint))["x"], key=int))


@pytest.mark.parametrize(
    ("devices", "request_", "taken", "expected"),
    [
        # Where all are linked alike the NUMA node decides, then the order.
        (NVSWITCH, 4, "", "0 1 2 3"),
        (NVSWITCH, 4, "1", "4 5 6 7"),
        (NVSWITCH, 2, "0 2 3 4", "5 6"),
        (NVSWITCH, 6, "", "0 1 2 3 4 5"),
        # Bridged pairs are taken whole ...
        (BRIDGES, 2, "", "0 1"),
        (BRIDGES, 2, "0", "2 3"),
        (BRIDGES, 2, "0 3 4 7", "1 2"),
        (BRIDGES, 4, "", "0 1 2 3"),
        (BRIDGES, 3, "", "0 1 2"),
        # ... and left whole: a single device comes from a pair that is broken already.
        (BRIDGES, 1, "2", "3"),
        (BRIDGES, 1, "2 4", "3"),
        (BRIDGES, 1, "0 1 6", "7"),
        (BRIDGES, 3, "0", "1 2 3"),
        # A switch that two devices just fill is better than one that stays with a gap.
        (SWITCHES, 4, "", "0 1 2 3"),
        (SWITCHES, 2, "0 1 4", "2 3"),
        (SWITCHES, 3, "0 8 9", "1 2 3"),
        (SWITCHES, 6, "", "0 1 2 3 4 5"),
        (SWITCHES, 8, "0 8", "1 2 3 4 5 6 7 9"),
        # Only some quads of a cube mesh have no pair without a link; of these the widest.
        (CUBE_MESH, 2, "", "0 3"),
        (CUBE_MESH, 4, "", "0 1 2 3"),
        (CUBE_MESH, 4, "0", "4 5 6 7"),
    ],
)
def test_real_machines(devices: list[ComputeDevice], request_: int, taken: str, expected: str) -> None:
    assert chosen(devices, request_, taken) == expected


def test_a_direct_link_across_nodes_beats_one_node() -> None:
    across = box(4, {(0, 2): ("direct", None), (1, 3): ("direct", None), (0, 1): ("pcie-root", None)})
    assert chosen(across, 2) == "0 2"
    assert chosen(across, 2, near=1) == "0 2", "a hint is followed only where it costs nothing"
    assert chosen(NVSWITCH, 2, near=1) == "4 5"
    assert chosen(NVSWITCH, 1, near=1) == "4"


def test_bandwidth_decides_among_links_of_one_kind() -> None:
    assert chosen(box(4, {(0, 1): ("direct", 25.0), (2, 3): ("direct", 50.0)}, nodes=1), 2) == "2 3"


@pytest.mark.parametrize("bandwidth", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_bandwidth_that_is_nonsense_does_no_harm(bandwidth: float) -> None:
    devices = box(4, {(0, 1): ("numa", bandwidth), (2, 3): ("direct", 1.0)}, nodes=1)
    assert chosen(devices, 2) == "2 3"


def test_a_large_node_is_served_in_time() -> None:
    links = links_of(box(64, {(i, i ^ 1): ("direct", None) for i in range(0, 64, 2)}))
    assert links is not None
    found = links.choose(2**64 - 2, 32, (), 2**64 - 2)
    assert len(set(found)) == 32
    assert sum(i ^ 1 in found for i in found) == 32, "sixteen whole pairs"


def test_either_end_may_name_a_link_and_the_better_one_counts() -> None:
    devices = [
        device("a", slot("x"), links={"b": ("system", None), "no-such": ("direct", None), "a": ("direct", None)}),
        device("b", slot("x")),
        device("c", slot("x"), links={"b": ("pcie-switch", None), "a": ("pcie-root", None)}),
    ]
    assert set(plain(DiscreteAllocMap(devices).allocate(want(x=2)))["x"]) == {"b", "c"}


@pytest.mark.parametrize("strategy", AllocationStrategy)
def test_shares_over_several_devices_follow_the_links(strategy: AllocationStrategy) -> None:
    devices = box(4, {(1, 2): ("direct", None)}, nodes=1, quantum="0.1")
    alloc_map = FractionalAllocMap(devices, strategy=strategy)
    assert plain(alloc_map.allocate(want(x=2))) == {"x": {"1": "1.0", "2": "1.0"}}
    assert alloc_map.allocate(want(x="0.5")).device_ids() == {"0"}


@st.composite
def small_machines(draw: st.DrawFn) -> tuple[list[ComputeDevice], int, int]:
    count = draw(st.integers(2, 7))
    link = st.tuples(st.sampled_from([k.value for k in LinkKind]), st.sampled_from([None, 25.0, 50.0]))
    pairs = {pair: draw(link) for pair in combinations(range(count), 2) if draw(st.booleans())}
    pairs.setdefault((0, 1), ("system", None))
    candidates = draw(st.integers(1, 2**count - 1))
    return box(count, pairs), candidates, draw(st.integers(1, candidates.bit_count()))


def fresh(devices: list[ComputeDevice]) -> Links:
    """The links of these devices with nothing remembered."""
    found = links_of(devices)
    assert found is not None
    return found


@given(small_machines())
def test_no_set_of_a_small_machine_is_better(machine: tuple[list[ComputeDevice], int, int]) -> None:
    devices, candidates, count = machine
    links = fresh(devices)
    found = tuple(links.choose(candidates, count, (), candidates))
    pool = [i for i in range(len(devices)) if candidates >> i & 1]
    assert links.cost_of(found, candidates) == min(links.cost_of(s, candidates) for s in combinations(pool, count))


@given(small_machines())
def test_no_exchange_improves_what_growing_found(machine: tuple[list[ComputeDevice], int, int]) -> None:
    devices, candidates, count = machine
    links = fresh(devices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links_module, "MAX_COMPARED_SETS", 1)
        found = tuple(links.choose(candidates, count, (), candidates))
    assert len(set(found)) == count
    assert all(candidates >> i & 1 for i in found)
    pool = [i for i in range(len(devices)) if candidates >> i & 1 and i not in found]
    best = links.cost_of(found, candidates)
    for out in found:
        for into in pool:
            assert best <= links.cost_of(tuple(into if i == out else i for i in found), candidates)


@pytest.mark.parametrize("count", [2, 3, 5, 6, 11, 13])
def test_growing_finds_the_optimum_of_a_tree_of_switches(count: int) -> None:
    links = fresh(SWITCHES)
    everything = 2**16 - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(links_module, "MAX_COMPARED_SETS", 1)
        grown = tuple(links.choose(everything, count, (), everything))
    best = min(links.cost_of(s, everything) for s in combinations(range(16), count))
    assert links.cost_of(grown, everything) == best
