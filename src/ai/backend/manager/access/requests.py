"""Reads the caller from a request."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import (
    AuthenticationFailed,
    BackendError,
    Conflict,
    DeadlineExceeded,
    LimitExceeded,
    NotFound,
    NotSupported,
    PeerRefused,
    QuotaExceeded,
    UploadIsBeingWritten,
    WorkloadError,
)
from ai.backend.infra.http.routes import Call
from ai.backend.manager.access.caller import Caller

Problems = tuple[type[BackendError], ...]
OBJECT_PROBLEMS: Problems = (NotFound, Conflict)
"""The problems that endpoints about stored objects return."""
SESSION_PROBLEMS: Problems = (*OBJECT_PROBLEMS, LimitExceeded, NotSupported, WorkloadError, DeadlineExceeded)
"""The problems of endpoints about sessions, including that an agent refuses or does not answer."""
STORAGE_PROBLEMS: Problems = (
    *(*OBJECT_PROBLEMS, UploadIsBeingWritten, LimitExceeded, QuotaExceeded, NotSupported, PeerRefused),
    DeadlineExceeded,
)
"""The problems of endpoints about files and artifacts, including that a storage proxy refuses or does not answer."""


def caller_of(call: Call[Any, Any]) -> Caller:
    """Returns the caller of a signed request, or the owner of the keypair for which the caller acts. Raises
    AuthenticationFailed for an unsigned request.
    """
    identity = call.owner or call.identity
    if not isinstance(identity, Caller):
        raise AuthenticationFailed("Sign this request.")
    return identity
