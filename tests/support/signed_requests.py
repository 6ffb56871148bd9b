"""Requests with the signature of the project's clients, for programs that use the library `requests`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase

from ai.backend.common.signing import SignedParts, authorization, media_type, sign

VERSION = "v7.20230615"


class Signature(AuthBase):
    """Signs requests with the keypair of an environment (``BACKEND_ACCESS_KEY``, ``BACKEND_SECRET_KEY``)."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        url = urlsplit(str(request.url))
        content_type: str | bytes | None = request.headers.get("Content-Type")
        if isinstance(content_type, bytes):
            content_type = content_type.decode("latin-1")
        parts = SignedParts(
            method=str(request.method),
            raw_target=f"{url.path or '/'}{f'?{url.query}' if url.query else ''}",
            date=datetime.now(UTC).isoformat(),
            host=url.netloc,
            content_type=media_type(content_type),
            version=VERSION,
        )
        request.headers["Date"] = parts.date
        request.headers["X-BackendAI-Version"] = VERSION
        signature = sign(parts, self._environment["BACKEND_SECRET_KEY"])
        request.headers["Authorization"] = authorization(self._environment["BACKEND_ACCESS_KEY"], signature)
        return request


def send(environment: Mapping[str, str], method: str, path: str, **body: Any) -> requests.Response:
    """Sends one signed request to the endpoint of an environment."""
    url = environment["BACKEND_ENDPOINT"] + path
    return requests.request(method, url, json=body or None, auth=Signature(environment), timeout=60)
