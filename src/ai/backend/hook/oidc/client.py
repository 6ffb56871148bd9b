"""Sends requests to an OpenID provider: for its document of discovery, keys, tokens and claims."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus

import aiohttp
import jwt
from yarl import URL

from ai.backend.hook.oidc.settings import OidcSettings

MAX_BYTES = 1 << 20
DISCOVERY_S = 3_600.0
_CHUNK_BYTES = 1 << 16
KEYS_S = 600.0
REFRESH_S = 30.0
"""The seconds between two requests for unknown keys, however many tokens name unknown keys."""


class ProviderFailed(Exception):
    """Raised when the OpenID provider does not answer, or not as the specification says."""


@dataclass(eq=False)
class ProviderClient:
    """Represents an OpenID provider, as its document of discovery describes it (OpenID Connect Discovery 1.0)."""

    settings: OidcSettings
    _http: aiohttp.ClientSession | None = None
    _document: Mapping[str, Any] = field(default_factory=dict)
    _document_at: float = float("-inf")
    _keys: Mapping[str, jwt.PyJWK] = field(default_factory=dict)
    _keys_at: float = float("-inf")

    async def start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=self.settings.timeout_s)
        self._http = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())

    async def stop(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def endpoint(self, name: str) -> str:
        """Returns an endpoint of the provider. Raises ProviderFailed."""
        if time.monotonic() - self._document_at > DISCOVERY_S:
            url = self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
            document = await self._read("GET", url)
            if document.get("issuer") != self.settings.issuer:  # Discovery 1.0, 4.3
                raise ProviderFailed("the document of discovery is of another issuer")
            self._document, self._document_at = document, time.monotonic()
        url = str(self._document.get(name) or "")
        if URL(url).scheme not in self.settings.schemes:
            raise ProviderFailed(f"there is no {name} that may be used")
        return url

    async def key(self, key_id: str) -> jwt.PyJWK:
        """Returns a key of the provider. An empty ``key_id`` stands for the only key. Raises ProviderFailed."""
        age_s = time.monotonic() - self._keys_at
        if age_s > KEYS_S or (key_id not in self._keys and age_s > REFRESH_S):
            key_document = await self._read("GET", await self.endpoint("jwks_uri"))
            try:
                keys = jwt.PyJWKSet.from_dict(dict(key_document)).keys
            except jwt.PyJWTError as e:
                raise ProviderFailed(f"its keys are malformed: {e}") from None
            self._keys = {key.key_id or "": key for key in keys if key.public_key_use in (None, "sig")}
            self._keys_at = time.monotonic()
        if not key_id and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if key_id not in self._keys:
            raise ProviderFailed("a token is signed by an unknown key")
        return self._keys[key_id]

    async def exchange(self, code: str, verifier: str, return_url: str) -> Mapping[str, Any]:
        """Returns the tokens for a code (RFC 6749, 4.1.3; RFC 7636, 4.5). Raises ProviderFailed."""
        secret = self.settings.client_secret.get_secret_value()
        form_fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": return_url,
            "client_id": self.settings.client_id,
            "code_verifier": verifier,
        }
        headers = {}
        if secret:  # each part is encoded as a form is (RFC 6749, 2.3.1)
            login, password = quote_plus(self.settings.client_id), quote_plus(secret)
            headers["Authorization"] = aiohttp.encode_basic_auth(login, password)
        return await self._read("POST", await self.endpoint("token_endpoint"), data=form_fields, headers=headers)

    async def claims(self, access_token: str) -> Mapping[str, Any]:
        """Returns the claims of the user from the provider. Raises ProviderFailed."""
        headers = {"Authorization": f"Bearer {access_token}"}
        return await self._read("GET", await self.endpoint("userinfo_endpoint"), headers=headers)

    async def _read(self, method: str, url: str, **options: Any) -> Mapping[str, Any]:
        if self._http is None:
            raise ProviderFailed("the plugin is not started")
        body = bytearray()
        try:
            async with self._http.request(method, url, allow_redirects=False, **options) as response:
                if response.status != 200:
                    raise ProviderFailed(f"{URL(url).path} answers {response.status}")
                async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise ProviderFailed(f"{URL(url).path} answers too much")
        except (aiohttp.ClientError, TimeoutError) as e:
            raise ProviderFailed(f"{URL(url).host} does not answer: {type(e).__name__}") from None
        try:
            document = json.loads(body)
        except ValueError:
            raise ProviderFailed(f"{URL(url).path} answers no JSON") from None
        if not isinstance(document, dict):
            raise ProviderFailed(f"{URL(url).path} answers no object")
        return document
