"""Templates, dotfiles, bootstrap scripts and the state of the installation, as clients use them."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from ai.backend.common.states import UserRole
from ai.backend.manager.dotfiles.model import MAX_DOTFILE_BYTES
from tests.component.manager.api.conftest import Api
from tests.support.signed_http import RawClient

TEMPLATE = """
---
api_version: v1
kind: taskTemplate
metadata:
  name: sample
  tag: example-tag
spec:
  kernel:
    image: python
    environ:
      MYCONFIG: MAIN
      OTHER: no
    git:
      branch: '19.09'
      commit: 10daee9
      repository: https://example.com/lablup/agent.git
      credential: {username: me, password: "it's secret"}
      destinationDir: /home/work/agent
    run:
      bootstrap: echo ready
  resources:
    cpu: 2
    mem: 1g
"""
FULL = """
api_version: v1
kind: taskTemplate
metadata: {name: full}
spec:
  type: batch
  kernel: {image: python, run: {startup: ./main}}
  mounts: {data: /home/work/in, models: ""}
  mountOptions: {data: {permission: ro}}
  clusterSize: 2
  cluster_mode: single-node
  priority: 7
  startsAt: 1h
  batchTimeout: 30m
  preopenPorts: [8080, "9090"]
  variant_requirements: ["mock::model::a"]
"""
START = {"enqueueOnly": True, "reuseIfExists": True, "dependencies": [], "config": {"mounts": []}}


async def keep(client: RawClient, payload: str, kind: str = "session") -> str:
    body = {"payload": payload, "group_name": "default", "domain_name": "default", "owner_access_key": None}
    reply = await client.request("POST", f"/template/{kind}", json=body)
    assert reply.status == 200, reply.body
    (made,) = reply.json()
    return str(made["id"])


async def test_a_template_is_kept_read_and_changed_by_its_owner(api: Api) -> None:
    kept = await keep(api.user, TEMPLATE)
    (listed,) = (await api.user.request("GET", "/template/session", json={"all": False})).json()
    facts = (listed["id"], listed["name"], listed["is_owner"], listed["type"], listed["group_name"])
    assert facts == (kept, "sample", True, "user", "default")
    text = (await api.user.request("GET", f"/template/session/{kept}?format=yaml")).body.decode()
    assert "OTHER: 'no'" in text
    told = json.loads((await api.user.request("GET", f"/template/session/{kept}?format=json")).body)
    assert told["spec"]["resources"] == {"cpu": "2", "mem": "1g"}
    for method in ("GET", "PUT", "DELETE"):
        body = {"payload": TEMPLATE} if method == "PUT" else None
        reply = await api.other.request(method, f"/template/session/{kept}", json=body)
        assert (reply.status, reply.problem) == (404, "not-found")
    assert (await api.other.request("GET", "/template/session", json={"all": True})).json() == []
    assert len((await api.admin.request("GET", "/template/session?all=true")).json()) == 1
    changed = TEMPLATE.replace("name: sample", "name: changed")
    assert (await api.user.request("PUT", f"/template/session/{kept}", json={"payload": changed})).status == 200
    assert (await api.user.request("GET", "/template/session")).json()[0]["name"] == "changed"
    assert (await api.user.request("DELETE", f"/template/session/{kept}")).json() == {"success": True}
    assert (await api.user.request("DELETE", f"/template/session/{kept}")).status == 404


BAD_TEMPLATES = [
    ("a: [", ""),
    ("just text", ""),
    ("a: &x [1]\nb: *x", ""),
    ("[" * 40 + "]" * 40, ""),
    ('{"a":' * 40 + "1" + "}" * 40, ""),
    (TEMPLATE.replace("taskTemplate", "clusterTemplate"), "kind"),
    (TEMPLATE.replace("    image: python\n", ""), "spec.kernel: Object missing required field `image`"),
    (TEMPLATE.replace("    image:", "    imagee: x\n    image:"), "spec.kernel: Object contains unknown field"),
    (TEMPLATE.replace("https://example.com/lablup/agent.git", "ext::sh -c id"), "spec.kernel.git: `repository`"),
    (TEMPLATE.replace("branch: '19.09'", "branch: --upload-pack=x"), "spec.kernel.git: `branch`"),
    (TEMPLATE.replace("/home/work/agent", "/home/work/../../etc"), "spec.kernel.git: `destination_dir`"),
    (TEMPLATE.replace("cpu: 2", "cpu: [2]"), "spec.resources[...]: Expected `str`"),
    (FULL.replace("30m", "soon"), "spec: `batch_timeout`: not a duration"),
    (FULL.replace("permission: ro", "permission: all"), "spec.mount_options[...].permission: Invalid enum value"),
    (FULL.replace("8080", "web"), "spec.preopen_ports[0]: Expected `int`"),
]


async def test_a_template_that_cannot_be_read_is_refused_with_its_place(api: Api) -> None:
    for payload, place in BAD_TEMPLATES:
        reply = await api.user.request("POST", "/template/session", json={"payload": payload})
        assert (reply.status, reply.problem) == (400, "invalid-api-params"), (payload, reply.body)
        assert reply.json()["data"]["payload"].startswith(place), (place, reply.body)
    assert (await api.user.request("GET", "/template/session")).json() == []


async def test_a_session_is_made_from_a_template(api: Api) -> None:
    kept = await keep(api.user, TEMPLATE)
    body = {**START, "template_id": kept, "name": "from-template", "tag": "mine"}
    config = {"mounts": [], "environ": {"OTHER": "yes"}, "resources": {"mem": "512m"}}
    reply = await api.user.request("POST", "/session/_/create-from-template", json={**body, "config": config})
    assert reply.status == 201, reply.body
    session = await api.cluster.manager.services.sessions.get(api.cluster.user, "from-template")
    assert session.requested_slots.to_json() == {"cpu": "2", "mem": str(512 << 20)}
    assert dict(session.environ) == {"MYCONFIG": "MAIN", "OTHER": "yes"}
    assert (session.tag, session.group_name) == ("mine", "default")
    script = session.bootstrap_script or ""
    assert "git -c" in script
    assert "--branch 19.09 -- https://example.com/lablup/agent.git /home/work/agent" in script
    assert "BAI_GIT_PASSWORD='it'\"'\"'s secret'" in script
    assert script.endswith("echo ready")
    again = await api.user.request("POST", "/session/_/create-from-template", json=body)
    assert (again.status, again.json()["created"]) == (200, False)
    stranger = await api.other.request("POST", "/session/_/create-from-template", json={**body, "name": "stolen"})
    assert stranger.status == 404
    unknown = {**body, "template_id": str(uuid4()), "name": "nothing"}
    assert (await api.user.request("POST", "/session/_/create-from-template", json=unknown)).status == 404


async def test_a_template_holds_every_parameter_of_a_session(api: Api) -> None:
    for name in ("data", "models", "other"):
        made = await api.user.request("POST", "/folders", json={"name": name, "host": "local:volume1"})
        assert made.status == 201, made.body
    body = {**START, "template_id": await keep(api.user, FULL.replace('["mock::model::a"]', "[]")), "name": "full-one"}
    reply = await api.user.request("POST", "/session/_/create-from-template", json=body)
    assert reply.status == 201, reply.body
    session = await api.cluster.manager.services.sessions.get(api.cluster.user, "full-one")
    assert (session.cluster_size, session.priority, session.batch_timeout_s, session.preopen_ports) == (
        2, 7, 1800.0, (8080, 9090),
    )  # fmt: skip
    assert session.starts_at is not None
    mounts = {mount.name: (mount.target, mount.read_only) for mount in session.vfolder_mounts}
    assert mounts == {"data": ("/home/work/in", True), "models": ("/home/work/models", False)}
    config = {"mounts": ["other", "data"], "preopen_ports": [7070]}
    body = {**body, "name": "other-one", "clusterSize": 1, "priority": 3, "config": config}
    reply = await api.user.request("POST", "/session/_/create-from-template", json=body)
    assert reply.status == 201, reply.body
    session = await api.cluster.manager.services.sessions.get(api.cluster.user, "other-one")
    assert (session.cluster_size, session.priority, session.preopen_ports) == (1, 3, (7070,))
    mounts = {mount.name: (mount.target, mount.read_only) for mount in session.vfolder_mounts}
    assert mounts == {"other": ("/home/work/other", False), "data": ("/home/work/in", True)}


async def test_the_kernels_of_a_cluster_have_the_roles_of_its_template(api: Api) -> None:
    main = await keep(api.user, TEMPLATE)
    worker = await keep(
        api.user, TEMPLATE.replace("cpu: 2", "cpu: 1").replace("MAIN", "WORKER") + "  resource_opts: {shmem: 128m}\n"
    )

    def cluster(*nodes: dict[str, Any]) -> str:
        spec = {"environ": {"SHARED": "1"}, "nodes": list(nodes)}
        metadata = {"name": "c"}
        return json.dumps(
            {"api_version": "v1", "kind": "clusterTemplate", "mode": "single-node", "metadata": metadata, "spec": spec}
        )

    lead, crew = {"role": "main", "session_template": main}, {"role": "worker", "session_template": worker}
    kept = await keep(api.user, cluster({**crew, "replicas": 2}, lead), "cluster")
    for nodes in (
        [crew],
        [lead, lead],
        [lead, {**crew, "session_template": str(uuid4())}],
        [lead, {**crew, "role": "X"}],
    ):
        reply = await api.user.request("POST", "/template/cluster", json={"payload": cluster(*nodes)})
        assert reply.status == 400, reply.body
    body = {"template_id": kept, "clientSessionToken": "clustered", "maxWaitSeconds": 30, "scaling_group": "default"}
    reply = await api.user.request("POST", "/session/_/create-cluster", json=body)
    assert (reply.status, reply.json()["status"]) == (201, "RUNNING"), reply.body
    session = await api.cluster.manager.services.sessions.get(api.cluster.user, "clustered")
    assert [(k.cluster_hostname, k.cluster_role, str(k.requested_slots["cpu"])) for k in session.kernels] == [
        ("main1", "main", "2"),
        ("worker1", "worker", "1"),
        ("worker2", "worker", "1"),
    ]
    told = {spec.cluster_hostname: spec for spec in api.agent.created}
    assert (told["main1"].environ["MYCONFIG"], told["worker2"].environ["MYCONFIG"]) == ("MAIN", "WORKER")
    assert told["worker2"].environ["SHARED"] == "1"
    assert (told["main1"].shmem_bytes, told["worker1"].shmem_bytes) == (64 << 20, 128 << 20)
    assert told["worker1"].environ["BACKENDAI_CLUSTER_REPLICAS"] == "main:1,worker:2"


async def promoted(api: Api, role: UserRole) -> RawClient:
    """The other user, who now has that role."""
    people = api.cluster.manager.services.users
    await people.modify_user(api.cluster.admin, "other@local", {"role": role})
    return api.other


async def test_dotfiles_of_every_scope_reach_the_agent(api: Api) -> None:
    def body(path: str, data: str, **more: str) -> dict[str, Any]:
        return {"path": path, "data": data, "permission": "600", "owner_access_key": None, **more}

    for client, scope, one in (
        (api.user, "user-config", body(".a/config", "mine")),
        (api.admin, "group-config", body(".a/config", "ours", group="default", domain="default")),
        (api.admin, "group-config", body(".b", "group", group="default")),
        (api.admin, "domain-config", body(".b", "domain", domain="default")),
        (api.admin, "domain-config", body("./.c", "é", domain="default")),
    ):
        reply = await client.request("POST", f"/{scope}/dotfiles", json=one)
        assert (reply.status, reply.json()) == (200, {}), reply.body
    assert (await api.user.request("POST", "/user-config/dotfiles", json=body(".a/config", "x"))).status == 409
    changed = await api.user.request(
        "PATCH", "/user-config/dotfiles", json={**body(".a/config", "new"), "permission": "755"}
    )
    assert changed.status == 200
    listed = await api.user.request("GET", f"/user-config/dotfiles?onwer_access_key={api.user.access_key}")
    assert listed.json() == [{"path": ".a/config", "permission": "755", "data": "new"}]
    found = await api.user.request("GET", "/group-config/dotfiles?path=.b&group=default")
    assert found.json()["data"] == "group"
    for scope, more in (("group-config", {"group": "default"}), ("domain-config", {"domain": "default"})):
        refused = await api.user.request("POST", f"/{scope}/dotfiles", json=body(".x", "x", **more))
        assert (refused.status, refused.problem) == (403, "forbidden")
    assert (await api.other.request("GET", "/user-config/dotfiles")).json() == []

    script = await api.user.request("POST", "/user-config/bootstrap-script", json={"script": "echo kept"})
    assert script.status == 200
    assert (await api.user.request("GET", "/user-config/bootstrap-script")).json() == "echo kept"
    shown = "query($k: String) { keypair(access_key: $k) { dotfiles bootstrap_script } }"
    for viewer in (api.user, api.admin):
        told = (await api.gql(shown, viewer, k=api.user.access_key))["data"]["keypair"]
        assert json.loads(told["dotfiles"]) == listed.json()
        assert told["bootstrap_script"] == "echo kept"
    await api.user.request("POST", "/session", json={"image": "python", "name": "dotted", "maxWaitSeconds": 30})
    (spec,) = api.agent.created
    assert [(d.path, d.data.decode(), d.mode) for d in spec.dotfiles] == [
        (".a/config", "new", 0o755),
        (".b", "group", 0o600),
        (".c", "é", 0o600),
    ]
    assert spec.bootstrap_script == "echo kept"
    for boss in (api.admin, await promoted(api, UserRole.MONITOR)):
        await boss.request("POST", "/user-config/dotfiles", json=body(".own", "own"))
        made = {"image": "python", "name": "boss-session", "maxWaitSeconds": 30}
        assert (await boss.request("POST", "/session", json=made)).status == 201
        assert [d.path for d in api.agent.created[-1].dotfiles] == [".own"], "nothing of those who may less"
    gone = await api.user.request("DELETE", "/user-config/dotfiles?path=.a/config")
    assert gone.json() == {"success": True}
    assert (await api.user.request("GET", "/user-config/dotfiles?path=.a/config")).status == 404


BAD_DOTFILES = [
    ("/etc/passwd", "644", "x"),
    ("../.x", "644", "x"),
    (".x/../../y", "644", "x"),
    ("..", "644", "x"),
    (".", "644", "x"),
    ("plain", "644", "x"),
    (".ssh/authorized_keys", "644", "x"),
    (".a\nb", "644", "x"),
    (".x", "9", "x"),
    (".x", "4755", "x"),
    (".x", "044", "x"),
    (".x", "644", "a\0b"),
    (".x", "644", "x" * (MAX_DOTFILE_BYTES + 1)),
    ("." + "x" * 300, "644", "x"),
]


async def test_dotfiles_that_are_refused(api: Api) -> None:
    for path, permission, data in BAD_DOTFILES:
        body = {"path": path, "permission": permission, "data": data}
        reply = await api.user.request("POST", "/user-config/dotfiles", json=body)
        assert reply.status in (400, 406), (path, reply.body)
        assert reply.problem in ("invalid-api-params", "limit-exceeded")
    assert (await api.user.request("GET", "/user-config/dotfiles")).json() == []


async def test_a_frozen_installation_takes_no_sessions(api: Api) -> None:
    for status, client, code in (("frozen", api.user, 403), ("melted", api.admin, 400), ("frozen", api.admin, 204)):
        assert (await client.request("PUT", "/manager/status", json={"status": status})).status == code
    told = (await api.user.request("GET", "/manager/status", json={"status": "running"})).json()
    assert (told["status"], told["active_sessions"]) == ("frozen", 0)
    reply = await api.user.request("POST", "/session", json={"image": "python", "name": "cold", "enqueueOnly": True})
    assert (reply.status, reply.problem) == (503, "server-frozen")
    assert (await api.admin.request("PUT", "/manager/status", json={"status": "running"})).status == 204
    reply = await api.user.request("POST", "/session", json={"image": "python", "name": "warm", "maxWaitSeconds": 30})
    assert reply.status == 201
    ending = {"status": "frozen", "force_kill": True}
    assert (await api.admin.request("PUT", "/manager/status", json=ending)).status == 204
    session = await api.cluster.manager.services.sessions.get(api.cluster.user, "warm")
    ended = await api.cluster.manager.services.writer.wait_until(session.id, lambda s: s.status.is_final, timeout_s=30)
    assert ended is not None


async def test_an_announcement_is_told_to_everybody(api: Api) -> None:
    assert (await api.user.request("GET", "/manager/announcement")).json() == {"enabled": False, "message": ""}
    words = {"enabled": True, "message": "# We move"}
    assert (await api.user.request("POST", "/manager/announcement", json=words)).status == 403
    assert (await api.admin.request("POST", "/manager/announcement", json={"enabled": True})).status == 400
    assert (await api.admin.request("POST", "/manager/announcement", json=words)).status == 204
    assert (await api.user.request("GET", "/manager/announcement")).json() == words
    gone = await api.admin.request("POST", "/manager/announcement", json={"enabled": False, "message": None})
    assert gone.status == 204
    assert (await api.user.request("GET", "/manager/announcement")).json()["enabled"] is False


async def test_agents_are_excluded_and_included(api: Api) -> None:
    def operation(op: str, *agents: str) -> dict[str, Any]:
        return {"op": op, "args": list(agents)}

    path = "/manager/scheduler/operation"
    assert (await api.user.request("POST", path, json=operation("exclude-agents", "agent-1"))).status == 403
    assert (await api.admin.request("POST", path, json=operation("exclude-agents", "agent-1", "none"))).status == 404
    agents = api.cluster.manager.services.agents
    assert (await agents.agent(api.cluster.admin, "agent-1")).schedulable
    assert (await api.admin.request("POST", path, json=operation("exclude-agents", "agent-1"))).status == 204
    assert not (await agents.agent(api.cluster.admin, "agent-1")).schedulable
    assert (await api.admin.request("POST", path, json=operation("include-agents", "agent-1"))).status == 204
    assert (await agents.agent(api.cluster.admin, "agent-1")).schedulable
