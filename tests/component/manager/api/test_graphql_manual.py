"""What the manual's GraphQL pages say (spec 03-09) and only their readers ask for."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from ai.backend.common.ids import UserId
from tests.component.manager.api.conftest import Api

CHANGE_DOMAIN = 'mutation($p: ModifyDomainInput!) { modify_domain(name: "default", props: $p) { ok msg } }'
CHANGE_KEY = "mutation($k: String!, $p: ModifyKeyPairInput!) { modify_keypair(access_key: $k, props: $p) { ok msg } }"
CHANGE_POLICY = """mutation($p: ModifyKeyPairResourcePolicyInput!) {
  modify_keypair_resource_policy(name: "default", props: $p) { ok msg } }"""


async def ask(api: Api, query: str, **variables: Any) -> Any:
    """The value of the only field, for the superadmin."""
    reply = await api.gql(query, api.admin, **variables)
    assert "errors" not in reply, reply
    return next(iter(reply["data"].values()))


async def test_groups_by_name_and_by_ids_of_the_manual_s_type(api: Api) -> None:
    made = await ask(api, 'mutation { create_group(name: "lab", props: {}) { ok group { id } keypair { user_id } } }')
    group = made["group"]["id"]
    assert made["keypair"] is None
    by_text = await ask(api, "query($id: String!) { group(id: $id) { name created_at modified_at } }", id=group)
    assert by_text["name"] == "lab"
    assert by_text["created_at"] == by_text["modified_at"]
    rename = (
        "mutation($n: String!, $p: ModifyGroupInput!) { modify_group(name: $n, props: $p) { ok msg group { name } } }"
    )
    assert (await ask(api, rename, n="lab", p={"description": "d"}))["group"] == {"name": "lab"}
    changed = await ask(api, "query($id: UUID!) { group(id: $id) { created_at modified_at } }", id=group)
    assert changed["modified_at"] > changed["created_at"]
    assert (await ask(api, rename, n="nowhere", p={}))["ok"] is False
    assert "stays in its domain" in (await ask(api, rename, n="lab", p={"domain_name": "other"}))["msg"]
    assert (await ask(api, rename, n="lab", p={"domain_name": "default"}))["ok"] is True
    assert "gid or name" in (await ask(api, "mutation { delete_group { ok msg } }"))["msg"]
    assert (await ask(api, 'mutation { delete_group(name: "lab") { ok } }'))["ok"] is True
    await ask(api, 'mutation { create_domain(name: "far", props: {}) { ok keypair { user_id } } }')
    for domain in ("far", "default"):
        props = {"domain_name": domain}
        await ask(api, 'mutation($p: GroupInput!) { create_group(name: "twin", props: $p) { ok } }', p=props)
    assert (await ask(api, rename, n="twin", p={"is_active": False}))["ok"] is True
    groups = await ask(api, '{ groups_by_name(name: "twin") { domain_name is_active } }')
    assert {(group["domain_name"], group["is_active"]) for group in groups} == {("far", True), ("default", False)}


async def test_domains_say_when_they_were_changed_and_keep_their_name(api: Api) -> None:
    query = "{ domain { created_at modified_at } }"
    old = await ask(api, query)
    assert old["created_at"] == old["modified_at"]
    assert (await ask(api, CHANGE_DOMAIN, p={"description": "d"}))["ok"]
    assert (await ask(api, query))["modified_at"] > old["modified_at"]
    assert "keeps its name" in (await ask(api, CHANGE_DOMAIN, p={"name": "other"}))["msg"]


async def test_registries_of_a_domain_by_the_manual_s_sql(api: Api) -> None:
    query = "{ domain { allowed_docker_registries } }"
    assert (await ask(api, query))["allowed_docker_registries"] is None

    async def store(names: str) -> None:
        update = text("UPDATE domains SET allowed_docker_registries = :names").bindparams(names=names)
        await api.cluster.database.run_write(lambda connection: connection.execute(update))

    for stored, names in (
        ('{"cr.example.com","hub.example.com"}', ["cr.example.com", "hub.example.com"]),
        ("{cr.example.com, index.docker.io}", ["cr.example.com", "index.docker.io"]),
        ("{}", []),
        ("no list", []),
        ('["*"]', None),
    ):
        await store(stored)
        assert (await ask(api, query))["allowed_docker_registries"] == names
        body = {"image": "python", "enqueueOnly": True}
        assert (await api.user.request("POST", "/session", json=body)).status in (201, 404)
    assert (await ask(api, CHANGE_DOMAIN, p={"allowed_docker_registries": ["cr.example.com"]}))["ok"]
    assert (await ask(api, query))["allowed_docker_registries"] == ["cr.example.com"]
    assert (await ask(api, CHANGE_DOMAIN, p={"allowed_docker_registries": ["*"]}))["ok"]
    assert (await ask(api, query))["allowed_docker_registries"] is None


async def test_lists_without_pages_are_whole(api: Api) -> None:
    services = api.cluster.manager.services
    for n in range(101):
        await services.users.create_keypair(api.cluster.admin, api.cluster.user.email, {"is_active": n > 0})
    assert len(await ask(api, "{ keypairs { access_key } }")) == 104
    assert len(await ask(api, "{ keypairs(is_active: true) { access_key } }")) == 103


async def test_a_list_that_is_too_long_names_the_one_with_pages(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ai.backend.manager.graphql.context.MAX_LIST_ITEMS", 2)
    for field in ("users", "keypairs"):
        reply = await api.gql(f"{{ {field} {{ is_active }} }}", api.admin)
        assert reply["errors"][0]["message"] == f"There are 3, more than 2: read {field[:-1]}_list page by page."


async def test_who_is_not_active_is_also_who_is_deleted(api: Api) -> None:
    await ask(api, 'mutation { delete_user(email: "other@local") { ok } }')
    assert await ask(api, "{ users(is_active: false) { email status } }") == [
        {"email": "other@local", "status": "deleted"}
    ]
    assert len(await ask(api, "{ users(is_active: true) { email } }")) == 2


async def test_arguments_that_were_ignored(api: Api) -> None:
    key = api.cluster.user.access_key
    query = "query($k: String, $d: String) { keypair(access_key: $k, domain_name: $d) { access_key } }"
    assert (await ask(api, query, k=key, d="default"))["access_key"] == key
    assert (await api.gql(query, api.admin, k=key, d="nowhere"))["errors"]
    images = await ask(api, '{ images(group: "default") { name } }')
    assert images
    for client in (api.user, api.admin):
        assert "no group" in (await api.gql('{ images(group: "zzz") { name } }', client))["errors"][0]["message"]


async def test_a_group_is_open_by_association(api: Api) -> None:
    made = 'mutation($p: ScalingGroupInput!) { create_scaling_group(name: "gpu", props: $p) { ok } }'
    assert (await ask(api, made, p={"driver": "static", "scheduler": "fifo"}))["ok"]
    query = "{ scaling_groups { name } }"
    assert _data(await api.gql(query))["scaling_groups"] == [{"name": "default"}]
    await ask(api, 'mutation { associate_scaling_group_with_domain(domain: "default", scaling_group: "gpu") { ok } }')
    assert _data(await api.gql(query))["scaling_groups"] == [{"name": "default"}, {"name": "gpu"}]


async def test_every_kernel_by_its_id_and_the_roles_of_the_manual(api: Api) -> None:
    made = await api.create(name="pair", cluster_size=2, cluster_mode="single-node", config={"resources": {"cpu": 1}})
    listed = """query($s: UUID!, $r: String) { compute_container_list(limit: 5, offset: 0, session_id: $s, role: $r) {
      items { id role cluster_role } total_count } }"""
    reply = _data(await api.gql(listed, s=made["sessionId"]))
    containers = {item["role"]: item for item in reply["compute_container_list"]["items"]}
    assert {role: item["cluster_role"] for role, item in containers.items()} == {"master": "main", "sub": "sub"}
    one = "query($id: UUID!) { compute_container(id: $id) { id role session_id } }"
    for item in containers.values():
        assert _data(await api.gql(one, id=item["id"]))["compute_container"]["role"] == item["role"]
        assert (await api.gql(one, api.other, id=item["id"]))["data"]["compute_container"] is None
    assert _data(await api.gql(one, id=str(uuid4())))["compute_container"] is None
    for role, count in (("master", 1), ("main", 1), ("sub", 1), ("ps", 0)):
        page = _data(await api.gql(listed, s=made["sessionId"], r=role))["compute_container_list"]
        assert page["total_count"] == count


async def test_the_example_of_the_manual(api: Api) -> None:
    await api.create(name="first")
    await api.create(name="second", tag="x")
    query = """query($limit: Int!, $offset: Int!, $ak: String, $status: String) {
      compute_session_list(limit: $limit, offset: $offset, access_key: $ak, status: $status) {
        total_count items { id name type user_email status status_info status_updated
          containers { id role agent } } } }"""
    page = _data(await api.gql(query, limit=10, offset=0, ak=api.user.access_key, status="RUNNING"))
    items = page["compute_session_list"]["items"]
    assert len(items) == 2
    assert items[0]["status_updated"] is not None
    assert items[0]["containers"][0]["role"] == "master"
    for column in ("created_user_email", "created_user_id", "created_user_uuid", "registry", "status_updated"):
        ordered = f'{{ compute_session_list(limit: 5, offset: 0, order_key: "{column}") {{ total_count }} }}'
        assert _data(await api.gql(ordered))["compute_session_list"]["total_count"] == 2


async def test_the_limit_of_a_keypair_s_sessions(api: Api) -> None:
    key = api.cluster.user.access_key
    assert (await ask(api, CHANGE_KEY, k=key, p={"concurrency_limit": -1}))["ok"] is False
    assert (await ask(api, CHANGE_KEY, k=key, p={"concurrency_limit": 1}))["ok"]
    assert (await ask(api, "query($k: String) { keypair(access_key: $k) { concurrency_limit } }", k=key)) == {
        "concurrency_limit": 1
    }
    await api.create(name="only")
    refused = await api.user.request("POST", "/session", json={"image": "python", "name": "more"})
    assert (refused.status, refused.json()["detail"]) == (406, "Your policy allows 1 sessions at a time.")
    await ask(api, CHANGE_KEY, k=key, p={"concurrency_limit": 0})
    await api.create(name="more")


async def test_limits_of_a_policy_that_are_none(api: Api) -> None:
    query = "{ keypair_resource_policy { idle_timeout max_session_lifetime } }"
    for written, kept in ((-5, -1), (0, 0), (60, 60)):
        assert (await ask(api, CHANGE_POLICY, p={"idle_timeout": written, "max_session_lifetime": -5}))["ok"]
        assert await ask(api, query) == {"idle_timeout": kept, "max_session_lifetime": 0}, "-1 exempts, 0 does not"


async def test_the_largest_folder_of_a_policy(api: Api) -> None:
    assert (await ask(api, CHANGE_POLICY, p={"max_vfolder_size": 1000}))["ok"]
    too_large = await api.user.request("POST", "/folders", json={"name": "large", "quota": 1001})
    assert (too_large.status, too_large.json()["detail"]) == (406, "Your policy allows folders of 1000 bytes.")
    made = (await api.user.request("POST", "/folders", json={"name": "data"})).json()
    path = "/folders/data/request-upload"
    assert (await api.user.request("POST", path, json={"path": "a", "size": 1001})).status == 406
    assert (await api.user.request("POST", path, json={"path": "a", "size": 1000})).status == 200
    assert (await api.user.request("POST", path, json={"path": "empty", "size": 0})).status == 200
    query = "query($id: UUID!) { vfolder(id: $id) { max_size num_files cur_size max_files } }"
    folder = _data(await api.gql(query, id=made["id"]))["vfolder"]
    assert folder == {"max_size": 1000, "num_files": 1, "cur_size": 0, "max_files": 0}
    ordered = '{ vfolder_list(limit: 5, offset: 0, order_key: "user") { items { num_files } } }'
    assert _data(await api.gql(ordered))["vfolder_list"]["items"] == [{"num_files": 1}]


async def test_folders_and_sessions_of_a_keypair(api: Api) -> None:
    await api.create(name="mine")
    await api.user.request("POST", "/folders", json={"name": "data"})
    reply = _data(await api.gql("{ keypair { vfolders { name } compute_sessions { name } } }"))
    assert reply["keypair"] == {"vfolders": [{"name": "data"}], "compute_sessions": [{"name": "mine"}]}
    query = "query($u: UUID) { user_from_uuid(user_id: $u) { email } }"
    assert (await ask(api, query, u=str(UserId(api.cluster.user.user_id))))["email"] == api.cluster.user.email


def _data(reply: dict[str, Any]) -> dict[str, Any]:
    assert "errors" not in reply, reply
    data: dict[str, Any] = reply["data"]
    return data


async def test_documents_of_the_api_by_the_manual_s_addresses(api: Api) -> None:
    """Spec 03-13:164-184."""
    document = await api.user.request("GET", "/spec/openapi")
    assert document.json() == (await api.user.request("GET", "/openapi.json")).json()
    introspection = "{ __schema { queryType { name } } }"
    assert (await api.user.request("GET", "/spec/graphiql")).json()["data"]["key"].endswith("schema-introspection")
    assert (await api.gql(introspection))["errors"]
    key = {"key": "config/api/allow-graphql-schema-introspection", "value": "true"}
    assert (await api.admin.request("POST", "/config/set", json=key)).status == 200
    page = await api.user.request("GET", "/spec/graphiql")
    assert (page.status, b"graphiql" in page.body) == (200, True)
    assert _data(await api.gql(introspection)) == {"__schema": {"queryType": {"name": "Query"}}}
    reply = await api.user.request("POST", "/spec/graphiql", json={"query": "{ domain { name } }"})
    assert reply.json() == {"data": {"domain": {"name": "default"}}}
    assert (await api.admin.request("POST", "/config/set", json={**key, "value": "false"})).status == 200
    assert (await api.gql(introspection))["errors"]
