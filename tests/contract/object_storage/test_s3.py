"""S3 keeps the contract of object storages, on a real server; and what it does where the server does not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from ai.backend.common.errors import (
    BackendError,
    BucketNotFound,
    InvalidInput,
    NoSuchFile,
    ObjectStorageRefused,
    ObjectStorageUnavailable,
)
from ai.backend.plugin.object_storage import ObjectStorage, StorageContext
from ai.backend.plugin.testing.object_storage import ObjectStorageContract, content_of
from ai.backend.volume.object import s3 as module
from ai.backend.volume.object.s3 import S3Storage
from tests.support.cluster import free_port
from tests.support.s3_server import options

MIB = 1 << 20


def s3(url: str, **own: Any) -> S3Storage:
    quick = {"connect-timeout": 1, "read-timeout": 1, "tries": 1}
    return S3Storage("s3", options(url, **{**quick, **own}), StorageContext())


class TestS3(ObjectStorageContract):
    @pytest.fixture(autouse=True)
    def _server(self, s3_url: str) -> None:
        self.url = s3_url

    def make(self, place: str) -> ObjectStorage:
        return S3Storage("s3", options(self.url, prefix=place), StorageContext())

    async def test_of_two_unfinished_uploads_the_longer_one_goes_on(self, storage: ObjectStorage, place: str) -> None:
        data = os.urandom(11 * MIB)
        first, other = await storage.open_upload("object"), self.make(place)
        await other.start()
        second = await other.open_upload("object")
        await first.write(data[: 6 * MIB])
        await second.write(data)
        await first.close()
        await second.close()
        again = await storage.open_upload("object")
        assert again.offset == 10 * MIB
        await again.write(data[again.offset :])
        await again.publish()
        assert await content_of(storage, "object") == data
        assert (await storage.open_upload("object")).offset == 0
        await other.stop()

    async def test_a_multipart_upload_that_never_got_a_part(self, storage: ObjectStorage) -> None:
        assert isinstance(storage, S3Storage)
        for data in (b"", b"abc"):
            await storage.call("create_multipart_upload", Key=storage.full_key("object"))
            await storage.put("object", data)
            assert await content_of(storage, "object") == data
        assert "Uploads" not in await storage.call("list_multipart_uploads", Prefix=storage.full_key("object"))

    async def test_what_is_larger_than_one_copy_is_copied_in_parts(
        self, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = os.urandom(3 * MIB)
        await storage.put("object", data)
        monkeypatch.setattr(module, "_MAX_COPY_BYTES", 2 * MIB)
        await storage.move("object", "moved")
        assert await content_of(storage, "moved") == data
        with pytest.raises(NoSuchFile):
            await storage.stat("object")

    async def test_a_bucket_that_is_not_there(self) -> None:
        storage = s3(self.url, bucket="nowhere")
        await storage.start()
        assert "nowhere" in str(await storage.check())
        for call in (storage.stat("a"), storage.put("a", b"x"), storage.list(), content_of(storage, "a")):
            with pytest.raises(BucketNotFound):
                await call
        await storage.stop()


async def every_call(storage: S3Storage, expected: type[BackendError]) -> None:
    for call in (
        storage.stat("a"),
        storage.put("a", b"x"),
        storage.list(),
        content_of(storage, "a"),
        storage.delete(["a"]),
        storage.move("a", "b"),
        storage.open_upload("a"),
        storage.delete_prefix("a/"),
    ):
        async with asyncio.timeout(20):
            with pytest.raises(expected):
                await call
    assert await storage.check()


@pytest.fixture
async def answers() -> AsyncIterator[dict[str, Any]]:
    """A server that answers everything with ``status`` and ``code`` after ``pause``; ``url`` is where it is."""
    told: dict[str, Any] = {"status": 503, "code": "SlowDown", "pause": 0.0}

    async def handle(_: web.Request) -> web.Response:
        await asyncio.sleep(told["pause"])
        body = f"<?xml version='1.0'?><Error><Code>{told['code']}</Code><Message>no</Message></Error>"
        return web.Response(status=told["status"], text=body, content_type="application/xml")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    told["url"] = f"http://127.0.0.1:{port}"
    yield told
    await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "InvalidAccessKeyId", ObjectStorageRefused),
        (403, "SignatureDoesNotMatch", ObjectStorageRefused),
        (403, "AccessDenied", ObjectStorageRefused),
        (503, "SlowDown", ObjectStorageUnavailable),
        (500, "InternalError", ObjectStorageUnavailable),
    ],
)
async def test_what_the_server_says_is_named(
    answers: dict[str, Any], status: int, code: str, expected: type[BackendError]
) -> None:
    answers |= {"status": status, "code": code}
    storage = s3(answers["url"])
    await storage.start()
    await every_call(storage, expected)
    await storage.stop()


async def test_a_server_that_is_slow_or_down(answers: dict[str, Any]) -> None:
    answers["pause"] = 30
    storage = s3(answers["url"], **{"read-timeout": 0.2})
    await storage.start()
    await every_call(storage, ObjectStorageUnavailable)
    await storage.stop()
    storage = s3(f"http://127.0.0.1:{free_port()}")
    await storage.start()
    await every_call(storage, ObjectStorageUnavailable)
    await storage.stop()


async def test_a_part_that_fails_ends_the_multipart_upload(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = s3(s3_url, prefix="failing", **{"read-timeout": 20})
    await storage.start()
    call = storage.call

    async def second_part_fails(operation: str, **parameters: Any) -> Any:
        if operation == "upload_part" and parameters["PartNumber"] == 2:
            raise ObjectStorageUnavailable
        return await call(operation, **parameters)

    monkeypatch.setattr(storage, "call", second_part_fails)
    with pytest.raises(ObjectStorageUnavailable):
        await storage.put("object", os.urandom(11 * MIB))
    assert "Uploads" not in await call("list_multipart_uploads", Prefix="failing/")
    with pytest.raises(NoSuchFile):
        await storage.stat("object")
    await storage.stop()


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"bucket": "x"}, "options.bucket"),
        ({"colour": "red"}, "options.colour: there is no such key"),
        ({"part-size": "1m"}, "options.part-size"),
        ({"secret-key": None}, "go together"),
    ],
)
def test_wrong_settings(own: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        S3Storage("s3", options("http://127.0.0.1", **own), StorageContext())


async def test_an_endpoint_that_is_none() -> None:
    with pytest.raises(InvalidInput, match="Invalid endpoint"):
        await s3("not a url").start()
