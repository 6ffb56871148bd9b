"""Refusals of an API server become errors of ours that say who refused and why."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ai.backend.common.errors import (
    Conflict,
    Forbidden,
    InternalError,
    InvalidInput,
    LimitExceeded,
    NotFound,
    PeerRefused,
    Unavailable,
)
from ai.backend.node.kube_api.errors import (
    Denial,
    NamespaceQuotaExceeded,
    ObjectExists,
    RequestDenied,
    TooManyRequests,
    VersionExpired,
    parse_status,
    refusal_of,
)

RBAC = (
    'pods is forbidden: User "system:serviceaccount:ours:shard" cannot create resource "pods" in API group "" in the '
    'namespace "sessions"'
)
QUOTA = 'pods "k-1" is forbidden: exceeded quota: small, requested: pods=1, used: pods=5, limited: pods=5'
SECURITY = 'pods "k-1" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'


def status(code: int, reason: str, message: str = "it says so", **details: object) -> bytes:
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    return json.dumps({**body, "details": details}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "cls"),
    [
        (400, "BadRequest", InvalidInput),
        (401, "Unauthorized", PeerRefused),
        (403, "Forbidden", Forbidden),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", InternalError),
        (409, "Conflict", Conflict),
        (409, "AlreadyExists", ObjectExists),
        (410, "Expired", VersionExpired),
        (413, "RequestEntityTooLarge", LimitExceeded),
        (415, "UnsupportedMediaType", InternalError),
        (422, "Invalid", InvalidInput),
        (429, "TooManyRequests", TooManyRequests),
        (500, "InternalError", Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (504, "Timeout", Unavailable),
    ],
)
def test_each_status_has_its_error(code: int, reason: str, cls: type[Exception]) -> None:
    error = refusal_of(parse_status(status(code, reason)), http_status=code, request_text="POST pods")
    assert isinstance(error, cls)
    assert (error.status, error.reason) == (code, reason)
    assert str(error) == "POST pods: it says so"


@pytest.mark.parametrize(
    ("message", "denial"), [(RBAC, Denial.PERMISSION), (QUOTA, Denial.QUOTA), (SECURITY, Denial.ADMISSION)]
)
def test_a_denial_says_who_denied(message: str, denial: Denial) -> None:
    error = refusal_of(parse_status(status(403, "Forbidden", message)), http_status=403)
    assert isinstance(error, RequestDenied)
    assert error.denial is denial
    assert isinstance(error, NamespaceQuotaExceeded) == (denial is Denial.QUOTA)
    assert message in str(error)


def test_a_version_from_the_future_is_listed_anew() -> None:
    message = "Timeout: Too large resource version: 90, current: 12"
    assert isinstance(refusal_of(parse_status(status(504, "Timeout", message)), http_status=504), VersionExpired)


@pytest.mark.parametrize(
    ("header", "details", "wait_s"),
    [("3", {}, 3.0), ("", {"retryAfterSeconds": 7}, 7.0), ("1e9", {}, 60.0), ("soon", {}, 0.0), ("-4", {}, 0.0)],
)
def test_the_wait_that_the_server_asks_for_is_bounded(header: str, details: dict[str, Any], wait_s: float) -> None:
    answer = parse_status(status(429, "TooManyRequests", **details))
    assert refusal_of(answer, http_status=429, retry_after=header).retry_after_s == wait_s


def test_fields_that_are_wrong_are_named() -> None:
    causes = [{"field": "spec.containers[0].image", "message": "Required value"}]
    error = refusal_of(parse_status(status(422, "Invalid", causes=causes)), http_status=422)
    assert error.data == {"spec.containers[0].image": "Required value"}


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b"[]", b'{"code": "x"}', b"\xff" * 9000])
def test_an_answer_that_is_no_status_still_is_an_error(body: bytes) -> None:
    error = refusal_of(parse_status(body), http_status=502)
    assert isinstance(error, Unavailable)
    assert str(error)
    assert len(str(error)) < 2000
