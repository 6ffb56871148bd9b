"""One test for each row of docs/reference/wire-conflicts.md, named after it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.component.manager.api.conftest import Api
from tests.support.signed_http import read_chunk, read_head

PAGE = Path(__file__).parents[4] / "docs/reference/wire-conflicts.md"


def test_the_page_and_the_tests_are_the_same_list() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) == len(set(rows))
    tests = {name.removeprefix("test_row_") for name in globals() if name.startswith("test_row_")}
    assert set(rows) == tests


async def test_row_body_hash(api: Api) -> None:
    for sign_body in (True, False):
        reply = await api.user.request("POST", "/resource/check-presets", json={}, sign_body=sign_body)
        assert reply.status == 200


async def test_row_default_port(api: Api) -> None:
    client = api.user
    for host, signed in (("h.example", "h.example:80"), ("h.example:80", "h.example"), ("H.example", "h.EXAMPLE:443")):
        client.host, client.signed_host = host, signed
        assert (await client.request("GET", "/resource/presets")).status == 200


async def test_row_date_header(api: Api) -> None:
    for name in ("Date", "X-BackendAI-Date"):
        for rfc7231 in (True, False):
            reply = await api.user.request("GET", "/resource/presets", date_header=name, rfc7231=rfc7231)
            assert reply.status == 200


async def test_row_override_signature(api: Api) -> None:
    for signed, status in (("POST", 401), ("REPORT", 200)):
        how: dict[str, Any] = {"headers": {"X-Method-Override": "REPORT"}, "signed_method": signed}
        assert (await api.user.request("POST", "/resource/presets", **how)).status == status


async def test_row_graphql_path(api: Api) -> None:
    for path in ("/admin/graphql", "/admin/gql", "/v5/admin/graphql"):
        reply = await api.user.request("POST", path, json={"query": "{ domains { name } }"})
        assert reply.json() == {"data": {"domains": [{"name": "default"}]}}


async def test_row_graphql_errors(api: Api) -> None:
    for query in ("{", "{ nothing }", "{ image(reference: 1) { name } }", '{ keypair(access_key: "x") { user_id } }'):
        assert (await api.gql(query))["errors"]


async def test_row_session_id_field(api: Api) -> None:
    told = await api.create(name="both-ids")
    assert told["sessId"] == "both-ids"
    for ref in (told["sessId"], told["sessionId"]):
        assert (await api.user.request("GET", f"/session/{ref}")).status == 200


async def test_row_token_field(api: Api) -> None:
    assert (await api.create(clientSessionToken="by-token"))["sessId"] == "by-token"
    body = {"image": "python", "clientSessionToken": "by-token", "name": "by-name"}
    assert (await api.user.request("POST", "/session", json=body)).status == 400


async def test_row_create_path(api: Api) -> None:
    for n, path in enumerate(("/session", "/session/create", "/kernel/create", "/v5/session", "/v2/kernel/create")):
        body = {"image": "python", "name": f"path-{n}", "enqueueOnly": True}
        assert (await api.user.request("POST", path, json=body)).status == 201


async def test_row_bad_parameters_status(api: Api) -> None:
    reply = await api.user.request("POST", "/session", json={"image": "python", "clusterSize": "many"})
    assert (reply.status, reply.problem) == (400, "invalid-api-params")
    assert isinstance(reply.json()["data"]["clusterSize"], str)


async def test_row_destroy_status(api: Api) -> None:
    await api.create(name="doomed")
    reply = await api.user.request("DELETE", "/session/doomed")
    assert reply.status == 200
    assert "status" in reply.json()["stats"]


async def test_row_body_of_reads(api: Api) -> None:
    await api.create(name="reads")
    by_body = await api.user.request("GET", "/session/reads/files", json={"path": "d"})
    by_query = await api.user.request("GET", "/session/reads/files?path=d")
    both = await api.user.request("GET", "/session/reads/files?path=d", json={"path": "other"})
    assert by_body.json() == by_query.json() == both.json()


async def test_row_continue_mode(api: Api) -> None:
    await api.create(name="runs")
    for mode in ("continue", "continued"):
        body: dict[str, Any] = {"mode": "query", "code": "out:a out:b", "runId": mode}
        await api.user.request("POST", "/session/runs", json=body)
        reply = await api.user.request("POST", "/session/runs", json={"mode": mode, "code": "", "runId": mode})
        assert reply.json()["result"]["console"] == [["stdout", "b"]]


async def test_row_files_json(api: Api) -> None:
    await api.create(name="lists")
    told = (await api.user.request("GET", "/session/lists/files")).json()
    assert isinstance(told["files"], str)
    assert {"filename", "size", "mtime", "mode"} <= set(json.loads(told["files"])[0])


async def _read_stream(api: Api, target: str, until: bytes) -> list[tuple[str, Any]]:
    reader, writer = await api.user.send(api.user.head("GET", target, content_type=None))
    status, _ = await read_head(reader)
    assert status == 200
    text = b""
    while until not in text:
        chunk = await asyncio.wait_for(read_chunk(reader), 10)
        assert chunk, text
        text += chunk
    writer.close()
    return [(name, json.loads(data)) for name, data in re.findall(r"event: (\w+)\ndata: (.*)\n", text.decode())]


async def _task(api: Api, target: str) -> list[tuple[str, Any]]:
    async def work(progress: Any) -> str:
        await asyncio.sleep(0.1)
        await progress.update(1, 1, "")
        return "done"

    task_id = await api.cluster.manager.services.tasks.start(api.cluster.user, "test", work)
    return await _read_stream(api, f"{target}{task_id}", b"server_close\ndata: {}\n\n")


async def test_row_task_parameter(api: Api) -> None:
    for name in ("taskId", "task_id"):
        assert await _task(api, f"/events/background-task?{name}=")


async def test_row_task_events(api: Api) -> None:
    names = [name for name, _ in await _task(api, "/events/background-task?taskId=")]
    assert {"bgtask_done", "task_done", "bgtask_updated", "task_updated"} <= set(names)


@pytest.fixture
async def ended(api: Api) -> str:
    told = await api.create(name="ended")
    await api.user.request("DELETE", "/session/ended")
    return str(told["sessionId"])


async def test_row_events_path(api: Api, ended: str) -> None:
    for path in ("/events/session", "/stream/session/_/events", "/stream/kernel/_/events"):
        events = await _read_stream(api, f"{path}?sessionId={ended}&lastEventId=0", b"server_close")
        assert "session_terminated" in [name for name, _ in events]


async def test_row_events_session(api: Api, ended: str) -> None:
    for query in (f"sessionId={ended}", "sessionName=ended", "sessionId=ended"):
        events = await _read_stream(api, f"/events/session?{query}&lastEventId=0", b"session_terminated")
        assert "session_started" in [name for name, _ in events]


async def test_row_stream_end(api: Api, ended: str) -> None:
    events = await _read_stream(api, f"/events/session?sessionId={ended}", b"server_close\ndata: {}\n\n")
    assert events == [("server_close", {})]


async def test_row_status_history(api: Api) -> None:
    await api.create(name="waits", enqueueOnly=True, starts_at="1h")
    history = (await api.user.request("GET", "/session/waits/status-history")).json()["result"]
    assert (history["preparing"], history["terminated"]) == (None, None)


async def test_row_version_number(api: Api) -> None:
    assert (await api.user.__class__(port=api.port).request("GET", "/")).json()["version"] == "v7.20230615"


async def test_row_upload_limit_status(api: Api) -> None:
    await api.create(name="files")
    part = b'--B\r\nContent-Disposition: form-data; name="src"; filename="%s"\r\n\r\n%s\r\n'
    for body in (part % (b"big", b"x" * (2**20 + 1)), b"".join(part % (b"f%d" % n, b"") for n in range(21))):
        reply = await api.user.request(
            "POST", "/session/files/upload", body=body + b"--B--\r\n", content_type="multipart/form-data; boundary=B"
        )
        assert (reply.status, bool(reply.json()["data"])) == (400, True)


async def test_row_shmem_unit(api: Api) -> None:
    await api.create(name="shared", config={"resource_opts": {"shmem": "32m"}, "resources": {"mem": "64m"}})
    reply = await api.gql("{ compute_session_list(limit: 1, offset: 0) { items { resource_opts } } }")
    options = json.loads(reply["data"]["compute_session_list"]["items"][0]["resource_opts"])
    assert options["shmem"] == str(32 << 20)


async def test_row_occupied_slots_field(api: Api) -> None:
    await api.create(name="holds")
    query = "{ compute_session_list(limit: 1, offset: 0) { items { occupied_slots occupying_slots } } }"
    item = (await api.gql(query))["data"]["compute_session_list"]["items"][0]
    assert item["occupied_slots"] == item["occupying_slots"] != "{}"


async def test_row_reuse_default(api: Api) -> None:
    first = await api.create(name="again")
    assert (await api.create(name="again"))["sessionId"] == first["sessionId"]


async def test_row_crash_of_user_code(api: Api) -> None:
    """What the runner does is tested with the runner; here: a failed run leaves its session running."""
    await api.create(name="runs")
    assert (await api.user.request("POST", "/session/runs", json={"mode": "query", "code": "boom"})).status == 409
    assert (await api.user.request("GET", "/session/runs")).json()["status"] == "RUNNING"


async def test_row_folder_delete(api: Api) -> None:
    for _ in range(2):
        assert (await api.user.request("POST", "/folders", json={"name": "data"})).status == 201
        assert (await api.user.request("DELETE", "/folders/data")).status == 204
        assert (await api.user.request("GET", "/folders")).json() == []
    found = (await api.user.request("GET", "/folders/_/id", json={"name": "data"})).json()
    restored = await api.user.request("POST", "/folders/restore-from-trash-bin", json=found)
    assert restored.status == 204
    assert len((await api.user.request("GET", "/folders")).json()) == 1


async def test_row_folder_group(api: Api) -> None:
    groups = await api.cluster.manager.services.identity.groups(api.cluster.admin)
    for name, body in (("a", {"group": "default"}), ("b", {"group_id": str(groups[0].id)})):
        reply = await api.admin.request("POST", "/folders", json={"name": name, **body})
        assert (reply.status, reply.json()["group_name"]) == (201, "default")
    reply = await api.admin.request("POST", "/folders", json={"name": "c", "group": None})
    assert (reply.status, reply.json()["group"]) == (201, None)


async def test_row_folder_mkdir(api: Api) -> None:
    await api.user.request("POST", "/folders", json={"name": "data"})
    for path, made in (("one", ["one"]), (["two", "three"], ["two", "three"])):
        reply = await api.user.request("POST", "/folders/data/mkdir", json={"path": path, "parents": False})
        assert (reply.status, [r["item"] for r in reply.json()["results"]["success"]]) == (201, made)


async def test_row_folder_invite(api: Api) -> None:
    for name, field in (("a", "emails"), ("b", "user_ids")):
        await api.user.request("POST", "/folders", json={"name": name})
        reply = await api.user.request("POST", f"/folders/{name}/invite", json={"perm": "ro", field: ["other@local"]})
        assert reply.json() == {"invited_ids": ["other@local"]}


async def test_row_folder_download(api: Api) -> None:
    await api.user.request("POST", "/folders", json={"name": "data"})
    await api.user.request("POST", "/folders/data/request-upload", json={"path": "file", "size": 0})
    for field in ("path", "file"):
        reply = await api.user.request("POST", "/folders/data/request-download", json={field: "file"})
        assert set(reply.json()) == {"token", "url"}


async def test_row_graphql_reply(api: Api) -> None:
    for query in ("{ domains { name } }", "{", '{ keypair(access_key: "x") { user_id } }'):
        assert "data" in await api.gql(query)


async def test_row_text_ids(api: Api) -> None:
    group = (await api.gql("{ groups { id } }"))["data"]["groups"][0]["id"]
    for kind in ("UUID", "String", "ID"):
        reply = await api.gql(f"query($id: {kind}!) {{ group(id: $id) {{ name }} }}", id=group)
        assert reply["data"] == {"group": {"name": "default"}}
        query = f"query($g: {kind}) {{ vfolder_list(limit: 1, offset: 0, group_id: $g) {{ total_count }} }}"
        assert (await api.gql(query, g=group))["data"] == {"vfolder_list": {"total_count": 0}}


async def test_row_group_argument(api: Api) -> None:
    group = (await api.gql("{ groups { id } }"))["data"]["groups"][0]["id"]
    for kind, named in (("$gid: UUID!", {"gid": group}), ("$name: String!", {"name": "default"})):
        argument = next(iter(named))
        query = f"mutation({kind}) {{ modify_group({argument}: ${argument}, props: {{}}) {{ ok }} }}"
        assert (await api.gql(query, api.admin, **named))["data"] == {"modify_group": {"ok": True}}


async def test_row_resource_group_input(api: Api) -> None:
    for kind in ("ScalingGroupInput", "CreateScalingGroupInput"):
        query = f"mutation($n: String!, $p: {kind}!) {{ create_scaling_group(name: $n, props: $p) {{ ok }} }}"
        props = {"driver": "static", "scheduler": "fifo"}
        assert (await api.gql(query, api.admin, n=kind, p=props))["data"] == {"create_scaling_group": {"ok": True}}


async def test_row_public_resource_groups(api: Api) -> None:
    query = "mutation($n: String!, $p: ScalingGroupInput!) { create_scaling_group(name: $n, props: $p) { ok } }"
    for name, said in (("closed", {}), ("open", {"is_public": True})):
        await api.gql(query, api.admin, n=name, p={"driver": "static", "scheduler": "fifo", **said})
    groups = (await api.user.request("GET", "/scaling-groups?group=default")).json()["scaling_groups"]
    assert [group["name"] for group in groups] == ["default", "open"]


async def test_row_vfolder_hosts(api: Api) -> None:
    query = """mutation($n: String!, $h: {kind}) {{
      create_domain(name: $n, props: {{allowed_vfolder_hosts: $h}}) {{ domain {{ allowed_vfolder_hosts }} }} }}"""
    for kind, sent in (("[String]", ["local:volume1"]), ("JSONString", '{"local:volume1": ["create-vfolder"]}')):
        reply = await api.gql(query.format(kind=kind), api.admin, n=kind.strip("[]"), h=sent)
        hosts = json.loads(reply["data"]["create_domain"]["domain"]["allowed_vfolder_hosts"])
        assert "create-vfolder" in hosts["local:volume1"]


async def test_row_container_role(api: Api) -> None:
    told = await api.create(name="roles")
    query = """query($s: UUID!, $r: String) {
      compute_container_list(limit: 1, offset: 0, session_id: $s, role: $r) { items { role cluster_role } } }"""
    for role in ("master", "main"):
        reply = await api.gql(query, s=told["sessionId"], r=role)
        assert reply["data"]["compute_container_list"]["items"] == [{"role": "master", "cluster_role": "main"}]


async def test_row_created_keypair(api: Api) -> None:
    for noun in ("domain", "group"):
        query = f'mutation {{ create_{noun}(name: "new", props: {{}}) {{ {noun} {{ name }} keypair {{ user_id }} }} }}'
        reply = await api.gql(query, api.admin)
        assert reply["data"] == {f"create_{noun}": {noun: {"name": "new"}, "keypair": None}}


async def test_row_folder_files(api: Api) -> None:
    await api.user.request("POST", "/folders", json={"name": "data"})
    await api.user.request("POST", "/folders/data/mkdir", json={"path": "d"})
    listing = (await api.user.request("GET", "/folders/data/files")).json()
    assert json.loads(listing["files"])[0]["mode"].startswith("drwx")
    assert listing["items"][0]["name"] == json.loads(listing["files"])[0]["filename"] == "d"


async def test_row_folder_rename_file(api: Api) -> None:
    await api.user.request("POST", "/folders", json={"name": "data"})
    await api.user.request("POST", "/folders/data/mkdir", json={"path": "d"})
    for is_dir, status in ((False, 400), (None, 200)):
        body = {"target_path": "d", "new_name": "e", "is_dir": is_dir}
        assert (await api.user.request("POST", "/folders/data/rename-file", json=body)).status == status


async def test_row_folder_share_end(api: Api) -> None:
    made = (await api.admin.request("POST", "/folders", json={"name": "team", "group": "default"})).json()
    await api.admin.request("POST", "/folders/team/share", json={"permission": "rw", "emails": ["user@local"]})
    body = {"vfolder": made["id"], "user": str(api.cluster.user.user_id)}
    assert (await api.admin.request("POST", "/folders/_/shared", json=body)).status == 400
    assert (await api.admin.request("POST", "/folders/_/shared", json={**body, "perm": None})).status == 200
    assert (await api.admin.request("GET", "/folders/_/shared")).json() == {"shared": []}


async def test_row_folder_clone(api: Api) -> None:
    await api.user.request("POST", "/folders", json={"name": "data", "cloneable": True})
    assert (await api.user.request("POST", "/folders/data/clone", json={"target_name": "c"})).status == 400
    body = {"target_name": "c", "target_host": None}
    clone = await api.user.request("POST", "/folders/data/clone", json=body)
    assert (clone.status, clone.json()["host"]) == (200, "local:volume1")


async def test_row_container_stats(api: Api) -> None:
    await api.create(name="measured")
    reply = (await api.user.request("DELETE", "/session/measured")).json()
    assert reply["stats"]["cpu_used"] == {"current": "12", "pct": "0", "unit_hint": "msec"}
    names = ("mem_max_bytes", "mem_cur_bytes", "net_rx_bytes", "net_tx_bytes", "io_read_bytes", "io_write_bytes")
    zeros = dict.fromkeys((*names, "io_max_scratch_size", "io_cur_scratch_size"), 0)
    assert reply["containerStats"] == {"cpu_used": 12, **zeros}


async def test_row_event_session_id(api: Api, ended: str) -> None:
    events = await _read_stream(api, f"/events/session?sessionId={ended}&lastEventId=0", b"session_terminated")
    assert {(data["sessionId"], data["sessionName"]) for _, data in events} == {(ended, "ended")}


async def test_row_start_timeout_status(api: Api) -> None:
    body = {"image": "python", "maxWaitSeconds": 1, "startsAt": "1h"}
    reply = await api.user.request("POST", "/session", json=body)
    assert (reply.status, reply.json()["status"]) == (201, "TIMEOUT")


async def test_row_session_lang(api: Api) -> None:
    await api.create(name="speaks")
    info = (await api.user.request("GET", "/session/speaks")).json()
    assert (info["lang"], info["image"].rpartition("/")[2].partition(":")[0]) == ("python", "python")
