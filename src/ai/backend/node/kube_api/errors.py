"""Defines the refusals of an API server as errors (Kubernetes API conventions, "Error codes" and "Response Status")."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus
from typing import Any

import msgspec

from ai.backend.common.errors import (
    BackendError,
    Blame,
    Conflict,
    Forbidden,
    InternalError,
    InvalidInput,
    LimitExceeded,
    NotFound,
    PeerRefused,
    RateLimitExceeded,
    Unavailable,
)

MAX_WAIT_S = 60.0
"""The longest wait in seconds that a server can ask for."""
_QUOTA_MARKS = ("exceeded quota", "insufficient quota", "must specify limits", "failed quota")
_RBAC_MARK = " cannot "


class StatusCause(msgspec.Struct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str = ""
    kind: str = ""
    causes: list[StatusCause] = []
    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Describes why the API server refused a request: the body of the answer, or a frame ERROR of a watch."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None


class ApiRefusal(BackendError):
    """Reports a request that the API server refused. ``status`` is that of HTTP, ``reason`` the word of the server
    (``AlreadyExists``), ``retry_after_s`` the seconds that it asks to wait, 0 without.
    """

    status: int = 0
    reason: str = ""
    retry_after_s: float = 0.0


class ObjectNotFound(ApiRefusal, NotFound): ...


class ObjectConflict(ApiRefusal, Conflict):
    """Raised when an object is not the one that the request names by uid or version, or somebody else owns a field."""


class ObjectExists(ObjectConflict): ...


class VersionExpired(ApiRefusal, Conflict):
    """Raised when the server has forgotten the version at which a watch or a list begins, or does not know it yet (410,
    504). The caller must list anew.
    """


class RequestDenied(ApiRefusal, Forbidden):
    """Raised when permissions, an admission plug-in or a webhook refuse the request. :attr:`denial` says which."""

    denial: Denial


class Denial(StrEnum):
    """Names the part of the cluster that refused a request with 403."""

    PERMISSION = "permission"
    """No role allows it to our service account; the message names verb and resource."""
    QUOTA = "quota"
    """A ResourceQuota of the namespace has no room."""
    ADMISSION = "admission"
    """PodSecurity, a LimitRange, a policy or a webhook; also a namespace that is being deleted."""


class NamespaceQuotaExceeded(RequestDenied): ...


class ObjectInvalid(ApiRefusal, InvalidInput):
    """Raised when the server does not understand an object or one of its fields (400, 422). ``data`` maps fields to
    problems.
    """


class CredentialsRefused(ApiRefusal, PeerRefused): ...


class TooManyRequests(ApiRefusal, RateLimitExceeded, blame=Blame.CLUSTER): ...


class ObjectTooLarge(ApiRefusal, LimitExceeded): ...


class ServerFailed(ApiRefusal, Unavailable):
    """Raised when the server failed or is overloaded (5xx). The request may or may not have been executed."""


class NotServed(ApiRefusal, InternalError):
    """Raised when the server does not know the method or the format (405, 406, 415)."""


_CLASS_OF_CODE: dict[int, type[ApiRefusal]] = {
    HTTPStatus.BAD_REQUEST: ObjectInvalid,
    HTTPStatus.UNPROCESSABLE_ENTITY: ObjectInvalid,
    HTTPStatus.UNAUTHORIZED: CredentialsRefused,
    HTTPStatus.FORBIDDEN: RequestDenied,
    HTTPStatus.NOT_FOUND: ObjectNotFound,
    HTTPStatus.METHOD_NOT_ALLOWED: NotServed,
    HTTPStatus.NOT_ACCEPTABLE: NotServed,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: NotServed,
    HTTPStatus.CONFLICT: ObjectConflict,
    HTTPStatus.GONE: VersionExpired,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: ObjectTooLarge,
    HTTPStatus.TOO_MANY_REQUESTS: TooManyRequests,
}
_EXPIRED_REASONS = frozenset({"Expired", "Gone"})
_TOO_LARGE_VERSION = "Too large resource version"


def refusal_of(status: Status, *, http_status: int, retry_after: str = "", request_text: str = "") -> ApiRefusal:
    """Converts a refused request into the error that is raised for it.

    Args:
        http_status: that of the answer; 0 for a frame of a watch, whose own code counts.
        retry_after: the header ``Retry-After`` in seconds.
        request_text: verb and object, put before the message.
    """
    code = http_status or status.code
    error_class = _CLASS_OF_CODE.get(code, ServerFailed if code >= HTTPStatus.INTERNAL_SERVER_ERROR else NotServed)
    denial = _denial_of(status) if error_class is RequestDenied else None
    if status.reason in _EXPIRED_REASONS or _TOO_LARGE_VERSION in status.message:
        error_class = VersionExpired
    elif code == HTTPStatus.CONFLICT and status.reason == "AlreadyExists":
        error_class = ObjectExists
    elif denial is Denial.QUOTA:
        error_class = NamespaceQuotaExceeded
    details = status.details or StatusDetails()
    data: dict[str, Any] = {"status": code, "reason": status.reason}
    if error_class is ObjectInvalid:
        data = {cause.field or "object": cause.message for cause in details.causes} or {"object": status.message}
    message = status.message or f"the API server answered {code}"
    error = error_class(f"{request_text}: {message}" if request_text else message, data=data)
    error.status, error.reason = code, status.reason
    error.retry_after_s = _retry_after_s(retry_after) or min(float(details.retry_after_seconds), MAX_WAIT_S)
    if isinstance(error, RequestDenied) and denial is not None:
        error.denial = denial
    return error


def _denial_of(status: Status) -> Denial:
    if any(quota_mark in status.message for quota_mark in _QUOTA_MARKS):
        return Denial.QUOTA
    is_permission = _RBAC_MARK in status.message and ("User " in status.message or "user " in status.message)
    return Denial.PERMISSION if is_permission else Denial.ADMISSION


def _retry_after_s(retry_after: str) -> float:
    try:
        return min(max(float(retry_after), 0.0), MAX_WAIT_S)
    except ValueError:  # a date, or nothing
        return 0.0


def parse_status(body: bytes) -> Status:
    """Returns the Status in an answer, or a Status with the beginning of the answer's text if it has none.

    Answers of proxies and webhooks have none.
    """
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError:
        return Status(message=body[:500].decode(errors="replace").strip())
