"""Reads the caller from a request."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.infra.http.routes import Call
from ai.backend.manager.access.caller import Caller


def caller_of(call: Call[Any, Any]) -> Caller:
    """Returns the caller of a signed request, or the owner of the keypair that the caller acts for. Raises
    AuthenticationFailed for an unsigned request."""
    identity = call.owner or call.identity
    if not isinstance(identity, Caller):
        raise AuthenticationFailed("Sign this request.")
    return identity
