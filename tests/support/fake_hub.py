"""A hub for tests that speaks as much of HuggingFace's protocol as an import needs, and misbehaves on demand."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

LARGE = 100_000
"""Bytes from which on a file is in LFS, behind a redirect."""


@dataclass
class Model:
    """One model with one branch.

    Attributes:
        told: replaces what the hub says of a file: size, digests.
        extra: files that the hub says it has besides.
        past: what the branch was before.
    """

    files: dict[str, bytes]
    told: dict[str, dict[str, Any]] = field(default_factory=dict)
    extra: list[dict[str, Any]] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    past: list[Model] = field(default_factory=list)
    gated: bool | str = False

    @property
    def commit(self) -> str:
        content = b"".join(name.encode() + data for name, data in sorted(self.files.items()))
        return hashlib.sha1(content, usedforsecurity=False).hexdigest()

    def info(self, name: str) -> dict[str, Any]:
        return {
            "_id": "0" * 24,
            "id": name,
            "modelId": name,
            "sha": self.commit,
            "author": name.partition("/")[0],
            "lastModified": "2024-01-02T03:04:05.000Z",
            "private": False,
            "gated": self.gated,
            "downloads": 7,
            "likes": 3,
            "tags": ["test"],
            "siblings": [{**_sibling(path, data), **self.told.get(path, {})} for path, data in self.files.items()]
            + self.extra,
        }


def _sibling(path: str, data: bytes) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    found: dict[str, Any] = {"rfilename": path, "size": len(data), "blobId": blob}
    if len(data) >= LARGE:
        found["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    return found


class FakeHub:
    """``requests`` are the paths that were asked for, with their ``credentials``; ``sent`` the bytes of files, by name.

    Attributes:
        token: if set, who does not send it gets 401.
        listing: answers instead of the list of models.
        answer: called before a file is sent; what it returns is sent instead, unless it is None.
        gate: closed, it holds files up once ``held_after`` bytes of an answer were sent.
    """

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self.datasets: dict[str, Model] = {}
        self.requests: list[str] = []
        self.credentials: list[str | None] = []
        self.sent: dict[str, int] = {}
        self.token: str | None = None
        self.answer: Callable[[web.Request, str], web.StreamResponse | None] = lambda *_: None
        self.listing: Callable[[web.Request], web.Response] | None = None
        self.has_ranges = True
        self.gate = asyncio.Event()
        self.gate.set()
        self.held_after = 1
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeHub]:
        app = web.Application(middlewares=[self._note])
        for kind in ("datasets", "models"):
            api, files = f"/api/{kind}", "" if kind == "models" else "/datasets"
            app.router.add_get(api, self._list)
            app.router.add_get(f"{api}/{{org}}/{{name}}", self._info)
            app.router.add_get(f"{api}/{{org}}/{{name}}/revision/{{version}}", self._info)
            app.router.add_get(f"{api}/{{org}}/{{name}}/refs", self._refs)
            app.router.add_get(f"{files}/{{org}}/{{name}}/resolve/{{version}}/{{path:.+}}", self._resolve)
            app.router.add_get(f"/cdn{files}/{{org}}/{{name}}/{{path:.+}}", self._send)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield self
        self.gate.set()
        await runner.cleanup()

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(request.path)
        is_public = request.path.startswith("/cdn/")
        self.credentials.append(request.headers.get("Authorization"))
        if self.token is not None and not is_public and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"error": "no"}, status=401)
        response: web.StreamResponse = await handler(request)
        return response

    def _model(self, request: web.Request) -> tuple[str, Model]:
        name = f"{request.match_info['org']}/{request.match_info['name']}"
        version = request.match_info.get("version") or request.query.get("version", "main")
        model = self._repositories(request).get(name)
        for past in model.past if model else ():
            if past.commit == version:
                return name, past
        if model is None:
            raise web.HTTPNotFound(headers={"X-Error-Code": "RepoNotFound"})
        if version not in ("main", model.commit, *model.tags):
            raise web.HTTPNotFound(headers={"X-Error-Code": "RevisionNotFound"})
        return name, model

    def _repositories(self, request: web.Request) -> dict[str, Model]:
        return self.datasets if "datasets" in request.path.split("/")[1:3] else self.models

    async def _list(self, request: web.Request) -> web.Response:
        if self.listing is not None:
            return self.listing(request)
        search, author = request.query.get("search", ""), request.query.get("author", "")
        repositories = self._repositories(request)
        names = [name for name in repositories if search in name and name.startswith(author)]
        names = names[: int(request.query.get("limit", 1000))]
        found = [repositories[name].info(name) for name in names]
        for info in found:
            info["siblings"] = [{"rfilename": one["rfilename"]} for one in info["siblings"]]
        return web.json_response(found)

    async def _info(self, request: web.Request) -> web.Response:
        name, model = self._model(request)
        return web.json_response(model.info(name))

    async def _refs(self, request: web.Request) -> web.Response:
        _, model = self._model(request)
        tags = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": at} for tag, at in model.tags.items()]
        main = [{"name": "main", "ref": "refs/heads/main", "targetCommit": model.commit}]
        return web.json_response({"branches": main, "converts": [], "tags": tags})

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        name, model = self._model(request)
        path = request.match_info["path"]
        if path in model.files and len(model.files[path]) >= LARGE:
            kind = "datasets/" if self._repositories(request) is self.datasets else ""
            return web.Response(status=302, headers={"Location": f"/cdn/{kind}{name}/{path}?version={model.commit}"})
        return await self._send(request)

    async def _send(self, request: web.Request) -> web.StreamResponse:
        _, model = self._model(request)
        path = request.match_info["path"]
        if (instead := self.answer(request, path)) is not None:
            return instead
        if path not in model.files:
            raise web.HTTPNotFound
        data = model.files[path]
        offset = 0
        if self.has_ranges and (asked := request.headers.get("Range")):
            offset = int(asked.removeprefix("bytes=").removesuffix("-"))
        response = web.StreamResponse(status=206 if offset else 200)
        response.content_length = len(data) - offset
        response.headers["ETag"] = f'"{hashlib.sha256(data).hexdigest()}"'
        if offset:
            response.headers["Content-Range"] = f"bytes {offset}-{len(data) - 1}/{len(data)}"
        await response.prepare(request)
        for at in range(offset, len(data), 1 << 16):
            if at - offset >= self.held_after:
                await self.gate.wait()
            piece = data[at : min(at + (1 << 16), len(data))]
            try:
                await response.write(piece)
            except ConnectionError:
                break
            self.sent[path] = self.sent.get(path, 0) + len(piece)
        return response
