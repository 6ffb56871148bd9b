"""Maps error classes to HTTP statuses and problem documents.

Source: spec 03-07 ("HTTP Status Codes and JSON Response Body"), RFC 7807, client wire contract 1.5: a problem is always
an object with ``type`` and ``title``; ``msg`` and ``data`` are what the published client prints besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from ai.backend.common import errors as e

PROBLEM_TYPE = "application/problem+json"
PROBLEM_BASE = "https://api.backend.ai/probs/"


class RouteNotFound(e.NotFound):
    code = "url-not-found"
    title = "There is no such URL in this API."


class MethodNotAllowed(e.BackendError):
    """``data.allowed`` lists the methods that the URL knows."""

    code = "method-not-allowed"
    title = "The URL does not know this method."
    blame = e.Blame.CALLER


class PayloadTooLarge(e.LimitExceeded):
    code = "payload-too-large"
    title = "The body of the request is too large."


class BodyTooSlow(e.BackendError):
    code = "request-timeout"
    title = "The body of the request did not come in time."
    blame = e.Blame.CALLER
    retryable = True


class UnsupportedMediaType(e.InvalidInput):
    code = "unsupported-media-type"
    title = "The request has a content type that this URL does not take."


class ClientTokenReused(e.BackendError):
    """A client token names one call; another one needs another token."""

    code = "client-token-reused"
    title = "This client token came before, with another request."
    blame = e.Blame.CALLER


class OutcomeUnknown(e.Conflict):
    """Look what has become of it before you try again, with a new token."""

    code = "outcome-unknown"
    title = "The first request of this client token is still at work elsewhere, or was cut off: look what it has done."


class OutcomeNotKept(e.Conflict):
    """``data.status`` is the status that the first call was answered with."""

    code = "outcome-not-kept"
    title = "The first request of this client token was answered; its answer was too large to be kept."


STATUS_OF: Mapping[type[e.BackendError], HTTPStatus] = {
    e.BackendError: HTTPStatus.INTERNAL_SERVER_ERROR,
    e.InternalError: HTTPStatus.INTERNAL_SERVER_ERROR,
    e.InvalidInput: HTTPStatus.BAD_REQUEST,
    e.InvalidQuantity: HTTPStatus.BAD_REQUEST,
    e.InvalidName: HTTPStatus.BAD_REQUEST,
    e.FolderAlreadyExists: HTTPStatus.BAD_REQUEST,
    e.InvalidPath: HTTPStatus.BAD_REQUEST,
    e.WrongKindOfFile: HTTPStatus.BAD_REQUEST,
    e.ArtifactRejected: HTTPStatus.BAD_REQUEST,
    e.AuthenticationFailed: HTTPStatus.UNAUTHORIZED,
    e.Forbidden: HTTPStatus.FORBIDDEN,
    e.AddressRefused: HTTPStatus.FORBIDDEN,
    e.NotFound: HTTPStatus.NOT_FOUND,
    e.SessionNotFound: HTTPStatus.NOT_FOUND,
    e.ImageNotFound: HTTPStatus.NOT_FOUND,
    e.FolderNotFound: HTTPStatus.NOT_FOUND,
    e.VolumeNotFound: HTTPStatus.NOT_FOUND,
    e.QuotaScopeNotFound: HTTPStatus.NOT_FOUND,
    e.NoSuchFile: HTTPStatus.NOT_FOUND,
    e.UploadNotFound: HTTPStatus.NOT_FOUND,
    e.ArtifactNotFound: HTTPStatus.NOT_FOUND,
    e.Conflict: HTTPStatus.CONFLICT,
    e.SessionAlreadyExists: HTTPStatus.CONFLICT,
    e.TooManySessionsMatched: HTTPStatus.CONFLICT,
    e.StaleVersion: HTTPStatus.CONFLICT,
    e.FileAlreadyExists: HTTPStatus.CONFLICT,
    e.UploadOffsetMismatch: HTTPStatus.CONFLICT,
    e.ChecksumMismatch: HTTPStatus.CONFLICT,
    e.ArtifactChanged: HTTPStatus.CONFLICT,
    e.ArtifactDamaged: HTTPStatus.CONFLICT,
    e.ArtifactIncomplete: HTTPStatus.CONFLICT,
    e.StaleAttempt: HTTPStatus.CONFLICT,
    e.LimitExceeded: HTTPStatus.NOT_ACCEPTABLE,
    e.RateLimitExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    e.StorageFull: HTTPStatus.INSUFFICIENT_STORAGE,
    e.QuotaExceeded: HTTPStatus.INSUFFICIENT_STORAGE,
    e.UploadIsBeingWritten: HTTPStatus.LOCKED,
    e.ResourceError: HTTPStatus.NOT_ACCEPTABLE,
    e.UnsupportedResource: HTTPStatus.BAD_REQUEST,
    e.InsufficientResource: HTTPStatus.NOT_ACCEPTABLE,
    e.NotMultipleOfQuantum: HTTPStatus.BAD_REQUEST,
    e.InvalidAllocation: HTTPStatus.SERVICE_UNAVAILABLE,
    e.CreationDenied: HTTPStatus.NOT_ACCEPTABLE,
    e.ImageMissing: HTTPStatus.NOT_ACCEPTABLE,
    e.CreationDeferred: HTTPStatus.SERVICE_UNAVAILABLE,
    e.WorkloadError: HTTPStatus.BAD_GATEWAY,
    e.RunError: HTTPStatus.CONFLICT,
    e.PluginError: HTTPStatus.BAD_GATEWAY,
    e.PeerRefused: HTTPStatus.BAD_GATEWAY,
    e.RegistryRefused: HTTPStatus.BAD_GATEWAY,
    e.ObjectStorageRefused: HTTPStatus.BAD_GATEWAY,
    e.BucketNotFound: HTTPStatus.BAD_GATEWAY,
    e.Unavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.RegistryUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.ObjectStorageUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    e.ServerFrozen: HTTPStatus.SERVICE_UNAVAILABLE,
    e.DeadlineExceeded: HTTPStatus.GATEWAY_TIMEOUT,
    RouteNotFound: HTTPStatus.NOT_FOUND,
    MethodNotAllowed: HTTPStatus.METHOD_NOT_ALLOWED,
    PayloadTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    BodyTooSlow: HTTPStatus.REQUEST_TIMEOUT,
    UnsupportedMediaType: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    e.NotSupported: HTTPStatus.NOT_IMPLEMENTED,
    ClientTokenReused: HTTPStatus.UNPROCESSABLE_ENTITY,
    OutcomeUnknown: HTTPStatus.CONFLICT,
    OutcomeNotKept: HTTPStatus.CONFLICT,
}


def status_of(error: e.BackendError) -> HTTPStatus:
    """Returns the status of an error's class, or of its nearest ancestor for a class that a daemon defines."""
    for cls in type(error).__mro__:
        if cls in STATUS_OF:
            return STATUS_OF[cls]
    return HTTPStatus.INTERNAL_SERVER_ERROR


def problem(error: e.BackendError, *, request_id: str | None = None) -> dict[str, Any]:
    """Returns the problem document of an error.

    ``type``, ``title``, ``status`` and ``detail`` are RFC 7807's; ``msg`` repeats the detail and ``data`` carries the
    evidence for the published client. Faults of ours never show their message: it may hold anything.
    """
    status = status_of(error)
    detail = error.message if status != HTTPStatus.INTERNAL_SERVER_ERROR else type(error).title
    document: dict[str, Any] = {
        "type": PROBLEM_BASE + error.code,
        "title": error.title,
        "status": int(status),
        "detail": detail,
        "msg": detail,
    }
    if error.data and status != HTTPStatus.INTERNAL_SERVER_ERROR:
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
    if "retry_after" in error.data:
        headers["Retry-After"] = str(max(1, round(float(error.data["retry_after"]))))
    if isinstance(error, MethodNotAllowed):
        headers["Allow"] = ", ".join(error.data.get("allowed", ()))
    return web.Response(
        status=status,
        body=msgspec.json.encode(problem(error, request_id=request_id), enc_hook=str),
        headers=headers,
    )
