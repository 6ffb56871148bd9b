"""Changes of agents as Server-Sent Events."""

from __future__ import annotations

import json
from typing import Any

from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_execution_api import Events, listen

MODIFY = "mutation($id: String!, $on: Boolean!) { modify_agent(id: $id, props: {schedulable: $on}) { ok msg } }"


def changes_in(events: list[dict[str, str]]) -> list[dict[str, Any]]:
    return [json.loads(event["data"]) for event in events if event["event"] == "agent_changed"]


async def begun(api: Api) -> tuple[Events, Any]:
    events, writer = await listen(api.admin, "/events/agent")
    assert (await events.until(b"agents_reset"))[0]["event"] == "agents_reset"
    return events, writer


async def test_operators_are_told_what_changes_of_agents(api: Api) -> None:
    events, writer = await begun(api)
    assert (await api.gql(MODIFY, api.admin, id=api.agent.agent_id, on=False))["data"]["modify_agent"]["ok"]
    (withheld,) = changes_in(await events.until(b"schedulable"))
    assert withheld == {
        "agentId": api.agent.agent_id,
        "status": "ALIVE",
        "schedulable": False,
        "changed": ["schedulable"],
    }
    await api.gql(MODIFY, api.admin, id=api.agent.agent_id, on=True)
    await api.create(name="occupies")
    occupied = changes_in(await events.until(b"occupied-slots"))[-1]
    assert occupied["agentId"] == api.agent.agent_id
    writer.close()


async def test_a_stream_resumes_where_it_broke(api: Api) -> None:
    events, writer = await begun(api)
    position = events.events[0]["id"]
    writer.close()
    await api.gql(MODIFY, api.admin, id=api.agent.agent_id, on=False)
    for target, headers in (
        (f"/events/agent?lastEventId={position}", {}),
        ("/events/agent", {"Last-Event-ID": position}),
    ):
        again, writer = await listen(api.admin, target, **headers)
        (missed,) = changes_in(await again.until(b"agent_changed"))
        assert missed["changed"] == ["schedulable"]
        assert b"agents_reset" not in again.text
        writer.close()


async def test_they_are_for_those_alone_who_see_agents(api: Api) -> None:
    for target in ("/events/agent", "/events/agent?lastEventId=0-0"):
        reply = await api.user.request("GET", target, content_type=None)
        assert (reply.status, reply.problem) == (403, "forbidden")
    reply = await api.admin.request("GET", f"/events/agent?lastEventId={'0' * 65}", content_type=None)
    assert reply.status == 400
