"""Tokens of pods are checked by the cluster's keys; what is no token is refused, whatever it is."""

from __future__ import annotations

import base64
import json
import time
from typing import Any, cast

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.runtime.kubernetes.tokens import PodIdentity, TokenVerifier

ISSUER, AUDIENCE = "https://kubernetes.default.svc", "backend.ai"
KEY, OTHER_KEY = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())


class Cluster:
    """Publishes one key, named k1."""

    def __init__(self) -> None:
        self.requests = 0

    async def request(self, _method: str, path: str) -> bytes:
        self.requests += 1
        if path.endswith("jwks"):
            key = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key()))
            return json.dumps({"keys": [{**key, "kid": "k1", "use": "sig", "alg": "ES256"}]}).encode()
        return json.dumps({"issuer": ISSUER}).encode()


def token(key: Any = KEY, key_id: Any = "k1", **claims: Any) -> str:
    pod = {"namespace": "sessions", "pod": {"name": "k-1", "uid": "u1"}}
    body = {"iss": ISSUER, "aud": [AUDIENCE], "exp": int(time.time()) + 600, "kubernetes.io": pod, **claims}
    return jwt.encode(body, key, algorithm="ES256", headers={} if key_id is None else {"kid": key_id})


def unsigned(header: str) -> str:
    return base64.urlsafe_b64encode(header.encode()).decode().rstrip("=") + ".e30."


@pytest.fixture
def verifier() -> TokenVerifier:
    return TokenVerifier(cast("KubeApi", Cluster()), AUDIENCE)


async def test_a_token_says_whose_it_is(verifier: TokenVerifier) -> None:
    assert await verifier.verify(token()) == PodIdentity("sessions", "k-1", "u1")


@pytest.mark.parametrize(
    "given",
    [
        token(OTHER_KEY),
        token(key_id="k2"),
        token(key_id=None),
        token(exp=1),
        token(aud=["another"]),
        token(iss="https://elsewhere"),
        token(**{"kubernetes.io": {}}),
        "",
        "no token",
        "é.é.é",
        unsigned("[]"),
        unsigned('{"kid": 1}'),
        unsigned('{"alg": "none", "kid": "k1"}'),
        unsigned('{"kid": "k1", "x": ' + "[" * 30_000 + "]" * 30_000 + "}"),
    ],
)
async def test_what_is_no_valid_token_is_refused(verifier: TokenVerifier, given: str) -> None:
    with pytest.raises(AuthenticationFailed):
        await verifier.verify(given)
