"""The authority that workers are recognized by: it signs their client certificates for gateways of agents."""

from __future__ import annotations

from dataclasses import dataclass, field

from ai.backend.appproxy.coordinator.workers.store import AuthorityStore
from ai.backend.infra.tls.certificates import TlsIdentity, create_authority, issue_client_certificate


@dataclass(slots=True)
class Authority:
    """Makes the authority at its first use; all coordinators of a database have the same."""

    store: AuthorityStore
    _identity: TlsIdentity | None = field(default=None, init=False)

    async def certificate(self) -> str:
        """Returns the certificate of the authority as PEM."""
        return (await self._load()).certificate

    async def sign(self, request: str) -> str:
        """Returns a client certificate of a worker. Raises InvalidInput for a malformed request."""
        return issue_client_certificate(await self._load(), request, "app proxy worker")

    async def _load(self) -> TlsIdentity:
        if self._identity is None:
            self._identity = await self.store.authority(create_authority("app proxy"))
        return self._identity
