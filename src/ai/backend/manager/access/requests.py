"""Reads the caller from a request."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.infra.http.routes import Call
from ai.backend.manager.access.caller import Caller


def caller_of(call: Call[Any, Any]) -> Caller:
    """Returns the caller of a signed request. Raises AuthenticationFailed for an unsigned one."""
    if not isinstance(call.identity, Caller):
        raise AuthenticationFailed("Sign this request.")
    return call.identity
