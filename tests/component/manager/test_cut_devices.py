"""Devices that an agent cuts on demand: idle claims keep their partitions, and a drain reaches those who hold one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import SessionId
from ai.backend.common.states import ClaimStatus, KernelEventReason, KernelStatus, SessionStatus
from ai.backend.common.wire.agent import KernelSpec, OperateDevice
from ai.backend.common.wire.reports import AgentReport, KeptDevices, KeptDevicesOf, PluginReport
from ai.backend.manager.sessions.claims.creation import CreateClaim
from ai.backend.manager.sessions.claims.model import ClaimView
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent

WHOLE, HALF = "cuda.device", "cuda.half"


@dataclass
class CuttingAgent(FakeAgent):
    """Has two GPUs that it cuts into halves; ``parts`` are those that exist, and their device. ``own_parts`` are listed
    as devices of their own, as those that cannot be joined are."""

    parts: dict[str, str] = field(default_factory=dict)
    own_parts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.slots = {"cpu": "8", "mem": "17179869184", WHOLE: "2", HALF: "4"}

    def report(self, **changes: Any) -> AgentReport:
        def slot(name: str, amount: int = 1, counters: int = 0) -> dict[str, Any]:
            group = {"exclusive_group": "parts", "counters": [["memory", counters]] if counters else []}
            return {"slot_name": name, "slot_type": "count", "amount": str(amount), **group}

        devices = []
        for device_id in ("a", "b"):
            own = [part for part in self.own_parts if self.parts[part] == device_id]
            counted = [part for part, parent in self.parts.items() if parent == device_id and part not in own]
            about = {"device_name": "cuda", "hw_location": ""}
            slots = [slot(WHOLE, 0 if own else 1), slot(HALF, 2, 10)]
            room = [["memory", 20 - 10 * len(own)]]
            device = {**about, "device_id": device_id, "slots": slots, "counters": room, "partition_ids": counted}
            devices += [device]
            devices += [
                {**about, "device_id": part, "parent_id": device_id, "slots": [slot(HALF)]} for part in sorted(own)
            ]
        plugin = PluginReport(name="cuda", version="1", alloc_map={"kind": "discrete"})
        return super().report(**{"devices": devices, "plugins": [plugin], "generation": 1 + len(self.parts), **changes})

    async def run_up(self, spec: KernelSpec) -> None:
        """Cuts what is not cut yet, and says so before the manager sees the list of devices."""
        devices = {slot: dict(given) for slot, given in spec.devices.items()}
        for device_id in list(devices.get(HALF, ())):
            if device_id in ("a", "b"):
                part = f"{device_id}-{len(self.parts)}"
                self.parts[part] = device_id
                devices[HALF] = {part: "1"}
        await self.beat()
        running = {"reason": KernelEventReason.NEW_WORKLOAD_STARTED, "workload_id": "w", "devices": devices}
        await self.tell(spec.kernel_id, spec.attempt, KernelStatus.RUNNING, **running)


@pytest.fixture
async def node(cluster: Cluster) -> CuttingAgent:
    agent = CuttingAgent(agent_id="i-01")
    await cluster.join(agent)
    return agent


async def start(cluster: Cluster, **values: Any) -> Session:
    request = CreateSession(image="python", **{"max_wait_s": 10, **values})
    return (await cluster.manager.services.sessions.create(cluster.user, request)).session


async def idle_claim(cluster: Cluster) -> ClaimView:
    """A claim whose only session has ended."""
    claims = cluster.manager.services.claims
    await claims.create(cluster.user, CreateClaim(name="part", resources={HALF: 1}))
    session = await start(cluster, claim="part")
    assert session.status is SessionStatus.RUNNING
    await cluster.manager.services.sessions.destroy(cluster.user, str(session.id))
    async with asyncio.timeout(20):
        # Claims have no events: they are bound and returned by a loop.
        while (view := await claims.get(cluster.user, "part")).claim.status is not ClaimStatus.IDLE:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return view


async def waiting_reason(cluster: Cluster, session: Session) -> str:
    async with asyncio.timeout(20):
        while True:
            seen = await cluster.manager.services.sessions.get(cluster.user, str(session.id))
            if reason := seen.status_data.get("scheduler", {}).get("reason"):
                return str(reason)
            await asyncio.sleep(0.02)  # why a session waits is no event


async def test_an_idle_claim_keeps_its_partition(cluster: Cluster, node: CuttingAgent) -> None:
    """It is counted at its device and listed nowhere else: neither is it missing, nor is its room planned."""
    view = await idle_claim(cluster)
    assert view.claim.devices == {HALF: {"a-0": "1"}}
    assert (await cluster.manager.services.claims.get(cluster.user, "part")).problem == ""
    assert node.reports is not None
    kept = await node.reports.kept_devices(KeptDevicesOf(agent_id="i-01"))
    assert kept == KeptDevices(devices={str(view.claim.id): {HALF: {"a-0": "1"}}})
    await cluster.manager.loops.claims.once()
    cluster.clock.set_forward += 1  # longer than an agent may miss a device
    await node.beat()
    await cluster.manager.loops.claims.once()
    assert (await cluster.manager.services.claims.get(cluster.user, "part")).claim.status is ClaimStatus.IDLE
    whole = await start(cluster, resources={WHOLE: 2}, max_wait_s=0, enqueue_only=True)
    assert await waiting_reason(cluster, whole) == "insufficient-resource"
    await cluster.manager.services.sessions.destroy(cluster.user, str(whole.id))  # it was first in the queue
    assert (await start(cluster, resources={WHOLE: 1})).main.devices[WHOLE] == {"b": "1"}
    again = await start(cluster, claim="part")
    assert (again.status, again.main.devices[HALF]) == (SessionStatus.RUNNING, {"a-0": "1"})


@pytest.mark.parametrize(("device", "action"), [("a-0", "unpartition"), ("a", "reset"), ("a", "detach")])
async def test_what_would_change_the_devices_of_an_idle_claim_is_refused(
    cluster: Cluster, node: CuttingAgent, device: str, action: str
) -> None:
    view = await idle_claim(cluster)
    agents = cluster.manager.services.agents
    operation = OperateDevice(device_name="cuda", device_id=device, action=action)
    with pytest.raises(Conflict, match="A device claim keeps") as refused:
        await agents.operate_device(cluster.admin, "i-01", operation)
    assert refused.value.data == {"claims": [str(view.claim.id)]}
    cordon = OperateDevice(device_name="cuda", device_id=device, action="cordon", argument="fan")
    await agents.operate_device(cluster.admin, "i-01", cordon)
    await cluster.manager.services.claims.release(cluster.user, "part")
    await agents.operate_device(cluster.admin, "i-01", operation)


async def ended(cluster: Cluster, session: Session) -> KernelEventReason | None:
    """Why a session has ended, once it has."""
    last = await cluster.manager.services.sessions.writer.wait_until(
        SessionId(session.id), lambda seen: seen.status is SessionStatus.TERMINATED, timeout_s=20
    )
    assert last is not None
    return last.reason


@pytest.mark.parametrize("is_own", [False, True])
async def test_a_drain_ends_the_sessions_on_all_partitions_of_a_device(
    cluster: Cluster, node: CuttingAgent, is_own: bool
) -> None:
    """A drain ends the sessions on partitions that are counted at the device, and on those listed beside it."""
    sessions, agents = cluster.manager.services.sessions, cluster.manager.services.agents
    made = [await start(cluster, resources={HALF: 1}) for _ in range(2)]
    claim = await cluster.manager.services.claims.create(cluster.user, CreateClaim(name="part", resources={HALF: 1}))
    user = await start(cluster, claim="part")
    parts = [next(iter(session.main.devices[HALF])) for session in (*made, user)]
    device = node.parts[parts[0]]
    if is_own:
        node.own_parts = set(node.parts)
        await node.beat()
    drain = OperateDevice(device_name="cuda", device_id=device, action="drain", argument="ECC errors")
    await agents.operate_device(cluster.admin, "i-01", drain)
    for session, part in zip((*made, user), parts, strict=True):
        if node.parts[part] == device:
            assert await ended(cluster, session) is KernelEventReason.PREEMPTED
        else:
            assert (await sessions.get(cluster.user, str(session.id))).status is SessionStatus.RUNNING
    assert len({node.parts[part] for part in parts}) == 2, "one device goes on"
    view = await cluster.manager.services.claims.get(cluster.user, "part")
    assert view.claim.id == claim.claim.id


async def test_a_drain_of_one_partition_ends_its_session_only(cluster: Cluster, node: CuttingAgent) -> None:
    sessions, agents = cluster.manager.services.sessions, cluster.manager.services.agents
    first, second = [await start(cluster, resources={HALF: 1}) for _ in range(2)]
    (part,) = first.main.devices[HALF]
    drain = OperateDevice(device_name="cuda", device_id=part, action="drain", argument="ECC errors")
    done = await agents.operate_device(cluster.admin, "i-01", drain)
    assert done.device_id == f"{part}:cordon:ECC errors"
    assert await ended(cluster, first) is KernelEventReason.PREEMPTED
    assert (await sessions.get(cluster.user, str(second.id))).status is SessionStatus.RUNNING
