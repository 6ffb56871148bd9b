"""The console of this project as browsers get it: one page for every path, assets for ever, nothing else."""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import json
import os
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from ai.backend.infra.console import places
from ai.backend.infra.console.places import bundle_place, source_digest
from ai.backend.infra.console.progress import LOCK_NAME, Progress, write_progress
from tests.component.web.conftest import Site, running_site

PAGE = """<!doctype html><html><head><meta name="path-prefix" content="__BACKENDAI_PREFIX__">
<meta name="csp-nonce" content="__BACKENDAI_NONCE__"><link rel="stylesheet" href="./assets/index-abc.css">
<script type="application/json" id="boot">__BACKENDAI_BOOT__</script>
<script type="module" src="./assets/index-abc.js"></script></head><body><div id="root"></div></body></html>"""
HOSTILE_NAME = "</script><script>alert(1)</script><!-- \u2028 & 한"


def write_console(folder: Path, script: str = "import './chunk-1.js'; " * 100) -> Path:
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_text(PAGE)
    (folder / "favicon.svg").write_text("<svg/>")
    (folder / "assets" / "index-abc.js").write_text(script)
    (folder / "assets" / "index-abc.css").write_text("body{}")
    (folder / "assets" / "index-abc.js.map").write_text("{}")
    (folder / "assets" / "link.js").symlink_to("/etc/passwd")
    return folder


class Page(HTMLParser):
    """What a browser finds in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.boot = ""
        self._is_boot = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._is_boot = tag == "script" and dict(attrs).get("id") == "boot"

    def handle_data(self, data: str) -> None:
        if self._is_boot:
            self.boot += data

    def handle_endtag(self, tag: str) -> None:
        self._is_boot = False

    def first(self, tag: str) -> dict[str, str | None]:
        return next(attrs for name, attrs in self.tags if name == tag)


@pytest.fixture
async def console_site(tmp_path: Path) -> AsyncIterator[Site]:
    folder = write_console(tmp_path / "dist")
    tables: dict[str, Any] = {
        "service": {"static-path": str(folder), "path-prefix": "/console"},
        "api": {"text": HOSTILE_NAME},
        "security": {"connect-origins": "http://storage.example:6021"},
    }
    async with running_site(tmp_path, **tables) as site:
        yield site


async def read(site: Site, path: str, **headers: str) -> tuple[aiohttp.ClientResponse, bytes]:
    async with site.http.get(URL(site.url + path, encoded=True), headers=headers) as response:
        return response, await response.read()


async def test_every_route_of_the_console_answers_the_page(console_site: Site) -> None:
    nonces = set()
    for path in ("/", "/login?next=%2Fsessions", "/sessions/x/terminal", "/folders/1/files/a/b.txt", "/index.html"):
        response, body = await read(console_site, path, **{"Accept-Language": "fr, ko-KR;q=0.8, en;q=0.5"})
        assert (response.status, response.content_type) == (200, "text/html"), path
        assert response.headers["Cache-Control"] == "no-store"
        page = Page(body.decode())
        said = {attrs.get("name"): attrs.get("content") for tag, attrs in page.tags if tag == "meta"}
        nonce = said["csp-nonce"]
        nonces.add(nonce)
        policy = dict(part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["style-src"] == f"'self' 'nonce-{nonce}'"
        assert policy["connect-src"] == "'self' http://storage.example:6021"
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in str(policy)
        assert (policy["base-uri"], policy["object-src"]) == ("'none'", "'none'")
        assert said["path-prefix"] == "/console/"
        assert all(tag != "base" for tag, _ in page.tags), "a policy without bases forbids one of ours too"
        assert str(page.first("link")["href"]).startswith("/console/assets/")
        assert [tag for tag, _ in page.tags].count("script") == 2, "a name opens no element"
        boot = json.loads(page.boot)
        assert boot["siteName"] == HOSTILE_NAME
        assert boot["language"] == "ko"
        assert boot["version"]
        assert "features" in boot
    assert len(nonces) == 5, "each request has a nonce of its own"


async def test_assets_are_kept_for_ever_under_their_digest(console_site: Site) -> None:
    _, body = await read(console_site, "/")
    scripts = [attrs["src"] for tag, attrs in Page(body.decode()).tags if tag == "script" and "src" in attrs]
    assert scripts[0] is not None
    assert scripts[0].startswith("/console/assets/"), "whatever the path of the page is"
    path = scripts[0].removeprefix("/console")
    assert re.fullmatch(r"/assets/[0-9a-f]{16}/index-abc\.js", path)
    async with console_site.http.get(
        console_site.url + path, headers={"Accept-Encoding": "gzip"}, auto_decompress=False
    ) as response:
        assert response.headers["Content-Encoding"] == "gzip"
        assert response.headers["Cache-Control"] == "public, max-age=31536000, immutable"
        assert response.content_type == "text/javascript"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        compressed = await response.read()
    response, plain = await read(console_site, path, **{"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in response.headers
    assert gzip.decompress(compressed) == plain
    assert plain.startswith(b"import")
    for missing in (
        path.replace(path.split("/")[2], "0" * 16),  # a tab with an older version
        f"{path}.map",
        path.replace("index-abc", "link"),
        "/assets/index-abc.js",
        "/assets/../../etc/passwd",
        path.replace("index-abc.js", "..%2f..%2f..%2f..%2fetc%2fpasswd"),
    ):
        response, body = await read(console_site, missing)
        assert response.status == 404, missing
        assert "immutable" not in response.headers.get("Cache-Control", "")
        assert b"root:" not in body
    response, body = await read(console_site, "/favicon.svg")
    assert (response.status, body, response.headers["Cache-Control"]) == (200, b"<svg/>", "no-cache")
    assert (await read(console_site, "/robots.txt"))[0].status == 404


async def test_headers_of_clients_are_not_believed(console_site: Site) -> None:
    forged = {
        "X-Forwarded-Prefix": '/evil"><script>',
        "X-Forwarded-Host": "evil.example",
        "X-Script-Name": "/evil",
        "Forwarded": "host=evil.example",
        "Accept-Language": "<script>,ko;q=x,zz",
    }
    _, body = await read(console_site, "/", **forged)
    assert b"evil" not in body
    assert json.loads(Page(body.decode()).boot)["language"] == "en"
    for host in ("a b", "<script>", "user@host", "x/../y"):
        assert (await read(console_site, "/", Host=host))[0].status == 400, host


async def test_where_nothing_is_built_a_page_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache" / "backend.ai" / "console"
    sources = tmp_path / "webui"
    sources.mkdir()
    (sources / "package-lock.json").write_text("{}")
    cache.mkdir(parents=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(places, "source_folder", lambda: sources)
    async with running_site(tmp_path) as site:
        response, body = await read(site, "/sessions")
        assert response.status == 503
        assert b"<code>backend.ai web build</code>" in body
        assert "script-src 'none'" in response.headers["Content-Security-Policy"]
        assert b'http-equiv="refresh"' in body
        state = {"digest": "1", "started_at": 0.0}
        write_progress(cache, Progress(step="Building", error="<b>disk</b>", **state))  # type: ignore[arg-type]  # texts
        assert b"&lt;b&gt;disk" in (await read(site, "/"))[1]
        write_progress(cache, Progress(step="Fetching packages", **state))  # type: ignore[arg-type]  # texts
        with (cache / LOCK_NAME).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert b"Fetching packages" in (await read(site, "/"))[1]
        bundle = bundle_place(cache, source_digest(sources))
        write_console(bundle.with_name("new") / "console")
        os.rename(bundle.with_name("new"), bundle)
        response, body = await _until_ready(site)
        assert b'id="root"' in body


async def test_an_installation_without_sources_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "source_folder", lambda: None)
    async with running_site(tmp_path) as site:
        response, body = await read(site, "/")
        assert response.status == 503
        assert b"install a wheel" in body
        assert b"web build" not in body


async def _until_ready(site: Site) -> tuple[aiohttp.ClientResponse, bytes]:
    async with asyncio.timeout(10):
        while True:
            response, body = await read(site, "/")
            if response.status == 200:
                return response, body
            await asyncio.sleep(0.1)
