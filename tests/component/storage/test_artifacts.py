"""Artifacts from a hub to a session's mount, and between two proxies."""

# ruff: noqa: ASYNC240  # tests look at the disk besides the proxy, in the simplest way

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import aiohttp
import pytest
from aiohttp import web

from ai.backend.storage.artifacts import pipeline
from ai.backend.storage.main import StorageProxy
from tests.support.artifacts import ArtifactCaller
from tests.support.fake_hub import FakeHub, Model
from tests.support.s3_server import options, s3_url
from tests.support.storage_proxy import parsed

__all__ = ["s3_url"]
HERE = {"artifacts": {"allowed-hosts": ["127.0.0.1"]}}
FILES = {
    "README.md": b"# A model",
    "config.json": b"{}",
    "weights/one.safetensors": os.urandom(700_000),
    "weights/a b+c;%\u00e9.bin": os.urandom(150_000),
    "empty": b"",
}


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    hub = FakeHub()
    hub.models["org/model"] = Model(dict(FILES))
    async with hub.serving():
        yield hub


@asynccontextmanager
async def a_proxy(root: Path, http: aiohttp.ClientSession, tables: dict[str, Any]) -> AsyncIterator[ArtifactCaller]:
    root.mkdir(exist_ok=True)
    proxy = StorageProxy(parsed(root, tables=tables))
    await proxy.start()
    yield ArtifactCaller(http, proxy.manager_url)
    await proxy.stop()


@pytest.fixture
async def caller(tmp_path: Path, http: aiohttp.ClientSession) -> AsyncIterator[ArtifactCaller]:
    async with a_proxy(tmp_path, http, HERE) as caller:
        yield caller


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_FIRST_RETRY_PAUSE_S", 0.01)


def content_below(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def left_over(volume: Path) -> list[str]:
    """Everything of artifacts that is not archived."""
    top = volume / ".artifacts"
    return [
        str(p.relative_to(top)) for p in top.rglob("*") if p.is_file() and p.relative_to(top).parts[0] != "artifacts"
    ]


async def test_from_the_hub_to_the_mount(caller: ArtifactCaller, hub: FakeHub, tmp_path: Path) -> None:
    revision = uuid4()
    state = await caller.import_hub(revision, hub.url)
    assert state["phase"] == "downloading"
    state = await caller.ended(revision)
    size = sum(map(len, FILES.values()))
    assert state["error"] is None
    assert (state["phase"], state["size"], state["files"], state["storage"]) == ("done", size, 5, "volume1")
    assert state["digest"] == hub.models["org/model"].commit
    assert state["notes"] == ["1 files may run code when they are loaded, such as weights/a b+c;%\u00e9.bin."]
    mounted = (await caller.post("/artifacts/mount", revision_id=revision)).json
    assert content_below(Path(mounted["path"])) == FILES
    assert left_over(tmp_path / "volume1") == []
    page = (await caller.post("/artifacts/files", revision_id=revision, limit=3)).json
    assert (page["file_count"], page["size"], page["storage"]) == (5, size, "volume1")
    rest = (await caller.post("/artifacts/files", revision_id=revision, cursor=page["cursor"])).json
    assert rest["cursor"] is None
    listed = {f["path"]: (f["size"], f["sha256"]) for f in page["files"] + rest["files"]}
    assert listed == {path: (len(data), hashlib.sha256(data).hexdigest()) for path, data in FILES.items()}


async def test_presigned_downloads(caller: ArtifactCaller, hub: FakeHub) -> None:
    revision, url = await caller.imported(hub.url), ""
    for path, data in FILES.items():
        url = (await caller.post("/artifacts/presign", revision_id=revision, path=path)).json["url"]
        assert (await caller.send("GET", url)).body == data
    assert (await caller.send("PUT", url, data=b"")).status == 401  # it is for reading
    part = await caller.send("GET", url, headers={"Range": "bytes=0-3"})
    assert part.status == 416  # the last one is empty
    answer = await caller.post("/artifacts/presign", revision_id=revision, path="../manifest.json")
    assert (answer.status, answer.code) == (404, "artifact-not-found")
    assert (await caller.send("GET", url.replace("token=", "token=x"))).status == 401
    await caller.post("/artifacts/delete", revision_id=revision)
    assert (await caller.send("GET", url)).status == 404


async def test_asking_again_changes_nothing(caller: ArtifactCaller, hub: FakeHub) -> None:
    revision = uuid4()
    states = await asyncio.gather(*(caller.import_hub(revision, hub.url) for _ in range(4)))
    assert {s["phase"] for s in states} <= {"downloading", "verifying", "archiving", "done"}
    await caller.ended(revision)
    asked = len(hub.requests)
    assert (await caller.import_hub(revision, hub.url))["phase"] == "done"
    assert len(hub.requests) == asked
    assert hub.sent["weights/one.safetensors"] == 700_000
    for path in ("/artifacts/import/status", "/artifacts/import/cancel"):
        answer = await caller.post(path, revision_id=revision, attempt=0)
        assert (answer.status, answer.code) == (409, "stale-attempt")
    assert (await caller.post("/artifacts/import/cancel", revision_id=revision, attempt=1)).status == 204
    assert (await caller.post("/artifacts/mount", revision_id=revision)).status == 200
    answer = await caller.post("/artifacts/import/status", revision_id=uuid4(), attempt=1)
    assert (answer.status, answer.code) == (404, "artifact-not-found")


async def test_a_new_attempt_replaces_the_old_one_as_a_whole(caller: ArtifactCaller, hub: FakeHub) -> None:
    revision = await caller.imported(hub.url)
    before = Path((await caller.post("/artifacts/mount", revision_id=revision)).json["path"])
    hub.models["org/model"].files["config.json"] = b'{"new": 1}'
    await caller.import_hub(revision, hub.url, attempt=2)
    assert (await caller.ended(revision, 2))["phase"] == "done"
    after = Path((await caller.post("/artifacts/mount", revision_id=revision)).json["path"])
    assert after != before
    assert (after / "config.json").read_bytes() == b'{"new": 1}'
    assert not before.exists()
    answer = await caller.import_answer(revision, hub.url, attempt=1)
    assert (answer.status, answer.code) == (409, "stale-attempt")


async def test_scanning(caller: ArtifactCaller, hub: FakeHub) -> None:
    hub.models["org/other"] = Model({"a": b"x"}, tags={"v1": "0" * 40})
    hub.models["else/third"] = Model({"a": b"x"})
    found = (await caller.post("/artifacts/scan", url=hub.url, author="org", limit=10)).json["artifacts"]
    assert [a["name"] for a in found] == ["org/model", "org/other"]
    assert found[0]["revisions"][0]["digest"] == hub.models["org/model"].commit
    assert (found[0]["type"], found[0]["extra"]["downloads"]) == ("MODEL", 7)
    names = ["org/model", "org/missing", "org/other"]
    answer = (await caller.post("/artifacts/scan", url=hub.url, names=names)).json
    assert answer["missing"] == ["org/missing"]
    model, other = answer["artifacts"]
    assert (model["readme"], model["revisions"][0]["size"]) == ("# A model", sum(map(len, FILES.values())))
    assert [r["version"] for r in other["revisions"]] == ["main", "v1"]
    answer = await caller.post("/artifacts/scan", url=hub.url, names=["../../etc"])
    assert (answer.status, answer.code) == (400, "artifact-rejected")


async def test_data_sets_and_gated_models(caller: ArtifactCaller, hub: FakeHub) -> None:
    hub.datasets["org/words"] = Model(dict(FILES), gated="auto")
    scan = {"url": hub.url, "type": "PACKAGE"}
    [listed] = (await caller.post("/artifacts/scan", **scan)).json["artifacts"]
    assert (listed["type"], listed["name"], listed["restricted"]) == ("PACKAGE", "datasets/org/words", True)
    names = ["datasets/org/words", "datasets/org/model", "org/words"]
    answer = (await caller.post("/artifacts/scan", url=hub.url, names=names)).json
    assert answer["missing"] == names[1:]
    [words] = answer["artifacts"]
    assert (words["name"], words["readme"]) == ("datasets/org/words", "# A model")
    revision = await caller.imported(hub.url, name="datasets/org/words", type="PACKAGE")
    assert content_below(await caller.mounted(revision)) == FILES


async def test_a_scan_of_a_hub_that_is_not_itself(caller: ArtifactCaller, hub: FakeHub) -> None:
    """Pages without end, texts without bounds, numbers that no database takes, JSON that is none."""
    hub.listing = lambda _: web.json_response([], headers={"Link": f'<{hub.url}/api/models>; rel="next"'})
    answer = await caller.post("/artifacts/scan", url=hub.url)
    assert (answer.status, answer.code) == (503, "registry-unavailable")
    assert len(hub.requests) < 400
    told = {
        **hub.models["org/model"].info("org/model"),
        "tags": ["t" * 1000] * 1000,
        "author": {"a": 1},
        "downloads": 10**40,
        "sha": "a" * 10_000,
        "siblings": [{"rfilename": "a", "size": 2**62}] * 3,
    }
    hub.listing = lambda _: web.json_response([told, {**told, "id": "x" * 10_000}, {**told, "id": "a\nb"}])
    (found,) = (await caller.post("/artifacts/scan", url=hub.url)).json["artifacts"]
    assert (len(found["extra"]["tags"]), len(found["extra"]["tags"][0])) == (200, 256)
    assert "author" not in found["extra"]
    assert "downloads" not in found["extra"]
    assert (len(found["revisions"][0]["digest"]), found["revisions"][0]["size"]) == (128, None)
    for body in (b"[" * 100_000, b"{}", b"[1]", b"no", b'[{"siblings": 7}]', b'[{"id": 1, "lastModified": "x"}]'):
        hub.listing = lambda _, body=body: web.Response(body=body, content_type="application/json")
        answer = await caller.post("/artifacts/scan", url=hub.url)
        assert (answer.status, answer.code if answer.status != 200 else answer.json["artifacts"]) in (
            (503, "registry-unavailable"),
            (200, []),
        ), body[:40]


async def test_a_token_is_for_the_hub_alone(caller: ArtifactCaller, hub: FakeHub) -> None:
    hub.token = "hf_secret"
    revision = uuid4()
    assert (await caller.failure(revision, hub.url))["type"].endswith("/registry-refused")
    elsewhere = FakeHub()
    elsewhere.models = hub.models
    async with elsewhere.serving():
        hub.answer = lambda _, path: web.Response(
            status=302, headers={"Location": f"{elsewhere.url}/cdn/org/model/{quote(path)}"}
        )
        await caller.import_hub(revision, hub.url, token="hf_secret")
        assert (await caller.ended(revision))["phase"] == "done"
    assert set(elsewhere.credentials) == {None}
    assert "Bearer hf_secret" in hub.credentials
    answer = await caller.post("/artifacts/scan", url=hub.url, token="wrong")
    assert (answer.status, answer.code) == (502, "registry-refused")


async def test_what_changed_since_the_scan_is_not_taken(caller: ArtifactCaller, hub: FakeHub) -> None:
    for told in ({"digest": "0" * 40}, {"size": 1}):
        assert (await caller.failure(uuid4(), hub.url, **told))["type"].endswith("/artifact-changed")
    commit, size = hub.models["org/model"].commit, sum(map(len, FILES.values()))
    await caller.imported(hub.url, digest=commit, size=size)


async def test_what_was_begun_is_finished_though_the_branch_moves(caller: ArtifactCaller, hub: FakeHub) -> None:
    wanted, revision = hub.models["org/model"], uuid4()
    hub.gate.clear()
    await caller.import_hub(revision, hub.url, digest=wanted.commit)
    await caller.until(lambda: hub.sent.get("weights/one.safetensors", 0) > 0)
    hub.models["org/model"] = Model({"config.json": b"new"}, past=[wanted])
    await caller.import_hub(revision, hub.url, attempt=2, digest=wanted.commit)
    hub.gate.set()
    assert (await caller.ended(revision, 2))["digest"] == wanted.commit
    assert content_below(await caller.mounted(revision)) == FILES
    error = await caller.failure(uuid4(), hub.url, digest=wanted.commit)
    assert error["type"].endswith("/artifact-changed")


@pytest.mark.parametrize("path", ["config.json", "weights/one.safetensors"])
async def test_damaged_files_are_fetched_again(caller: ArtifactCaller, hub: FakeHub, path: str) -> None:
    """By the digest of git, and by that of LFS."""
    right = FILES[path]
    hub.answer = lambda _, asked: web.Response(body=b"x" * len(right)) if asked == path else None
    revision = uuid4()
    error = await caller.failure(revision, hub.url)
    assert error["type"].endswith("/artifact-damaged")
    assert error["data"] == {"files": [path], "count": 1}
    assert (await caller.post("/artifacts/mount", revision_id=revision)).status == 404
    hub.answer = lambda *_: None
    hub.sent.clear()
    await caller.import_hub(revision, hub.url)
    assert (await caller.ended(revision))["phase"] == "done"
    assert hub.sent == {path: len(right)}


@pytest.mark.parametrize(
    "name",
    [
        "../../escaped",
        "/etc/escaped",
        "a/../../escaped",
        "a//b",
        ".",
        "new\nline",
        "x" * 300,
        "config.json/below",
        "README.md",
    ],
)
async def test_hostile_names(caller: ArtifactCaller, hub: FakeHub, tmp_path: Path, name: str) -> None:
    hub.models["org/model"].extra = [{"rfilename": name, "size": 3, "blobId": "0" * 40}]
    before = set(tmp_path.rglob("*"))
    assert (await caller.failure(uuid4(), hub.url))["type"].endswith("/artifact-rejected")
    assert {p for p in set(tmp_path.rglob("*")) - before if p.is_file()} == set()


async def test_hostile_sizes(tmp_path: Path, http: aiohttp.ClientSession, hub: FakeHub) -> None:
    limits = {"max-files": 5, "max-file-size": "700001", "max-size": "1m"}
    async with a_proxy(tmp_path, http, {"artifacts": {**HERE["artifacts"], **limits}}) as caller:
        await caller.imported(hub.url)
        model = hub.models["org/model"]
        for extra in (
            [{"rfilename": "sixth", "size": 0, "blobId": "0" * 40}],
            [{"rfilename": "sixth"}],
        ):
            model.extra = extra
            assert (await caller.failure(uuid4(), hub.url))["type"].endswith("/artifact-rejected")
        model.extra = []
        for size in (-1, 700_002, 10**30, "7", None):
            model.told = {"config.json": {"size": size}}
            error = await caller.failure(uuid4(), hub.url)
            assert error["type"].rpartition("/")[2] in ("artifact-rejected", "registry-unavailable"), size


async def test_more_or_fewer_bytes_than_announced(caller: ArtifactCaller, hub: FakeHub) -> None:
    for size in (699_999, 700_001):
        hub.models["org/model"].told = {"weights/one.safetensors": {"size": size}}
        assert (await caller.failure(uuid4(), hub.url))["type"].endswith("/artifact-damaged")
    hub.models["org/model"].told = {}

    def chunked(request: web.Request, path: str) -> web.StreamResponse | None:
        if path != "config.json":
            return None
        return web.Response(body=_forever(), headers={})

    hub.answer = chunked
    assert (await caller.failure(uuid4(), hub.url))["type"].endswith("/artifact-damaged")


async def _forever() -> AsyncIterator[bytes]:
    while True:
        yield b"x" * 65536


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (
            lambda *_: web.Response(status=302, headers={"Location": "http://169.254.169.254/latest/"}),
            "address-refused",
        ),
        (lambda *_: web.Response(status=302, headers={"Location": "http://[::1]:1/"}), "address-refused"),
        (lambda *_: web.Response(status=302, headers={"Location": "http://localhost:1/"}), "address-refused"),
        (lambda *_: web.Response(status=302, headers={"Location": "file:///etc/passwd"}), "address-refused"),
        (lambda *_: web.Response(status=302, headers={"Location": "http://user:pw@127.0.0.1/"}), "address-refused"),
        (lambda r, _: web.Response(status=302, headers={"Location": str(r.url)}), "registry-unavailable"),
        (lambda *_: web.Response(body=b"x", headers={"Content-Encoding": "gzip"}), "registry-unavailable"),
        (lambda *_: web.Response(status=503), "registry-unavailable"),
        (lambda *_: web.Response(status=404), "artifact-not-found"),
        (lambda *_: web.Response(status=403), "registry-refused"),
        (lambda *_: web.Response(status=206, body=b"{}"), "registry-unavailable"),
    ],
)
async def test_hostile_answers(caller: ArtifactCaller, hub: FakeHub, answer: Any, code: str) -> None:
    hub.answer = answer
    assert (await caller.failure(uuid4(), hub.url))["type"].rpartition("/")[2] == code


async def test_only_public_addresses_without_allowed_hosts(
    tmp_path: Path, http: aiohttp.ClientSession, hub: FakeHub
) -> None:
    async with a_proxy(tmp_path, http, {}) as caller:
        port = hub.url.rpartition(":")[2]
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433"):
            answer = await caller.post("/artifacts/scan", url=f"http://{host}:{port}")
            assert (answer.status, answer.code) == (403, "address-refused"), host
            assert (await caller.failure(uuid4(), f"http://{host}:{port}"))["type"].endswith("/address-refused"), host
    assert hub.requests == []


async def test_a_connection_that_breaks_goes_on_where_it_was(caller: ArtifactCaller, hub: FakeHub) -> None:
    data = FILES["weights/one.safetensors"]
    ranges: list[str | None] = []

    def break_off(request: web.Request, path: str) -> web.StreamResponse | None:
        if path == "weights/one.safetensors":
            ranges.append(request.headers.get("Range"))
            if len(ranges) == 1:
                assert request.transport is not None
                body = data[:300_000]
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                request.transport.write(head + body)
                request.transport.close()
        return None

    hub.answer = break_off
    await caller.imported(hub.url)
    assert ranges[0] is None
    assert ranges[1] is not None
    assert 0 < int(ranges[1].removeprefix("bytes=")[:-1]) <= 300_000


async def test_a_hub_without_ranges(caller: ArtifactCaller, hub: FakeHub) -> None:
    hub.has_ranges = False
    revision = uuid4()
    hub.gate.clear()
    await caller.import_hub(revision, hub.url)
    await caller.until(lambda: hub.sent.get("weights/one.safetensors", 0) > 0)
    await caller.post("/artifacts/import/status", revision_id=revision, attempt=1)
    await caller.import_hub(revision, hub.url, attempt=2)
    hub.gate.set()
    assert (await caller.ended(revision, 2))["phase"] == "done"


async def test_cancelling_leaves_nothing(caller: ArtifactCaller, hub: FakeHub, tmp_path: Path) -> None:
    revision = uuid4()
    hub.gate.clear()
    await caller.import_hub(revision, hub.url)
    await caller.until(lambda: hub.sent.get("weights/one.safetensors", 0) > 0)
    for _ in range(2):
        assert (await caller.post("/artifacts/import/cancel", revision_id=revision, attempt=1)).status == 204
    assert (await caller.ended(revision))["phase"] == "cancelled"
    assert left_over(tmp_path / "volume1") == []
    hub.gate.set()
    await caller.import_hub(revision, hub.url)
    assert (await caller.ended(revision))["phase"] == "done"


async def test_removing(caller: ArtifactCaller, hub: FakeHub, tmp_path: Path) -> None:
    revision, busy = await caller.imported(hub.url), uuid4()
    hub.gate.clear()
    await caller.import_hub(busy, hub.url)
    for one in (revision, busy, revision, uuid4()):
        assert (await caller.post("/artifacts/delete", revision_id=one)).status == 204
    assert [p for p in (tmp_path / "volume1" / ".artifacts").rglob("*") if p.is_file()] == []
    for path in ("/artifacts/files", "/artifacts/mount", "/artifacts/ticket"):
        answer = await caller.post(path, revision_id=revision)
        assert (answer.status, answer.code) == (404, "artifact-not-found")


async def test_uploading(caller: ArtifactCaller, tmp_path: Path) -> None:
    revision = uuid4()
    files = {"bin/tool": b"#!/bin/sh\n", "data": os.urandom(300_000), "empty": b""}
    wanted = [
        {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for path, data in files.items()
    ]
    body = {"revision_id": revision, "attempt": 1, "files": wanted}
    urls = {f["path"]: f["url"] for f in (await caller.post("/artifacts/upload", **body)).json["files"]}
    assert (await caller.send("PUT", urls["data"], data=b"too short")).status == 400
    assert (await caller.send("PUT", urls["data"], data=files["data"])).status == 200
    error = await caller.failure(revision, "", source={"type": "upload"}, type="PACKAGE")
    assert error["type"].endswith("/artifact-incomplete")
    assert error["data"]["missing"] == ["bin/tool", "empty"]
    urls = {f["path"]: f["url"] for f in (await caller.post("/artifacts/upload", **body)).json["files"]}
    for path in ("bin/tool", "empty"):
        assert (await caller.send("PUT", urls[path], data=files[path])).status == 200
    await caller.import_from({"type": "upload"}, revision, type="PACKAGE")
    assert (await caller.ended(revision))["phase"] == "done"
    mounted = (await caller.post("/artifacts/mount", revision_id=revision)).json["path"]
    assert content_below(Path(mounted)) == files
    answer = await caller.send("PUT", urls["empty"], data=b"")
    assert (answer.status, answer.code) == (404, "artifact-not-found")
    assert left_over(tmp_path / "volume1") == []
    bad = {**body, "revision_id": uuid4(), "files": [{"path": "../x", "size": 1}]}
    assert (await caller.post("/artifacts/upload", **bad)).code == "artifact-rejected"


async def test_what_comes_after_a_removal_is_not_kept(caller: ArtifactCaller, tmp_path: Path) -> None:
    revision, removed = uuid4(), asyncio.Event()
    wanted = [{"path": "a", "size": 6}, {"path": "b", "size": 6}]
    answer = await caller.post("/artifacts/upload", revision_id=revision, attempt=1, files=wanted)
    slow, broken = (f["url"] for f in answer.json["files"])

    async def body() -> AsyncIterator[bytes]:
        yield b"abc"
        await removed.wait()
        yield b"def"

    async def breaking() -> AsyncIterator[bytes]:
        yield b"abc"
        raise OSError

    length = {"Content-Length": "6"}
    with pytest.raises((OSError, aiohttp.ClientError)):
        await caller.send("PUT", broken, data=breaking(), headers=length)
    putting = asyncio.create_task(caller.send("PUT", slow, data=body(), headers=length))
    await caller.until(lambda: any((tmp_path / "volume1" / ".artifacts" / ".uploads").glob("*.data")))
    await caller.post("/artifacts/delete", revision_id=revision)
    removed.set()
    assert (await putting).status == 404
    await caller.until(lambda: left_over(tmp_path / "volume1") == [])


async def test_an_upload_with_another_content_is_noticed(caller: ArtifactCaller) -> None:
    revision = uuid4()
    wanted = [{"path": "a", "size": 1, "sha256": "0" * 64}]
    answer = await caller.post("/artifacts/upload", revision_id=revision, attempt=1, files=wanted)
    await caller.send("PUT", answer.json["files"][0]["url"], data=b"x")
    error = await caller.failure(revision, "", source={"type": "upload"})
    assert error["type"].endswith("/artifact-damaged")


async def test_from_one_installation_to_another(
    caller: ArtifactCaller, hub: FakeHub, tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    revision = await caller.imported(hub.url)
    async with a_proxy(tmp_path / "other", http, HERE) as other:
        copy = uuid4()
        state = await other.import_from(
            {"type": "reservoir", "ticket": "http://127.0.0.1:1/artifacts/manifest?token=x"}, copy
        )
        state = await other.ended(copy)
        assert state["error"]["type"].endswith("/registry-unavailable")
        ticket = await caller.ticket(revision)
        bad = {"type": "reservoir", "ticket": ticket[:-3] + "xxx"}
        await other.import_from(bad, copy)
        assert (await other.ended(copy))["error"]["type"].endswith("/registry-refused")
        await other.import_from({"type": "reservoir", "ticket": ticket}, copy)
        state = await other.ended(copy)
        assert state["error"] is None
        assert (state["phase"], state["digest"]) == ("done", hub.models["org/model"].commit)
        mounted = (await other.post("/artifacts/mount", revision_id=copy)).json["path"]
        assert content_below(Path(mounted)) == FILES
        file = ticket.replace("/manifest?", "/file?")
        for path in ("../manifest.json", "", "/etc/passwd", "%2e%2e/%2e%2e/x", "missing"):
            assert (await caller.send("GET", f"{file}&path={path}")).status in (400, 404), path
        await caller.post("/artifacts/delete", revision_id=revision)
        error = await other.failure(uuid4(), "", source={"type": "reservoir", "ticket": ticket})
        assert error["type"].endswith("/artifact-not-found")


async def test_a_ticket_is_renewed_while_its_import_runs(caller: ArtifactCaller) -> None:
    """The other installation breaks off in the middle of a file, and takes the first ticket no more."""
    data, good, halfway, renewed = os.urandom(500_000), "first", asyncio.Event(), asyncio.Event()
    asked: list[tuple[str, str | None]] = []

    async def manifest(request: web.Request) -> web.Response:
        file = {"path": "a", "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        told = {"revision_id": str(uuid4()), "attempt": 1, "type": "MODEL", "name": "n", "version": "v"}
        return web.json_response({**told, "digest": "d", "source": "s", "archived_at": 0, "files": [file]})

    async def file(request: web.Request) -> web.StreamResponse:
        asked.append((request.query["token"], request.headers.get("Range")))
        if request.query["token"] != good:
            return web.Response(status=401)
        offset = int((request.headers.get("Range") or "bytes=0-")[6:-1])
        response = web.StreamResponse(status=206 if offset else 200)
        response.content_length = len(data) - offset
        if offset:
            response.headers["Content-Range"] = f"bytes {offset}-{len(data) - 1}/{len(data)}"
        await response.prepare(request)
        await response.write(data[offset : offset + 300_000])
        if not offset:
            halfway.set()
            await renewed.wait()
            assert request.transport is not None
            request.transport.close()
        return response

    app = web.Application()
    app.router.add_get("/artifacts/manifest", manifest)
    app.router.add_get("/artifacts/file", file)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/artifacts/manifest?token="
    revision = uuid4()
    await caller.import_from({"type": "reservoir", "ticket": url + "first"}, revision)
    await asyncio.wait_for(halfway.wait(), 20)
    await caller.reaches(revision, 1)
    good = "second"
    await caller.import_from({"type": "reservoir", "ticket": url + "second"}, revision)
    renewed.set()
    assert (await caller.ended(revision))["error"] is None
    assert content_below(await caller.mounted(revision)) == {"a": data}
    assert [token for token, _ in asked] == ["first", "second"]
    assert asked[1][1] is not None
    await runner.cleanup()


async def test_every_stage_on_another_storage(
    tmp_path: Path, http: aiohttp.ClientSession, hub: FakeHub, s3_url: str
) -> None:
    """Download on a disk, verify on another one, archive on S3, mounted from a volume."""
    tables: dict[str, dict[str, Any]] = {
        "artifacts": {**HERE["artifacts"], "download": "fast", "verify": "volume1", "archive": "s3"},
        "object-storage": {
            "fast": {"backend": "directory", "options": {"path": str(tmp_path / "fast")}},
            "s3": {"backend": "s3", "options": options(s3_url, prefix=uuid4().hex)},
        },
    }
    async with a_proxy(tmp_path, http, tables) as caller:
        revision = await caller.imported(hub.url)
        assert left_over(tmp_path / "volume1") == []
        assert [p for p in (tmp_path / "fast").rglob("*") if p.is_file()] == []
        answer = await caller.post("/artifacts/mount", revision_id=revision)
        assert (answer.status, answer.code) == (501, "not-supported")
        url = (await caller.post("/artifacts/presign", revision_id=revision, path="config.json")).json["url"]
        assert url.startswith(s3_url)
        assert (await caller.send("GET", url)).body == b"{}"
        assert (await caller.storages())["s3"] == {
            "name": "s3",
            "backend": "s3",
            "capabilities": ["presign"],
            "stages": ["archive"],
        }
        async with a_proxy(tmp_path / "other", http, HERE) as other:
            copy = uuid4()
            await other.import_from({"type": "reservoir", "ticket": await caller.ticket(revision)}, copy)
            assert (await other.ended(copy))["phase"] == "done"
    tables["artifacts"]["mount-cache"] = "volume1"
    async with a_proxy(tmp_path, http, tables) as caller:
        first = await caller.mounted(revision)
        await caller.import_hub(revision, hub.url, attempt=2)
        await caller.ended(revision, 2)
        mounted = await caller.mounted(revision)
        assert content_below(mounted) == FILES
        assert await caller.mounted(revision) == mounted
        async with asyncio.timeout(30):
            while first.exists():  # noqa: ASYNC110  # removed behind the answer; a directory has no event
                await asyncio.sleep(0.02)
        await caller.post("/artifacts/delete", revision_id=revision)
        assert not mounted.exists()
        assert (await caller.post("/artifacts/mount", revision_id=revision)).status == 404


async def test_users_upload_to_s3(tmp_path: Path, http: aiohttp.ClientSession, s3_url: str) -> None:
    s3 = {"backend": "s3", "options": options(s3_url, prefix=uuid4().hex)}
    tables = {"artifacts": {"download": "s3"}, "object-storage": {"s3": s3}}
    async with a_proxy(tmp_path, http, tables) as caller:
        revision = uuid4()
        wanted = [{"path": "image.tar", "size": 5}]
        answer = await caller.post("/artifacts/upload", revision_id=revision, attempt=3, files=wanted)
        url = answer.json["files"][0]["url"]
        assert url.startswith(s3_url)
        assert (await caller.send("PUT", url, data=b"layer")).status == 200
        await caller.import_from({"type": "upload"}, revision, attempt=3, type="IMAGE")
        assert (await caller.ended(revision, 3))["storage"] == "volume1"
        assert content_below(await caller.mounted(revision)) == {"image.tar": b"layer"}


async def test_an_object_storage_that_is_down(tmp_path: Path, http: aiohttp.ClientSession, hub: FakeHub) -> None:
    """Folders are served all the same, and the import says what is wrong."""
    own = options("http://127.0.0.1:1", tries=1)
    tables = {**HERE, "object-storage": {"s3": {"backend": "s3", "options": own}}}
    async with a_proxy(tmp_path, http, tables) as caller:
        await caller.folder()
        revision = await caller.imported(hub.url)
        mounted = await caller.mounted(revision)
        answer = await caller.post("/artifacts/delete", revision_id=revision)
        assert (answer.status, answer.code) == (503, "object-storage-unavailable")
        assert not mounted.exists()
        answer = await caller.import_answer(uuid4(), hub.url, stages={"archive": "s3"})
        assert (answer.status, answer.code) == (503, "object-storage-unavailable")
        answer = await caller.import_answer(uuid4(), hub.url, stages={"archive": "nowhere"})
        assert (answer.status, answer.code) == (404, "volume-not-found")
