"""What the scheduler is shown."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

from ai.backend.common.ids import KernelId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, KernelStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import PluginReport
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.plan import Plan
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Quota, dump_json, load_json
from ai.backend.manager.agents.capabilities import DeviceReader, from_allocation, to_allocation
from ai.backend.manager.agents.model import Agent, KernelOccupancy
from ai.backend.manager.identity.model import ResourcePolicy
from ai.backend.manager.scheduling.snapshot import build_snapshot
from ai.backend.manager.sessions.model import Session
from tests.contract.store.builders import AGENT, KEY, NOW, make_agent, make_session


def gpu(index: int) -> dict[str, Any]:
    slot = {"slot_name": "cuda.shares", "slot_type": "count", "amount": "1", "quantum": "0.1"}
    return {"device_name": "cuda", "device_id": f"gpu{index}", "hw_location": "", "slots": [slot]}


def gpu_agent(**changes: Any) -> Agent:
    values: dict[str, Any] = {
        "available_slots": ResourceSlot({"cpu": Decimal(4), "cuda.shares": Decimal(2)}),
        "devices": (gpu(0), gpu(1)),
        "plugins": (PluginReport(name="cuda", version="1", alloc_map={"kind": "fractional"}),),
    }
    return make_agent(**{**values, **changes})


def holding(slots: dict[str, str], devices: dict[str, dict[str, str]]) -> KernelOccupancy:
    session = make_session()
    return KernelOccupancy(
        kernel_id=KernelId(session.id),
        session_id=session.id,
        agent=AGENT,
        access_key=KEY,
        status=KernelStatus.RUNNING,
        status_changed=NOW,
        attempt=1,
        slots=ResourceSlot.parse(slots),
        devices=devices,
    )


def plan(
    agents: list[Agent], holdings: list[KernelOccupancy], session: Session, policy: ResourcePolicy | None = None
) -> Plan:
    quotas = {}
    if policy is not None:
        used = sum((h.slots for h in holdings), ResourceSlot())
        quotas[f"keypair:{KEY}"] = Quota(label="your keypair", limit=policy.total_resource_slots, used=used)
    snapshot = build_snapshot("default", agents, holdings, [session], {}, quotas, DeviceReader())
    assert load_json(dump_json(snapshot)) == snapshot, "a snapshot of real rows can be replayed"
    return decide(snapshot, Policy(), now=NOW, rng=random.Random(1))


def waiting(**slots: str) -> Session:
    named = {name.replace("_", "."): quantity for name, quantity in slots.items()}
    session = make_session(starts_at=None, designated_agents=(), requested_slots=ResourceSlot.parse(named))
    return replace(session, kernels=(replace(session.main, requested_slots=ResourceSlot.parse(named)),))


def test_devices_in_use_are_not_planned_again() -> None:
    held = holding({"cuda.shares": "0.8"}, {"cuda.shares": {"gpu0": "0.8"}})
    placed = plan([gpu_agent()], [held], waiting(cuda_shares="0.5", cpu="1")).placements
    assert from_allocation(placed[0].kernels[0].devices)["cuda.shares"] == {"gpu1": "0.5"}
    assert "cpu" not in placed[0].kernels[0].devices.slots, "a slot without devices is the agent's choice"


def test_what_an_agent_keeps_is_not_offered() -> None:
    agent = gpu_agent(available_slots=ResourceSlot({"cpu": Decimal(4), "cuda.shares": Decimal(1)}))
    assert plan([agent], [], waiting(cuda_shares="1")).placements
    skip = plan([agent], [holding({"cuda.shares": "1"}, {})], waiting(cuda_shares="1")).skips
    assert skip[0].reason == "insufficient-resource"
    assert plan([replace(agent, kernel_limit=1)], [], waiting(cuda_shares="1")).placements, "it is no kernel"
    assert plan([agent], [], waiting(cuda_shares="2")).skips[0].reason == "never-fits"


def test_what_a_kernel_holds_of_a_failed_device_does_not_count_against_the_others() -> None:
    agent = gpu_agent(
        devices=({**gpu(0), "health": "unhealthy"}, gpu(1)),
        available_slots=ResourceSlot({"cpu": Decimal(4), "cuda.shares": Decimal(1)}),
    )
    held = holding({"cuda.shares": "1"}, {"cuda.shares": {"gpu0": "1"}})
    placed = plan([agent], [held], waiting(cuda_shares="1")).placements
    assert list(from_allocation(placed[0].kernels[0].devices)["cuda.shares"]) == ["gpu1"]
    assert plan([agent], [], waiting(cuda_shares="2")).skips


def test_pools_without_devices_are_counted() -> None:
    assert plan([gpu_agent()], [holding({"cpu": "3"}, {})], waiting(cpu="1")).placements
    assert plan([gpu_agent()], [holding({"cpu": "3"}, {})], waiting(cpu="2")).skips


def test_lost_drained_and_unreadable_agents_take_nothing() -> None:
    for agent in (gpu_agent(status=AgentStatus.LOST), gpu_agent(schedulable=False)):
        assert plan([agent], [], waiting(cpu="1")).skips[0].reason == "no-agent"
    broken = gpu_agent(devices=({"device_id": 7},))
    assert plan([broken], [], waiting(cpu="1")).placements, "what can be read is still used"


def test_a_keypair_is_held_to_its_policy() -> None:
    policy = ResourcePolicy(name="small", created_at=NOW, total_resource_slots=ResourceSlot({"cpu": Decimal(2)}))
    held = [holding({"cpu": "2"}, {})]
    assert plan([gpu_agent()], held, waiting(cpu="1"), policy).skips[0].reason == "quota-exceeded"
    assert plan([gpu_agent()], [], waiting(cpu="2"), policy).placements


def test_devices_survive_the_way_to_text_and_back() -> None:
    devices = {"cuda.shares": {"gpu0": "0.30", "gpu1": "1"}}
    assert from_allocation(to_allocation(devices)) == devices
