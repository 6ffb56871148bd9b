"""Reads and sets quota scopes, which limit users and projects on each volume (spec 03-01, "Quota scopes")."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ai.backend.common.errors import BackendError, InvalidInput, NotFound, QuotaScopeNotFound
from ai.backend.common.folders import parse_host
from ai.backend.common.ids import GroupId, UserId
from ai.backend.common.volume_paths import QuotaScopeId, QuotaScopeKind
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.folders.gateway import FolderGateway
from ai.backend.manager.folders.model import ScopeLimit, ScopeUsage
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.volumes.gateway import VolumeGateway

log = logging.getLogger(__name__)
MAX_LIMIT_BYTES = 2**53 - 1


class QuotaLoop(PeriodicLoop):
    """Sends the limits of quota scopes from the database to the storage proxies.

    Remembers in memory which limits were sent.
    """

    period_s = 60.0

    def __init__(self, store: FolderStore, storage: FolderGateway) -> None:
        super().__init__()
        self._store = store
        self._storage = storage
        self._applied: dict[tuple[str, QuotaScopeId], int | None] = {}

    async def once(self) -> None:
        for limit in await self._store.scope_limits():
            try:
                await self._send_limit(limit)
            except BackendError as e:
                log.warning("the limit of %s on %s is not set yet: %s", limit.scope, limit.host, e.message)

    async def ensure_limit(self, host: str, scope: QuotaScopeId) -> None:
        """Sends the limit of a quota scope to its storage proxy, unless this process has already sent the limit. Raises
        the storage proxy's errors.
        """
        await self._send_limit(await self._store.scope_limit(host, scope))

    async def _send_limit(self, limit: ScopeLimit) -> None:
        key, limit_bytes = (limit.host, limit.scope), limit.limit_bytes
        if key not in self._applied or self._applied[key] != limit_bytes:
            await self._storage.set_scope_limit(limit.host, limit.scope, limit_bytes)
            self._applied[key] = limit_bytes


@dataclass(eq=False, slots=True)
class QuotaService:
    """Reads and limits quota scopes on behalf of callers. ``scope`` is ``user:<uuid>`` or ``project:<uuid>`` of an
    existing owner.
    """

    _store: FolderStore
    _storage: FolderGateway
    _volumes: VolumeGateway
    _identities: IdentityStore
    _loop: QuotaLoop

    async def get(self, caller: Caller, host: str, scope: str) -> ScopeUsage:
        """Returns the usage of a quota scope to its user, members of its project, or administrators. Raises
        InvalidInput for a malformed scope or host, and NotFound.
        """
        quota_scope = await self._visible_scope(caller, host, scope)
        try:
            return await self._storage.scope_usage(host, quota_scope)
        except QuotaScopeNotFound:
            limit = await self._store.scope_limit(host, quota_scope)
            return ScopeUsage(used_bytes=0, limit_bytes=limit.limit_bytes, enforcement="soft")

    async def set_limit(self, caller: Caller, host: str, scope: str, limit_bytes: int | None) -> None:
        """Sets the limit of a quota scope for a superadmin; with None, the policy of the scope's owner applies."""
        require(caller, Operation.CHANGE_QUOTAS)
        if limit_bytes is not None and not 0 <= limit_bytes <= MAX_LIMIT_BYTES:
            raise InvalidInput("A limit is a number of bytes.", data={"hard_limit_bytes": "out of range"})
        quota_scope = await self._visible_scope(caller, host, scope)
        if host not in await self._volumes.volumes():
            raise NotFound(f"There is no storage host {host[:64]!r} now.", data={"storage_host_name": "unknown"})
        await self._store.set_scope_limit(host, quota_scope, limit_bytes)
        await self._loop.ensure_limit(host, quota_scope)

    async def _visible_scope(self, caller: Caller, host: str, scope: str) -> QuotaScopeId:
        parse_host(host)
        parsed_scope = QuotaScopeId.parse(scope)
        if parsed_scope.kind is QuotaScopeKind.USER:
            user = await self._identities.user(uuid=UserId(parsed_scope.id))
            domain = user.domain_name if user is not None else None
            is_own = parsed_scope.id == caller.user_id
        else:
            group = next(
                (candidate for candidate in await self._identities.groups() if candidate.id == parsed_scope.id), None
            )
            own_group_ids = {candidate.id for candidate in await self._identities.groups(user_id=caller.user_id)}
            domain = group.domain_name if group is not None else None
            is_own = GroupId(parsed_scope.id) in own_group_ids
        is_admin = is_permitted(caller, Operation.SEE_QUOTAS, domain_name=domain)
        if domain is None or not (is_own or is_admin):
            raise NotFound(f"There is no quota scope {scope[:64]!r} for you.", data={"quota_scope_id": "unknown"})
        return parsed_scope
