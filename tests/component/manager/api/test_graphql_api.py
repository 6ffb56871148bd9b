"""GraphQL as the published client asks (client wire contract 3)."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest

from tests.component.manager.api.conftest import Api

SESSION_FIELDS = """id main_kernel_id tag name type image registry cluster_template cluster_mode cluster_size
domain_name group_name group_id agent_ids user_email user_id access_key created_user_email created_user_id
status status_info
status_data status_changed created_at terminated_at starts_at scheduled_at startup_command result resource_opts
scaling_group service_ports mounts occupying_slots dependencies { name id } abusing_reports idle_checks vfolder_mounts
containers { id cluster_role cluster_idx cluster_hostname session_id image registry status status_info status_data
status_changed agent container_id resource_opts occupied_slots preopen_ports live_stat last_stat id }"""
LIST = f"""query($limit:Int!, $offset:Int!, $ak:String, $status:String, $filter:String, $order:String) {{
  compute_session_list(limit:$limit, offset:$offset, access_key:$ak, status:$status, filter:$filter, order:$order) {{
    items {{ {SESSION_FIELDS} }}
    total_count
  }}
}}"""
AGENT_FIELDS = """id status status_changed region architecture scaling_group schedulable available_slots occupied_slots
addr first_contact lost_at live_stat version compute_plugins hardware_metadata compute_containers { id status }
local_config cpu_cur_pct mem_cur_bytes enforcement tier runtime"""


def _no_errors(reply: dict[str, Any]) -> dict[str, Any]:
    assert "errors" not in reply, reply
    data: dict[str, Any] = reply["data"]
    return data


async def test_ps(api: Api) -> None:
    await api.create(name="base", config={"resource_opts": {"shmem": "64m"}})
    await api.create(name="next", dependencies=["base"], enqueueOnly=True)
    page = _no_errors(await api.gql(LIST, limit=20, offset=0, status="RUNNING,PENDING,SCHEDULED,PREPARING"))
    items = page["compute_session_list"]["items"]
    assert page["compute_session_list"]["total_count"] == len(items) == 2
    by_name = {item["name"]: item for item in items}
    base = by_name["base"]
    assert list(base)[:8] == ["id", "main_kernel_id", "tag", "name", "type", "image", "registry", "cluster_template"]
    assert list(base)[-2:] == ["vfolder_mounts", "containers"]
    assert json.loads(base["occupying_slots"])["cpu"] == "1"
    assert json.loads(base["resource_opts"])["shmem"] == str(64 << 20)
    assert json.loads(base["service_ports"])[0]["name"] == "sshd"
    assert base["containers"][0]["id"] == base["id"] == base["main_kernel_id"]
    assert base["containers"][0]["agent"] is None
    assert list(base["containers"][0])[:2] == ["id", "cluster_role"]
    assert json.loads(base["containers"][0]["occupied_slots"])["cpu"] == "1"
    assert by_name["next"]["dependencies"] == [{"name": "base", "id": base["id"]}]
    assert list(by_name["next"]["dependencies"][0]) == ["name", "id"]


async def test_key_order_is_that_of_the_selection(api: Api) -> None:
    await api.create(name="base")
    query = "{ compute_session_list(limit: 1, offset: 0) { total_count items { status name id } } }"
    told = _no_errors(await api.gql(query))["compute_session_list"]
    assert list(told) == ["total_count", "items"]
    assert list(told["items"][0]) == ["status", "name", "id"]


async def test_pages_filters_and_orders(api: Api) -> None:
    for i in range(3):
        await api.create(name=f"many-{i}", tag="odd" if i % 2 else "even")

    async def names(**variables: Any) -> list[str]:
        data = _no_errors(await api.gql(LIST, **{"limit": 20, "offset": 0, **variables}))
        return [item["name"] for item in data["compute_session_list"]["items"]]

    assert await names(order="name") == ["many-0", "many-1", "many-2"]
    assert await names(order="-name") == ["many-2", "many-1", "many-0"]
    assert await names(order="-name", limit=1, offset=1) == ["many-1"]
    assert await names(order="name", filter='tag == "even" & name ilike "MANY-%"') == ["many-0", "many-2"]
    assert await names(order="name", filter='name in ["many-1", "x"] | (tag == "even" & name == "many-0")') == [
        "many-0",
        "many-1",
    ]
    assert await names(filter='status == "RUNNING" & tag isnot null', order="+name") == ["many-0", "many-1", "many-2"]
    assert await names(status="TERMINATED") == []


@pytest.mark.parametrize(
    "variables",
    [
        {"limit": 0},
        {"limit": 101},
        {"offset": -1},
        {"filter": "name =="},
        {"filter": "name ~ 1"},
        {"filter": 'secret == "x"'},
        {"filter": "(" * 100},
        {"order": "name; drop table"},
        {"order": "nothing"},
        {"status": "FLYING"},
    ],
)
async def test_bad_arguments(api: Api, variables: dict[str, Any]) -> None:
    reply = await api.gql(LIST, **{"limit": 10, "offset": 0, **variables})
    assert reply["data"]["compute_session_list"] is None
    assert reply["errors"][0]["extensions"]["status"] == 400
    assert reply["errors"][0]["path"] == ["compute_session_list"]
    assert reply["errors"][0]["message"]


async def test_info(api: Api) -> None:
    told = await api.create(name="base")
    query = f"query($id: UUID!) {{ compute_session(id: $id) {{ {SESSION_FIELDS} }} }}"
    data = _no_errors(await api.gql(query, id=told["sessionId"]))
    assert data["compute_session"]["name"] == "base"
    assert (await api.gql(query, client=api.other, id=told["sessionId"]))["data"]["compute_session"] is None
    assert _no_errors(await api.gql(query, client=api.admin, id=told["sessionId"]))["compute_session"]["agent_ids"] == [
        "agent-1"
    ]
    assert _no_errors(await api.gql(query, id=str(uuid4())))["compute_session"] is None
    assert "not a UUID" in (await api.gql(query, id="x"))["errors"][0]["message"]
    container = "query($id: UUID!) { compute_container(id: $id) { id hostname role } }"
    assert _no_errors(await api.gql(container, id=told["sessionId"]))["compute_container"]["hostname"] == "main1"
    containers = """query($id: UUID!) { compute_container_list(limit: 5, offset: 0, session_id: $id) {
        items { id } total_count } }"""
    assert _no_errors(await api.gql(containers, id=told["sessionId"]))["compute_container_list"]["total_count"] == 1


async def test_whose_sessions(api: Api) -> None:
    await api.create(name="mine")
    assert _no_errors(await api.gql(LIST, client=api.other, limit=5, offset=0))["compute_session_list"]["items"] == []
    reply = await api.gql(LIST, client=api.other, limit=5, offset=0, ak=api.user.access_key)
    assert reply["errors"] or reply["data"]["compute_session_list"]["items"] == []
    seen = _no_errors(await api.gql(LIST, client=api.admin, limit=5, offset=0, ak=api.user.access_key))
    assert [i["name"] for i in seen["compute_session_list"]["items"]] == ["mine"]
    assert seen["compute_session_list"]["items"][0]["containers"][0]["agent"] == "agent-1"


async def test_keypairs(api: Api) -> None:
    query = """{ keypair { user_id user_info { full_name } projects access_key secret_key is_active is_admin created_at
      modified_at last_used resource_policy rate_limit concurrency_used ssh_public_key dotfiles bootstrap_script } }"""
    await api.create(name="mine")
    told = _no_errors(await api.gql(query))["keypair"]
    assert (told["access_key"], told["is_admin"]) == (api.user.access_key, False)
    assert told["user_info"] is not None
    assert told["secret_key"] is None
    assert told["concurrency_used"] == 1
    assert told["projects"] == ["default"]
    assert _no_errors(await api.gql("{ keypair { is_admin } }", client=api.admin))["keypair"]["is_admin"] is True
    foreign = f'{{ keypair(access_key: "{api.user.access_key}") {{ access_key }} }}'
    assert (await api.gql(foreign, client=api.other))["errors"]
    page = "{ keypair_list(limit: 20, offset: 0, is_active: true) { items { access_key user_id } total_count } }"
    assert _no_errors(await api.gql(page, client=api.admin))["keypair_list"]["total_count"] == 3
    sessions = '{ keypair { compute_sessions(status: "RUNNING") { name } } }'
    assert _no_errors(await api.gql(sessions))["keypair"]["compute_sessions"] == [{"name": "mine"}]


async def test_agents(api: Api) -> None:
    await api.create(name="mine")
    query = f"""query($limit:Int!, $offset:Int!, $status:String, $filter:String, $order:String) {{
      agent_list(limit:$limit, offset:$offset, status:$status, filter:$filter, order:$order) {{
        items {{ {AGENT_FIELDS} }} total_count }} }}"""
    told = _no_errors(await api.gql(query, client=api.admin, limit=20, offset=0, status="ALIVE"))["agent_list"]
    assert told["total_count"] == 1
    agent = told["items"][0]
    assert json.loads(agent["available_slots"])["cpu"] == "8"
    assert json.loads(agent["occupied_slots"])["cpu"] == "1"
    assert json.loads(agent["enforcement"]) == {"memory": "enforced"}
    assert json.loads(agent["compute_plugins"])["mock"]["version"] == "1"
    assert json.loads(agent["hardware_metadata"])["mock"]["status"] == "healthy"
    assert agent["compute_containers"][0]["status"] == "RUNNING"
    assert isinstance(agent["mem_cur_bytes"], float | int)
    assert _no_errors(await api.gql(query, limit=20, offset=0))["agent_list"]["total_count"] == 0
    one = '{ agent(agent_id: "agent-1") { id architecture } }'
    assert _no_errors(await api.gql(one, client=api.admin))["agent"]["id"] == "agent-1"
    assert _no_errors(await api.gql(one))["agent"] is None


async def test_the_rest_of_the_schema(api: Api) -> None:
    query = """query($id: ID) {
      user { uuid username email full_name is_active status role groups { id name } main_access_key }
      other: user_from_uuid(user_id: $id) { email }
      users { email }
      user_list(limit: 5, offset: 0) { items { email } total_count }
      domain { name total_resource_slots scaling_groups }
      domains { name }
      groups { id name total_resource_slots scaling_groups }
      groups_by_name(name: "default", domain_name: "default") { id }
      scaling_groups { name driver_opts scheduler_opts wsproxy_api_token }
      scaling_group(name: "default") { name scheduler }
      keypair_resource_policy { name total_resource_slots max_vfolder_count max_vfolder_size }
      keypair_resource_policies { name }
      resource_presets { name resource_slots shared_memory }
      images { name registry architecture tag digest size_bytes aliases resource_limits { key min max }
        labels { key value } }
      image(reference: "python") { name }
    }"""
    me = _no_errors(await api.gql("{ user { uuid } }", client=api.admin))["user"]["uuid"]
    told = _no_errors(await api.gql(query, client=api.admin, id=me))
    assert told["user"]["groups"][0]["name"] == "default"
    assert told["other"]["email"] == told["user"]["email"]
    assert told["user_list"]["total_count"] == len(told["users"]) == 3
    assert told["domain"]["name"] == told["domains"][0]["name"] == "default"
    assert told["groups"][0]["id"] == told["groups_by_name"][0]["id"]
    assert told["groups"][0]["scaling_groups"] == ["default"]
    assert told["keypair_resource_policy"]["max_vfolder_count"] == 0
    assert told["images"][0]["tag"] == "3.11"
    assert isinstance(told["images"][0]["size_bytes"], int)
    assert told["image"]["name"] == told["images"][0]["name"]
    group = f'{{ group(id: "{told["groups"][0]["id"]}") {{ name }} }}'
    assert _no_errors(await api.gql(group))["group"]["name"] == "default"


@pytest.mark.parametrize(
    "query",
    [
        "{",
        "{ nothing }",
        "query A { domains { name } } query B { domains { name } }",
        "query($x: String!) { domains { name } }",
        "{ compute_session_list(limit: 1) { total_count } }",
        "mutation { drop }",
        "{" + "a{" * 3000 + "b" + "}" * 3000 + "}",
        "{ " + " ".join(f"a{i}: domains {{ name }}" for i in range(2000)) + " }",
    ],
)
async def test_queries_that_are_refused_are_still_replies(api: Api, query: str) -> None:
    reply = await api.gql(query)
    assert reply["data"] is None
    assert reply["errors"][0]["message"]


async def test_depth_and_cost_are_bounded(api: Api) -> None:
    chain = "".join(f"fragment f{i} on Query {{ ...f{i + 1} }} " for i in range(20))
    reply = await api.gql(f"{{ ...f0 }} {chain} fragment f20 on Query {{ domains {{ name }} }}")
    assert "deeper" in reply["errors"][0]["message"]
    wide = "containers { id }"
    for _ in range(3):
        wide = f"dependencies {{ {wide} }}"
    reply = await api.gql(f"{{ compute_session_list(limit: 100, offset: 0) {{ items {{ {wide} }} }} }}")
    assert "costs more" in reply["errors"][0]["message"]
    bomb = "".join(f"fragment f{i} on Query {{ ...f{i + 1} ...f{i + 1} }} " for i in range(14))
    reply = await api.gql(f"{{ ...f0 }} {bomb} fragment f14 on Query {{ domains {{ name }} }}")
    assert reply["errors"]


async def test_named_operations_aliases_fragments_and_directives(api: Api) -> None:
    query = """query One { domains { name } }
      query Two($no: Boolean!) { mine: domains { ...F description @skip(if: $no) } }
      fragment F on Domain { name }"""
    reply = await api.user.request(
        "POST", "/admin/graphql", json={"query": query, "operationName": "Two", "variables": {"no": True}}
    )
    assert reply.json() == {"data": {"mine": [{"name": "default"}]}}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "query"),
        ({"query": 1}, "query"),
        ({"query": "x" * 70_000}, "query"),
        ({"query": "{}", "variables": []}, "variables"),
        ({"query": "{}", "x": 1}, "x"),
    ],
)
async def test_malformed_requests(api: Api, body: dict[str, Any], field: str) -> None:
    reply = await api.user.request("POST", "/admin/gql", json=body)
    assert (reply.status, list(reply.json()["data"])) == (400, [field])
