from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.appproxy.worker.access.tokens import BadToken, Tokens
from ai.backend.common.wire.appproxy import AppMode, InferenceLimits, RequestWindow
from ai.backend.core.proxy.cookies import PERMIT_S
from tests.support.proxy_apps import PERMIT_SECRET, SECRET, circuit_to, inference_token

CIRCUIT, USER = uuid4(), uuid4()


def tokens(**changed: str) -> Tokens:
    secrets = {"shared_secret": SECRET, "permit_secret": PERMIT_SECRET, **changed}
    return Tokens(**secrets, started_at=0.0)


def test_a_permit_is_valid_for_its_time_circuit_and_user() -> None:
    permit = tokens().issue_permit(CIRCUIT, USER, 1000.0)
    assert tokens().permit_expiry(permit, CIRCUIT, USER, 1000.0) == 1000 + PERMIT_S
    for circuit, user, now in ((uuid4(), USER, 1000.0), (CIRCUIT, uuid4(), 1000.0), (CIRCUIT, USER, 1010.0 + PERMIT_S)):
        with pytest.raises(BadToken):
            tokens().permit_expiry(permit, circuit, user, now)
    with pytest.raises(BadToken):
        tokens().permit_expiry(permit, CIRCUIT, None, 1000.0)


def test_a_verified_permit_is_compared_again_each_time() -> None:
    same = tokens()
    permit = same.issue_permit(CIRCUIT, USER, 1000.0)
    same.permit_expiry(permit, CIRCUIT, USER, 1000.0)
    with pytest.raises(BadToken):
        same.permit_expiry(permit, uuid4(), USER, 1000.0)
    with pytest.raises(BadToken):
        same.permit_expiry(permit, CIRCUIT, USER, 1010.0 + PERMIT_S)


def test_nodes_that_share_secrets_accept_the_same_permits() -> None:
    permit = tokens().issue_permit(CIRCUIT, USER, 1000.0)
    tokens(shared_secret="x" * 40).permit_expiry(permit, CIRCUIT, USER, 1000.0)
    with pytest.raises(BadToken):
        tokens(permit_secret="x" * 40).permit_expiry(permit, CIRCUIT, USER, 1000.0)


@pytest.mark.parametrize("token", ["", ".", "..", "a.b.c", "x" * 5000, "\u00e9.\u00e9.\u00e9"])
def test_nonsense_is_no_token(token: str) -> None:
    with pytest.raises(BadToken):
        tokens().permit_expiry(token, CIRCUIT, USER, 0.0)
    with pytest.raises(BadToken):
        tokens().check_inference_token(token, CIRCUIT, 0.0)


def test_a_token_without_signature_or_with_another_algorithm_is_refused() -> None:
    import jwt

    circuit = circuit_to()
    claims = jwt.decode(inference_token(circuit), options={"verify_signature": False})
    assert circuit.endpoint_id is None
    for algorithm, key in (("none", ""), ("HS384", "k" * 48)):
        token = jwt.encode({**claims, "aud": str(CIRCUIT)}, key, algorithm=algorithm)
        with pytest.raises(BadToken):
            tokens().check_inference_token(token, CIRCUIT, 0.0)


def test_a_token_of_several_endpoints_has_its_limits_and_user() -> None:
    circuit, other, user = circuit_to(mode=AppMode.INFERENCE, port=1), uuid4(), uuid4()
    limits = {"concurrent": 2, "requests": [{"amount": 5}]}
    token = inference_token(circuit, aud=[str(circuit.endpoint_id), str(other)], sub=str(user), limits=limits)
    same = tokens()
    grant = same.check_inference_token(token, other, time.time())
    assert (grant.user, grant.limits) == (user, InferenceLimits(concurrent=2, requests=[RequestWindow(amount=5)]))
    assert same.grant(token, time.time()) == grant
    with pytest.raises(BadToken):
        same.check_inference_token(token, uuid4(), time.time())
    with pytest.raises(BadToken):
        same.grant(token, time.time() + 120)


@pytest.mark.parametrize(
    "claims",
    [{"limits": {"concurent": 2}}, {"limits": 5}, {"aud": 5}, {"aud": [5]}, {"sub": "nobody"}, {"typ": "appproxy"}],
)
def test_claims_that_are_not_understood_make_a_token_worthless(claims: dict[str, Any]) -> None:
    token = inference_token(circuit_to(mode=AppMode.INFERENCE, port=1), **claims)
    with pytest.raises(BadToken):
        tokens().grant(token, time.time())
