"""Uploads and downloads over the client-facing API."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import os
import random
import stat
import time
import zipfile
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from pathlib import Path
from types import FrameType
from uuid import uuid4

import aiohttp
import jwt
import pytest

from ai.backend.storage.main import StorageProxy
from ai.backend.storage.transfers.request_body import DirectBody
from ai.backend.storage.transfers.uploads import Sink
from tests.support.storage_proxy import CHUNK, TOKEN_SECRET, TUS, Caller, parsed

DATA = random.Random(1).randbytes(300_000)


async def test_an_upload_as_the_published_client_sends_it(caller: Caller) -> None:
    """PATCH alone, in chunks, with an offset in lower case; exactly 204 (wire contract 2.5)."""
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "dir/file", len(DATA))
    inside = await caller.inside(vfid)
    for offset in range(0, len(DATA), 100_000):
        assert not (inside / "dir" / "file").exists()
        headers = {"Tus-Resumable": "1.0.0", "upload-offset": str(offset), "Content-Type": CHUNK["Content-Type"]}
        answer = await caller.send("PATCH", url, data=DATA[offset : offset + 100_000], headers=headers)
        assert (answer.status, answer.headers["Upload-Offset"]) == (204, str(offset + 100_000))
    assert (inside / "dir" / "file").read_bytes() == DATA
    assert (inside / "dir" / "file").stat().st_mode & 0o777 == 0o644


async def test_a_compressed_body_takes_no_more_than_was_asked_for(caller: Caller) -> None:
    """Decompressed, a small body would be held in memory whole, and written beyond the size of the upload."""
    vfid = await caller.folder()
    bomb = gzip.compress(bytes(64 << 20))
    assert len(bomb) < 1 << 18
    url = await caller.upload_url(vfid, "file", len(bomb) + 1)
    answer = await caller.patch(url, 0, bomb, **{"Content-Encoding": "gzip"})
    assert answer.status == 415
    assert (await caller.head(url)).headers["Upload-Offset"] == "0"
    inside = await caller.inside(vfid)
    assert sum(path.stat().st_size for path in inside.parent.rglob("*") if path.is_file()) < 1 << 20


async def test_an_empty_file_is_there_when_it_is_asked_for(caller: Caller) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "empty", 0)
    assert (await caller.inside(vfid) / "empty").read_bytes() == b""
    assert (await caller.head(url)).headers["Upload-Offset"] == "0"


async def test_an_upload_goes_into_the_directory_that_the_client_names(caller: Caller) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "sub/file", 3)
    assert (await caller.patch(url + "&dst_dir=../x", 0, b"abc")).status == 400
    assert (await caller.patch(url + "&dst_dir=target/dir", 0, b"abc")).status == 204
    assert (await caller.inside(vfid) / "target/dir/sub/file").read_bytes() == b"abc"


async def test_tus_for_other_clients(caller: Caller) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", 6)
    options = await caller.send("OPTIONS", url.partition("?")[0])
    assert options.status == 204
    assert options.headers["Tus-Version"] == "1.0.0"
    assert int(options.headers["Tus-Max-Size"]) == 100 << 30
    assert set(options.headers["Tus-Extension"].split(",")) == {"creation", "expiration", "checksum", "termination"}
    created = await caller.send("POST", url, headers={**TUS, "Upload-Length": "6"})
    assert created.status == 201
    location = url.partition("/upload")[0] + created.headers["Location"]
    assert (await caller.send("POST", url, headers={**TUS, "Upload-Length": "7"})).status == 400
    head = await caller.head(location)
    assert (head.status, head.headers["Upload-Offset"], head.headers["Upload-Length"]) == (200, "0", "6")
    assert head.headers["Cache-Control"] == "no-store"
    sha1 = base64.b64encode(hashlib.sha1(b"abc").digest()).decode()
    wrong = await caller.patch(location, 0, b"abd", **{"Upload-Checksum": f"sha1 {sha1}"})
    assert wrong.status == 460
    assert (await caller.head(location)).headers["Upload-Offset"] == "0"
    assert (await caller.patch(location, 0, b"abc", **{"Upload-Checksum": f"sha1 {sha1}"})).status == 204
    assert (await caller.patch(location, 3, b"d", **{"Upload-Checksum": "crc32 AAAA"})).status == 400
    assert (await caller.send("DELETE", location, headers=TUS)).status == 204
    assert (await caller.head(location)).status == 404
    assert (await caller.patch(location, 3, b"def")).status == 404
    assert list((await caller.inside(vfid)).iterdir()) == []


async def test_other_versions_types_and_sizes_are_refused(caller: Caller) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", 4)
    answer = await caller.send("PATCH", url, data=b"x", headers={**CHUNK, "Tus-Resumable": "0.2", "Upload-Offset": "0"})
    assert (answer.status, answer.headers["Tus-Version"]) == (412, "1.0.0")
    answer = await caller.send("PATCH", url, data=b"x", headers={**TUS, "Upload-Offset": "0"})
    assert answer.status == 415
    assert (await caller.send("PATCH", url, data=b"x", headers=CHUNK)).status == 400
    answer = await caller.patch(url, 1, b"x")
    assert (answer.status, answer.json["data"]) == (409, {"offset": 0})
    assert answer.json["type"].endswith("/upload-offset-mismatch")
    assert (await caller.patch(url, 0, b"12345")).status == 413

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"1"

    assert (await caller.patch(url, 0, endless())).status == 413
    offset = int((await caller.head(url)).headers["Upload-Offset"])
    assert (await caller.patch(url, offset, b"1234"[offset:])).status == 204
    assert (await caller.ask("POST", "/folder/file/upload", vfid=vfid, relpath="big", size=1 << 50)).status == 413


async def test_two_writers_at_once_are_one_too_many(caller: Caller) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", 6)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"abc"
        begun.set()
        await go_on.wait()
        yield b"def"

    first = asyncio.create_task(caller.patch(url, 0, slow()))
    await begun.wait()
    await asyncio.sleep(0.1)
    second = await caller.patch(url, 0, b"xxxxxx")
    assert second.status == 423
    assert second.json["type"].endswith("/upload-is-being-written")
    go_on.set()
    assert (await first).status == 204
    assert (await caller.inside(vfid) / "file").read_bytes() == b"abcdef"
    done = await caller.patch(url, 6, b"")  # the answer was lost: the client asks again
    assert (done.status, done.headers["Upload-Offset"]) == (204, "6")


async def test_what_came_before_the_connection_broke_is_kept(caller: Caller, http: aiohttp.ClientSession) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", len(DATA))

    async def broken() -> AsyncIterator[bytes]:
        yield DATA[:200_000]
        await asyncio.sleep(0.2)
        raise OSError("cable pulled")

    with pytest.raises((aiohttp.ClientError, OSError)):
        await caller.patch(url, 0, broken(), **{"Content-Length": str(len(DATA))})
    offset = 0
    for _ in range(100):
        offset = int((await caller.head(url)).headers["Upload-Offset"])
        if offset == 200_000:
            break
        await asyncio.sleep(0.02)
    assert offset == 200_000
    status = 423
    for _ in range(100):
        if status == 423:
            await asyncio.sleep(0.02)
            status = (await caller.patch(url, offset, DATA[offset:])).status
    assert status == 204
    assert (await caller.inside(vfid) / "file").read_bytes() == DATA


async def test_a_file_is_replaced_at_the_end_and_never_written_into(caller: Caller, tmp_path: Path) -> None:
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    (inside / "file").write_bytes(b"old")
    os.link(inside / "file", tmp_path / "elsewhere")
    await caller.put(vfid, "file", b"new")
    assert (inside / "file").read_bytes() == b"new"
    assert (tmp_path / "elsewhere").read_bytes() == b"old"


async def test_one_connection_carries_one_chunk_after_the_other(
    caller: Caller, proxy: StorageProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large bodies are taken from the socket past aiohttp, which must find the next request where they end.

    If this fails after an update of aiohttp, see docs/decisions/0091: every upload goes the slow way.
    """
    taken: list[DirectBody] = []
    pour = DirectBody.pour

    async def noted(self: DirectBody, sink: Sink, threads: Executor) -> None:
        taken.append(self)
        await pour(self, sink, threads)

    monkeypatch.setattr(DirectBody, "pour", noted)
    data = random.Random(2).randbytes(6_000_000)
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", len(data))
    host, port = proxy.client_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    target = url[url.index("/upload") :]

    def head(offset: int, length: int) -> bytes:
        lines = [f"PATCH {target} HTTP/1.1", "Host: x", f"Upload-Offset: {offset}", f"Content-Length: {length}"]
        return "\r\n".join([*lines, *(f"{k}: {v}" for k, v in CHUNK.items()), "", ""]).encode()

    async def answer() -> tuple[bytes, bytes]:
        text = await reader.readuntil(b"\r\n\r\n")
        return text.split(b" ")[1], text

    writer.write(head(0, 2_000_000) + data[:10])  # the rest of the body comes later, and slowly
    await asyncio.sleep(0.05)
    writer.write(data[10:1_000_000])
    await asyncio.sleep(0.05)
    # The end of one body, the next chunk, and a request that follows it, without waiting for an answer.
    writer.write(data[1_000_000:2_000_000] + head(2_000_000, 2_000_000) + data[2_000_000:4_000_000])
    writer.write(f"HEAD {target} HTTP/1.1\r\nHost: x\r\nTus-Resumable: 1.0.0\r\n\r\n".encode())
    answers = [await answer() for _ in range(3)]
    assert [status for status, _ in answers] == [b"204", b"204", b"200"]
    assert not any(b"connection: close" in text.lower() for _, text in answers)
    assert b"Upload-Offset: 4000000" in answers[-1][1]
    writer.write(head(4_000_000, 2_000_000) + data[4_000_000:])
    assert (await answer())[0] == b"204"
    assert len(taken) == 3
    assert (await caller.inside(vfid) / "file").read_bytes() == data
    writer.close()


async def test_a_large_body_that_breaks_off_keeps_what_came(caller: Caller, proxy: StorageProxy) -> None:
    vfid = await caller.folder()
    url = await caller.upload_url(vfid, "file", 8_000_000)
    host, port = proxy.client_url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    lines = [f"PATCH {url[url.index('/upload') :]} HTTP/1.1", "Host: x", "Upload-Offset: 0", "Content-Length: 8000000"]
    writer.write("\r\n".join([*lines, *(f"{k}: {v}" for k, v in CHUNK.items()), "", ""]).encode())
    writer.write(DATA * 10)
    await writer.drain()
    await asyncio.sleep(0.3)
    assert (await caller.patch(url, 0, b"x")).status == 423
    writer.transport.abort()
    for _ in range(200):
        if (await caller.patch(url, 1, b"x")).status == 409:  # nobody writes any more
            break
        await asyncio.sleep(0.02)
    offset = int((await caller.head(url)).headers["Upload-Offset"])
    assert 0 < offset <= 3_000_000
    (data,) = (proxy.settings.volume["volume1"].path).rglob("*.data")
    assert data.read_bytes() == (DATA * 10)[:offset]


async def test_many_uploads_at_once(caller: Caller) -> None:
    vfid = await caller.folder()
    await asyncio.gather(*(caller.put(vfid, f"d/{n}", DATA[: 1000 * n]) for n in range(40)))
    inside = await caller.inside(vfid)
    assert {p.name: p.stat().st_size for p in (inside / "d").iterdir()} == {str(n): 1000 * n for n in range(40)}


async def test_uploads_that_nobody_goes_on_with_are_forgotten(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    proxy = StorageProxy(parsed(tmp_path, **{"upload-expiry": 0.3}))
    await proxy.start()
    try:
        caller = Caller(http, proxy.manager_url)
        vfid = await caller.folder()
        url = await caller.upload_url(vfid, "file", 6)
        assert (await caller.patch(url, 0, b"abc")).status == 204
        assert "Upload-Expires" in (await caller.head(url)).headers
        for _ in range(100):
            if (await caller.head(url)).status == 404:
                break
            await asyncio.sleep(0.05)
        assert (await caller.head(url)).status == 404
        assert not list((tmp_path / "volume1").rglob("*.data"))
    finally:
        await proxy.stop()


# Downloads


async def test_a_download_has_all_that_the_published_client_needs(caller: Caller) -> None:
    vfid = await caller.folder()
    await caller.put(vfid, "file", DATA)
    url = await caller.download_url(vfid, "file")
    answer = await caller.send("GET", url)
    assert (answer.status, answer.body) == (200, DATA)
    assert answer.headers["Content-Length"] == str(len(DATA))
    head = await caller.send("HEAD", url)
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", str(len(DATA)))
    last = answer.headers["Last-Modified"]
    rest = await caller.send("GET", url, headers={"Range": "bytes=1000-", "If-Range": last})
    assert (rest.status, rest.body) == (206, DATA[1000:])
    assert rest.headers["Content-Range"] == f"bytes 1000-{len(DATA) - 1}/{len(DATA)}"


@pytest.mark.parametrize(
    ("given", "status", "expected"),
    [
        ("bytes=0-0", 206, slice(0, 1)),
        ("bytes=-10", 206, slice(-10, None)),
        ("bytes=-999999", 206, slice(None)),
        ("bytes=299999-", 206, slice(299_999, None)),
        ("bytes=100-999999", 206, slice(100, None)),
        ("bytes=300000-", 416, slice(0, 0)),
        ("bytes=-0", 416, slice(0, 0)),
        ("bytes=5-2", 200, slice(None)),
        ("bytes=0-1,5-6", 200, slice(None)),
        ("bytes=x-", 200, slice(None)),
        pytest.param(f"bytes={'9' * 5000}-", 200, slice(None), id="absurd"),
        ("lines=1-2", 200, slice(None)),
    ],
)
async def test_ranges(caller: Caller, given: str, status: int, expected: slice) -> None:
    vfid = await caller.folder()
    await caller.put(vfid, "file", DATA)
    answer = await caller.send("GET", await caller.download_url(vfid, "file"), headers={"Range": given})
    assert (answer.status, answer.body) == (status, DATA[expected])
    if status == 416:
        assert answer.headers["Content-Range"] == f"bytes */{len(DATA)}"


async def test_a_range_of_a_file_that_changed_is_the_whole_new_file(caller: Caller) -> None:
    vfid = await caller.folder()
    await caller.put(vfid, "file", DATA)
    url = await caller.download_url(vfid, "file")
    etag = (await caller.send("HEAD", url)).headers["ETag"]
    assert (await caller.send("GET", url, headers={"If-None-Match": etag})).status == 304
    assert (await caller.send("GET", url, headers={"If-None-Match": f'"x", W/{etag}'})).status == 304
    assert (await caller.send("GET", url, headers={"Range": "bytes=0-9", "If-Range": etag})).status == 206
    await caller.put(vfid, "file", b"new")
    answer = await caller.send("GET", url, headers={"Range": "bytes=0-9", "If-Range": etag})
    assert (answer.status, answer.body) == (200, b"new")
    assert (await caller.send("GET", url, headers={"If-None-Match": etag})).status == 200


async def test_an_empty_file_and_awkward_names_are_downloaded(caller: Caller) -> None:
    vfid = await caller.folder()
    for name in ("empty", 'a"b\nc', "한글 é", "-x"):
        await caller.put(vfid, name, b"" if name == "empty" else name.encode())
        answer = await caller.send("GET", await caller.download_url(vfid, name))
        assert (answer.status, answer.body) == (200, b"" if name == "empty" else name.encode())
        assert "\n" not in answer.headers["Content-Disposition"]


async def test_a_directory_is_a_zip(caller: Caller) -> None:
    vfid = await caller.folder()
    await caller.put(vfid, "top/sub/file", DATA)
    await caller.put(vfid, "top/empty", b"")
    await caller.put(vfid, "other", b"other")
    inside = await caller.inside(vfid)
    (inside / "top" / "link").symlink_to("sub/file")
    (inside / "top" / "sub" / "run").write_text("#!")
    (inside / "top" / "sub" / "run").chmod(0o755)
    os.utime(inside / "top" / "empty", (2**33, 2**33))  # later than a zip can tell
    assert (await caller.ask("POST", "/folder/file/download", vfid=vfid, relpath="top")).status == 400
    answer = await caller.send("GET", await caller.download_url(vfid, "top", archive=True))
    assert answer.headers["Content-Type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
        assert archive.testzip() is None
        assert sorted(archive.namelist()) == [
            "top/",
            "top/empty",
            "top/link",
            "top/sub/",
            "top/sub/file",
            "top/sub/run",
        ]
        assert archive.read("top/sub/file") == DATA
        assert stat.S_ISLNK(archive.getinfo("top/link").external_attr >> 16)
        assert archive.read("top/link") == b"sub/file"
        assert archive.getinfo("top/sub/run").external_attr >> 16 & 0o777 == 0o755
    token = await caller.ask(
        "POST", "/folder/file/archive-download-token", vfid=vfid, files=["other", "top/sub"], filename="x.zip"
    )
    answer = await caller.send("GET", f"{token.json['url']}?token={token.json['token']}")
    assert 'filename="x.zip"' in answer.headers["Content-Disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
        assert sorted(archive.namelist()) == ["other", "sub/", "sub/file", "sub/run"]


async def test_who_stops_reading_a_zip_leaves_no_thread(caller: Caller, proxy: StorageProxy) -> None:
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    with (inside / "big").open("wb") as file:
        file.truncate(1 << 30)
    url = await caller.download_url(vfid, ".", archive=True)
    async with caller.http.get(url) as response:
        await response.content.readexactly(1 << 20)
    for _ in range(200):
        if not _zipping():
            break
        await asyncio.sleep(0.02)
    assert not _zipping()


def _zipping() -> bool:
    import sys

    frames = sys._current_frames().values()

    def names(frame: FrameType | None) -> list[str]:
        found = []
        while frame is not None:
            found.append(frame.f_code.co_name)
            frame = frame.f_back
        return found

    return any("_zip_parts" in names(frame) for frame in frames)


async def test_a_manager_fetches_a_file(caller: Caller) -> None:
    vfid = await caller.folder()
    await caller.put(vfid, "file", DATA)
    answer = await caller.ask("POST", "/folder/file/fetch", vfid=vfid, relpath="file")
    assert (answer.status, answer.body) == (200, DATA)


# Tokens


async def test_a_token_is_for_one_operation_on_one_thing_for_some_time(caller: Caller, proxy: StorageProxy) -> None:
    vfid = await caller.folder()
    await caller.put(vfid, "file", b"x")
    up, down = await caller.upload_url(vfid, "other", 1), await caller.download_url(vfid, "file")
    upload, download = up.partition("token=")[2], down.partition("token=")[2]
    base = proxy.client_url

    async def status(method: str, path: str, token: str) -> int:
        return (
            await caller.send(method, f"{base}{path}?token={token}", headers={**CHUNK, "Upload-Offset": "0"})
        ).status

    assert await status("GET", "/download", upload) == 401
    assert await status("PATCH", "/upload", download) == 401
    assert await status("DELETE", "/upload", download) == 401
    claims = jwt.decode(download, options={"verify_signature": False})
    assert claims["op"] == "download"
    assert claims["exp"] > time.time()

    def forged(secret: str = TOKEN_SECRET, algorithm: str = "HS256", **changes: object) -> str:
        payload = {k: v for k, v in {**claims, **changes}.items() if v is not None}
        return jwt.encode(payload, secret, algorithm=algorithm)

    assert await status("GET", "/download", forged()) == 200
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        weak = forged("guess")
    unsigned = jwt.encode(claims, "", algorithm="none")
    for token in (
        weak,
        unsigned,
        forged(exp=int(time.time()) - 5),
        forged(exp=None),
        forged(op=None),
        forged(vfid=None),
        "",
        "x.y.z",
        json.dumps(claims),
    ):
        assert await status("GET", "/download", token) == 401
    assert await status("GET", "/download", forged(relpath="../../x")) == 400
    assert await status("GET", "/download", forged(volume="none")) == 404
    other = await caller.folder()
    session = jwt.decode(upload, options={"verify_signature": False})
    foreign = jwt.encode({**session, "vfid": other}, TOKEN_SECRET, algorithm="HS256")
    assert await status("PATCH", "/upload", foreign) == 404


async def test_browsers_may_read_every_answer(caller: Caller, proxy: StorageProxy) -> None:
    for method, path in (
        ("OPTIONS", "/upload"),
        ("OPTIONS", "/upload?token=x&dst_dir=a"),
        ("OPTIONS", "/download?token=x&archive=1"),
        ("OPTIONS", "/download-archive?token=x"),
        ("PATCH", "/upload?token=x"),
        ("GET", "/no"),
    ):
        answer = await caller.send(method, proxy.client_url + path)
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert method != "OPTIONS" or answer.status == 204  # a browser takes nothing else than 2xx
        assert "Upload-Offset" in answer.headers["Access-Control-Expose-Headers"]
        assert "PATCH" in answer.headers["Access-Control-Allow-Methods"]


# Room


async def test_a_quota_refuses_what_does_not_fit(caller: Caller) -> None:
    vfid = await caller.folder()
    scope = vfid.partition("/")[0]
    mib = 1 << 20
    assert (await caller.ask("PATCH", "/quota-scope", qsid=scope, options={"limit_bytes": 2 * mib})).status == 204

    async def room_for(size: int) -> int:
        return (await caller.ask("POST", "/folder/file/upload", vfid=vfid, relpath=uuid4().hex, size=size)).status

    assert await room_for(3 * mib) == 507
    await caller.put(vfid, "one", os.urandom(mib))
    url = await caller.upload_url(vfid, "two", mib // 2)  # reserved, though nothing came
    assert await room_for(mib) == 507
    assert await room_for(mib // 4) == 200
    await caller.send("DELETE", url, headers=TUS)
    assert await room_for(mib // 2) == 200
    state = (await caller.ask("GET", "/quota-scope", qsid=scope)).json
    assert state["limit_bytes"] == 2 * mib
    assert state["enforcement"] == "soft"
    assert mib <= state["used_bytes"] < mib + 100_000
    assert (await caller.ask("POST", "/folder/file/delete", vfid=vfid, relpaths=["one"])).status == 204
    assert await room_for(mib) == 200
    assert (await caller.ask("DELETE", "/quota-scope/quota", qsid=scope)).status == 204
    assert await room_for(100 * mib) == 200
    assert (await caller.ask("GET", "/quota-scope", qsid=scope)).json["limit_bytes"] == -1
    assert (await caller.ask("GET", "/quota-scope", qsid=f"user:{uuid4()}")).status == 404


async def test_what_sessions_write_counts(caller: Caller) -> None:
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    scope = vfid.partition("/")[0]
    await caller.ask("PATCH", "/quota-scope", qsid=scope, options={"limit_bytes": 1 << 20})
    (inside / "written").write_bytes(os.urandom(900_000))
    os.sync()
    answer = await caller.ask("POST", "/folder/file/upload", vfid=vfid, relpath="more", size=500_000)
    assert answer.status == 507
    assert answer.json["type"].endswith("/quota-exceeded")
    assert answer.json["data"]["limit_bytes"] == 1 << 20
