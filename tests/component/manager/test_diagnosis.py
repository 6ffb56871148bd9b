"""Superadmins look into devices that they do not hold; nobody else does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import structs

from ai.backend.common.errors import Forbidden, InvalidInput, NotFound, UnsupportedResource
from ai.backend.common.states import SessionStatus, UserRole
from ai.backend.common.structs import replace
from ai.backend.common.wire.reports import AgentReport
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.sessions.model import CreateSession, SessionQuery
from tests.component.manager.conftest import Cluster
from tests.component.manager.test_variants import GpuAgent
from tests.component.manager.test_variants import request as holding


def diagnosis(**values: Any) -> CreateSession:
    fields = {"diagnosed_devices": {"cuda": ["gpu-0"]}, "agent_list": ("i-01",), "resources": {"cpu": 1}}
    return CreateSession(image="python", **{"max_wait_s": 10, **fields, **values})


@pytest.fixture
async def node(cluster: Cluster) -> GpuAgent:
    agent = GpuAgent(agent_id="i-01", gpus=[("8.0", "A100")], unhealthy=set())
    await cluster.join(agent)
    return agent


async def test_the_agent_gets_the_devices_and_the_holder_keeps_them(cluster: Cluster, node: GpuAgent) -> None:
    sessions = cluster.manager.services.sessions
    holder = (await sessions.create(cluster.user, holding())).session
    made = (await sessions.create(cluster.admin, diagnosis())).session
    assert (made.status, made.main.devices.get("cuda.device")) == (SessionStatus.RUNNING, None)
    assert node.created[-1].diagnosed_devices == {"cuda": ["gpu-0"]}
    read = await sessions.get(cluster.admin, str(made.id))
    assert read.diagnosed_devices == {"cuda": ["gpu-0"]}
    assert (await sessions.get(cluster.user, str(holder.id))).status is SessionStatus.RUNNING


@pytest.mark.parametrize("role", [UserRole.USER, UserRole.ADMIN, UserRole.MONITOR])
async def test_nobody_but_a_superadmin_diagnoses(cluster: Cluster, node: GpuAgent, role: UserRole) -> None:
    caller = replace(cluster.user, role=role)
    with pytest.raises(Forbidden):
        await cluster.manager.services.sessions.create(caller, diagnosis())
    with pytest.raises(Forbidden):
        await cluster.manager.services.sessions.create(caller, diagnosis(agent_list=()))
    assert node.created == []


async def test_a_superadmin_diagnoses_for_nobody_else(cluster: Cluster, node: GpuAgent) -> None:
    request = diagnosis(owner_access_key=cluster.user.access_key)
    with pytest.raises(Forbidden, match="belongs to its creator"):
        await cluster.manager.services.sessions.create(cluster.admin, request)
    assert node.created == []


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"agent_list": ()}, InvalidInput),
        ({"cluster_size": 2}, InvalidInput),
        ({"diagnosed_devices": {"cuda": ["gpu-7"]}}, NotFound),
        ({"diagnosed_devices": {"rocm": ["gpu-0"]}}, NotFound),
    ],
)
async def test_what_cannot_be_diagnosed_is_refused(
    cluster: Cluster, node: GpuAgent, values: dict[str, Any], error: type[Exception]
) -> None:
    caller: Caller = cluster.admin
    with pytest.raises(error):
        await cluster.manager.services.sessions.create(caller, diagnosis(**values))


@dataclass
class DiscreetAgent(GpuAgent):
    """Says of its plugin whether it shows devices to sessions that do not hold them."""

    diagnosable: bool | None = False

    def report(self, **changes: Any) -> AgentReport:
        report = super().report(**changes)
        return structs.replace(report, plugins=[structs.replace(report.plugins[0], diagnosable=self.diagnosable)])


@pytest.mark.parametrize("diagnosable", [False, None, True])
async def test_a_plugin_without_the_power_is_refused_before_anything_is_stored(
    cluster: Cluster, diagnosable: bool | None
) -> None:
    agent = DiscreetAgent(agent_id="i-01", gpus=[("8.0", "A100")], diagnosable=diagnosable)
    await cluster.join(agent)
    sessions = cluster.manager.services.sessions
    if diagnosable is not False:  # of an agent that does not say, it is the agent who refuses
        assert (await sessions.create(cluster.admin, diagnosis())).session.status is SessionStatus.RUNNING
        return
    with pytest.raises(UnsupportedResource, match="only to sessions that hold them, as plugins of Interface v1") as e:
        await sessions.create(cluster.admin, diagnosis())
    assert e.value.data == {"config.diagnosed_devices.cuda": "cannot be diagnosed"}
    assert (await sessions.search(cluster.admin, SessionQuery())).total_count == 0
    assert agent.created == []
