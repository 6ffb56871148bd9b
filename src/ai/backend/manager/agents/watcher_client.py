"""Calls watchers of agents over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aiohttp
from yarl import URL

from ai.backend.common.errors import InvalidInput, Unavailable

TOKEN_HEADER = "X-BackendAI-Watcher-Token"
_HTTP_TIMEOUT = aiohttp.ClientTimeout(total=75.0, connect=5.0)
"""The timeout of a request, longer than the minute for which a watcher waits for its agent."""
_MAX_REPLY_BYTES = 65_536


class HttpWatcherGateway:
    """Calls watchers over HTTP; ``https://`` before the host selects TLS."""

    async def call(self, method: str, host: str, port: str, path: str, *, token: str) -> Mapping[str, Any]:
        scheme, _, host_name = host.rpartition("://")
        try:
            url = URL.build(scheme=scheme or "http", host=host_name, port=int(port), path=path)
            if url.scheme not in ("http", "https"):
                raise ValueError(scheme)
        except ValueError:
            raise InvalidInput(f"{host[:64]}:{port[:8]} is no address of a watcher.") from None
        try:
            async with (
                aiohttp.ClientSession(timeout=_HTTP_TIMEOUT, headers={TOKEN_HEADER: token}) as http,
                http.request(method, url, allow_redirects=False) as response,
            ):
                reply_text = b""
                while chunk := await response.content.read(_MAX_REPLY_BYTES):
                    reply_text += chunk
                    if len(reply_text) > _MAX_REPLY_BYTES:
                        raise ValueError("the answer is too long")
                reply = json.loads(reply_text)
                if response.status != 200 or not isinstance(reply, dict):
                    reason = (reply.get("msg") or reply.get("title")) if isinstance(reply, dict) else None
                    message = f"The watcher at {url.host} refused ({response.status}): {str(reason or '')[:500]}"
                    raise Unavailable(message)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as e:
            raise Unavailable(f"The watcher at {url.host} does not answer: {type(e).__name__}.") from e
        return reply
