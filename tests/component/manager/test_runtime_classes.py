"""A session of a runtime class, from its request to the agent's command, with what it takes of the agent."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput, UnsupportedResource
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import Enforcement, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import AgentReport, RuntimeClassReport
from ai.backend.manager.sessions.model import CreateSession
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent

VM = RuntimeClassReport(
    name="kata",
    kind="vm",
    overhead={"mem": str(256 << 20), "cpu": "1"},
    whole_devices=True,
    max_devices=1,
    host_network=False,
)


class ClassyAgent(FakeAgent):
    def report(self, **changes: Any) -> AgentReport:
        return super().report(runtime_classes=[VM], enforcement={"session-networks": Enforcement.NONE})


def request(**values: Any) -> CreateSession:
    return CreateSession(image="python", name="vm-session", resources={"cpu": 1, "mem": "256m"}, **values)


async def test_the_machine_s_share_is_taken_and_returned(cluster: Cluster) -> None:
    agent = ClassyAgent()
    await cluster.join(agent)
    try:
        services = cluster.manager.services
        session = (await services.sessions.create(cluster.user, request(runtime_class="kata"))).session
        assert session.status is SessionStatus.RUNNING
        assert session.runtime_class == "kata"
        assert session.requested_slots == ResourceSlot.parse({"cpu": "1", "mem": "256m"})
        assert session.occupying_slots == ResourceSlot.parse({"cpu": "2", "mem": "512m"})
        (spec,) = agent.created
        assert (spec.runtime_class, spec.slots) == ("kata", {"cpu": "2", "mem": str(512 << 20)})
        (found,) = await cluster.manager.stores.agents.agents()
        assert (found.occupied_slots, found.runtime_classes) == (session.occupying_slots, (VM,))
        await services.sessions.destroy(cluster.user, session.name, forced=True)
        (after,) = await cluster.manager.stores.agents.agents()
        assert not after.occupied_slots.nonzero()
    finally:
        await agent.close()


async def test_what_cannot_be_is_refused_with_its_reason(cluster: Cluster) -> None:
    agent = ClassyAgent()
    await cluster.join(agent)
    try:
        create = cluster.manager.services.sessions.create
        with pytest.raises(UnsupportedResource, match="has the runtime class 'runc'; there are kata"):
            await create(cluster.user, request(runtime_class="runc"))
        with pytest.raises(UnsupportedResource, match="private network"):
            await create(cluster.user, request(cluster_size=2))
        two = CreateSession(image="python", resources={"cpu": 1, "mock.device": 2}, runtime_class="kata")
        with pytest.raises(InvalidInput, match="1 device at most, and 2 of mock"):
            await create(cluster.user, two)
        await cluster.manager.stores.resource_groups.change_resource_group("default", use_host_network=True)
        with pytest.raises(InvalidInput, match="network of their node, which a virtual machine cannot share"):
            await create(cluster.user, request(runtime_class="kata"))
    finally:
        await agent.close()


@pytest.mark.parametrize("amount", ["nonsense", "-1", "Infinity", "1e999999"])
async def test_an_overhead_that_is_no_amount_keeps_nobody_from_the_class_elsewhere(
    cluster: Cluster, amount: str
) -> None:
    other = ClassyAgent(agent_id="agent-0")
    odd = RuntimeClassReport(name="kata", kind="vm", overhead={"mem": amount})
    for agent in (ClassyAgent(), other):
        await cluster.join(agent)
    assert cluster.manager.reports is not None
    await cluster.manager.reports.heartbeat(replace(other.report(), runtime_classes=[odd]))
    reply = await cluster.manager.services.sessions.create(cluster.user, request(runtime_class="kata", max_wait_s=5))
    assert (reply.status, reply.session.main.agent) == ("RUNNING", "agent-1")
