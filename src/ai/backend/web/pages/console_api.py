"""Routes of the console of this project: its page for every path, and its assets by their digest."""

from __future__ import annotations

import secrets

from aiohttp import web

from ai.backend.infra.http.errors import RouteNotFound
from ai.backend.infra.http.routes import Call, route
from ai.backend.web.config.settings import WebSettings
from ai.backend.web.guard import POLICY, public_origin
from ai.backend.web.pages.bundle import ASSETS_NAME, Asset
from ai.backend.web.pages.config_file import console_configuration
from ai.backend.web.pages.console import Console
from ai.backend.web.pages.page import boot_data, console_policy, fill_page, preferred_language, progress_page

_NONCE_BYTES = 16
_CACHE_FOR_EVER = "public, max-age=31536000, immutable"


class ConsoleApi:
    """Serves the console. No path names a file of the disk: all files are in memory."""

    def __init__(self, settings: WebSettings, console: Console, *, scheme: str) -> None:
        self._settings = settings
        self._console = console
        self._scheme = scheme

    @route("GET", "/config.toml", auth=False, limited=False, kind="relay", produces=("text/plain",))
    async def configuration(self, call: Call) -> web.Response:
        """Returns the settings of the console."""
        origin = public_origin(call.request, scheme=self._scheme)
        configuration_toml = console_configuration(self._settings, origin=origin)
        return web.Response(text=configuration_toml, headers={"Cache-Control": "no-store"})

    @route("GET", "/assets/{digest}/{path*}", auth=False, limited=False, kind="relay", produces=("text/javascript",))
    async def asset(self, call: Call) -> web.Response:
        """Returns a file of the current console's bundle by the bundle's digest and the file's path.

        Files of other bundles are not found.
        """
        bundle = await self._console.asset_bundle()
        if bundle is None or call.params["digest"] != bundle.digest:
            raise RouteNotFound("These files belong to another version of the console: load the page again.")
        asset = bundle.assets.get(call.params["path"])
        if asset is None:
            raise RouteNotFound
        return _asset_response(call.request, asset, _CACHE_FOR_EVER)

    @route("GET", "/{path*}", auth=False, limited=False, kind="relay", produces=("text/html",))
    async def page(self, call: Call) -> web.Response:
        """Returns the page of the console for any path, or a file beside the page."""
        name = call.params["path"]
        public_origin(call.request, scheme=self._scheme)
        bundle = await self._console.bundle()
        if bundle is not None and (file := bundle.files.get(name)) is not None:
            return _asset_response(call.request, file, "no-cache")
        if name.startswith(f"{ASSETS_NAME}/") or ("." in name and "/" not in name and name != "index.html"):
            raise RouteNotFound
        if self._settings.service.mode == "static" and name not in ("", "index.html"):
            raise RouteNotFound
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        headers = {"Cache-Control": "no-store", "Content-Type": "text/html; charset=utf-8"}
        if bundle is None:
            progress = await self._console.progress()
            page_text = progress_page(progress, nonce=nonce, has_sources=self._console.can_be_built)
            headers[POLICY] = console_policy(nonce, has_script=False)
            return web.Response(status=503, body=page_text.encode(), headers={**headers, "Retry-After": "2"})
        language = preferred_language(call.request.headers.get("Accept-Language", ""))
        page_text = fill_page(
            bundle.page,
            prefix=self._settings.service.path_prefix,
            nonce=nonce,
            boot_values=boot_data(self._settings, language=language),
        )
        headers[POLICY] = console_policy(nonce, origins=tuple(self._settings.security.connect_origins))
        return web.Response(body=page_text.encode(), headers=headers)


def _asset_response(request: web.Request, asset: Asset, cache_control: str) -> web.Response:
    headers = {"Content-Type": asset.content_type, "Cache-Control": cache_control, "Vary": "Accept-Encoding"}
    if asset.content_type.startswith("text/"):
        headers["Content-Type"] += "; charset=utf-8"
    if not asset.is_compressed:
        return web.Response(body=asset.content, headers=headers)
    if "gzip" in request.headers.get("Accept-Encoding", "").lower():
        return web.Response(body=asset.content, headers={**headers, "Content-Encoding": "gzip"})
    return web.Response(body=asset.plain(), headers=headers)
