"""The main path: a session from its request to its end."""

from __future__ import annotations

from ai.backend.common.states import RunMode, SessionStatus
from ai.backend.manager.execution.service import RunRequest
from ai.backend.manager.sessions.model import CreateSession
from tests.component.manager.conftest import Cluster
from tests.component.manager.fakes import FakeAgent


async def test_a_session_lives_and_ends(cluster: Cluster, agent: FakeAgent) -> None:
    services = cluster.manager.services
    reply = await services.sessions.create(
        cluster.user,
        CreateSession(image="python", name="first", resources={"cpu": 2, "mem": "256m", "mock.device": "1"}),
    )
    assert (reply.status, reply.created) == ("RUNNING", True)
    session = reply.session
    assert session.main.container_id == "w-1"
    assert session.main.id == session.id
    assert session.occupying_slots.to_json() == {"cpu": "2", "mem": "268435456", "mock.device": "1"}
    assert [len(d) for d in session.main.devices.values()] == [1]
    assert agent.created[0].environ["BACKENDAI_SESSION_NAME"] == "first"
    assert (await cluster.manager.stores.sessions.audit()).is_clean

    result = await services.execution.execute(cluster.user, "first", RunRequest(mode=RunMode.QUERY, code="1+1"))
    assert result.console == [["stdout", "1+1"]]
    assert result.run_id

    end = await services.sessions.destroy(cluster.user, "first")
    assert end.session.status is SessionStatus.TERMINATED
    assert end.stats["cpu_used"]["current"] == "12"
    assert (await cluster.manager.stores.sessions.audit()).is_clean
    seen = await services.agents.agent(cluster.admin, "agent-1")
    assert not seen.occupied_slots.nonzero()
    assert await services.execution.logs(cluster.user, str(session.id)) == "hello\n"

    events = await cluster.manager.stores.sessions.events_after(0)
    assert [e.name for e in events if e.scope == "session"] == [
        "session_enqueued",
        "session_scheduled",
        "session_preparing",
        "session_creating",
        "session_started",
        "session_terminating",
        "session_terminated",
    ]
    assert [e.name for e in events if e.scope == "kernel"] == [
        "kernel_preparing",
        "kernel_creating",
        "kernel_started",
        "kernel_terminating",
        "kernel_terminated",
    ]
    reasons = {e.name.partition("_")[2]: e.payload["reason"] for e in events}
    asked = dict.fromkeys(("enqueued", "scheduled", "preparing", "creating", "terminating"), "user-requested")
    assert reasons == {**asked, "started": "new-container-started", "terminated": "user-requested"}
    history = await services.sessions.status_history(cluster.user, str(session.id))
    assert list(history)[-2:] == ["terminating", "terminated"]
    assert None not in history.values()
