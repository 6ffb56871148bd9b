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
"""Of endpoints about stored objects."""
SESSION_PROBLEMS: Problems = (*OBJECT_PROBLEMS, LimitExceeded, NotSupported, WorkloadError, DeadlineExceeded)
"""Of endpoints about sessions, which agents may refuse or not answer."""
STORAGE_PROBLEMS: Problems = (
    *(*OBJECT_PROBLEMS, UploadIsBeingWritten, LimitExceeded, QuotaExceeded, NotSupported, PeerRefused),
    DeadlineExceeded,
)
"""Of endpoints about files and artifacts, which storage proxies may refuse or not answer."""


def caller_of(call: Call[Any, Any]) -> Caller:
    """Returns the caller of a signed request, or the owner of the keypair that the caller acts for. Raises
    AuthenticationFailed for an unsigned request."""
    identity = call.owner or call.identity
    if not isinstance(identity, Caller):
        raise AuthenticationFailed("Sign this request.")
    return identity
