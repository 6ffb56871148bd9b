"""Sessions with device claims: who gets one, on which agent, and what the others are told."""

from __future__ import annotations

import random
from decimal import Decimal
from uuid import UUID

from ai.backend.common.devices import AllocMapSpec, DeviceAllocation
from ai.backend.common.ids import AgentId, DeviceId, DeviceName, KernelId, SlotName
from ai.backend.common.structs import replace
from ai.backend.core.allocation.node import PluginDevices
from ai.backend.core.allocation.sharing import is_shareable
from ai.backend.core.scheduling.decide import IncrementalScheduler, decide
from ai.backend.core.scheduling.plan import SkipReason
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import AgentView, HeldKernel, PendingClaim, Snapshot
from tests.unit.core.scheduling.builders import NOW, agent, devices, session, slots
from tests.unit.core.scheduling.test_decide import plan, where, why

CLAIM = PendingClaim(claim_id="c-1", name="gpus")
CUDA = SlotName("cuda.device")


def keeping(view: AgentView, *device_ids: str) -> AgentView:
    """The agent with a device claim on it that no session holds."""
    allocation = DeviceAllocation(slots={CUDA: {DeviceId(device_id): Decimal(1) for device_id in device_ids}})
    claim = HeldKernel(
        kernel_id=KernelId(UUID(int=99)), slots=slots(cuda_device=len(device_ids)), devices=allocation, is_claim=True
    )
    return replace(view, held=(*view.held, claim))


def test_one_session_of_a_pass_gets_an_unallocated_claim() -> None:
    first, second = (
        replace(session(name, slots(cpu=1, cuda_device=1), age_s=age), claim=CLAIM)
        for name, age in (("a", 2), ("b", 1))
    )
    made = plan([agent("i-1", cuda=2)], [first, second])
    assert where(made, first) == ["i-1"]
    assert why(made, second) == (
        SkipReason.CLAIM_IN_USE,
        "waits for the claim gpus, which another session of yours gets now",
    )


def test_sessions_of_a_shared_claim_go_to_its_agent_together() -> None:
    shared = replace(CLAIM, is_shared=True)
    both = [replace(session(name, slots(cpu=1)), claim=shared, designated_agents=(AgentId("i-2"),)) for name in "ab"]
    made = plan([agent("i-1", cuda=2), keeping(agent("i-2", cuda=2), "0")], both)
    assert [where(made, each) for each in both] == [["i-2"], ["i-2"]]


def test_a_claim_in_use_or_unusable_says_so_and_stops_nobody() -> None:
    used = replace(session("a", slots(cpu=1), age_s=3), claim=replace(CLAIM, holders=("train",)))
    broken = replace(session("b", slots(cpu=1), age_s=2), claim=replace(CLAIM, claim_id="c-2", problem="it is hot"))
    other = session("c", slots(cpu=4), age_s=1)
    made = plan([agent("i-1", cuda=1)], [used, broken, other])
    assert why(made, used) == (SkipReason.CLAIM_IN_USE, "waits for the claim gpus, which session train uses")
    assert why(made, broken) == (SkipReason.CLAIM_UNAVAILABLE, "needs the claim gpus: it is hot")
    assert where(made, other) == ["i-1"]
    assert made.reserved == ()


def test_what_a_claim_keeps_is_given_to_nobody_and_counts_as_no_kernel() -> None:
    view = replace(keeping(agent("i-1", cuda=2), "0"), kernel_limit=1)
    one, two = session("a", slots(cuda_device=1)), session("b", slots(cuda_device=2))
    made = plan([view], [one])
    (placement,) = made.placements
    assert list(placement.kernels[0].devices.slots[CUDA]) == ["1"]
    assert why(plan([view], [two]), two)[0] is SkipReason.INSUFFICIENT_RESOURCE


def test_the_kept_state_of_a_scheduler_follows_a_claim_that_takes_over_the_devices_of_a_placement() -> None:
    view = agent("i-1", cuda=2)
    first = replace(session("a", slots(cpu=1, cuda_device=1)), claim=CLAIM)
    before = Snapshot(resource_group="default", agents=(view,), pending=(first,))
    scheduler = IncrementalScheduler(before)
    (placement,) = decide(scheduler, Policy(), now=NOW, rng=random.Random(1)).placements
    (kernel,) = placement.kernels
    own = DeviceAllocation(slots={slot: given for slot, given in kernel.devices.slots.items() if slot != CUDA})
    runs = HeldKernel(kernel_id=kernel.kernel_id, slots=slots(cpu=1), devices=own)
    after = replace(before, pending=(), agents=(replace(keeping(view, *kernel.devices.slots[CUDA]), held=(runs,)),))
    after = replace(after, agents=(keeping(replace(view, held=(runs,)), *kernel.devices.slots[CUDA]),))
    assert scheduler.update(after)
    assert scheduler.free == IncrementalScheduler(after).free
    assert scheduler.index.agents[0].count == 1


def test_a_device_is_shared_whole_and_by_leave_of_its_plugin() -> None:
    def given(quantity: str, *, shareable: bool) -> bool:
        spec = AllocMapSpec(kind="fractional", shareable=shareable)
        plugin = PluginDevices(
            name=DeviceName("cuda"), devices=devices("cuda", "cuda.shares", [1, 1], quantum="0.1"), alloc_map=spec
        )
        amounts = {DeviceId("0"): Decimal(1), DeviceId("1"): Decimal(quantity)}
        return is_shareable([plugin], DeviceAllocation(slots={SlotName("cuda.shares"): amounts}))

    assert given("1", shareable=True)
    assert not given("0.5", shareable=True)
    assert not given("1", shareable=False)
    assert not is_shareable([], DeviceAllocation())
