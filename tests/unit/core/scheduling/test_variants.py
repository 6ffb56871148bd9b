"""Sessions that require what their devices are, and clusters whose agents differ."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ai.backend.common.devices import (
    AllocMapSpec,
    ComputeDevice,
    DeviceHealth,
    DeviceSlot,
    VariantFeature,
    VariantMatchMode,
    VariantNamespace,
    VariantProperty,
)
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.plan import Plan, SkipReason
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, PendingSession, Snapshot, dump_json, load_json
from tests.unit.core.scheduling.builders import NOW, agent, devices, holding, session, slots

NVIDIA = VariantNamespace(
    namespace="nvidia",
    features=(
        VariantFeature(name="compute_capability", match_mode=VariantMatchMode.MINIMUM),
        VariantFeature(name="precision", multi_value=True),
    ),
)
DISCRETE = AllocMapSpec(kind="discrete")
AMPERE, ADA, HOPPER = "8.0", "8.9", "9.0"


def gpu(number: int, capability: str, model: str | None = None, *, healthy: bool = True) -> ComputeDevice:
    return ComputeDevice(
        device_name=DeviceName("cuda"),
        device_id=DeviceId(f"gpu-{number}"),
        hw_location="",
        model_name=model,
        health=DeviceHealth.HEALTHY if healthy else DeviceHealth.UNHEALTHY,
        slots=(DeviceSlot(slot_name=SlotName("cuda.device"), slot_type=SlotType.COUNT, amount=Decimal(1)),),
        variant_properties=(VariantProperty.parse(f"nvidia::compute_capability::{capability}"),),
    )


def with_gpus(name: str, *devices: ComputeDevice, spec: AllocMapSpec | None = DISCRETE) -> AgentView:
    plugin = PluginDevices(name=DeviceName("cuda"), devices=devices, alloc_map=spec, namespaces=(NVIDIA,))
    plain = agent(name)
    return replace(plain, plugins=(*plain.plugins, plugin))


def requiring(
    name: str, *requirements: str, age_s: float = 0, multi: int = 0, **quantities: str | int
) -> PendingSession:  # a builder
    made = session(name, *[slots(**quantities)] * (multi or 1), age_s=age_s, multi=bool(multi))
    parsed = tuple(VariantProperty.parse(text) for text in requirements)
    return replace(made, kernels=tuple(replace(k, requirements=parsed) for k in made.kernels))


def plan(agents: Sequence[AgentView], *pending: PendingSession) -> Plan:
    snapshot = Snapshot(resource_group="default", agents=tuple(agents), pending=pending)
    assert load_json(dump_json(snapshot)) == snapshot, "what is decided on can be replayed"
    return decide(snapshot, Policy(placement="concentrated"), now=NOW, rng=random.Random(1))


def where(made: Plan, who: PendingSession) -> list[tuple[str, list[str]]] | None:
    """Agent and accelerators of each kernel."""
    found = next((p for p in made.placements if p.session_id == who.session_id), None)
    if found is None:
        return None
    return [(k.agent_id, sorted(k.devices.slots.get(SlotName("cuda.device"), ()))) for k in found.kernels]


def why(made: Plan, who: PendingSession) -> tuple[SkipReason, str]:
    skip = made.skip_of(who.session_id)
    assert skip is not None
    return skip.reason, skip.message


MIXED = (
    with_gpus("i-1", gpu(0, AMPERE, "A100"), gpu(1, AMPERE, "A100")),
    with_gpus("i-2", gpu(0, ADA, "L4"), gpu(1, HOPPER, "H100")),
    agent("i-3"),
)


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("nvidia::compute_capability::9.0", [("i-2", ["gpu-1"])]),
        ("nvidia::compute_capability::8.9", [("i-2", ["gpu-0"])]),
        ("cuda::model::A100", [("i-1", ["gpu-0"])]),
        ("cuda::model::H100", [("i-2", ["gpu-1"])]),
    ],
)
def test_a_requirement_chooses_agent_and_device(requirement: str, expected: list[tuple[str, list[str]]]) -> None:
    wanted = requiring("a", requirement, cpu=1, cuda_device=1)
    assert where(plan(MIXED, wanted), wanted) == expected


def test_requirements_of_one_session_hold_together() -> None:
    both = requiring("a", "nvidia::compute_capability::8.5", "cuda::model::L4", cuda_device=1)
    never = requiring("b", "nvidia::compute_capability::9.0", "cuda::model::L4", cuda_device=1)
    made = plan(MIXED, both, never)
    assert where(made, both) == [("i-2", ["gpu-0"])]
    assert why(made, never) == (
        SkipReason.NO_MATCHING_DEVICE,
        (
            "no agent has a device with nvidia::compute_capability >= 9.0 together with cuda::model = L4; "
            "of nvidia::compute_capability there are 8.0 (cuda on i-1), 8.9 (cuda on i-2), 9.0 (cuda on i-2); "
            "of cuda::model there are A100 (cuda on i-1), H100 (cuda on i-2), L4 (cuda on i-2)"
        ),
    )


@pytest.mark.parametrize(
    ("requirement", "message"),
    [
        (
            "nvidia::compute_capability::10.0",
            (
                "nvidia::compute_capability >= 10.0; of nvidia::compute_capability there are 8.0 (cuda on i-1), "
                "8.9 (cuda on i-2), 9.0 (cuda on i-2)"
            ),
        ),
        ("nvidia::colour::red", "nvidia::colour = red; nvidia has no such feature, but compute_capability"),
        (
            "amd::gfx_arch::gfx90a",
            "amd::gfx_arch = gfx90a; no requested slot is of the namespace amd; there are cuda, nvidia",
        ),
    ],
)
def test_what_nobody_has_is_told_with_what_there_is(requirement: str, message: str) -> None:
    wanted = requiring("a", requirement, cuda_device=1)
    assert why(plan(MIXED, wanted), wanted) == (
        SkipReason.NO_MATCHING_DEVICE,
        f"no agent has a device with {message}",
    )


def test_a_requirement_without_a_slot_that_it_could_concern_is_told() -> None:
    wanted = requiring("a", "nvidia::compute_capability::8.0", cpu=1)
    reason, message = why(plan(MIXED, wanted), wanted)
    assert reason is SkipReason.NO_MATCHING_DEVICE
    assert message.endswith("no requested slot is of the namespace nvidia; there are none")


def test_an_impossible_requirement_holds_nobody_back() -> None:
    first = requiring("first", "nvidia::compute_capability::10.0", cpu=4, cuda_device=2, age_s=9)
    second = requiring("second", "cuda::model::A100", cpu=1, cuda_device=2)
    third = requiring("third", "cuda::model::H100", cpu=1, cuda_device=1)
    made = plan(MIXED, first, second, third)
    assert where(made, second) == [("i-1", ["gpu-0", "gpu-1"])]
    assert where(made, third) == [("i-2", ["gpu-1"])]


def test_a_taken_variant_holds_back_only_the_agents_that_have_it() -> None:
    busy = holding(MIXED[1], cuda_device=2)
    first = requiring("first", "cuda::model::H100", cuda_device=1, age_s=9)
    second = requiring("second", cuda_device=1)
    third = requiring("third", "cuda::model::L4", cuda_device=1)
    made = plan((MIXED[0], busy, MIXED[2]), first, second, third)
    assert why(made, first)[0] is SkipReason.INSUFFICIENT_RESOURCE
    assert where(made, second) == [("i-1", ["gpu-0"])]
    assert why(made, third) == (SkipReason.BEHIND_ANOTHER, "waits behind session first, which came first")


def test_enough_of_a_slot_but_not_of_the_variant_is_told_so() -> None:
    first = requiring("first", "cuda::model::H100", cuda_device=1, age_s=9)
    second = requiring("second", "cuda::model::H100", cuda_device=1)
    made = plan(MIXED, first, second)
    assert where(made, first) == [("i-2", ["gpu-1"])]
    assert why(made, second) == (
        SkipReason.INSUFFICIENT_RESOURCE,
        "needs 1 cuda.device on one node, of devices with cuda::model::H100; too little of those is free on i-2",
    )


def test_more_than_any_node_has_of_a_variant_never_fits() -> None:
    wanted = requiring("a", "cuda::model::H100", cuda_device=2)
    assert why(plan(MIXED, wanted), wanted)[0] is SkipReason.NEVER_FITS


def test_a_device_that_is_not_healthy_is_waited_for() -> None:
    sick = with_gpus("i-1", gpu(0, HOPPER, healthy=False), gpu(1, AMPERE))
    wanted = requiring("a", "nvidia::compute_capability::9.0", cuda_device=1)
    assert why(plan([sick], wanted), wanted)[0] is not SkipReason.NO_MATCHING_DEVICE


def test_kernels_of_a_multi_node_session_each_get_what_they_require() -> None:
    wanted = requiring("a", "nvidia::compute_capability::8.9", multi=2, cuda_device=1)
    two = (MIXED[1], replace(MIXED[1], agent_id=AgentId("i-4")))
    placed = where(plan((MIXED[0], *two), wanted), wanted)
    assert placed is not None
    assert {agent_id for agent_id, _ in placed} <= {"i-2", "i-4"}


def test_a_plugin_with_a_map_of_its_own_is_matched_as_well() -> None:
    opaque = (with_gpus("i-1", gpu(0, AMPERE), spec=None), with_gpus("i-2", gpu(0, HOPPER), spec=None))
    wanted = requiring("a", "nvidia::compute_capability::9.0", cuda_device=1)
    assert where(plan(opaque, wanted), wanted) == [("i-2", [])], "the agent chooses the device"


def test_requests_that_mix_slots_of_different_agents_are_told_apart() -> None:
    rocm = replace(
        agent("i-4"),
        plugins=(
            *agent("i-4").plugins,
            PluginDevices(
                name=DeviceName("rocm"),
                devices=tuple(
                    replace(
                        gpu(n, AMPERE),
                        device_name=DeviceName("rocm"),
                        slots=(
                            DeviceSlot(slot_name=SlotName("rocm.device"), slot_type=SlotType.COUNT, amount=Decimal(1)),
                        ),
                    )
                    for n in range(2)
                ),
                alloc_map=AllocMapSpec(kind="discrete"),
            ),
        ),
    )
    both = requiring("both", cuda_device=1, rocm_device=1, age_s=9)
    one, other = requiring("one", cuda_device=2), requiring("other", rocm_device=2)
    made = plan((MIXED[0], rocm), both, one, other)
    assert why(made, both) == (
        SkipReason.UNSUPPORTED_RESOURCE,
        "no agent has all of cuda.device, rocm.device; i-1 lacks rocm.device, i-4 lacks cuda.device",
    )
    assert where(made, one) == [("i-1", ["gpu-0", "gpu-1"])]
    assert where(made, other) == [("i-4", [])]


SLOTS = ("cuda.device", "rocm.device", "tpu.device")


@settings(deadline=None)
@given(
    clusters=st.lists(st.dictionaries(st.sampled_from(SLOTS), st.integers(1, 3)), min_size=1, max_size=4),
    wanted=st.lists(st.dictionaries(st.sampled_from(SLOTS), st.integers(1, 4), min_size=1), min_size=1, max_size=6),
)
def test_agents_with_different_plugins(clusters: list[dict[str, int]], wanted: list[dict[str, int]]) -> None:
    """Nobody is placed where a slot is missing; who has a place on an empty cluster is never called unsupported."""
    agents = [
        replace(
            agent(f"i-{i}"),
            plugins=tuple(
                PluginDevices(
                    name=DeviceName(slot.partition(".")[0]),
                    devices=devices(slot.partition(".")[0], slot, [1] * count),
                    alloc_map=DISCRETE,
                )
                for slot, count in offered.items()
            ),
        )
        for i, offered in enumerate(clusters)
    ]
    pending = [
        session(f"s-{i}", slots(**{name.replace(".", "_"): q for name, q in request.items()}), age_s=100 - i)
        for i, request in enumerate(wanted)
    ]
    made = plan(agents, *pending)
    left = [dict(offered) for offered in clusters]
    for who, request in zip(pending, wanted, strict=True):
        placed = where(made, who)
        able = [i for i, offered in enumerate(clusters) if request.keys() <= offered.keys()]
        if placed is None:
            reason, message = why(made, who)
            assert (reason is SkipReason.UNSUPPORTED_RESOURCE) == (not able), message
            continue
        number = int(placed[0][0][2:])
        assert number in able
        for slot, quantity in request.items():
            left[number][slot] -= quantity
            assert left[number][slot] >= 0


CAPABILITIES = ("7.5", "8.0", "8.6", "9.0")


@settings(deadline=None)
@given(
    clusters=st.lists(st.lists(st.sampled_from(CAPABILITIES), max_size=3), min_size=1, max_size=4),
    wanted=st.lists(
        st.tuples(st.none() | st.sampled_from((*CAPABILITIES, "10.0")), st.integers(1, 3)), min_size=1, max_size=6
    ),
)
def test_nobody_gets_a_lesser_device_and_impossible_ones_change_nothing(
    clusters: list[list[str]], wanted: list[tuple[str | None, int]]
) -> None:
    agents = [
        with_gpus(f"i-{i}", *[gpu(n, capability) for n, capability in enumerate(capabilities)])
        for i, capabilities in enumerate(clusters)
    ]
    pending = [
        requiring(
            f"s-{i}", *([f"nvidia::compute_capability::{least}"] if least else []), age_s=100 - i, cuda_device=count
        )
        for i, (least, count) in enumerate(wanted)
    ]
    made = plan(agents, *pending)
    taken: list[tuple[str, str]] = []
    for who, (least, count) in zip(pending, wanted, strict=True):
        for agent_id, ids in where(made, who) or ():
            assert len(ids) == count
            for device_id in ids:
                have = clusters[int(agent_id[2:])][int(device_id[4:])]
                assert least is None or Decimal(have) >= Decimal(least)
                taken.append((agent_id, device_id))
    assert len(taken) == len(set(taken))
    possible = [p for p in pending if not _is_impossible(made, p)]
    again = plan(agents, *possible)
    assert [where(again, p) for p in possible] == [where(made, p) for p in possible]


def _is_impossible(made: Plan, who: PendingSession) -> bool:
    skip = made.skip_of(who.session_id)
    return skip is not None and skip.reason in (
        SkipReason.NO_MATCHING_DEVICE,
        SkipReason.NEVER_FITS,
        SkipReason.UNSUPPORTED_RESOURCE,
    )
