"""The manager-facing API, as docs/reference/storage-proxy-api.md promises it."""

from __future__ import annotations

import asyncio
import os
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from ai.backend.storage.main import StorageProxy
from tests.support.storage_proxy import SECRET_HEADER, Caller


async def test_only_who_knows_the_secret_is_served(caller: Caller) -> None:
    for secret in ("", "wrong", "a-secret-between-manager-and-prox"):
        answer = await caller.ask("GET", "/volumes", secret=secret)
        assert (answer.status, answer.json["type"]) == (403, "https://api.backend.ai/probs/forbidden")
    answer = await caller.ask("GET", "/volumes")
    assert answer.status == 200
    for path in ("/livez", "/readyz", "/metrics"):
        assert (await caller.send("GET", caller.manager_url + path)).status == 200
    metrics = (await caller.send("GET", caller.manager_url + "/metrics")).body.decode()
    assert 'backendai_storage_proxy_http_requests_total{route="GET /volumes",status="403"} 3.0' in metrics


async def test_a_secret_that_is_no_text_is_refused(caller: Caller) -> None:
    address = urlsplit(caller.manager_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"GET /volumes HTTP/1.1\r\nHost: localhost\r\n" + SECRET_HEADER.encode() + b": \xff\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"400"
    writer.close()
    await writer.wait_closed()


async def test_volumes_declare_what_they_can(caller: Caller, proxy: StorageProxy) -> None:
    (volume,) = (await caller.ask("GET", "/volumes")).json["volumes"]
    assert volume["name"] == "volume1"
    assert volume["backend"] == "vfs"
    assert {"fast-fs-size", "vfolder"} <= set(volume["capabilities"]) <= {"fast-fs-size", "metric", "vfolder"}
    assert (await caller.ask("GET", "/volume/hwinfo")).json["status"] == "healthy"
    assert (await caller.ask("GET", "/folder/fs-usage")).json["capacity_bytes"] > 0
    (proxy.settings.volume["volume1"].path / "version.txt").unlink()
    assert (await caller.ask("GET", "/volume/hwinfo")).json["status"] == "unavailable"
    assert (await caller.send("GET", caller.manager_url + "/readyz")).status == 503


async def test_a_volume_tells_what_its_disk_has_done(caller: Caller, proxy: StorageProxy) -> None:
    (volume,) = (await caller.ask("GET", "/volumes")).json["volumes"]
    answer = await caller.ask("GET", "/volume/performance-metric")
    if "metric" not in volume["capabilities"]:  # it lies on no disk
        assert (answer.status, answer.json["type"].rpartition("/")[2]) == (501, "not-supported")
        return
    before = answer.json["metric"]
    vfid = await caller.folder()
    await caller.put(vfid, "file", os.urandom(4 << 20))
    after = (await caller.ask("GET", "/volume/performance-metric")).json["metric"]
    assert after["io_bytes_write"] - before["io_bytes_write"] >= 4 << 20
    assert after["iops_write"] > before["iops_write"]
    assert set(after) == {f"{w}_{r}" for w in ("iops", "io_bytes", "io_usec") for r in ("read", "write")}


async def test_volumes_tell_what_they_lie_on(caller: Caller, proxy: StorageProxy) -> None:
    (mount,) = (await caller.ask("GET", "/volume/mounts")).json["mounts"]
    path = proxy.settings.volume["volume1"].path
    assert (mount["volume"], mount["path"]) == ("volume1", str(path))
    assert path.is_relative_to(mount["mount_point"])
    assert "rw" in mount["options"]
    assert mount["fstype"]
    for method in ("POST", "DELETE"):
        assert (await caller.ask(method, "/volume/mounts")).status == 405


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/folder/create", {"vfid": "user:x/y"}, 400, "invalid-api-params"),
        ("/folder/create", {"vfid": f"user:{uuid4()}/../../{uuid4()}"}, 400, "invalid-api-params"),
        ("/folder/create", {"volume": "none", "vfid": f"user:{uuid4()}/{uuid4().hex}"}, 404, "volume-not-found"),
        ("/folder/file/list", {"vfid": f"user:{uuid4()}/{uuid4().hex}"}, 404, "vfolder-not-found"),
        ("/folder/file/list", {"vfid": f"user:{uuid4()}/{uuid4().hex}", "relpath": "../x"}, 400, "invalid-path"),
        ("/folder/file/list", {"vfid": f"user:{uuid4()}/{uuid4().hex}", "limit": 0}, 400, "invalid-api-params"),
        ("/folder/file/upload", {"vfid": f"user:{uuid4()}/{uuid4().hex}", "relpath": "x", "size": -1}, 400, None),
        ("/folder/none", {}, 404, "url-not-found"),
    ],
)
async def test_bad_requests_are_refused(
    caller: Caller, path: str, body: dict[str, str], status: int, code: str | None
) -> None:
    answer = await caller.ask("POST", path, **body)
    assert answer.status == status, answer.body
    assert code is None or answer.json["type"].endswith("/" + code)
    assert answer.json["title"]


async def test_the_life_of_a_folder(caller: Caller) -> None:
    vfid = await caller.folder()
    assert (await caller.ask("POST", "/folder/create", vfid=vfid)).status == 204
    await caller.put(vfid, "a/b/file.txt", b"content")
    assert (await caller.ask("GET", "/folder/usage", vfid=vfid)).json["file_count"] == 1
    listing = (await caller.ask("POST", "/folder/file/list", vfid=vfid, relpath="a/b")).json
    (item,) = listing["items"]
    assert (item["name"], item["type"], item["stat"]["size"], listing["cursor"]) == ("file.txt", "FILE", 7, None)
    inside = await caller.inside(vfid)
    assert (inside / "a/b/file.txt").read_bytes() == b"content"
    assert (await caller.ask("GET", "/folder/mount", vfid=vfid, subpath="a")).json["path"] == str(inside / "a")
    assert (await caller.ask("GET", "/folder/mount", vfid=vfid, subpath="z")).status == 404
    assert (await caller.ask("POST", "/folder/delete", vfid=vfid)).status == 204
    assert (await caller.ask("POST", "/folder/delete", vfid=vfid)).status == 204
    assert not inside.exists()
    assert (await caller.ask("GET", "/folder/mount", vfid=vfid)).status == 404


async def test_parameters_of_get_may_be_in_the_query(caller: Caller) -> None:
    vfid = await caller.folder()
    from tests.support.storage_proxy import MANAGER_SECRET

    answer = await caller.send(
        "GET",
        f"{caller.manager_url}/folder/usage",
        params={"volume": "volume1", "vfid": vfid},
        headers={SECRET_HEADER: MANAGER_SECRET},
    )
    assert answer.json == {"file_count": 0, "used_bytes": 0}


async def test_files_are_made_moved_and_deleted(caller: Caller) -> None:
    vfid = await caller.folder()

    async def do(what: str, **body: Any) -> int:
        return (await caller.ask("POST", f"/folder/file/{what}", vfid=vfid, **body)).status

    answer = await caller.ask("POST", "/folder/file/mkdir", vfid=vfid, relpath=["a", "b/c", "../d"])
    assert answer.status == 207
    assert [r["item"] for r in answer.json["results"]["success"]] == ["a", "b/c"]
    assert [r["item"] for r in answer.json["results"]["failed"]] == ["../d"]
    assert await do("mkdir", relpath="a") == 409
    assert await do("mkdir", relpath="a", exist_ok=True) == 200
    await caller.put(vfid, "a/x", b"x")
    await caller.put(vfid, "y", b"y")
    assert await do("rename", relpath="a/x", new_name="z") == 204
    assert await do("rename", relpath="y", new_name="a") == 409
    assert await do("move", src_relpath="y", dst_relpath="a") == 204
    assert await do("move", src_relpath="none", dst_relpath="a") == 404
    assert await do("delete", relpaths=["a"]) == 400
    assert await do("delete", relpaths=["a/y", "none"]) == 404
    assert sorted(p.name for p in (await caller.inside(vfid)).rglob("*")) == ["a", "b", "c", "z"]
    answer = await caller.ask("POST", "/folder/file/delete-async", vfid=vfid, relpaths=["a", "b"], recursive=True)
    assert answer.status == 202
    await _ended(caller, answer.json["bgtask_id"])
    assert list((await caller.inside(vfid)).iterdir()) == []


async def _ended(caller: Caller, task_id: str) -> dict[str, object]:
    for _ in range(500):
        task: dict[str, object] = (await caller.ask("GET", "/task", task_id=task_id)).json
        if task["status"] != "running":
            return task
        await asyncio.sleep(0.01)
    raise AssertionError("the task does not end")


async def test_a_clone_is_a_task(caller: Caller) -> None:
    source = await caller.folder()
    await caller.put(source, "file", b"x" * 100_000)
    target = f"project:{uuid4()}/{uuid4().hex}"
    body = {"src_volume": "volume1", "src_vfid": source, "dst_volume": "volume1", "dst_vfid": target}
    answer = await caller.ask("POST", "/folder/clone", **body)
    assert answer.status == 202
    task = await _ended(caller, answer.json["bgtask_id"])
    assert (task["status"], task["files"], task["current"]) == ("done", 1, 100_000)
    assert (await caller.inside(target) / "file").read_bytes() == b"x" * 100_000
    again = await caller.ask("POST", "/folder/clone", **body)
    assert (await _ended(caller, again.json["bgtask_id"]))["status"] == "done"
    body["src_vfid"], body["dst_vfid"] = f"user:{uuid4()}/{uuid4().hex}", f"user:{uuid4()}/{uuid4().hex}"
    failed = await _ended(caller, (await caller.ask("POST", "/folder/clone", **body)).json["bgtask_id"])
    assert failed["status"] == "failed"
    assert failed["error"]["status"] == 404  # type: ignore[index]  # JSON
    assert (await caller.ask("GET", "/task", task_id=str(uuid4()))).status == 404


async def test_a_directory_comes_in_pages(caller: Caller) -> None:
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    for n in range(25):
        (inside / f"{n:02}").touch()
    seen: list[str] = []
    cursor = None
    while True:
        page = (await caller.ask("POST", "/folder/file/list", vfid=vfid, limit=10, cursor=cursor)).json
        seen += [item["name"] for item in page["items"]]
        if (cursor := page["cursor"]) is None:
            break
    assert sorted(seen) == [f"{n:02}" for n in range(25)]
    answer = await caller.ask("POST", "/folder/file/list", vfid=vfid, cursor="nonsense")
    assert answer.status == 400
