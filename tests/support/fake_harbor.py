"""A registry's API as an application of a test: Harbor 2 as documented, and servers that lie."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_SLOW_S = 0.01


@dataclass
class FakeHarbor:
    """Projects with repositories with artifacts, as ``GET /api/v2.0/...`` tells them, in pages.

    ``most`` is how many requests were ever under way at once.
    """

    projects: dict[str, dict[str, list[dict[str, Any]]]]
    user: str = "robot$reader"
    password: str = "secret"  # of this fake alone
    requests: list[str] = field(default_factory=list)
    most: int = 0
    _now: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            await asyncio.sleep(_SLOW_S)
            return self._answer(request)
        finally:
            self._now -= 1

    def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.rel_url.raw_path)
        login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        if request.headers.get("Authorization") != f"Basic {login}":
            return web.json_response({"errors": [{"code": "UNAUTHORIZED"}]}, status=401)
        # raw: a slash in a repository's name comes encoded twice
        parts = request.rel_url.raw_path.strip("/").split("/")
        if parts[:3] != ["api", "v2.0", "projects"]:
            return web.json_response({}, status=404)
        match [unquote(unquote(part)) for part in parts[3:]]:
            case []:
                return self._page(request, [{"name": name} for name in self.projects])
            case [project, "repositories"]:
                names = [{"name": f"{project}/{name}"} for name in self.projects.get(project, {})]
                return self._page(request, names)
            case [project, "repositories", name, "artifacts"]:
                there = [a for a in self.projects[project][name] if a.get("tags")]
                return self._page(request, there)
            case [project, "repositories", name, "artifacts", digest]:
                found = [a for a in self.projects[project][name] if a["digest"] == digest]
                return web.json_response(found[0]) if found else web.json_response({}, status=404)
        return web.json_response({}, status=404)

    @staticmethod
    def _page(request: web.Request, items: list[dict[str, Any]]) -> web.StreamResponse:
        size, page = int(request.query.get("page_size", 10)), int(request.query.get("page", 1))
        body = items[(page - 1) * size : page * size]
        return web.json_response(body, headers={"X-Total-Count": str(len(items))})


def artifact(
    number: int, *tags: str, labels: dict[str, str] | None = None, architecture: str = "amd64", **more: Any
) -> dict[str, Any]:
    """As Harbor describes an image."""
    return {
        "digest": f"sha256:{number:064x}",
        "type": "IMAGE",
        "size": 1000 + number,
        "tags": [{"name": tag} for tag in tags],
        "references": None,
        "extra_attrs": {"architecture": architecture, "os": "linux", "config": {"Labels": labels}},
        **more,
    }


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """The URL at which every request goes to ``handler``."""
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def told(value: Any, **headers: str) -> web.Response:
    return web.Response(body=json.dumps(value).encode(), content_type="application/json", headers=headers)
