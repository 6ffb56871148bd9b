"""Who calls: keys for the signature check, and the caller of a request."""

from __future__ import annotations

from typing import Any

from ai.backend.common.errors import AuthenticationFailed
from ai.backend.infra.http.routes import Call
from ai.backend.infra.http.signature import SigningKey
from ai.backend.manager.model.identity import Caller
from ai.backend.manager.services.identity import IdentityService
from ai.backend.manager.services.journal import AuditService


class KeypairStore:
    """Keypairs as signing keys. The service answers from memory and is at most one second stale."""

    def __init__(self, identity: IdentityService) -> None:
        self._identity = identity

    async def find_key(self, access_key: str) -> SigningKey | None:
        credentials = await self._identity.credentials(access_key)
        if credentials is None:
            return None
        return SigningKey(
            secret_key=credentials.secret_key,
            is_active=credentials.is_active,
            rate_limit=credentials.caller.rate_limit or None,
            identity=credentials.caller,
            networks=credentials.caller.allowed_client_ip,
        )


def caller_of(call: Call[Any, Any]) -> Caller:
    """The caller of a signed request."""
    if not isinstance(call.identity, Caller):
        raise AuthenticationFailed("Sign this request.")
    return call.identity


class CallAudit:
    """Writes every call that changes something into the audit trail."""

    def __init__(self, audit: AuditService) -> None:
        self._audit = audit

    async def note(self, call: Call[Any, Any], outcome: str) -> None:
        caller = call.identity if isinstance(call.identity, Caller) else None
        kind, _, _ = call.endpoint.path.strip("/").partition("/")
        detail = {"route": call.endpoint.template}
        if call.owner_access_key:
            detail["owner_access_key"] = call.owner_access_key[:64]
        await self._audit.record(
            caller,
            call.endpoint.name,
            request_id=call.request_id,
            object_type=kind or "api",
            object_id=next(iter(call.params.values()), None),
            outcome=outcome,
            detail=detail,
        )
