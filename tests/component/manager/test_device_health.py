"""What a session's owner learns of failed devices."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import InvalidAllocation
from ai.backend.common.states import KernelStatus, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import KernelSpec
from ai.backend.common.wire.reports import UnhealthyDevice
from ai.backend.manager.sessions.changes import Event
from ai.backend.manager.sessions.model import CreateSession, Session
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent

ONE = CreateSession(image="python", resources={"cpu": "1", "mem": "64m", "mock.device": "1"})
XID = UnhealthyDevice(device_name="mock", device_id="mock.device-0", reason="Xid 79")
HOT = UnhealthyDevice(device_name="mock", device_id="mock.device-1", reason="too hot")
RUNNING = KernelStatus.RUNNING


async def session_of(cluster: Cluster, session: Session) -> Session:
    return await cluster.manager.services.sessions.get(cluster.user, str(session.id))


async def device_events(cluster: Cluster) -> list[Event]:
    found = await cluster.manager.services.writer.store.events_after(0, limit=500)
    return [e for e in found if "device" in e.name]


async def start(cluster: Cluster, **changes: Any) -> Session:
    reply = await cluster.manager.services.sessions.create(cluster.user, replace(ONE, **changes))
    assert reply.status == "RUNNING"
    return reply.session


async def test_a_failure_and_a_recovery_are_events_and_status_data(cluster: Cluster, agent: FakeAgent) -> None:
    session = await start(cluster)
    kernel = str(session.main.id)
    for failed in ([XID], [XID], [XID, HOT], [HOT], []):  # an observation may come twice
        await agent.tell(kernel, 1, RUNNING, unhealthy_devices=failed)
        known = await session_of(cluster, session)
        told = [(d["device_id"], d["reason"]) for d in known.status_data.get("unhealthy_devices", ())]
        assert told == [(d.device_id, d.reason) for d in failed]
        assert known.main.status_data.get("unhealthy_devices", []) == [
            {"device_name": d.device_name, "device_id": d.device_id, "reason": d.reason} for d in failed
        ]
        assert known.status is SessionStatus.RUNNING
    events = await device_events(cluster)
    assert [(e.name, e.scope, [d["device_id"] for d in e.payload["devices"]]) for e in events] == [
        ("session_device_unhealthy", "session", ["mock.device-0"]),
        ("session_device_unhealthy", "session", ["mock.device-1"]),
        ("session_device_recovered", "session", ["mock.device-0"]),
        ("session_device_recovered", "session", ["mock.device-1"]),
    ]
    payload = events[0].payload
    assert (payload["reason"], payload["kernelId"], payload["agentId"]) == ("device-unhealthy", kernel, "agent-1")
    assert payload["devices"][0]["reason"] == "Xid 79"
    assert [event.payload["devices"][0]["reason"] for event in events[2:]] == ["", ""], "a recovery has no failure"


async def test_the_session_names_the_kernel_of_each_failed_device(cluster: Cluster, agent: FakeAgent) -> None:
    session = await start(cluster, cluster_size=2)
    first, second = (str(k.id) for k in session.kernels)
    await agent.tell(first, 1, RUNNING, unhealthy_devices=[XID])
    await agent.tell(second, 1, RUNNING, unhealthy_devices=[HOT])
    known = (await session_of(cluster, session)).status_data["unhealthy_devices"]
    assert [(d["kernel_id"], d["device_id"]) for d in known] == [(first, "mock.device-0"), (second, "mock.device-1")]
    await agent.tell(first, 1, RUNNING, unhealthy_devices=[])
    known = (await session_of(cluster, session)).status_data["unhealthy_devices"]
    assert [d["kernel_id"] for d in known] == [second]


async def test_another_attempt_is_not_believed_and_an_end_keeps_the_evidence(
    cluster: Cluster, agent: FakeAgent
) -> None:
    session = await start(cluster)
    kernel = str(session.main.id)
    await agent.tell(kernel, 7, RUNNING, unhealthy_devices=[XID])
    assert await device_events(cluster) == []
    await agent.tell(kernel, 1, RUNNING, unhealthy_devices=[XID])
    await agent.tell(kernel, 1, KernelStatus.TERMINATED)
    ended = await session_of(cluster, session)
    assert ended.status is SessionStatus.TERMINATED
    assert ended.status_data["unhealthy_devices"][0]["device_id"] == "mock.device-0"


async def test_a_refusal_because_of_a_failed_device_is_planned_again(cluster: Cluster, agent: FakeAgent) -> None:
    """The plan was made before the manager heard of the failure."""
    plans: list[str] = []

    def refuse_the_first(spec: KernelSpec) -> InvalidAllocation | None:
        plans.append(next(iter(spec.devices["mock.device"])))
        return InvalidAllocation("planned devices are missing or not healthy") if len(plans) == 1 else None

    agent.refuse = refuse_the_first
    session = await start(cluster)
    assert len(plans) == 2
    assert "unhealthy_devices" not in (await session_of(cluster, session)).status_data


async def test_a_request_waits_for_a_device_that_may_come_back(cluster: Cluster, agent: FakeAgent) -> None:
    whole = agent.report()
    failed = [
        {**d, "health": "unhealthy"} if d["device_id"] in ("mock.device-0", "mock.device-1") else d
        for d in whole.devices
    ]
    slots = [replace(s, amount="2") if s.slot_name == "mock.device" else s for s in whole.slots]
    held = await start(cluster, resources={**(ONE.resources or {}), "mock.device": "2"})
    assert agent.reports is not None
    await agent.reports.heartbeat(agent.report(generation=2, devices=failed, slots=slots))
    more = await cluster.manager.services.sessions.create(
        cluster.user, replace(ONE, enqueue_only=True, resources={**(ONE.resources or {}), "mock.device": "4"})
    )
    assert more.session.status is SessionStatus.PENDING, "it would fit if all were well"
    waiting = await cluster.manager.services.writer.wait_until(
        more.session.id, lambda s: s.status_info is not None, timeout_s=8
    )
    assert waiting is not None
    assert waiting.status_info == "devices-failed"
    assert "mock.device-0 on agent-1" in waiting.status_data["scheduler"]["message"]
    beside = await start(cluster, resources={**(ONE.resources or {}), "mock.device": "2"})
    taken = {d for s in (held, beside) for d in s.main.devices["mock.device"]}
    assert len(taken) == 4
    await cluster.manager.services.sessions.destroy(cluster.user, str(more.session.id))
    assert (await cluster.manager.stores.sessions.audit()).is_clean
