"""Sessions with device requests: alternatives in order, and why one waits."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ai.backend.common.devices import AllocMapSpec, ComputeDevice, DeviceSlot, VariantProperty
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.placement.strategies import PLACEMENTS
from ai.backend.core.scheduling.plan import Plan, SkipReason
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import (
    AgentView,
    HeldKernel,
    PendingSession,
    Quota,
    Snapshot,
    dump_json,
    load_json,
)
from tests.unit.core.scheduling.builders import NOW, agent, session, slots

CACHE = NodeClassCache()
"""Kept over all decisions, as the scheduling loop keeps its own."""
CAPABILITIES = {"T4": "7.5", "A100": "8.0", "H100": "9.0"}


def gpus(name: str, *models: str, location: tuple[str, ...] = ()) -> AgentView:
    devices = tuple(
        ComputeDevice(
            device_name=DeviceName("cuda"),
            device_id=DeviceId(str(number)),
            hw_location="",
            model_name=model,
            memory_size=16 * 2**30 if model == "T4" else 80 * 2**30,
            numa_node=number % 2,
            slots=(DeviceSlot(slot_name=SlotName("cuda.device"), slot_type=SlotType.COUNT, amount=Decimal(1)),),
            variant_properties=(VariantProperty.parse(f"nvidia::compute_capability::{CAPABILITIES[model]}"),),
        )
        for number, model in enumerate(models)
    )
    plugin = PluginDevices(name=DeviceName("cuda"), devices=devices, alloc_map=AllocMapSpec(kind="discrete"))
    plain = agent(name, cpu=64, mem="256g", location=location)
    return replace(plain, plugins=(*plain.plugins, plugin))


def asking(name: str, *device_requests: str, count: int = 1, **more: object) -> PendingSession:
    made = session(name, slots(cpu=1, mem="1g", cuda_device=count), age_s=100 - len(name))
    return replace(made, device_requests=device_requests, **more)  # type: ignore[arg-type]  # a builder


def planned(agents: Sequence[AgentView], pending: Sequence[PendingSession], policy: Policy | None = None) -> Plan:
    snapshot = Snapshot(resource_group="default", agents=tuple(agents), pending=tuple(pending))
    return decide(snapshot, policy or Policy(), now=NOW, rng=random.Random(1), node_classes=CACHE)


def agents_of(plan: Plan, pending: Sequence[PendingSession]) -> list[str | None]:
    chosen = {placement.session_id: placement.kernels[0].agent_id for placement in plan.placements}
    return [chosen.get(who.session_id) for who in pending]


def test_alternatives_are_taken_in_their_order() -> None:
    agents = [gpus("a-t4", "T4", "T4"), gpus("b-h100", "H100"), gpus("c-a100", "A100")]
    models = ('model == "H100"', 'model == "A100"', "compute_capability >= 7.0")
    pending = [asking(name, *models) for name in ("1", "22", "333", "4444", "55555")]
    plan = planned(agents, pending)
    assert agents_of(plan, pending) == ["b-h100", "c-a100", "a-t4", "a-t4", None]
    (wait,) = plan.waits
    assert wait.reason is SkipReason.INSUFFICIENT_RESOURCE
    assert "none of 3 device requests can be met now: (1) " in wait.message
    assert '1 of 4 devices has model == "H100", none of them is free' in wait.message


def test_the_wait_counts_devices() -> None:
    agents = [gpus("t4", *["T4"] * 9), gpus("a100", "A100", "A100", "A100")]
    pending = [asking(name, "compute_capability >= 8.0") for name in ("1", "22", "333", "4444")]
    plan = planned(agents, pending)
    (wait,) = plan.waits
    assert wait.message.endswith("; 3 of 12 devices have compute_capability >= 8.0, none of them is free")


def test_a_request_that_no_device_satisfies_names_what_there_is() -> None:
    agents = [gpus("t4", "T4", "T4"), gpus("a100", "A100")]
    (wait,) = planned(agents, [asking("x", "memory >= 96g && compute_capability >= 8.0")]).waits
    assert wait.reason is SkipReason.NO_MATCHING_DEVICE
    assert wait.message == (
        "no agent has a device with memory >= 96g && compute_capability >= 8.0; of 3 devices there have "
        "0 memory >= 96g, 1 compute_capability >= 8.0; of memory there are 16g, 80g"
    )
    (wait,) = planned(agents, [asking("x", 'vendor == "acme"')]).waits
    assert wait.message.endswith("no device states vendor")


def test_constraints_that_no_empty_agent_meets_can_never_be_met() -> None:
    (wait,) = planned([gpus("t4", "T4", "T4", "T4")], [asking("x", "same(numa_node)", count=3)]).waits
    assert wait.reason is SkipReason.NEVER_FITS
    assert "same(numa_node)" in wait.message


def test_all_kernels_of_a_cluster_get_one_alternative() -> None:
    agents = [gpus("a", "H100"), gpus("b", "A100"), gpus("c", "A100")]
    kernels = [slots(cpu=1, cuda_device=1)] * 2
    who = replace(session("x", *kernels, multi=True), device_requests=('model == "H100"', 'model == "A100"'))
    (placement,) = planned(agents, [who]).placements
    assert {kernel.agent_id for kernel in placement.kernels} == {"b", "c"}


def test_a_snapshot_keeps_the_requests() -> None:
    snapshot = Snapshot(resource_group="d", pending=(asking("x", "memory >= 1g", 'model == "T4"'),))
    assert load_json(dump_json(snapshot)) == snapshot


def test_the_first_alternative_is_what_waiting_reserves() -> None:
    agents = [gpus("a", "H100", "H100"), gpus("b", "A100", "A100")]
    first = asking("1", 'model == "H100"')
    large = asking("22", 'model == "H100"', 'model == "A100"', count=2)
    small = asking("333", 'model == "A100"')
    busy = asking("0", 'model == "A100"', priority=99)
    plan = planned(agents, [busy, first, large, small])
    assert agents_of(plan, [busy, first, large, small]) == ["b", "a", None, "b"]
    assert plan.reserved == ((AgentId("a"), large.session_id),)


models = st.sampled_from(list(CAPABILITIES))
texts = st.sampled_from(
    [
        'model == "H100"',
        'model in ["A100", "H100"]',
        "compute_capability >= 8.0",
        "memory < 20g",
        "same(numa_node)",
        'model != "T4" && same(model)',
        "distinct(numa_node)",
        "memory > 1t",
    ]
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(models, min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.tuples(st.lists(texts, max_size=3, unique=True), st.integers(1, 3)), min_size=1, max_size=5),
    st.sampled_from(sorted(PLACEMENTS)),
)
def test_the_first_session_gets_its_first_alternative_that_fits_an_agent(
    machines: list[list[str]], asked: list[tuple[list[str], int]], placement: str
) -> None:
    agents = [gpus(f"i-{number}", *models) for number, models in enumerate(machines)]
    pending = [
        replace(
            session(str(number), slots(cpu=1, cuda_device=count), age_s=100 - number),
            device_requests=tuple(alternatives),
        )
        for number, (alternatives, count) in enumerate(asked)
    ]
    policy = Policy(placement=placement)
    plan = planned(agents, pending, policy)
    snapshot = Snapshot(resource_group="default", agents=tuple(agents), pending=tuple(pending))
    again = decide(IncrementalScheduler(snapshot, CACHE), policy, now=NOW, rng=random.Random(1))
    assert again == plan
    first = pending[0]
    expected = next(
        (
            [who.agent_id for who in agents if _fits(who, text, int(first.total["cuda.device"]))]
            for text in first.device_requests or ("has(id)",)
            if any(_fits(who, text, int(first.total["cuda.device"])) for who in agents)
        ),
        [],
    )
    (chosen,) = agents_of(plan, [first])
    assert (chosen is None and not expected) or chosen in expected
    for placed in plan.placements:
        asked_for = next(who for who in pending if who.session_id == placed.session_id)
        (kernel,) = placed.kernels
        view = next(who for who in agents if who.agent_id == kernel.agent_id)
        given_devices = [
            one for one in view.plugins[-1].devices if one.device_id in kernel.devices.slots[SlotName("cuda.device")]
        ]
        assert any(_allows(text, given_devices) for text in asked_for.device_requests or ("has(id)",))


def _fits(view: AgentView, text: str, count: int) -> bool:
    """Returns True if some devices of an empty agent satisfy a request, by trying all of them."""
    devices = view.plugins[-1].devices
    subsets = ([one for bit, one in enumerate(devices) if mask >> bit & 1] for mask in range(1 << len(devices)))
    return any(len(chosen) == count and _allows(text, chosen) for chosen in subsets)


def _allows(text: str, chosen: Sequence[ComputeDevice]) -> bool:
    """Says by hand what the texts of this test mean."""
    model_names = [str(one.model_name) for one in chosen]
    nodes = [one.numa_node for one in chosen]
    return {
        "has(id)": True,
        'model == "H100"': set(model_names) == {"H100"},
        'model in ["A100", "H100"]': "T4" not in model_names,
        "compute_capability >= 8.0": "T4" not in model_names,
        "memory < 20g": set(model_names) == {"T4"},
        "same(numa_node)": len(set(nodes)) == 1,
        'model != "T4" && same(model)': "T4" not in model_names and len(set(model_names)) == 1,
        "distinct(numa_node)": len(set(nodes)) == len(nodes),
        "memory > 1t": False,
    }[text]


@pytest.mark.parametrize("placement", sorted(PLACEMENTS))
def test_the_planner_waits_for_what_comes(placement: str) -> None:
    waiting = asking("x", 'model == "H100"')
    assert not planned([gpus("a", "T4")], [waiting], Policy(placement=placement)).placements
    assert planned([gpus("a", "T4"), gpus("b", "H100")], [waiting], Policy(placement=placement)).placements


def test_tainted_devices_are_for_requests_that_tolerate_them() -> None:
    def tainted(view: AgentView, *keys: str | None) -> AgentView:
        plugins = []
        for plugin in view.plugins:
            if plugin.name == "cuda":
                devices = tuple(
                    replace(device, variant_properties=(VariantProperty.parse(f"taint::key::{key}"),) if key else ())
                    for device, key in zip(plugin.devices, keys, strict=True)
                )
                plugin = replace(plugin, devices=devices)
            plugins.append(plugin)
        return replace(view, plugins=tuple(plugins))

    def devices_for(*device_requests: str, count: int = 1) -> set[str] | None:
        who = session("s", slots(cpu=1, cuda_device=count), device_requests=device_requests)
        agents = (tainted(agent("i-1", cuda=3), "burn-in", None, "ecc"),)
        made = decide(
            Snapshot(resource_group="g", agents=agents, pending=(who,)), Policy(), now=NOW, rng=random.Random(1)
        )
        return set(made.placements[0].kernels[0].devices.slots["cuda.device"]) if made.placements else None  # type: ignore[index]

    assert devices_for() == {"1"}
    assert devices_for(count=2) is None
    assert devices_for('tolerates("burn-in")', count=2) == {"0", "1"}
    assert devices_for('tolerates("burn-in") && id == "0"') == {"0"}
    assert devices_for('id == "0"') is None
    assert devices_for('tolerates("*")', count=3) == {"0", "1", "2"}
    assert devices_for('tolerates("*") && distinct(id)', count=3) == {"0", "1", "2"}
    assert devices_for("distinct(id)", count=2) is None
    assert devices_for("distinct(id)") == {"1"}


def test_a_session_that_finds_tainted_devices_alone_waits_and_says_so() -> None:
    taint = (VariantProperty.parse("taint::key::burn-in"),)
    view = agent("i-1", cuda=2)
    plugins = tuple(
        replace(plugin, devices=tuple(replace(device, variant_properties=taint) for device in plugin.devices))
        if plugin.name == "cuda"
        else plugin
        for plugin in view.plugins
    )
    who = session("s", slots(cpu=1, cuda_device=1))
    snapshot = Snapshot(resource_group="g", agents=(replace(view, plugins=plugins),), pending=(who,))
    (skipped,) = decide(snapshot, Policy(), now=NOW, rng=random.Random(1)).skips
    assert (skipped.reason, skipped.message) == (
        SkipReason.DEVICES_FAILED,
        "needs 1 cpu, 1 cuda.device; devices for it are tainted: 0 on i-1 (burn-in), 1 on i-1 (burn-in)",
    )


# ---- amounts


AMOUNTS = (
    'model == "H100" && amount("cuda.device", 1)',
    'model == "A100" && amount("cuda.device", 2)',
    'model == "T4" && amount("cuda.device", 4)',
)


def test_each_alternative_takes_its_own_amount() -> None:
    agents = [gpus("a-t4", *["T4"] * 5), gpus("b-h100", "H100"), gpus("c-a100", "A100", "A100", "A100")]
    pending = [asking(name, *AMOUNTS, count=4) for name in ("1", "22", "333", "4444")]
    plan = planned(agents, pending)
    assert agents_of(plan, pending) == ["b-h100", "c-a100", "a-t4", None]
    taken = [placement.kernels[0] for placement in plan.placements]
    assert [len(kernel.devices.slots[SlotName("cuda.device")]) for kernel in taken] == [1, 2, 4]
    assert [kernel.slots for kernel in taken] == [slots(cpu=1, mem="1g", cuda_device=count) for count in (1, 2, 4)]
    (wait,) = plan.waits
    assert wait.reason is SkipReason.INSUFFICIENT_RESOURCE
    assert wait.message == (
        "none of 3 device requests can be met now: "
        '(1) needs 1 cpu, 1 cuda.device, 1g mem on one node; 1 of 9 devices has model == "H100", none of them is free; '
        '(2) needs 1 cpu, 2 cuda.device, 1g mem on one node; 3 of 9 devices have model == "A100", 1 of them is free, '
        "at most 1 on one node; "
        '(3) needs 1 cpu, 4 cuda.device, 1g mem on one node; 5 of 9 devices have model == "T4", 1 of them is free, '
        "at most 1 on one node"
    )


def test_amounts_alone_are_alternatives() -> None:
    amounts = ('amount("cuda.device", 4)', 'amount("cuda.device", 2)')
    pending = [asking(name, *amounts, count=4) for name in ("1", "22", "333")]
    plan = planned([gpus("a", *["T4"] * 6)], pending)
    assert [kernel.slots["cuda.device"] for p in plan.placements for kernel in p.kernels if kernel.slots] == [4, 2]
    (wait,) = plan.waits
    assert wait.message.endswith("(2) needs 1 cpu, 2 cuda.device, 1g mem on one node; 6 devices, none of them is free")


def test_what_no_node_could_hold_is_said_of_each_alternative() -> None:
    (wait,) = planned([gpus("a", "T4", "T4")], [asking("1", *AMOUNTS, count=4)]).waits
    assert wait.reason is SkipReason.NO_MATCHING_DEVICE
    assert "(3) needs 4 cuda.device on one node; the largest node, a, has 2" in wait.message


def test_quotas_count_the_largest_alternative_before_and_the_chosen_one_after() -> None:
    quota = Quota(label="your keypair", limit=slots(cuda_device=5))
    pending = [asking(name, *AMOUNTS, count=4, quotas=("k",)) for name in ("1", "22", "333")]
    snapshot = Snapshot(
        resource_group="default",
        agents=(gpus("a", *["H100"] * 4),),
        pending=tuple(pending),
        quotas={"k": quota},
    )
    plan = decide(snapshot, Policy(), now=NOW, rng=random.Random(1), node_classes=CACHE)
    assert agents_of(plan, pending) == ["a", "a", None]
    (wait,) = plan.waits
    assert wait.message == (
        "your keypair may use 5 cuda.device and uses 2 cuda.device already; this session needs 4 cuda.device"
    )


def test_the_shares_of_users_grow_by_what_was_placed() -> None:
    by_user = {"a": ("d", "p", "a"), "b": ("d", "p", "b")}
    pending = [asking("x" * number, *AMOUNTS, count=4, scope=by_user["a"]) for number in (1, 2)]
    pending.append(asking("xxx", count=2, scope=by_user["b"]))
    pending.append(asking("xxxx", count=2, scope=by_user["b"]))
    snapshot = Snapshot(resource_group="default", agents=(gpus("i", *["H100"] * 4),), pending=tuple(pending))
    plan = decide(snapshot, Policy(order="drf"), now=NOW, rng=random.Random(1), node_classes=CACHE)
    assert [placement.session_id for placement in plan.placements] == [
        pending[place].session_id for place in (0, 2, 1)
    ], "the first user holds 1 of 4 devices, not 4, when the second one holds 2"


def test_all_kernels_of_a_cluster_take_the_amount_of_one_alternative() -> None:
    agents = [gpus("a", "H100"), gpus("b", "A100", "A100"), gpus("c", "A100", "A100")]
    kernels = [slots(cpu=1), slots(cpu=1, cuda_device=4), slots(cpu=1, cuda_device=4)]
    who = replace(session("x", *kernels, multi=True), device_requests=AMOUNTS)
    (placement,) = planned(agents, [who]).placements
    assert [kernel.slots for kernel in placement.kernels] == [
        slots(cpu=1), slots(cpu=1, cuda_device=2), slots(cpu=1, cuda_device=2),
    ]  # fmt: skip
    assert {kernel.agent_id for kernel in placement.kernels[1:]} == {"b", "c"}


def test_a_placement_that_was_carried_out_is_what_the_next_snapshot_holds() -> None:
    view = gpus("a", *["A100"] * 4)
    pending = asking("1", *AMOUNTS, count=4)
    scheduler = IncrementalScheduler(Snapshot(resource_group="d", agents=(view,), pending=(pending,)), CACHE)
    (placement,) = decide(scheduler, Policy(), now=NOW, rng=random.Random(1)).placements
    (kernel,) = placement.kernels
    assert kernel.slots is not None
    held = HeldKernel(kernel_id=kernel.kernel_id, slots=kernel.slots, devices=kernel.devices, device_requests=AMOUNTS)
    after = Snapshot(resource_group="d", agents=(replace(view, held=(held,)),))
    assert scheduler.update(after)
    assert scheduler.free == IncrementalScheduler(after, CACHE).free
    assert scheduler.free[AgentId("a")]["cuda.device"] == 2


@pytest.mark.parametrize("texts_", [AMOUNTS, ('model == "H100"', 'model == "A100"')])
def test_another_alternative_comes_before_an_agent_that_just_failed_the_session(texts_: tuple[str, ...]) -> None:
    agents = [gpus("a", *["H100"] * 4), gpus("b", *["A100"] * 4)]
    (placement,) = planned(agents, [asking("1", *texts_, avoided_agents=(AgentId("a"),))]).placements
    assert placement.kernels[0].agent_id == "b"
    (placement,) = planned(agents[:1], [asking("1", *texts_, avoided_agents=(AgentId("a"),))]).placements
    assert placement.kernels[0].agent_id == "a"


own_amounts = st.lists(st.tuples(texts, st.integers(1, 4)), min_size=1, max_size=3)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.lists(models, min_size=1, max_size=5), min_size=1, max_size=3),
    st.lists(st.tuples(st.none() | own_amounts, st.integers(1, 2)), min_size=1, max_size=8),
    st.sampled_from(sorted(PLACEMENTS)),
    st.integers(1, 12),
)
def test_no_device_and_no_quota_is_exceeded_by_mixed_alternatives(
    machines: list[list[str]],
    asked: list[tuple[list[tuple[str, int]] | None, int]],
    placement: str,
    limit: int,
) -> None:
    agents = [gpus(f"i-{number}", *models) for number, models in enumerate(machines)]
    pending = []
    for number, (alternatives, kernel_count) in enumerate(asked):
        most = max((amount for _, amount in alternatives or ()), default=1)
        who = session(str(number), *[slots(cpu=1, cuda_device=most)] * kernel_count, age_s=100 - number, quotas=("q",))
        requested = tuple(f'{text} && amount("cuda.device", {amount})' for text, amount in alternatives or ())
        pending.append(replace(who, device_requests=requested))
    quota = Quota(label="all", limit=slots(cuda_device=limit))
    snapshot = Snapshot(resource_group="default", agents=tuple(agents), pending=tuple(pending), quotas={"q": quota})
    plan = decide(snapshot, Policy(placement=placement), now=NOW, rng=random.Random(1), node_classes=CACHE)
    again = decide(IncrementalScheduler(snapshot, CACHE), Policy(placement=placement), now=NOW, rng=random.Random(1))
    assert again == plan
    assert len(plan.placements) + len(plan.skips) == len(pending)
    taken: dict[tuple[str, str], Decimal] = {}
    for placed in plan.placements:
        who = next(each for each in pending if each.session_id == placed.session_id)
        amounts = dict(asked[int(who.name)][0] or [("has(id)", 1)])
        counts = set()
        for kernel in placed.kernels:
            quantities = kernel.devices.slots[SlotName("cuda.device")]
            counts.add(sum(quantities.values()))
            assert (kernel.slots or slots(cpu=1, cuda_device=1))["cuda.device"] == sum(quantities.values())
            for device_id, quantity in quantities.items():
                place = kernel.agent_id, device_id
                taken[place] = taken.get(place, Decimal(0)) + quantity
            view = next(each for each in agents if each.agent_id == kernel.agent_id)
            chosen = [each for each in view.plugins[-1].devices if each.device_id in quantities]
            assert any(
                amount == len(chosen) and _allows(text, chosen)
                for text, amount in (asked[int(who.name)][0] or [("has(id)", 1)])
            ), amounts
        assert len(counts) == 1, "all kernels have one alternative"
    assert max(taken.values(), default=Decimal(0)) <= 1
    assert sum(taken.values()) <= limit
