"""Quota scopes: how much users and projects may keep on each volume (spec 03-01, "Quota scopes")."""

from __future__ import annotations

from ai.backend.common.errors import Forbidden, InvalidInput, NotFound, QuotaScopeNotFound
from ai.backend.common.folders import parse_host
from ai.backend.common.ids import UserId
from ai.backend.common.volume_paths import QuotaScopeId, QuotaScopeKind
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.folders.gateway import FolderGateway
from ai.backend.manager.folders.model import ScopeUsage
from ai.backend.manager.folders.quota_loop import QuotaLoop
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.identity.store import IdentityStore
from ai.backend.manager.volumes.gateway import VolumeGateway

MAX_LIMIT = 2**53 - 1


class QuotaService:
    """``scope`` is text, ``user:<uuid>`` or ``project:<uuid>``, of a user or group that there is."""

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
        """For the user, members of the project, and administrators.

        Raises:
            InvalidInput: no quota scope, no storage host.
            NotFound: nobody whom the caller may know of.
        """
        found = await self._known(caller, host, scope)
        try:
            return await self._storage.scope_usage(host, found)
        except QuotaScopeNotFound:
            limit = await self._store.scope_limit(host, found)
            return ScopeUsage(used_bytes=0, limit_bytes=limit.limit_bytes, enforcement="soft")

    async def set_limit(self, caller: Caller, host: str, scope: str, limit_bytes: int | None) -> None:
        """Give a scope a limit of its own; None leaves it to the policy of its owner. For superadmins."""
        if not caller.is_superadmin:
            raise Forbidden("Only superadmins set limits of quota scopes.")
        if limit_bytes is not None and not 0 <= limit_bytes <= MAX_LIMIT:
            raise InvalidInput("A limit is a number of bytes.", data={"hard_limit_bytes": "out of range"})
        found = await self._known(caller, host, scope)
        if host not in await self._volumes.volumes():
            raise NotFound(f"There is no storage host {host[:64]!r} now.", data={"storage_host_name": "unknown"})
        await self._store.set_scope_limit(host, found, limit_bytes)
        await self._loop.ensure(host, found)

    async def _known(self, caller: Caller, host: str, scope: str) -> QuotaScopeId:
        parse_host(host)
        found = QuotaScopeId.parse(scope)
        if found.kind is QuotaScopeKind.USER:
            user = await self._identities.user(uuid=UserId(found.id))
            near = user is not None and (user.uuid == caller.user_id or _over(caller, user.domain_name))
        else:
            group = next((g for g in await self._identities.groups() if g.id == found.id), None)
            mine = {g.id for g in await self._identities.groups(user_id=caller.user_id)}
            near = group is not None and (group.id in mine or _over(caller, group.domain_name))
        if not near:
            raise NotFound(f"There is no quota scope {scope[:64]!r} for you.", data={"quota_scope_id": "unknown"})
        return found


def _over(caller: Caller, domain_name: str) -> bool:
    return caller.sees_all or (caller.is_any_admin and caller.domain_name == domain_name)
