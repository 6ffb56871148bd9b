"""Users, keypairs, groups and domains over GraphQL: what becomes of them, and who may do it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ai.backend.common.folders import FolderStatus
from ai.backend.common.states import SessionStatus, UserRole
from tests.component.manager.api.conftest import Api
from tests.component.manager.api.test_folders_api import call, make
from tests.component.manager.api.test_resource_groups_api import ask
from tests.component.manager.api.test_session_defaults_api import TEMPLATE, keep
from tests.support.signed_http import RawClient, RawReply

PASSWORD = "a long password"
CREATE = """mutation($e: String!, $p: UserInput!) { create_user(email: $e, props: $p) {
  ok msg user { uuid email username role status domain_name main_access_key groups { name } password } } }"""
MODIFY = "mutation($e: String!, $p: ModifyUserInput!) { modify_user(email: $e, props: $p) { ok msg user { status } } }"
DELETE = "mutation($e: String!) { delete_user(email: $e) { ok msg } }"
PURGE = "mutation($e: String!, $p: PurgeUserInput!) { purge_user(email: $e, props: $p) { ok msg } }"
NEW_KEY = """mutation($u: String!, $p: KeyPairInput!) { create_keypair(user_id: $u, props: $p) {
  ok msg keypair { access_key secret_key is_active } } }"""
SET_KEY = "mutation($k: String!, $p: ModifyKeyPairInput!) { modify_keypair(access_key: $k, props: $p) { ok msg } }"
CUT_KEY = "mutation($k: String!) { delete_keypair(access_key: $k) { ok msg } }"
WHO = "{ user { email role } }"


async def new_user(api: Api, email: str, **props: Any) -> dict[str, Any]:
    made = await ask(api, CREATE, e=email, p={"password": PASSWORD, **props})
    assert made["ok"], made
    user: dict[str, Any] = made["user"]
    return user


async def new_client(api: Api, email: str) -> RawClient:
    made = await ask(api, NEW_KEY, u=email, p={})
    assert made["ok"], made
    return RawClient(port=api.port, access_key=made["keypair"]["access_key"], secret_key=made["keypair"]["secret_key"])


async def signs(client: RawClient) -> bool:
    return (await client.request("POST", "/admin/gql", json={"query": WHO})).status == 200


async def test_a_refused_mutation_tells_its_problem_by_its_name_in_the_reply(api: Api) -> None:
    await new_user(api, "taken@example.com")
    query = """mutation($p: UserInput!) {
      first: create_user(email: "taken@example.com", props: $p) { ok msg }
      create_user(email: "free@example.com", props: $p) { ok msg } }"""
    reply = await api.gql(query, api.admin, p={"password": PASSWORD})
    assert (reply["data"]["first"]["ok"], reply["data"]["create_user"]["ok"]) == (False, True)
    [(name, problem)] = reply["extensions"]["problems"].items()
    assert (name, problem["code"], problem["status"], problem["data"]) == ("first", "conflict", 409, {"email": "taken"})


@pytest.mark.parametrize(
    ("mutation", "field"),
    [
        ('create_domain(name: "d", props: {total_resource_slots: $bad})', "total_resource_slots"),
        (
            'create_keypair_resource_policy(name: "p", props: {max_pending_session_resource_slots: $bad})',
            "max_pending_session_resource_slots",
        ),
        (
            'create_scaling_group(name: "g", props: {driver: "static", scheduler: "fifo", scheduler_opts: $bad})',
            "scheduler_opts",
        ),
    ],
)
async def test_a_malformed_amount_or_option_names_its_field(api: Api, mutation: str, field: str) -> None:
    query = f"mutation($bad: JSONString!) {{ {mutation} {{ ok msg }} }}"
    reply = await api.gql(query, api.admin, bad='{"cpu": "much", "pending_timeout": "long"}')
    [problem] = reply["extensions"]["problems"].values()
    assert (problem["status"], problem["data"][field]) == (400, "malformed")


async def test_a_user_comes_changes_and_goes(api: Api) -> None:
    user = await new_user(api, "ann.smith@example.com", full_name="Ann", role="user", status="active")
    assert user["username"] == "ann-smith"
    assert (user["password"], user["groups"]) == (None, [{"name": "default"}])
    assert (await new_user(api, "ann.smith@example.org"))["username"].startswith("ann-smith-"), "another Ann"
    assert "exists" in (await ask(api, CREATE, e="ann.smith@example.com", p={"password": PASSWORD}))["msg"]
    ann = await new_client(api, "ann.smith@example.com")
    assert await signs(ann)

    changed = await ask(api, MODIFY, e="ann.smith@example.com", p={"status": "inactive", "password": "another one"})
    assert changed["user"]["status"] == "inactive"
    assert not await signs(ann), "at once"
    stored = await api.cluster.manager.stores.identities.password_hash("ann.smith@example.com")
    assert stored == "another one", "as the hash function of this fixture leaves it"
    assert (await ask(api, MODIFY, e="ann.smith@example.com", p={"is_active": True}))["ok"]
    assert await signs(ann)

    told = await api.create(ann, name="hers")
    assert (await ask(api, DELETE, e="ann.smith@example.com"))["ok"]
    assert not await signs(ann)
    await api.cluster.manager.loops.deleted_users.once()
    session = await api.cluster.manager.stores.sessions.get(told["sessionId"])
    assert session is None or session.status in (SessionStatus.TERMINATING, SessionStatus.TERMINATED)
    found = await ask(api, '{ user_list(limit: 5, offset: 0, status: "deleted") { items { email } total_count } }')
    assert [u["email"] for u in found["items"]] == ["ann.smith@example.com"]
    assert (await ask(api, PURGE, e="ann.smith@example.com", p={}))["ok"]
    assert "errors" in await api.gql('{ user(email: "ann.smith@example.com") { email } }', api.admin)
    assert not (await ask(api, DELETE, e="ann.smith@example.com"))["ok"]


BAD_USERS: list[tuple[dict[str, Any], str]] = [
    ({"password": "short"}, "password"),
    ({"role": "king"}, "role"),
    ({"status": "asleep"}, "status"),
    ({"domain_name": "nowhere"}, "domain"),
    ({"group_ids": ["x"]}, "UUID"),
    ({"group_ids": ["00000000-0000-0000-0000-000000000000"]}, "group"),
    ({"username": "-"}, "username"),
    ({"resource_policy": "nothing"}, "policy"),
    ({"allowed_client_ip": ["10.0.0"]}, "allowed_client_ip"),
    ({"allowed_client_ip": ["10.0.0.1"] * 65}, "networks"),
]


async def test_bad_users_are_refused(api: Api) -> None:
    for props, said in BAD_USERS:
        answer = await ask(api, CREATE, e="new@example.com", p={"password": PASSWORD, **props})
        assert not answer["ok"]
        assert said.lower() in answer["msg"].lower()
    for email in ("new", "@x", "a b@x", "a@b@c", "a@" + "b" * 300):
        assert not (await ask(api, CREATE, e=email, p={"password": PASSWORD}))["ok"]


async def test_a_user_comes_from_allowed_networks_only(api: Api) -> None:
    user = await new_user(api, "ann@local", allowed_client_ip=["10.1.2.3/8", "2001:db8::/32"])
    ann = await new_client(api, "ann@local")
    refused = await ann.request("POST", "/admin/gql", json={"query": WHO})
    assert (refused.status, refused.json()["type"].rpartition("/")[2]) == (403, "forbidden")
    sign_in = {"type": "keypair", "domain": "default", "username": "ann@local", "password": PASSWORD}
    assert (await ann.request("POST", "/auth/authorize", json=sign_in)).status == 403
    shown = '{ user(email: "ann@local") { allowed_client_ip } }'
    assert (await ask(api, shown))["allowed_client_ip"] == ["10.0.0.0/8", "2001:db8::/32"]
    assert (await ask(api, MODIFY, e="ann@local", p={"allowed_client_ip": ["127.0.0.1", "::1"]}))["ok"]
    assert await signs(ann), "at once"
    assert (await ann.request("POST", "/auth/authorize", json=sign_in)).status == 200
    assert user["email"] == "ann@local"
    assert (await ask(api, MODIFY, e="ann@local", p={"allowed_client_ip": ["192.0.2.1"]}))["ok"]
    assert not await signs(ann)
    assert (await ask(api, MODIFY, e="ann@local", p={"allowed_client_ip": []}))["ok"]
    assert await signs(ann)
    assert (await ask(api, shown))["allowed_client_ip"] is None
    locked_out = await ask(api, MODIFY, e="admin@local", p={"allowed_client_ip": ["192.0.2.1"]})
    assert "from your address" in locked_out["msg"]
    assert (await ask(api, MODIFY, e="admin@local", p={"allowed_client_ip": ["127.0.0.0/8"]}))["ok"]


async def test_the_last_superadmin_stays(api: Api) -> None:
    own = api.admin.access_key
    second = await ask(api, NEW_KEY, u="admin@local", p={})
    for query, variables in (
        (MODIFY, {"e": "admin@local", "p": {"role": "user"}}),
        (MODIFY, {"e": "admin@local", "p": {"status": "inactive"}}),
        (DELETE, {"e": "admin@local"}),
        (PURGE, {"e": "admin@local", "p": {}}),
        (CUT_KEY, {"k": own}),
    ):
        assert not (await ask(api, query, **variables))["ok"]
    off = {"is_active": False}
    assert (await ask(api, SET_KEY, k=second["keypair"]["access_key"], p=off))["ok"], "there is the other"
    assert "superadmin" in (await ask(api, SET_KEY, k=own, p=off))["msg"]
    await new_user(api, "boss@local", role="superadmin")
    boss = await new_client(api, "boss@local")
    assert (await ask(api, MODIFY, by=boss, e="admin@local", p={"role": "user"}))["ok"]
    assert not (await ask(api, CREATE, by=api.admin, e="x@local", p={"password": PASSWORD}))["ok"], "at once"


async def test_keypairs_come_and_go(api: Api) -> None:
    made = await ask(api, NEW_KEY, u="user@local", p={"rate_limit": 5, "resource_policy": None})
    key = made["keypair"]["access_key"]
    listed: Any = await ask(api, '{ keypairs(email: "user@local") { access_key secret_key rate_limit } }')
    assert {"access_key": key, "secret_key": None, "rate_limit": 5} in listed
    client = RawClient(port=api.port, access_key=key, secret_key=made["keypair"]["secret_key"])
    assert await signs(client)
    assert (await ask(api, SET_KEY, k=key, p={"is_active": False, "is_admin": None}))["ok"]
    assert not await signs(client)
    assert (await ask(api, CUT_KEY, k=key))["ok"]
    assert not (await ask(api, CUT_KEY, k=key))["ok"]
    assert "main" in (await ask(api, CUT_KEY, k=api.user.access_key))["msg"]
    for props in ({"resource_policy": "nothing"}, {"rate_limit": -1}):
        assert not (await ask(api, NEW_KEY, u="user@local", p=props))["ok"]


async def test_keypairs_are_found_by_the_address_of_their_user(api: Api) -> None:
    await new_user(api, "ann@local")
    await new_user(api, "bob@local")
    listing = """query($f: String) {
      keypair_list(limit: 9, offset: 0, filter: $f, order: "email") { items { user_id } } }"""
    for filter_, addresses in (
        ('email ilike "%ANN%"', ["ann@local"]),
        ('email == "bob@local"', ["bob@local"]),
        ('email in ["ann@local", "bob@local"]', ["ann@local", "bob@local"]),
        ('email == "nobody@local"', []),
    ):
        assert [item["user_id"] for item in (await ask(api, listing, f=filter_))["items"]] == addresses, filter_
    refused = await api.gql(listing, api.admin, f='password like "$argon2%"')
    assert "password" in refused["errors"][0]["message"], "other columns of users are none of keypairs"


async def test_folders_of_the_purged(api: Api) -> None:
    await new_user(api, "ann@local")
    ann = await new_client(api, "ann@local")
    for name in ("own", "shared"):
        assert (await call(api, "POST", "", {"name": name, "host": "local:volume1"}, by=ann)).status == 201
    invited = {"permission": "ro", "emails": ["user@local"]}
    told = (await call(api, "POST", "/shared/invite", invited, by=ann)).json()
    assert told, told
    [invitation] = (await call(api, "GET", "/invitations/list", by=api.user)).json()["invitations"]
    await call(api, "POST", "/invitations/accept", {"inv_id": invitation["id"]}, by=api.user)
    await make(api, "shared", by=api.admin)
    assert (await ask(api, PURGE, e="ann@local", p={"purge_shared_vfolders": False}))["ok"]
    folders = api.cluster.manager.stores.folders
    assert folders is not None
    kept = {f["name"]: f for f in (await call(api, "GET", "", by=api.admin)).json() if f["is_owner"]}
    assert len(kept) == 2, "the heir had one of that name already"
    assert all(name.startswith("shared") for name in kept)
    gone = await folders.by_status([FolderStatus.DELETE_ONGOING, FolderStatus.DELETE_COMPLETE])
    assert [folder.name for folder in gone] == ["own"]


async def test_domains_and_groups_end(api: Api) -> None:
    domain = 'mutation {{ {0}_domain(name: "lab"{1}) {{ ok msg }} }}'
    made = ', props: {total_resource_slots: "{}"}'
    assert (await ask(api, domain.format("create", made)))["ok"]
    user = await new_user(api, "ann@lab", domain_name="lab")
    assert user["groups"] == []
    ann = await new_client(api, "ann@lab")
    assert await signs(ann)
    assert (await ask(api, domain.format("delete", "")))["ok"]
    assert not await signs(ann)
    assert "users" in (await ask(api, domain.format("purge", "")))["msg"]
    assert (await ask(api, PURGE, e="ann@lab", p={}))["ok"]
    assert (await ask(api, domain.format("purge", "")))["ok"]
    assert not (await ask(api, domain.format("purge", "")))["ok"]
    assert "own" in (await ask(api, 'mutation { purge_domain(name: "default") { ok msg } }'))["msg"]

    group = await ask(
        api, 'mutation { create_group(name: "g", props: {domain_name: "default"}) { ok msg group { id } } }'
    )
    gid = group["group"]["id"]
    cut = "mutation($g: UUID!) { delete_group(gid: $g) { ok msg } }"
    assert (await ask(api, cut, g=gid))["ok"]
    assert (await ask(api, "query($g: UUID!) { group(id: $g) { is_active } }", g=gid)) == {"is_active": False}
    assert (await ask(api, cut.replace("delete", "purge"), g=gid))["ok"]
    assert not (await ask(api, cut.replace("delete", "purge"), g=gid))["ok"]


async def test_presets_and_agents(api: Api) -> None:
    query = """mutation($n: String!, $p: CreateResourcePresetInput!) {
      create_resource_preset(name: $n, props: $p) { ok msg resource_preset { name shared_memory } } }"""
    slots = json.dumps({"cpu": "2", "mem": "1g"})
    made = await ask(api, query, n="small", p={"resource_slots": slots, "shared_memory": "64m"})
    assert made["resource_preset"] == {"name": "small", "shared_memory": 64 << 20}
    assert not (await ask(api, query, n="small", p={"resource_slots": slots}))["ok"]
    for bad in ({"resource_slots": "[]"}, {"resource_slots": '{"cpu": "x"}'}, {"shared_memory": "lots"}):
        assert not (await ask(api, query, n="bad", p=bad))["ok"]
    change = (
        query.replace("create_", "modify_")
        .replace("Create", "Modify")
        .replace("resource_preset { name shared_memory }", "")
    )
    assert (await ask(api, change, n="small", p={"shared_memory": "128m"}))["ok"]
    found = await ask(api, '{ resource_preset(name: "small") { resource_slots shared_memory } }')
    assert found["shared_memory"] == 128 << 20
    assert json.loads(found["resource_slots"]) == {"cpu": "2", "mem": str(1 << 30)}
    cut = 'mutation { delete_resource_preset(name: "small") { ok msg } }'
    assert [(await ask(api, cut))["ok"] for _ in range(2)] == [True, False]

    agent = 'mutation($p: ModifyAgentInput!) { modify_agent(id: "agent-1", props: $p) { ok msg } }'
    look = '{ agent(agent_id: "agent-1") { schedulable scaling_group } }'
    assert (
        await ask(
            api, 'mutation { create_scaling_group(name: "gpu", props: {driver: "static", scheduler: "fifo"}) { ok } }'
        )
    )["ok"]
    assert not (await ask(api, agent, p={"scaling_group": "nothing"}))["ok"]
    assert (await ask(api, agent, p={"scaling_group": "gpu", "schedulable": False}))["ok"]
    assert await ask(api, look) == {"schedulable": False, "scaling_group": "gpu"}
    reports = api.cluster.manager.reports
    await reports.heartbeat(api.agent.report(version="2"))
    assert await ask(api, look) == {"schedulable": False, "scaling_group": "gpu"}, "the agent names the other one still"
    await reports.heartbeat(api.agent.report(version="2", resource_group="gpu"))
    await reports.heartbeat(api.agent.report(version="2", resource_group="default"))
    assert (await ask(api, look))["scaling_group"] == "gpu"
    assert (await ask(api, agent, p={"scaling_group": "default", "schedulable": True}))["ok"]
    assert await ask(api, look) == {"schedulable": True, "scaling_group": "default"}


async def test_the_only_group_of_a_user_wins_and_several_must_be_chosen_from(api: Api) -> None:
    """Spec 03-01:275 and 03-08:262."""
    groups = {}
    for name in ("lab", "shop"):
        made = await ask(api, f'mutation {{ create_group(name: "{name}", props: {{}}) {{ group {{ id }} }} }}')
        groups[name] = made["group"]["id"]
    change = 'mutation($p: ModifyUserInput!) { modify_user(email: "other@local", props: $p) { ok msg } }'

    async def create(name: str, **body: str) -> RawReply:
        body = {"image": "python", "name": name, **body}
        return await api.other.request("POST", "/session", json={**body, "enqueueOnly": True})

    async def group_of(name: str) -> str:
        query = (
            "{ compute_session_list(limit: 9, offset: 0, filter: \"name == '" + name + "'\") { items { group_name } } }"
        )
        group: str = (await ask(api, query))["items"][0]["group_name"]
        return group

    assert (await ask(api, change, p={"group_ids": [groups["lab"]]}))["ok"]
    assert (await create("only")).status == 201
    assert (await create("by-client", group="default")).status == 201  # the published client names it always
    assert [await group_of("only"), await group_of("by-client")] == ["lab", "lab"]
    assert (await create("foreign", group="shop")).status == 404
    assert (await ask(api, change, p={"group_ids": list(groups.values())}))["ok"]
    refused = await create("which")
    assert (refused.status, refused.json()["data"]["available"]) == (400, ["lab", "shop"])
    assert (await create("chosen", group="shop")).status == 201
    assert await group_of("chosen") == "shop"
    assert (await ask(api, change, p={"group_ids": []}))["ok"]
    assert (await create("none")).status == 404


# ---- who may do what -------------------------------------------------------------------------------------

SET_QUOTA = """mutation { set_quota_scope(storage_host_name: "local:volume1", quota_scope_id: "project:GROUP",
  props: {hard_limit_bytes: 9}) { quota_scope { id } } }"""
YES = ("superadmin",)
DOMAIN = ("superadmin", "admin")
ALL = ("superadmin", "admin", "monitor", "user")
LOOK = ("superadmin", "monitor")
"""Who is allowed each of these; everybody else is refused, or sees nothing of it."""
TABLE: list[tuple[str, tuple[str, ...]]] = [
    ('{ domain(name: "lab") { name } }', LOOK),
    ('{ domain(name: "default") { name } }', ALL),
    ('{ user(email: "ann@lab") { email } }', LOOK),
    ('{ user(email: "user@local") { email } }', ("superadmin", "admin", "monitor")),
    ("{ user { email } }", ALL),
    ("{ user_list(limit: 1, offset: 0) { total_count } }", ("superadmin", "admin", "monitor")),
    ('{ keypair(access_key: "ANNS-KEY") { access_key } }', LOOK),
    ('{ keypair(access_key: "USERS-KEY") { access_key } }', ("superadmin", "admin", "monitor")),
    ('{ agent(agent_id: "agent-1") { id } }', LOOK),
    ("{ storage_volume_list(limit: 1, offset: 0) { total_count } }", YES),
    ('{ scaling_groups_for_domain(domain: "default") { name } }', ALL),
    ('mutation { create_domain(name: "ROLE", props: {}) { ok msg } }', YES),
    ('mutation { modify_domain(name: "lab", props: {description: "x"}) { ok msg } }', YES),
    ('mutation { create_group(name: "ROLE", props: {domain_name: "default"}) { ok msg } }', DOMAIN),
    ('mutation { create_group(name: "ROLE2", props: {total_resource_slots: "{}"}) { ok msg } }', YES),
    ('mutation { create_group(name: "ROLE", props: {domain_name: "lab"}) { ok msg } }', YES),
    ('mutation { modify_group(gid: "GROUP", props: {description: "x"}) { ok msg } }', DOMAIN),
    ('mutation { modify_group(gid: "GROUP", props: {allowed_vfolder_hosts: "{}"}) { ok msg } }', YES),
    ('mutation { modify_group(gid: "LABS", props: {description: "x"}) { ok msg } }', YES),
    ('mutation { create_user(email: "ROLE@x", props: {password: "PASSWORD"}) { ok msg } }', DOMAIN),
    ('mutation { create_user(email: "ROLE@y", props: {password: "PASSWORD", role: "admin"}) { ok msg } }', YES),
    ('mutation { create_user(email: "ROLE@z", props: {password: "PASSWORD", domain_name: "lab"}) { ok msg } }', YES),
    ('mutation { modify_user(email: "user@local", props: {full_name: "x"}) { ok msg } }', DOMAIN),
    ('mutation { modify_user(email: "user@local", props: {role: "user"}) { ok msg } }', DOMAIN),
    ('mutation { modify_user(email: "user@local", props: {resource_policy: "default"}) { ok msg } }', YES),
    ('mutation { modify_user(email: "admin@local", props: {full_name: "x"}) { ok msg } }', YES),
    ('mutation { modify_user(email: "ann@lab", props: {full_name: "x"}) { ok msg } }', YES),
    ('mutation { create_keypair(user_id: "user@local", props: {}) { ok msg } }', DOMAIN),
    ('mutation { create_keypair(user_id: "user@local", props: {is_admin: true}) { ok msg } }', YES),
    ('mutation { create_keypair(user_id: "admin@local", props: {}) { ok msg } }', YES),
    ('mutation { create_keypair(user_id: "ann@lab", props: {}) { ok msg } }', YES),
    ('mutation { modify_keypair(access_key: "USERS-KEY", props: {is_active: true}) { ok msg } }', DOMAIN),
    ('mutation { modify_keypair(access_key: "USERS-KEY", props: {rate_limit: 9}) { ok msg } }', YES),
    ('mutation { modify_keypair(access_key: "ANNS-KEY", props: {is_active: true}) { ok msg } }', YES),
    ('mutation { create_keypair_resource_policy(name: "ROLE", props: {}) { ok msg } }', YES),
    ('mutation { create_user_resource_policy(name: "ROLE", props: {}) { ok msg } }', YES),
    ("{ user_resource_policies { name } }", DOMAIN),
    ('mutation { create_project_resource_policy(name: "ROLE", props: {}) { ok msg } }', YES),
    ('mutation { create_resource_preset(name: "ROLE", props: {}) { ok msg } }', YES),
    ('mutation { modify_agent(id: "agent-1", props: {schedulable: true}) { ok msg } }', YES),
    ('mutation { modify_scaling_group(name: "default", props: {description: "x"}) { ok msg } }', YES),
    ('mutation { associate_scaling_group_with_domain(domain: "lab", scaling_group: "default") { ok msg } }', YES),
    (SET_QUOTA, YES),
    ("{ __schema { queryType { name } } }", YES),
]


def _answered(reply: dict[str, Any]) -> bool:
    """Whether it was done, or anything was shown."""
    if "errors" in reply or not reply.get("data"):
        return False
    [value, *_] = reply["data"].values()
    return bool(value) and (not isinstance(value, dict) or value.get("ok") is not False)


async def test_who_may_do_what(api: Api) -> None:
    """The whole table in one cluster: each row is asked by each role."""
    assert (await ask(api, 'mutation { create_domain(name: "lab", props: {}) { ok } }'))["ok"]
    labs = (await ask(api, 'mutation { create_group(name: "g", props: {domain_name: "lab"}) { ok group { id } } }'))[
        "group"
    ]["id"]
    ann = await new_user(api, "ann@lab", domain_name="lab")
    group = (await ask(api, "{ user { groups { id } } }"))["groups"][0]["id"]
    clients = {"superadmin": api.admin, "user": api.other}
    for role in (UserRole.ADMIN, UserRole.MONITOR):
        await new_user(api, f"some-{role.value}@local", role=role.value)
        clients[role.value] = await new_client(api, f"some-{role.value}@local")
    wrong = []
    for query, allowed in TABLE:
        for role_name, client in clients.items():
            words = {
                "ANNS-KEY": ann["main_access_key"],
                "USERS-KEY": api.user.access_key,
                "GROUP": group,
                "LABS": labs,
                "PASSWORD": PASSWORD,
                "ROLE": role_name,
            }
            text = query
            for word, value in words.items():
                text = text.replace(word, value)
            reply = await api.gql(text, client)
            if _answered(reply) is not (role_name in allowed):
                wrong.append((role_name, text, reply))
    assert not wrong, "\n".join(map(str, wrong))


async def test_who_administrates_a_domain_does_not_act_for_superadmins(api: Api) -> None:
    """What runs in their sessions, and what their templates say, runs with their rights."""
    await new_user(api, "head@local", role="admin")
    head = await new_client(api, "head@local")
    for owner, status in ((api.admin, 403), (api.user, 200)):
        session = (await api.create(owner))["sessionId"]
        assert (await head.request("GET", f"/session/{session}")).status == 200, "they may look"
        ran = await head.request("POST", f"/session/{session}", json={"mode": "query", "code": "out:run"})
        assert ran.status == status, ran.body
        template = await keep(owner, TEMPLATE)
        changed = await head.request("PUT", f"/template/session/{template}", json={"payload": TEMPLATE})
        assert changed.status == status, changed.body


async def test_every_mutation_is_closed_to_users(api: Api) -> None:
    """None is forgotten in the table: with whatever arguments, a user changes nothing."""
    schema = await api.gql(
        "{ __schema { mutationType { fields { name args { name type { ofType { kind name } } } } } } }", api.admin
    )
    fields = schema["data"]["__schema"]["mutationType"]["fields"]
    assert len(fields) > 40
    own = [field for field in fields if field["name"] == "initialize_totp"]
    assert own, "their own account is theirs to change; it names nobody"
    assert own[0]["args"] == []
    samples = {"UUID": '"00000000-0000-0000-0000-000000000000"', "String": '"default"'}
    for field in fields:
        if field in own:
            continue
        given = []
        for argument in field["args"]:
            kind = argument["type"]["ofType"]
            if kind is None:
                continue
            value = samples.get(kind["name"], "{}")
            if kind["name"] in ("CreateScalingGroupInput", "UserInput"):
                value = '{driver: "static", scheduler: "fifo"}' if "Group" in kind["name"] else '{password: "12345678"}'
            given.append(f"{argument['name']}: {value}")
        selection = "{ ok msg }" if "quota_scope" not in field["name"] else "{ quota_scope { id } }"
        arguments = f"({', '.join(given)})" if given else ""
        reply = await api.gql(f"mutation {{ {field['name']}{arguments} {selection} }}", api.user)
        assert not _answered(reply), (field["name"], reply)


async def test_the_schema_is_not_told_to_everybody(api: Api) -> None:
    hidden = await api.gql('{ domains { name } ...F } fragment F on Query { __type(name: "User") { name } }', api.user)
    assert "schema" in hidden["errors"][0]["message"]
