"""What a manager tells monitoring systems, on stores in memory."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import SecretStr

from ai.backend.common.errors import AuthenticationFailed, Forbidden, Unavailable
from ai.backend.common.ids import ResourceGroupName
from ai.backend.common.states import AgentStatus, KernelStatus, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.manager.monitoring.api import MonitoringApi
from ai.backend.manager.monitoring.targets import ScrapeTargets
from ai.backend.manager.sessions.changes import Change
from tests.unit.manager.scheduling.memory_manager import Installation, make_agent


class Coordinator:
    """A coordinator with one worker; ``is_away``: it does not answer."""

    is_away = False

    async def call(self, coordinator: Any, method: str, path: str, body: Any = None) -> Mapping[str, Any]:
        if self.is_away:
            raise Unavailable("away")
        return {"workers": [{"hostname": "fd00::1", "api_port": 10201, "authority": "w"}]}


async def test_targets_are_managers_agents_and_proxies() -> None:
    gone = replace(make_agent("i-3", cpu=1), status=AgentStatus.TERMINATED)
    lost = replace(make_agent("i-2", cpu=1), status=AgentStatus.LOST)
    installation = await Installation.make(make_agent("i-1", cpu=1), lost, gone)
    stores = installation.manager.stores
    await stores.resource_groups.change_resource_group(
        ResourceGroupName("default"), wsproxy_addr="https://proxy.example.com", wsproxy_api_token="secret"
    )
    coordinator = Coordinator()
    targets = ScrapeTargets(stores.agents, stores.resource_groups, None, coordinator)
    found = await targets.target_groups("manager:8081", scheme="http")
    by_role = {(one["labels"]["__meta_backendai_role"], one["labels"].get("agent")): one for one in found}
    assert set(by_role) == {
        ("manager", None),
        ("agent", "i-1"),
        ("agent", "i-2"),
        ("app-proxy-coordinator", None),
        ("app-proxy-worker", None),
    }
    assert by_role["manager", None]["labels"]["__param_others"] == "false"
    assert by_role["agent", "i-1"]["targets"] == ["manager:8081"]
    assert by_role["agent", "i-1"]["labels"]["__metrics_path__"] == "/metrics/agents/i-1"
    assert by_role["app-proxy-coordinator", None]["targets"] == ["proxy.example.com:443"]
    assert by_role["app-proxy-coordinator", None]["labels"]["__scheme__"] == "https"
    assert by_role["app-proxy-worker", None]["targets"] == ["[fd00::1]:10201"]
    assert "secret" not in str(found)
    coordinator.is_away = True
    roles = [
        one["labels"]["__meta_backendai_role"] for one in await targets.target_groups("manager:8081", scheme="http")
    ]
    assert roles == ["manager", "agent", "agent", "app-proxy-coordinator"]


@pytest.mark.parametrize("header", ["", "Bearer other", "Bearer \udcff", "Bearer sécret"])
async def test_a_token_of_any_bytes_is_refused_and_breaks_nothing(header: str) -> None:
    api = MonitoringApi(cast(Any, None), cast(Any, None), cast(Any, None), SecretStr("secret"))
    for route in (api.list_targets, api.list_kernels):
        with pytest.raises(AuthenticationFailed):
            await route(_call(header))


def _call(header: str) -> Any:
    return cast(Any, SimpleNamespace(request=SimpleNamespace(headers={"Authorization": header})))


async def test_kernels_are_told_with_what_others_call_their_workloads() -> None:
    installation = await Installation.make(make_agent("i-1", cpu=1, mem=1024))
    await installation.create("user", "first", {"cpu": 1})
    await installation.schedule()
    sessions = installation.manager.stores.sessions
    api = MonitoringApi(cast(Any, None), cast(Any, None), sessions, SecretStr("secret"))
    assert b"backendai_kernel_workload{" not in await _body(api), "no agent has told of a workload"
    (session,) = await sessions.by_status([SessionStatus.SCHEDULED])
    kernel = replace(session.main, container_id='c"1', status=KernelStatus.RUNNING)
    change = Change(old=session, new=replace(session, kernels=(kernel,)))
    await sessions.save([change])
    expected = (
        f'backendai_kernel_workload{{agent="i-1",kernel_id="{kernel.id}",runtime_class="",'
        f'session_id="{session.id}",workload_id="c\\"1"}} 1.0'
    )
    assert expected in (await _body(api)).decode()
    with pytest.raises(Forbidden):
        await MonitoringApi(cast(Any, None), cast(Any, None), sessions, None).list_kernels(_call("Bearer secret"))


async def _body(api: MonitoringApi) -> bytes:
    body = (await api.list_kernels(_call("Bearer secret"))).body
    assert isinstance(body, bytes)
    return body


async def test_the_state_says_how_long_a_loop_may_rest() -> None:
    """Without it a loop of ten minutes looks stuck for the half of its time."""
    installation = await Installation.make()
    loops = installation.manager.loops
    state = replace(installation.manager.services.state_of_installation, loops=lambda: loops)
    (periods,) = [family for family in state.families() if family.name == "backendai_manager_loop_period_seconds"]
    assert {sample.labels["loop"]: sample.value for sample in periods.samples}["RetentionLoop"] == 600


async def test_the_state_counts_sessions_and_the_longest_wait() -> None:
    installation = await Installation.make(make_agent("i-1", cpu=1, mem=1024))
    await installation.create("user", "first", {"cpu": 1})
    installation.clock.seconds += 60
    state = installation.manager.services.state_of_installation
    gauges = await state.gauges()
    assert (gauges["agents_alive"], gauges["sessions_live"], gauges["leader_elected"]) == (1, 1, 1)
    assert gauges["sessions_oldest_pending_seconds"] == pytest.approx(60, abs=0.1)
    counted = {
        family.name.removeprefix("backendai_manager_"): {
            tuple(sample.labels.values()): sample.value for sample in family.samples
        }
        for family in state.families()
    }
    assert counted["sessions"]["PENDING",] == 1
    assert counted["sessions"]["RUNNING",] == 0


async def test_a_report_is_for_those_who_see_agents() -> None:
    installation = await Installation.make(make_agent("i-1", cpu=1, mem=1024))
    await installation.create("user", "first", {"cpu": 1})
    waiting = await installation.create("user", "second", {"cpu": 1})
    await installation.schedule()
    reports = installation.manager.services.reports_of_sessions
    with pytest.raises(Forbidden):
        await reports.report_of(installation.callers["user"], str(waiting.id))
    report = await reports.report_of(installation.callers["admin"], str(waiting.id))
    assert report["status"] == "PENDING"
    assert report["decision"]["verdict"] == "waits"
    assert report["life"][0]["name"] == "PENDING"
    assert report["trace_id"] is None
