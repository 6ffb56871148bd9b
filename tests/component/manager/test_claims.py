"""Device claims, from their creation to the devices that sessions get in turn and at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import Conflict, InvalidInput, InvalidName, LimitExceeded, NotFound
from ai.backend.common.ids import AgentId, UserId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, ClaimStatus, ClusterMode, KernelStatus, SessionStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.reports import AgentReport, PluginReport
from ai.backend.manager.sessions.claims.creation import CreateClaim
from ai.backend.manager.sessions.claims.model import ClaimQuery, ClaimView
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import SETTINGS, Cluster, kill, start_manager
from tests.component.manager.fakes import FakeAgent

DEVICES = "mock.device"


class SharingAgent(FakeAgent):
    """Its plugin lets workloads share devices that are given whole."""

    def report(self, **changes: Any) -> AgentReport:
        plugin = PluginReport(name="mock", version="1", alloc_map={"kind": "discrete", "shareable": True})
        return super().report(**{"plugins": [plugin], **changes})


async def make(cluster: Cluster, name: str = "gpus", count: int = 2, **more: Any) -> ClaimView:
    request = CreateClaim(name=name, resources={DEVICES: count}, **more)
    return await cluster.manager.services.claims.create(cluster.user, request)


async def start(cluster: Cluster, claim: str = "gpus", **more: Any) -> Session:
    request = CreateSession(image="python", claim=claim, **{"max_wait_s": 10, **more})
    return (await cluster.manager.services.sessions.create(cluster.user, request)).session


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.02)


async def until_running(cluster: Cluster, session: Session) -> None:
    async def runs() -> bool:
        found = await cluster.manager.services.sessions.get(cluster.user, str(session.id))
        return found.status is SessionStatus.RUNNING

    await until(runs)


async def end(cluster: Cluster, session: Session) -> None:
    await cluster.manager.services.sessions.destroy(cluster.user, str(session.id))


async def claim_at(cluster: Cluster, status: ClaimStatus, name: str = "gpus") -> ClaimView:
    async with asyncio.timeout(15):
        while True:
            view = await cluster.manager.services.claims.get(cluster.user, name)
            if view.claim.status is status:
                return view
            await asyncio.sleep(0.02)


async def waiting_for(cluster: Cluster, session: Session) -> tuple[str, str]:
    """The reason why a session waits, and its text."""
    async with asyncio.timeout(15):
        while True:
            now = await cluster.manager.services.sessions.get(cluster.user, str(session.id))
            if "scheduler" in now.status_data:
                told = now.status_data["scheduler"]
                return told["reason"], told["message"]
            await asyncio.sleep(0.02)


async def occupied(cluster: Cluster, agent: FakeAgent) -> str:
    found = await cluster.manager.stores.agents.agent(AgentId(agent.agent_id))
    assert found is not None
    audit = await cluster.manager.stores.sessions.audit()
    assert audit.is_clean, audit
    return str(found.occupied_slots[DEVICES])


def devices_of(spec: KernelSpec) -> Mapping[str, Mapping[str, str]]:
    return {slot: devices for slot, devices in spec.devices.items() if slot == DEVICES}


async def test_sessions_in_turn_get_the_same_devices(cluster: Cluster, agent: FakeAgent) -> None:
    view = await make(cluster)
    assert view.claim.status is ClaimStatus.UNALLOCATED
    assert await occupied(cluster, agent) == "0"
    first = await start(cluster, name="first")
    assert first.status is SessionStatus.RUNNING
    assert first.occupying_slots[DEVICES] == 0, "they are the claim's"
    held = await claim_at(cluster, ClaimStatus.IN_USE)
    assert [user.name for user in held.users] == ["first"]
    assert await occupied(cluster, agent) == "2"
    await end(cluster, first)
    idle = await claim_at(cluster, ClaimStatus.IDLE)
    assert await occupied(cluster, agent) == "2", "an unused claim holds its devices"
    other = (
        await cluster.manager.services.sessions.create(
            cluster.user, CreateSession(image="python", resources={DEVICES: 2}, max_wait_s=10)
        )
    ).session
    second = await start(cluster, name="second")
    assert (other.status, second.status) == (SessionStatus.RUNNING, SessionStatus.RUNNING)
    specs = [spec for spec in agent.created if spec.claim is not None]
    (others,) = [spec for spec in agent.created if spec.claim is None]
    assert devices_of(specs[0]) == devices_of(specs[1]) == idle.claim.devices
    assert set(others.devices[DEVICES]).isdisjoint(specs[0].devices[DEVICES])
    assert [(spec.slots[DEVICES], spec.claim is not None and spec.claim.is_bound) for spec in specs] == [
        ("2", False),
        ("2", True),
    ]
    assert specs[1].environ["BACKENDAI_DEVICE_CLAIM"] == "gpus"
    (sent,) = [asked for asked in agent.asked if asked.kernels == [others]]
    assert sent.kept == {str(idle.claim.id): idle.claim.devices}, "the agent keeps them from others"
    assert await occupied(cluster, agent) == "4"


async def test_a_session_waits_while_another_has_the_claim(cluster: Cluster, agent: FakeAgent) -> None:
    await make(cluster, count=1)
    first = await start(cluster, name="first")
    second = await start(cluster, name="second", max_wait_s=0, enqueue_only=True)
    assert await waiting_for(cluster, second) == (
        "claim-in-use",
        "waits for the claim gpus, which session first uses",
    )
    told = await cluster.manager.services.explanations.explain_session(cluster.user, str(second.id))
    assert (told.verdict, told.reason, told.remedy) == ("waits", "claim-in-use", "others")
    await end(cluster, first)
    await until_running(cluster, second)


async def test_two_sessions_enqueued_at_once_take_an_unallocated_claim_in_turn(
    cluster: Cluster, agent: FakeAgent
) -> None:
    await make(cluster, count=1)
    both = await asyncio.gather(*(start(cluster, name=f"each{n}", max_wait_s=1) for n in range(2)))
    assert sorted(session.status for session in both) == [SessionStatus.PENDING, SessionStatus.RUNNING]
    assert await occupied(cluster, agent) == "1"


async def test_sessions_share_devices_where_the_plugin_allows_it(cluster: Cluster) -> None:
    agent = await cluster.join(SharingAgent())
    await make(cluster)
    first, second = [await start(cluster, name=name) for name in ("first", "second")]
    assert (first.status, second.status) == (SessionStatus.RUNNING, SessionStatus.RUNNING)
    assert devices_of(agent.created[0]) == devices_of(agent.created[1])
    assert await occupied(cluster, agent) == "2", "counted once"
    await end(cluster, first)
    assert (await cluster.manager.services.claims.get(cluster.user, "gpus")).claim.status is ClaimStatus.IN_USE
    await end(cluster, second)
    await claim_at(cluster, ClaimStatus.IDLE)


class CountingAgent(FakeAgent):
    """Its devices are counted only: others choose which one a session gets, as a kubelet does."""

    def report(self, **changes: Any) -> AgentReport:
        plugin = PluginReport(name="mock", version="1", alloc_map={"kind": "discrete", "anonymous": True})
        return super().report(**{"plugins": [plugin], **changes})


async def test_devices_that_are_only_counted_are_kept_by_no_claim(cluster: Cluster) -> None:
    """The next session would get another one, so it is refused before anything is accepted."""
    counting = await cluster.join(CountingAgent())
    with pytest.raises(InvalidInput, match=r"A claim cannot keep mock\.device") as refused:
        await make(cluster, count=1)
    assert refused.value.data == {"resources": "mock.device: devices without an identity"}
    naming = await cluster.join(FakeAgent(agent_id="agent-2"))
    await make(cluster, count=1)
    session = await start(cluster)
    assert (session.status, session.main.agent) == (SessionStatus.RUNNING, "agent-2")
    await end(cluster, session)
    await claim_at(cluster, ClaimStatus.IDLE)
    await cluster.manager.services.claims.release(cluster.user, "gpus")
    await claim_at(cluster, ClaimStatus.UNALLOCATED)
    assert naming.reports is not None
    await naming.reports.heartbeat(naming.report(plugins=counting.report().plugins, generation=2))
    with pytest.raises(InvalidInput, match=r"A claim cannot keep mock\.device"):
        await start(cluster)
    assert not counting.created


async def test_kernels_of_a_cluster_share_a_claim(cluster: Cluster, agent: FakeAgent) -> None:
    await make(cluster)
    with pytest.raises(InvalidInput, match="only where all agents let them share"):
        await start(cluster, cluster_size=2)
    with pytest.raises(InvalidInput, match="on one node"):
        await start(cluster, cluster_size=2, cluster_mode=ClusterMode.MULTI_NODE)
    await cluster.leave(agent)
    agent = await cluster.join(SharingAgent(agent_id="agent-1"))
    session = await start(cluster, cluster_size=2)
    assert session.status is SessionStatus.RUNNING
    assert [spec.devices[DEVICES] for spec in agent.created] == [agent.created[0].devices[DEVICES]] * 2
    assert await occupied(cluster, agent) == "2"


async def test_a_claim_counts_in_its_owners_quota(cluster: Cluster, agent: FakeAgent) -> None:
    services = cluster.manager.services
    limit = ResourceSlot.parse({DEVICES: "2"})
    await services.tenants.modify_policy(cluster.admin, None, "default", {"total_resource_slots": limit})
    with pytest.raises(LimitExceeded):
        await make(cluster, count=3)
    await make(cluster, count=1)
    await end(cluster, await start(cluster))
    await claim_at(cluster, ClaimStatus.IDLE)
    request = CreateSession(image="python", resources={DEVICES: 2}, enqueue_only=True)
    waiting = (await services.sessions.create(cluster.user, request)).session
    reason, message = await waiting_for(cluster, waiting)
    assert reason == "quota-exceeded"
    assert "uses 1 mock.device already" in message
    await make(cluster, name="more", count=2)
    second = await start(cluster, "more", max_wait_s=0, enqueue_only=True)
    assert (await waiting_for(cluster, second))[0] == "quota-exceeded"
    await services.claims.release(cluster.user, "gpus")
    await until_running(cluster, waiting)


async def test_deletion_waits_for_the_last_session(cluster: Cluster, agent: FakeAgent) -> None:
    claims = cluster.manager.services.claims
    await make(cluster, count=1)
    first = await start(cluster, name="first")
    waiting = await start(cluster, name="second", max_wait_s=0, enqueue_only=True)
    with pytest.raises(Conflict, match="a session holds it"):
        await claims.release(cluster.user, "gpus")
    view = await claims.delete(cluster.user, "gpus")
    assert (view.claim.status, view.claim.is_deleting) == (ClaimStatus.IN_USE, True)
    with pytest.raises(NotFound):
        await start(cluster, name="third")
    await end(cluster, first)
    await until_running(cluster, waiting)
    await end(cluster, waiting)

    async def is_gone() -> bool:
        return (await claims.search(cluster.user, ClaimQuery())).total_count == 0

    await until(is_gone)
    assert await occupied(cluster, agent) == "0"
    view = await make(cluster)
    assert (await claims.delete(cluster.user, "gpus")).claim.status is ClaimStatus.DELETED


async def test_an_idle_claim_returns_its_devices_when_its_time_is_over(cluster: Cluster, agent: FakeAgent) -> None:
    await make(cluster, idle_timeout_s=60)
    await end(cluster, await start(cluster))
    await claim_at(cluster, ClaimStatus.IDLE)
    cluster.clock.set_forward += 61
    cluster.manager.loops.claims.wake()
    view = await claim_at(cluster, ClaimStatus.UNALLOCATED)
    assert view.claim.status_info == "no session used it for 60 seconds"
    assert (view.claim.devices, await occupied(cluster, agent)) == ({}, "0")


async def test_the_policy_bounds_number_and_idle_time(cluster: Cluster, agent: FakeAgent) -> None:
    tenants = cluster.manager.services.tenants
    await tenants.modify_policy(cluster.admin, None, "default", {"max_claims": 1, "max_claim_idle_time": 100})
    with pytest.raises(InvalidInput, match="allows 100 seconds"):
        await make(cluster, idle_timeout_s=101)
    assert (await make(cluster, idle_timeout_s=0)).claim.idle_timeout_s == 100
    with pytest.raises(LimitExceeded, match="1 device claims"):
        await make(cluster, name="other")


async def test_a_start_that_fails_returns_the_devices(cluster: Cluster, agent: FakeAgent) -> None:
    await make(cluster)
    agent.refuse = lambda spec: Conflict("not now")
    session = await start(cluster, max_wait_s=0, enqueue_only=True)

    async def tried_again() -> bool:
        return (await cluster.manager.services.sessions.get(cluster.user, str(session.id))).main.attempt >= 3

    await until(tried_again)
    await end(cluster, session)
    view = await claim_at(cluster, ClaimStatus.UNALLOCATED)
    assert view.claim.status_info == "no session ran with its devices"
    assert await occupied(cluster, agent) == "0"


async def test_a_failed_device_says_why_a_session_waits(cluster: Cluster, agent: FakeAgent) -> None:
    await make(cluster, count=1)
    await end(cluster, await start(cluster))
    idle = await claim_at(cluster, ClaimStatus.IDLE)
    (device_id,) = idle.claim.devices[DEVICES]
    devices = [
        {
            **device,
            **({"health": "unhealthy", "health_reason": "ECC errors"} if device["device_id"] == device_id else {}),
        }
        for device in agent.report().devices
    ]
    slots = [replace_amount(slot, "3") if slot.slot_name == DEVICES else slot for slot in agent.report().slots]
    assert agent.reports is not None
    await agent.reports.heartbeat(agent.report(devices=devices, slots=slots, generation=2))
    session = await start(cluster, max_wait_s=0, enqueue_only=True)
    reason, message = await waiting_for(cluster, session)
    assert reason == "claim-unavailable"
    assert message == f"needs the claim gpus: its device {device_id} on agent-1 cannot be used: ECC errors"
    view = await cluster.manager.services.claims.get(cluster.user, "gpus")
    assert view.problem == f"its device {device_id} cannot be used: ECC errors"
    await agent.beat()


def replace_amount(slot: Any, amount: str) -> Any:
    return type(slot)(slot_name=slot.slot_name, slot_type=slot.slot_type, amount=amount)


async def test_a_lost_agent_ends_the_allocation(cluster: Cluster, agent: FakeAgent) -> None:
    await make(cluster, count=1)
    await end(cluster, await start(cluster))
    await claim_at(cluster, ClaimStatus.IDLE)
    cluster.hush(agent)
    cluster.manager.loops.watchdog.wake()

    async def is_lost() -> bool:
        found = await cluster.manager.stores.agents.agent(AgentId("agent-1"))
        return found is not None and found.status is AgentStatus.LOST

    await until(is_lost)
    cluster.clock.set_forward += 1
    cluster.manager.loops.claims.wake()
    view = await claim_at(cluster, ClaimStatus.UNALLOCATED)
    assert view.claim.status_info == "its agent agent-1 was lost"
    other = await cluster.join(FakeAgent(agent_id="agent-2"))
    assert (await start(cluster)).status is SessionStatus.RUNNING
    assert len(other.created) == 1


async def test_claims_of_others_are_neither_seen_nor_used(cluster: Cluster, agent: FakeAgent) -> None:
    claims = cluster.manager.services.claims
    view = await make(cluster)
    stranger = replace(cluster.admin, role=cluster.user.role)
    for ref in ("gpus", str(view.claim.id)):
        for act in (claims.get, claims.release, claims.delete):
            with pytest.raises(NotFound):
                await act(stranger, ref)
    assert (await claims.search(stranger, ClaimQuery())).items == []
    with pytest.raises(NotFound, match="no device claim"):
        await cluster.manager.services.sessions.create(stranger, CreateSession(image="python", claim="gpus"))
    assert (await claims.search(cluster.admin, ClaimQuery())).total_count == 1


@pytest.mark.parametrize("name", ["", "a/b", "../x", "a\nb", "x" * 65, "-a", "gpus\0", "ａ"])
async def test_hostile_names_are_refused(cluster: Cluster, agent: FakeAgent, name: str) -> None:
    with pytest.raises(InvalidName):
        await make(cluster, name=name)


@pytest.mark.parametrize(
    ("resources", "error"),
    [({"cpu": 1}, "requested by its sessions"), ({}, "A claim requests accelerators")],
)
async def test_a_claim_is_of_accelerators(
    cluster: Cluster, agent: FakeAgent, resources: dict[str, int], error: str
) -> None:
    with pytest.raises(InvalidInput, match=error):
        await cluster.manager.services.claims.create(cluster.user, CreateClaim(name="gpus", resources=resources))


async def test_what_a_session_may_not_say_beside_a_claim(cluster: Cluster, agent: FakeAgent) -> None:
    await make(cluster)
    with pytest.raises(Conflict, match="already"):
        await make(cluster)
    with pytest.raises(InvalidInput, match=r"leave out mock\.device"):
        await start(cluster, resources={DEVICES: 1})
    with pytest.raises(InvalidInput, match="says what its devices must be"):
        await start(cluster, device_requests=("memory >= 1g",))
    with pytest.raises(NotFound):
        await start(cluster, "unknown")


@pytest.mark.parametrize("when", ["allocating", "in-use", "idle"])
async def test_a_killed_manager_goes_on_with_its_claims(
    cluster: Cluster, agent: FakeAgent, tmp_path: Path, when: str
) -> None:
    await make(cluster, count=1)
    agent.stall = when == "allocating"
    session = await start(cluster, max_wait_s=0 if agent.stall else 10, enqueue_only=agent.stall)
    await claim_at(cluster, ClaimStatus.ALLOCATING if agent.stall else ClaimStatus.IN_USE)
    if when == "idle":
        await end(cluster, session)

    async def is_created() -> bool:
        return bool(agent.created)

    await until(is_created)
    await kill(cluster.manager)
    await cluster.database.close()
    manager, cluster.database = await start_manager(tmp_path / "manager.db", cluster.link, SETTINGS, cluster.clock)
    cluster.manager = manager
    agent.reports = cluster.link.agent_endpoint(agent.agent_id).reports
    await agent.beat()
    if agent.stall:
        agent.stall = False
        await agent.run_up(agent.created[-1])
    if when != "idle":
        view = await claim_at(cluster, ClaimStatus.IN_USE)
        assert await occupied(cluster, agent) == "1"
        assert view.claim.devices == devices_of(agent.created[-1])
        await end(cluster, session)
    await claim_at(cluster, ClaimStatus.IDLE)
    assert await occupied(cluster, agent) == "1"
    again = await start(cluster)
    assert again.status is SessionStatus.RUNNING
    assert devices_of(agent.created[0]) == devices_of(agent.created[-1])


async def test_elements_of_an_array_use_a_claim_in_turn(cluster: Cluster, agent: FakeAgent) -> None:
    await make(cluster, count=1)
    request = CreateSession(
        image="python", name="sweep", claim="gpus", type=SessionType.BATCH, startup_command="true", enqueue_only=True
    )
    arrays = cluster.manager.services.arrays
    assert arrays is not None
    await arrays.create(cluster.user, request, "1-3")
    for count in range(1, 4):

        async def runs(count: int = count) -> bool:
            held = list(agent.kernels.values())
            return len(agent.created) == count and [each.status for each in held] == [KernelStatus.RUNNING]

        await until(runs)
        ((kernel_id, held),) = agent.kernels.items()
        await agent.tell(kernel_id, held.attempt, KernelStatus.TERMINATED, exit_code=0)
    assert len({str(devices_of(spec)) for spec in agent.created}) == 1


async def test_a_claim_of_a_purged_user_is_deleted(cluster: Cluster, agent: FakeAgent) -> None:
    view = await make(cluster)
    stores, loop = cluster.manager.stores, cluster.manager.loops.claims
    of_nobody = replace(view.claim, id=uuid4(), user_id=UserId(uuid4()))
    await stores.sessions.insert_claim(of_nobody, max_claims=None)
    loop._owners_at = float("-inf")
    loop.wake()

    async def is_deleted() -> bool:
        return [claim.id for claim in (await stores.sessions.claims(ClaimQuery())).items] == [view.claim.id]

    await until(is_deleted)


async def test_a_claim_of_a_user_who_was_locked_out_returns_its_devices(cluster: Cluster, agent: FakeAgent) -> None:
    await make(cluster, idle_timeout_s=0)  # for ever
    await end(cluster, await start(cluster))
    await claim_at(cluster, ClaimStatus.IDLE)
    stores, loop = cluster.manager.stores, cluster.manager.loops.claims
    await stores.identities.change_keypair(cluster.user.access_key, is_active=False)
    loop._owners_at = float("-inf")
    loop.wake()
    view = await claim_at(cluster, ClaimStatus.UNALLOCATED)
    assert "not active" in str(view.claim.status_info)
    assert await occupied(cluster, agent) == "0"


def test_the_default_idle_time_is_an_hour() -> None:
    assert timedelta(seconds=SETTINGS.sessions.claim_idle_timeout_s) == timedelta(hours=1)
