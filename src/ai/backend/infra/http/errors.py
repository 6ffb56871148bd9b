"""Maps error classes to HTTP statuses and problem documents.

Source: spec 03-07 ("HTTP Status Codes and JSON Response Body"), RFC 7807, client wire contract 1.5: a problem is always
an object with ``type`` and ``title``; ``msg`` and ``data`` are what the published client prints besides.
"""

from __future__ import annotations

from http import HTTPStatus
from math import isfinite
from typing import Any

import msgspec
from aiohttp import web

from ai.backend.common import errors as e

PROBLEM_TYPE = "application/problem+json"
PROBLEM_BASE = "https://api.backend.ai/probs/"


class RouteNotFound(e.NotFound, code="url-not-found", title="There is no such URL in this API."): ...


class MethodNotAllowed(
    e.BackendError, code="method-not-allowed", title="The URL does not know this method.", blame=e.Blame.CALLER
):
    """Raised for a request with a method that its URL does not permit.

    ``data.allowed`` lists the methods that the URL knows.
    """


class PayloadTooLarge(e.LimitExceeded, code="payload-too-large", title="The body of the request is too large."): ...


class BodyTooSlow(
    e.BackendError,
    code="request-timeout",
    title="The body of the request did not come in time.",
    blame=e.Blame.CALLER,
    retryable=True,
): ...


class UnsupportedMediaType(
    e.InvalidInput,
    code="unsupported-media-type",
    title="The request has a content type that this URL does not take.",
): ...


class ClientTokenReused(
    e.BackendError,
    code="client-token-reused",
    title="This client token came before, with another request.",
    blame=e.Blame.CALLER,
): ...


class OutcomeUnknown(
    e.Conflict,
    code="outcome-unknown",
    title="The first request of this client token is still at work elsewhere, or was cut off: look what it has done.",
):
    """Raised for a repeated request if the first request is still at work elsewhere, or was cut off.

    The client must find out what the first request did before it tries again with a new token.
    """


class OutcomeNotKept(
    e.Conflict,
    code="outcome-not-kept",
    title="The first request of this client token was answered; its answer was too large to be kept.",
):
    """Raised for a repeated request if the reply to the first request was too large to be kept.

    ``data.status`` is the status of the first answer.
    """


_STATUS_BY_ERROR: dict[type[e.BackendError], HTTPStatus] = {
    e.BackendError: HTTPStatus.INTERNAL_SERVER_ERROR,
    e.InvalidInput: HTTPStatus.BAD_REQUEST,
    UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    e.AuthenticationFailed: HTTPStatus.UNAUTHORIZED,
    e.Forbidden: HTTPStatus.FORBIDDEN,
    e.NotFound: HTTPStatus.NOT_FOUND,
    MethodNotAllowed: HTTPStatus.METHOD_NOT_ALLOWED,
    BodyTooSlow: HTTPStatus.REQUEST_TIMEOUT,
    e.Conflict: HTTPStatus.CONFLICT,
    e.UploadIsBeingWritten: HTTPStatus.LOCKED,
    e.RunError: HTTPStatus.CONFLICT,
    ClientTokenReused: HTTPStatus.UNPROCESSABLE_ENTITY,
    e.LimitExceeded: HTTPStatus.NOT_ACCEPTABLE,
    e.RateLimitExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    PayloadTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    e.StorageFull: HTTPStatus.INSUFFICIENT_STORAGE,
    e.QuotaExceeded: HTTPStatus.INSUFFICIENT_STORAGE,
    e.ResourceError: HTTPStatus.NOT_ACCEPTABLE,
    e.UnsupportedResource: HTTPStatus.BAD_REQUEST,
    e.NotMultipleOfQuantum: HTTPStatus.BAD_REQUEST,
    e.InvalidAllocation: HTTPStatus.SERVICE_UNAVAILABLE,
    e.CreationDenied: HTTPStatus.NOT_ACCEPTABLE,
    e.CreationDeferred: HTTPStatus.SERVICE_UNAVAILABLE,
    e.WorkloadError: HTTPStatus.BAD_GATEWAY,
    e.PluginError: HTTPStatus.BAD_GATEWAY,
    e.PeerRefused: HTTPStatus.BAD_GATEWAY,
    e.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.DeadlineExceeded: HTTPStatus.GATEWAY_TIMEOUT,
    e.NotSupported: HTTPStatus.NOT_IMPLEMENTED,
}
"""The statuses of error classes. Other classes have the status of their nearest ancestor."""


def status_of(error: type[e.BackendError] | e.BackendError) -> HTTPStatus:
    """Returns the status of an error or its class."""
    error_class = error if isinstance(error, type) else type(error)
    return next(_STATUS_BY_ERROR[base_class] for base_class in error_class.__mro__ if base_class in _STATUS_BY_ERROR)


def problem_classes() -> dict[type[e.BackendError], HTTPStatus]:
    """Returns the error classes of all daemons in the order of their definition, with their statuses."""
    module_values = [*vars(e).values(), *globals().values()]
    classes = [
        module_value
        for module_value in module_values
        if isinstance(module_value, type) and issubclass(module_value, e.BackendError)
    ]
    return {error_class: status_of(error_class) for error_class in classes}


def problem(error: e.BackendError, *, request_id: str | None = None) -> dict[str, Any]:
    """Returns the problem document that describes an error.

    ``type``, ``title``, ``status`` and ``detail`` are RFC 7807's; ``msg`` repeats the detail and ``data`` carries the
    evidence for the published client. The messages of internal errors are not shown: they may hold secrets.
    """
    status = status_of(error)
    is_internal = status == HTTPStatus.INTERNAL_SERVER_ERROR
    detail = error.title if is_internal else error.message
    document: dict[str, Any] = {
        "type": PROBLEM_BASE + error.code,
        "title": error.title,
        "status": int(status),
        "detail": detail,
        "msg": detail,
    }
    if error.data and not is_internal:
        document["data"] = error.data
    if request_id:
        document["request_id"] = request_id
    return document


def problem_response(error: e.BackendError, *, request_id: str | None = None) -> web.Response:
    """Returns an error as a reply, always with a body, since the published client's error printer needs one."""
    status = status_of(error)
    headers: dict[str, str] = {"Content-Type": PROBLEM_TYPE}
    if status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "BackendAI"
    delay_s = error.data.get("retry_after")  # of invalid input it is the name of a field, with a text
    if isinstance(delay_s, int | float) and isfinite(delay_s):
        headers["Retry-After"] = str(max(1, round(delay_s)))
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = ", ".join(error.data.get("allowed", ()))
    body = msgspec.json.encode(problem(error, request_id=request_id), enc_hook=str)
    return web.Response(status=status, body=body, headers=headers)
