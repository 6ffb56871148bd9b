"""What a requirement means for a device, for a node, and what the user reads where nothing fits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    VariantFeature,
    VariantMatchMode,
    VariantNamespace,
    VariantProperty,
)
from ai.backend.common.errors import InsufficientResource, InvalidAllocation, UnsupportedResource
from ai.backend.common.ids import DeviceName
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.allocation.node import NodeAllocator, PluginDevices
from ai.backend.core.allocation.variants import explain, matches, version_of
from tests.unit.core.allocation.builders import alloc, device, plain, slot

NAMESPACES = (
    VariantNamespace(
        namespace="nvidia",
        features=(
            VariantFeature(name="compute_capability", match_mode=VariantMatchMode.MINIMUM),
            VariantFeature(name="precision", multi_value=True),
            VariantFeature(name="memory_type"),
            VariantFeature(name="driver", match_mode=VariantMatchMode.COMPATIBLE),
        ),
    ),
)


def require(*texts: str) -> tuple[VariantProperty, ...]:
    return tuple(VariantProperty.parse(f"nvidia::{text}") for text in texts)


def gpu(name: str, capability: str = "8.0", *more: str, numa: int | None = None) -> ComputeDevice:
    variants = [f"nvidia::{text}" for text in (f"compute_capability::{capability}", *more)]
    return device(name, slot("cuda.device"), numa=numa, variants=variants)


CARD = gpu("a", "8.6", "precision::FP16", "precision::BF16", "memory_type::HBM2", "driver::12.4.1")


@pytest.mark.parametrize(
    ("required", "expected"),
    [
        ([], True),
        # MINIMUM: as versions, not as text; the largest of several.
        (["compute_capability::8.6"], True),
        (["compute_capability::8"], True),
        (["compute_capability::8.10"], False),
        (["compute_capability::9.0"], False),
        (["compute_capability::8.0", "compute_capability::9.0"], False),
        (["compute_capability::8.0", "compute_capability::8.5"], True),
        # A text that is no version is not taken for the oldest one.
        (["compute_capability::new"], False),
        # EXACT, one value and several.
        (["memory_type::HBM2"], True),
        (["memory_type::HBM3"], False),
        (["memory_type::HBM2", "memory_type::HBM3"], False),
        (["precision::FP16"], True),
        (["precision::FP8"], False),
        (["precision::FP8", "precision::BF16"], True),
        # COMPATIBLE: a prefix that ends where a dotted part does.
        (["driver::12"], True),
        (["driver::12.4"], True),
        (["driver::12.4.1"], True),
        (["driver::12.4.10"], False),
        (["driver::1"], False),
        (["driver::12."], False),
        # All features together; a missing feature; a feature that nobody described is compared exactly.
        (["driver::12", "memory_type::HBM2", "precision::BF16"], True),
        (["driver::12", "memory_type::HBM3"], False),
        (["gpu_arch::hopper"], False),
    ],
)
def test_matching(required: list[str], *, expected: bool) -> None:
    assert matches(CARD, require(*required), NAMESPACES) is expected


def test_a_device_that_states_no_version_is_the_oldest() -> None:
    odd = gpu("a", "unknown")
    assert not matches(odd, require("compute_capability::1.0"), NAMESPACES)
    assert matches(odd, require("compute_capability::unknown"), NAMESPACES)
    assert not matches(device("b", slot("cuda.device")), require("compute_capability::0"), NAMESPACES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8.6", (8, 6)), ("8.0", (8,)), ("v12.4rc1", (12, 4)), ("535.104.05", (535, 104, 5)), ("x", (0,)), ("", (0,))],
)
def test_versions(text: str, expected: tuple[int, ...]) -> None:
    assert version_of(text) == expected


TEXT = st.text(min_size=1, max_size=20)


@given(st.lists(st.tuples(st.sampled_from(["compute_capability", "precision", "driver", "odd"]), TEXT, TEXT)))
def test_matching_never_raises(items: list[tuple[str, str, str]]) -> None:
    stated = [f"nvidia::{feature}::{value}" for feature, value, _ in items if value.strip()]
    odd = device("a", slot("cuda.device"), variants=stated)
    required = [VariantProperty(namespace="nvidia", feature=f, value=value) for f, _, value in items]
    matched = matches(odd, required, NAMESPACES)
    assert explain([odd], required, NAMESPACES, slot="cuda.device") or matched
    assert matches(odd, odd.variant_properties, NAMESPACES), "a device satisfies what it states"


def node(*devices: ComputeDevice, own_map: bool = False) -> NodeAllocator:
    cores = tuple(device(str(i), slot("cpu"), numa=i // 2) for i in range(4))
    spec = None if own_map else AllocMapSpec(kind="discrete")
    return NodeAllocator.from_devices(
        [
            PluginDevices(name=DeviceName("cpu"), devices=cores, alloc_map=AllocMapSpec(kind="discrete")),
            PluginDevices(name=DeviceName("cuda"), devices=devices, alloc_map=spec, namespaces=NAMESPACES),
        ]
    )


def req(**slots: int) -> ResourceSlot:
    return ResourceSlot.parse({name.replace("_", "."): q for name, q in slots.items()})


MIXED = (gpu("old", "7.0"), gpu("a", "8.0"), gpu("b", "8.6", "memory_type::HBM2"), gpu("c", "8.0"))


def test_only_devices_that_qualify_are_given() -> None:
    allocator = node(*MIXED)
    given_ = allocator.allocate(req(cpu=1, cuda_device=3), requirements=require("compute_capability::8.0"))
    assert plain(given_)["cuda.device"].keys() == {"a", "b", "c"}
    with pytest.raises(InsufficientResource, match=r"needs 1 cuda\.device; 0 free on the devices that qualify"):
        allocator.allocate(req(cuda_device=1), requirements=require("compute_capability::8.0"))
    assert plain(allocator.allocate(req(cuda_device=1))) == {"cuda.device": {"old": "1"}}


@pytest.mark.parametrize(
    ("required", "said"),
    [
        (
            ["compute_capability::9.0"],
            "no device of cuda.device has nvidia::compute_capability >= 9.0; this node has 7.0, 8.0, 8.6",
        ),
        (["gpu_arch::hopper"], "no device of cuda.device has nvidia::gpu_arch = hopper; this node has none"),
        (
            ["compute_capability::7.0", "memory_type::HBM3"],
            "no device of cuda.device has nvidia::memory_type = HBM3; this node has HBM2",
        ),
        (
            ["compute_capability::9.0", "memory_type::HBM3"],
            (
                "no device of cuda.device has nvidia::compute_capability >= 9.0 together with "
                "nvidia::memory_type = HBM3; this node has nvidia::compute_capability 7.0, 8.0, 8.6; "
                "nvidia::memory_type HBM2"
            ),
        ),
        (
            ["precision::FP8", "precision::FP4"],
            "no device of cuda.device has nvidia::precision = FP8 or FP4; this node has none",
        ),
    ],
)
def test_a_refusal_says_what_there_is(required: list[str], said: str) -> None:
    allocator = node(*MIXED)
    with pytest.raises(UnsupportedResource) as e:
        allocator.allocate(req(cpu=1, cuda_device=1), requirements=require(*required))
    assert e.value.message == said
    assert allocator.available() == allocator.totals


def test_a_requirement_binds_a_requested_slot() -> None:
    with pytest.raises(UnsupportedResource, match="no device of cpu states anything in the namespace of nvidia::"):
        node(*MIXED).allocate(req(cpu=1), requirements=require("compute_capability::7.0"))
    other = VariantProperty.parse("amd::gfx_arch::gfx942")
    with pytest.raises(UnsupportedResource, match="amd::gfx_arch::gfx942; known namespaces are nvidia"):
        node(*MIXED).allocate(req(cuda_device=1), requirements=[other])


def test_a_plan_must_satisfy_the_requirements() -> None:
    needs = require("compute_capability::8.0")
    kept = node(*MIXED).verify_or_rebind(req(cuda_device=1), alloc({"cuda.device": {"c": 1}}), requirements=needs)
    assert plain(kept) == {"cuda.device": {"c": "1"}}
    moved = node(*MIXED).verify_or_rebind(req(cuda_device=1), alloc({"cuda.device": {"old": 1}}), requirements=needs)
    assert plain(moved) == {"cuda.device": {"a": "1"}}


def test_a_plugin_with_a_map_of_its_own_is_held_against_the_devices_that_qualify() -> None:
    allocator = node(*MIXED, own_map=True)
    with pytest.raises(InsufficientResource, match=r"needs 2 cuda\.device; at most 1 free"):
        allocator.allocate(req(cuda_device=2), requirements=require("compute_capability::8.5"))
    allocator.allocate(req(cuda_device=1), requirements=require("compute_capability::8.5"))
    assert allocator.available()["cuda.device"] == 3


def test_requirements_and_numa_hold_together() -> None:
    devices = [gpu("a", "8.0", numa=0), gpu("b", "8.0", numa=0), gpu("c", "9.0", numa=1)]
    allocator = node(*devices)
    given_ = allocator.allocate(req(cpu=2, cuda_device=1), requirements=require("compute_capability::9.0"))
    assert plain(given_) == {"cuda.device": {"c": "1"}, "cpu": {"2": "1", "3": "1"}}
    with pytest.raises(InvalidAllocation):
        allocator.apply(alloc({"cuda.device": {"c": 1}}))
