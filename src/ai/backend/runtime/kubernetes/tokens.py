"""Verifies tokens of service accounts without asking the API server for each (KEP-1205, bound tokens).

A thousand relays that dial in again at once must not become a thousand TokenReviews.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64decode
from typing import Any

import jwt
import msgspec

from ai.backend.common.errors import AuthenticationFailed, BackendError
from ai.backend.node.kube_api.client import KubeApi

log = logging.getLogger(__name__)
ALGORITHMS = ("RS256", "ES256")
REFRESH_INTERVAL_S = 10.0
"""The least time between two requests for the keys, which forged tokens could otherwise cause."""
_LEEWAY_S = 30
_KEYS_PATH = "/openid/v1/jwks"
_CONFIGURATION_PATH = "/.well-known/openid-configuration"


class PodIdentity(msgspec.Struct, frozen=True):
    """Identifies the pod to which a token belongs."""

    namespace: str
    name: str
    uid: str


class _PodClaim(msgspec.Struct):
    name: str
    uid: str


class _Claims(msgspec.Struct):
    namespace: str
    pod: _PodClaim


class _Header(msgspec.Struct):
    kid: str = ""


def _key_id_of(token: str) -> str:
    """Returns the id of the signing key that the header of a token names.

    Nothing proves the id yet: each segment is decoded when the token is verified.

    Raises AuthenticationFailed for what is no token.
    """
    header_segment = token.partition(".")[0]
    try:
        return msgspec.json.decode(
            urlsafe_b64decode(header_segment + "=" * (-len(header_segment) % 4)), type=_Header
        ).kid
    except (ValueError, RecursionError):  # of base64, of other characters than ASCII, and of JSON
        raise AuthenticationFailed("this is no token") from None


class TokenVerifier:
    """Verifies tokens of pods by the cluster's published keys."""

    def __init__(self, api: KubeApi, audience: str) -> None:
        self._api = api
        self._audience = audience
        self._keys: dict[str, Any] = {}
        self._issuer = ""
        self._asked_at = float("-inf")
        self._lock = asyncio.Lock()

    async def verify(self, token: str) -> PodIdentity:
        """Verifies a token, and returns the pod to which the token belongs. Raises AuthenticationFailed."""
        key_id = _key_id_of(token)
        if key_id not in self._keys:
            await self._renew_keys()
        key = self._keys.get(key_id)
        if key is None:
            raise AuthenticationFailed("the token was signed by nobody that the cluster knows")
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(ALGORITHMS),
                audience=self._audience,
                issuer=self._issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "aud", "iss"]},
            )
            pod = msgspec.convert(claims.get("kubernetes.io"), _Claims)
        except (jwt.PyJWTError, msgspec.ValidationError) as error:
            raise AuthenticationFailed(f"the token is not valid here: {error}") from None
        return PodIdentity(pod.namespace, pod.pod.name, pod.pod.uid)

    async def _renew_keys(self) -> None:
        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._asked_at < REFRESH_INTERVAL_S:
                return
            self._asked_at = now
            try:
                key_set = jwt.PyJWKSet.from_json((await self._api.request("GET", _KEYS_PATH)).decode())
                openid_configuration = msgspec.json.decode(
                    await self._api.request("GET", _CONFIGURATION_PATH), type=dict
                )
            except (BackendError, jwt.PyJWTError, msgspec.MsgspecError) as error:
                log.warning("the keys of the cluster's tokens cannot be read: %s", error)
                return
            self._issuer = str(openid_configuration.get("issuer") or "")
            self._keys = {str(key.key_id): key.key for key in key_set.keys}
