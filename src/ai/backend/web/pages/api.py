"""Routes of the console: its files, and the configuration that it reads."""

from __future__ import annotations

import mimetypes
import re
from pathlib import Path

from aiohttp import web

from ai.backend.infra.http.errors import RouteNotFound
from ai.backend.infra.http.routes import Call, route
from ai.backend.web.config.settings import WebSettings
from ai.backend.web.guard import POLICY, public_origin
from ai.backend.web.pages.config_file import console_configuration
from ai.backend.web.pages.csp import page_policy

_INDEX_NAME = "index.html"
_PUBLIC_FOLDER = ".well-known"
"""The only hidden folder that is served (RFC 8615)."""
_UNCACHED_SUFFIXES = frozenset({".toml", ".json", ".html"})
_PINNED_NAME_PATTERN = re.compile(r"[.-][0-9a-fA-F]{8,}\.[a-z0-9.]+$")
"""File names with a hash of their content, which never change."""


class PagesApi:
    """Serves the files of a built console from one folder.

    Links in it may lead nowhere outside, and hidden files stay hidden.
    """

    def __init__(self, settings: WebSettings, *, scheme: str) -> None:
        self._settings = settings
        self._scheme = scheme
        folder = settings.service.static_path
        self._folder = folder.expanduser().resolve() if folder is not None else None

    @route("GET", "/config.toml", auth=False, limited=False, kind="relay", produces=("text/plain",))
    async def configuration(self, call: Call) -> web.Response:
        """Returns the settings of the console."""
        origin = public_origin(call.request, scheme=self._scheme)
        configuration_toml = console_configuration(self._settings, origin=origin)
        return web.Response(text=configuration_toml, headers={"Cache-Control": "no-store"})

    @route("GET", "/{path*}", auth=False, limited=False, kind="relay", produces=("text/html",))
    async def file(self, call: Call) -> web.StreamResponse:
        """Returns a file of the console, or its page for a path that is none."""
        name = call.params["path"]
        file = self._find(name)
        if file is None and self._settings.service.mode == "webui" and "." not in name.rpartition("/")[2]:
            file = self._find(_INDEX_NAME)
        if file is None:
            raise RouteNotFound(
                "There is no console here: service.static-path names no folder." if self._folder is None else ""
            )
        content_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        headers = {"Content-Type": content_type, "Cache-Control": _cache_control(file)}
        if content_type == "text/html":
            headers[POLICY] = page_policy(self._settings.security.csp, file.read_text(errors="replace"))
        return web.FileResponse(file, headers=headers, chunk_size=256 << 10)

    def _find(self, name: str) -> Path | None:
        """Returns the path of a regular file beneath the folder, unless it is hidden."""
        if self._folder is None or "\x00" in name:
            return None
        try:
            path = (self._folder / (name or _INDEX_NAME).lstrip("/")).resolve()
            if path.is_dir():
                path = (path / _INDEX_NAME).resolve()
            if not path.is_relative_to(self._folder) or not path.is_file():
                return None
            is_hidden = any(
                path_part.startswith(".")
                for path_part in path.relative_to(self._folder).parts
                if path_part != _PUBLIC_FOLDER
            )
            return None if is_hidden else path
        except OSError:  # a name that is too long
            return None


def _cache_control(file: Path) -> str:
    if file.suffix in _UNCACHED_SUFFIXES:
        return "no-store"
    return "public, max-age=31536000, immutable" if _PINNED_NAME_PATTERN.search(file.name) else "no-cache"
