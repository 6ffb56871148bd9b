"""Creates, changes and removes domains, groups and policies (spec 03-09, client wire contract 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, NotFound
from ai.backend.common.ids import DomainName, GroupId, UserId
from ai.backend.common.names import check_slug
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, require, require_any
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.identity.model import Domain, Group, ResourcePolicy, StoragePolicy
from ai.backend.manager.identity.patch import named
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.store import IdentityStore, OwnedFolders, OwnedSessions

_FOR_DOMAIN_ADMINS = frozenset({"name", "description", "is_active", "integration_id"})


class TenantService:
    """Changes domains, groups and policies. ``values`` are fields of the object; those that are None stay unchanged.

    Every method raises Forbidden if the role of the caller does not permit it, NotFound if the object does not exist,
    and Conflict if an object to be created exists.
    """

    def __init__(
        self,
        store: IdentityStore,
        identity: IdentityService,
        sessions: OwnedSessions,
        folders: OwnedFolders | None,
        clock: Clock,
        id_generator: IdGenerator,
        after_storage_policy: Sequence[PeriodicLoop] = (),
    ) -> None:
        self._store = store
        self._identity = identity
        self._sessions = sessions
        self._folders = folders
        self._clock = clock
        self._id_generator = id_generator
        self._after_storage_policy = after_storage_policy

    # ---- domains ----

    async def create_domain(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Domain:
        """Creates a domain. Raises InvalidName."""
        require(caller, Operation.CHANGE_DOMAINS)
        check_slug(name, what="name", allow_dots=True)
        domain = Domain(name=DomainName(name), created_at=self._clock.now(), **named(values))
        await self._store.put_domain(domain, only_new=True)
        return domain

    async def modify_domain(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Domain:
        """Changes a domain. Raises InvalidInput for another name: users and sessions refer to it."""
        require(caller, Operation.CHANGE_DOMAINS)
        if values.get("name") not in (None, name):
            raise InvalidInput("A domain keeps its name.", data={"name": "cannot be changed"})
        changed = await self._store.change_domain(name, **named(values))
        if changed is None:
            raise NotFound(f"There is no domain {name[:64]!r}.")
        self._identity.invalidate_all()
        return changed

    async def delete_domain(self, caller: Caller, name: str) -> None:
        """Makes a domain inactive: only its superadmins can sign in. Its sessions go on."""
        await self.modify_domain(caller, name, {"is_active": False})

    async def purge_domain(self, caller: Caller, name: str) -> None:
        """Deletes a domain. Raises Conflict while it has users or groups, and for the caller's own."""
        require(caller, Operation.CHANGE_DOMAINS)
        if name == caller.domain_name:
            raise Conflict("You cannot purge your own domain.", data={"name": "your own"})
        if not await self._store.delete_domain(name):
            raise NotFound(f"There is no domain {name[:64]!r}.")

    # ---- groups ----

    async def create_group(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Group:
        """Creates a group. Raises InvalidName; NotFound for the domain and the project resource policy."""
        fields = named(values)
        domain = fields.pop("domain_name", caller.domain_name)
        _check_group(caller, domain, fields)
        await self._check_project_policy(fields)
        if await self._store.domain(domain) is None:
            raise NotFound(f"There is no domain {domain[:64]!r}.", data={"domain_name": "unknown"})
        check_slug(name, what="name", allow_dots=True)
        group = Group(
            id=GroupId(self._id_generator.uuid()),
            name=name,
            domain_name=DomainName(domain),
            created_at=self._clock.now(),
            **fields,
        )
        await self._store.put_group(group, only_new=True)
        return group

    async def modify_group(
        self,
        caller: Caller,
        group_id: GroupId,
        values: Mapping[str, Any],
        *,
        add: Collection[UserId] = (),
        remove: Collection[UserId] = (),
    ) -> Group:
        """Changes a group and its members. Raises InvalidName; NotFound also for new members of another domain."""
        fields = named(values)
        group = await self._group(caller, group_id)
        _check_group(caller, group.domain_name, fields)
        await self._check_project_policy(fields)
        if "name" in fields:
            check_slug(fields["name"], what="name", allow_dots=True)
        for user_id in add:
            user = await self._store.user(uuid=user_id)
            if user is None or user.domain_name != group.domain_name:
                raise NotFound(
                    f"There is no user {user_id} in the domain {group.domain_name} of that group.",
                    data={"user_uuids": "unknown"},
                )
        changed = await self._store.change_group(group_id, **fields)
        if changed is None:
            raise NotFound("There is no such group.", data={"gid": "unknown"})
        if add or remove:
            await self._store.change_members(group_id, add=add, remove=remove)
        return changed

    async def delete_group(self, caller: Caller, group_id: GroupId) -> None:
        """Makes a group inactive: it takes no new sessions. Its sessions go on."""
        await self.modify_group(caller, group_id, {"is_active": False})

    async def purge_group(self, caller: Caller, group_id: GroupId) -> None:
        """Deletes a group with its folders. Raises Conflict while it has live sessions."""
        require(caller, Operation.PURGE_GROUPS)
        await self.delete_group(caller, group_id)
        live = await self._sessions.count_live_of_group(group_id)
        if live:
            raise Conflict(f"{live} sessions of the group live.", data={"sessions": live})
        if self._folders is not None:
            await self._folders.of_group(group_id)
        await self._store.delete_group(group_id)

    async def _group(self, caller: Caller, group_id: GroupId) -> Group:
        """Returns a group that the caller sees."""
        require_any(caller, Operation.CHANGE_GROUPS)
        for group in await self._identity.groups(caller):
            if group.id == group_id:
                return group
        raise NotFound("There is no such group.", data={"gid": "unknown"})

    async def _check_project_policy(self, fields: Mapping[str, Any]) -> None:
        name = fields.get("resource_policy", "default")
        if name != "default" and not await self._store.storage_policies(QuotaScopeKind.PROJECT, name=name):
            raise NotFound(f"There is no project resource policy {name[:64]!r}.", data={"resource_policy": "unknown"})

    # ---- policies ----

    async def create_policy(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourcePolicy:
        """Creates a policy of keypairs. Raises InvalidName."""
        require(caller, Operation.CHANGE_POLICIES)
        check_slug(name, what="name", allow_dots=True)
        policy = ResourcePolicy(name=name, created_at=self._clock.now(), **named(values))
        await self._store.put_policy(policy, only_new=True)
        return policy

    async def modify_policy(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourcePolicy:
        require(caller, Operation.CHANGE_POLICIES)
        changed = await self._store.change_policy(name, **named(values))
        if changed is None:
            raise NotFound(f"There is no resource policy {name[:64]!r}.")
        return changed

    async def delete_policy(self, caller: Caller, name: str) -> None:
        """Deletes a policy of keypairs. Raises Conflict while keypairs have it."""
        require(caller, Operation.CHANGE_POLICIES)
        if not await self._store.delete_policy(name):
            raise NotFound(f"There is no resource policy {name[:64]!r}.")

    async def storage_policies(
        self, caller: Caller, kind: QuotaScopeKind, name: str | None = None
    ) -> Sequence[StoragePolicy]:
        """Returns the policies of users or groups."""
        require(caller, Operation.SEE_STORAGE_POLICIES)
        return await self._store.storage_policies(kind, name=name)

    async def put_storage_policy(
        self, caller: Caller, kind: QuotaScopeKind, name: str, values: Mapping[str, Any], *, is_new: bool
    ) -> StoragePolicy:
        """Creates or changes a policy of users or groups, and updates quota scopes at once. Raises InvalidName."""
        require(caller, Operation.CHANGE_POLICIES)
        existing = await self._store.storage_policies(kind, name=name)
        if is_new and existing:
            raise Conflict(f"There is a {kind} resource policy {name!r} already.", data={"name": "taken"})
        if not is_new and not existing:
            raise NotFound(f"There is no {kind} resource policy {name[:64]!r}.")
        check_slug(name, what="name", allow_dots=True)
        base = existing[0] if existing else StoragePolicy(kind=kind, name=name, created_at=self._clock.now())
        policy = replace(base, **named(values))
        await self._store.put_storage_policy(policy)
        for loop in self._after_storage_policy:
            loop.wake()
        return policy

    async def delete_storage_policy(self, caller: Caller, kind: QuotaScopeKind, name: str) -> None:
        """Deletes a policy of users or groups. Raises Conflict while it is in use."""
        require(caller, Operation.CHANGE_POLICIES)
        if not await self._store.delete_storage_policy(kind, name):
            raise NotFound(f"There is no {kind} resource policy {name[:64]!r}.")


def _check_group(caller: Caller, domain_name: str, fields: Mapping[str, Any]) -> None:
    if not is_permitted(caller, Operation.CHANGE_GROUPS, domain_name=domain_name):
        raise Forbidden("Only administrators change the groups of their domain.")
    if {*fields} - _FOR_DOMAIN_ADMINS:
        require(caller, Operation.CHANGE_GROUP_LIMITS)
