"""Usage and limits of quota scopes, which bound users and projects on each volume (spec 03-01, "Quota scopes")."""

from __future__ import annotations

from ai.backend.common.errors import InvalidInput, NotFound, QuotaScopeNotFound
from ai.backend.common.folders import parse_host
from ai.backend.common.ids import UserId
from ai.backend.common.volume_paths import QuotaScopeId, QuotaScopeKind
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.folders.gateway import FolderGateway
from ai.backend.manager.folders.model import ScopeUsage
from ai.backend.manager.folders.quota_loop import QuotaLoop
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.volumes.gateway import VolumeGateway

MAX_LIMIT = 2**53 - 1


class QuotaService:
    """Reads and limits quota scopes. ``scope`` is ``user:<uuid>`` or ``project:<uuid>`` of an existing owner."""

    def __init__(
        self,
        store: FolderStore,
        storage: FolderGateway,
        volumes: VolumeGateway,
        identities: IdentityStore,
        loop: QuotaLoop,
    ) -> None:
        self._store = store
        self._storage = storage
        self._volumes = volumes
        self._identities = identities
        self._loop = loop

    async def get(self, caller: Caller, host: str, scope: str) -> ScopeUsage:
        """Returns the usage of a scope, for the user, members of the project, and administrators.

        Raises:
            InvalidInput: the scope or host is malformed.
            NotFound: no owner that the caller may see.
        """
        quota_scope = await self._visible(caller, host, scope)
        try:
            return await self._storage.scope_usage(host, quota_scope)
        except QuotaScopeNotFound:
            limit = await self._store.scope_limit(host, quota_scope)
            return ScopeUsage(used_bytes=0, limit_bytes=limit.limit_bytes, enforcement="soft")

    async def set_limit(self, caller: Caller, host: str, scope: str, limit_bytes: int | None) -> None:
        """Sets the limit of a scope, for superadmins; None applies the policy of its owner."""
        require(caller, Operation.CHANGE_QUOTAS)
        if limit_bytes is not None and not 0 <= limit_bytes <= MAX_LIMIT:
            raise InvalidInput("A limit is a number of bytes.", data={"hard_limit_bytes": "out of range"})
        quota_scope = await self._visible(caller, host, scope)
        if host not in await self._volumes.volumes():
            raise NotFound(f"There is no storage host {host[:64]!r} now.", data={"storage_host_name": "unknown"})
        await self._store.set_scope_limit(host, quota_scope, limit_bytes)
        await self._loop.ensure(host, quota_scope)

    async def _visible(self, caller: Caller, host: str, scope: str) -> QuotaScopeId:
        parse_host(host)
        parsed = QuotaScopeId.parse(scope)
        if parsed.kind is QuotaScopeKind.USER:
            user = await self._identities.user(uuid=UserId(parsed.id))
            is_visible = user is not None and (user.uuid == caller.user_id or _administrates(caller, user.domain_name))
        else:
            group = next((g for g in await self._identities.groups() if g.id == parsed.id), None)
            own_ids = {g.id for g in await self._identities.groups(user_id=caller.user_id)}
            is_visible = group is not None and (group.id in own_ids or _administrates(caller, group.domain_name))
        if not is_visible:
            raise NotFound(f"There is no quota scope {scope[:64]!r} for you.", data={"quota_scope_id": "unknown"})
        return parsed


def _administrates(caller: Caller, domain_name: str) -> bool:
    return is_permitted(caller, Operation.SEE_QUOTAS, domain_name=domain_name)
