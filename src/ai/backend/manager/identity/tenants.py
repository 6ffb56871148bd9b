"""Creates, changes and removes domains, groups and policies (spec 03-09, client wire contract 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
from ai.backend.manager.identity.service import IdentityService, check_policy, without_none
from ai.backend.manager.identity.store import IdentityStore, OwnedFolders, OwnedSessions

_DOMAIN_ADMIN_FIELDS = frozenset({"name", "description", "is_active", "integration_id"})


@dataclass(eq=False, slots=True)
class TenantService:
    """Changes domains, groups and policies; a policy is of users, of projects or (if ``kind`` is None) of keypairs.
    Values that are None stay unchanged. Every method raises Forbidden, NotFound for a missing object, and Conflict if a
    new object exists.
    """

    _store: IdentityStore
    _identity: IdentityService
    _sessions: OwnedSessions
    _folders: OwnedFolders | None
    _clock: Clock
    _id_generator: IdGenerator
    _quota_loops: Sequence[PeriodicLoop] = ()

    async def create_domain(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Domain:
        """Creates a domain. Raises InvalidName."""
        require(caller, Operation.CHANGE_DOMAINS)
        check_slug(name, what="name", allow_dots=True)
        domain = Domain(name=DomainName(name), created_at=self._clock.now(), **without_none(values))
        await self._store.put(domain, only_new=True)
        return domain

    async def modify_domain(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Domain:
        """Changes a domain. Raises InvalidInput for another name (decision 0221)."""
        require(caller, Operation.CHANGE_DOMAINS)
        if values.get("name") not in (None, name):
            raise InvalidInput("A domain keeps its name.", data={"name": "cannot be changed"})
        changed_domain = await self._store.change(Domain, name, modified_at=self._clock.now(), **without_none(values))
        if changed_domain is None:
            raise NotFound(f"There is no domain {name[:64]!r}.")
        self._identity.invalidate_all()
        return changed_domain

    async def delete_domain(self, caller: Caller, name: str) -> None:
        """Makes a domain inactive, so that only its superadmins can sign in. Its sessions go on."""
        await self.modify_domain(caller, name, {"is_active": False})

    async def purge_domain(self, caller: Caller, name: str) -> None:
        """Deletes a domain. Raises Conflict while it has users or groups, and for the caller's own."""
        require(caller, Operation.CHANGE_DOMAINS)
        if name == caller.domain_name:
            raise Conflict("You cannot purge your own domain.", data={"name": "your own"})
        if not await self._store.delete_domain(name):
            raise NotFound(f"There is no domain {name[:64]!r}.")

    async def create_group(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Group:
        """Creates a group. Raises InvalidName; NotFound for the domain and the project resource policy."""
        fields = without_none(values)
        domain = fields.pop("domain_name", caller.domain_name)
        await self._check_group(caller, domain, fields)
        await self._identity.check_domain(domain)
        check_slug(name, what="name", allow_dots=True)
        group_id, now = GroupId(self._id_generator.uuid()), self._clock.now()
        group = Group(id=group_id, name=name, domain_name=DomainName(domain), created_at=now, **fields)
        await self._store.put(group, only_new=True)
        return group

    async def modify_group(
        self,
        caller: Caller,
        group_id: GroupId,
        values: Mapping[str, Any],
        *,
        add: Collection[UserId] = (),
        remove: Collection[UserId] = (),
        add_admins: Collection[UserId] = (),
        remove_admins: Collection[UserId] = (),
    ) -> Group:
        """Changes a group, its members and the administrators among the members. An administrator of the project
        changes its members only. Raises InvalidName; InvalidInput for another domain; NotFound also for new members of
        another domain, and for new administrators who are no members.
        """
        fields = without_none(values)
        changes_only_members = not fields and not add_admins and not remove_admins and bool(add or remove)
        if not (changes_only_members and group_id in caller.administered_groups):
            require_any(caller, Operation.CHANGE_GROUPS)
        group = await self._identity.group(caller, group_id)
        if fields.pop("domain_name", group.domain_name) != group.domain_name:
            raise InvalidInput("A group stays in its domain.", data={"domain_name": "cannot be changed"})
        if changes_only_members:
            domain_name = group.domain_name
            require(caller, Operation.CHANGE_MEMBERS, domain_name=domain_name, group_id=group_id)
            await self._check_removed_admins(caller, group_id, remove)
        else:
            await self._check_group(caller, group.domain_name, fields)
        if "name" in fields:
            check_slug(fields["name"], what="name", allow_dots=True)
        for user_id in add:
            user = await self._store.user(uuid=user_id)
            if user is None or user.domain_name != group.domain_name:
                message = f"There is no user {user_id} in the domain {group.domain_name} of that group."
                raise NotFound(message, data={"user_uuids": "unknown"})
        changed_group = await self._store.change(Group, group_id, modified_at=self._clock.now(), **fields)
        if changed_group is None:
            raise NotFound("There is no such group.", data={"gid": "unknown"})
        if add or remove:
            await self._store.change_members(group_id, add=add, remove=remove)
        for users, is_admin in ((add_admins, True), (remove_admins, False)):
            if users and not await self._store.change_group_admins(group_id, users, is_admin=is_admin):
                raise NotFound("One of them is no member of that group.", data={"user_uuids": "no member"})
        for user_id in {*remove, *add_admins, *remove_admins}:
            for access_key in await self._store.keys_of(user_id=user_id):
                self._identity.invalidate(access_key)
        return changed_group

    async def find_user_ids(self, caller: Caller, group_id: GroupId, emails: Sequence[str]) -> list[UserId]:
        """Returns the ids of the users with these e-mail addresses in the domain of a group.

        Only callers who may change the members of the group may call it. Raises NotFound, which names the address.
        """
        group = await self._identity.group(caller, group_id)
        require(caller, Operation.CHANGE_MEMBERS, domain_name=group.domain_name, group_id=group_id)
        user_ids = []
        for email in emails:
            user = await self._store.user(email=email.strip())
            if user is None or user.domain_name != group.domain_name:
                message = f"There is no user {email[:64]} in the domain {group.domain_name}."
                raise NotFound(message, data={"user_emails": email[:64]})
            user_ids.append(user.uuid)
        return user_ids

    async def group_admins(self, group_id: GroupId) -> Sequence[UserId]:
        """Returns the ids of the members who administrate a group.

        The caller of the method has checked that the user may see the group.
        """
        return await self._store.group_admins(group_id)

    async def _check_removed_admins(self, caller: Caller, group_id: GroupId, users: Collection[UserId]) -> None:
        """Raises Forbidden if a project administrator would remove another administrator of the project."""
        if caller.is_any_admin:
            return
        other_admins = {*await self._store.group_admins(group_id)} - {caller.user_id}
        if other_admins & {*users}:
            raise Forbidden("Administrators of a project are removed by those of the domain.")

    async def find_group_id(self, caller: Caller, name: str) -> GroupId:
        """Returns the id of the group with this name, among groups that the caller may see.

        A group of the caller's domain takes precedence. Raises NotFound, and InvalidInput if several other domains have
        one.
        """
        groups = await self._identity.groups(caller, name=name)
        preferred_groups = [group for group in groups if group.domain_name == caller.domain_name] or groups
        if not preferred_groups:
            raise NotFound(f"There is no group {name[:64]!r}.", data={"name": "unknown"})
        if len(preferred_groups) > 1:
            raise InvalidInput(
                f"Several domains have a group {name[:64]!r}: name it by gid.", data={"name": "ambiguous"}
            )
        return preferred_groups[0].id

    async def delete_group(self, caller: Caller, group_id: GroupId) -> None:
        """Makes a group inactive, so that it takes no new sessions. Its sessions go on."""
        await self.modify_group(caller, group_id, {"is_active": False})

    async def purge_group(self, caller: Caller, group_id: GroupId) -> None:
        """Deletes a group with its folders. Raises Conflict while it has live sessions."""
        require(caller, Operation.PURGE_GROUPS)
        await self.delete_group(caller, group_id)
        live_count = await self._sessions.count_live_of_group(group_id)
        if live_count:
            raise Conflict(f"{live_count} sessions of the group live.", data={"sessions": live_count})
        if self._folders is not None:
            await self._folders.remove_of_group(group_id)
        await self._store.delete_group(group_id)

    async def _check_group(self, caller: Caller, domain_name: str, fields: Mapping[str, Any]) -> None:
        if not is_permitted(caller, Operation.CHANGE_GROUPS, domain_name=domain_name):
            raise Forbidden("Only administrators change the groups of their domain.")
        if {*fields} - _DOMAIN_ADMIN_FIELDS:
            require(caller, Operation.CHANGE_GROUP_LIMITS)
        await check_policy(self._store, QuotaScopeKind.PROJECT, fields)

    async def storage_policies(
        self, caller: Caller, kind: QuotaScopeKind, name: str | None = None
    ) -> Sequence[StoragePolicy]:
        """Returns the policies of users or groups."""
        require(caller, Operation.SEE_STORAGE_POLICIES)
        return await self._store.storage_policies(kind, name=name)

    async def create_policy(
        self, caller: Caller, kind: QuotaScopeKind | None, name: str, values: Mapping[str, Any]
    ) -> ResourcePolicy | StoragePolicy:
        """Creates a policy, and updates quota scopes at once. Raises InvalidName."""
        require(caller, Operation.CHANGE_POLICIES)
        check_slug(name, what="name", allow_dots=True)
        now, fields = self._clock.now(), without_none(values)
        policy: ResourcePolicy | StoragePolicy
        if kind is None:
            policy = ResourcePolicy(name=name, created_at=now, **fields)
        else:
            policy = StoragePolicy(kind=kind, name=name, created_at=now, **fields)
        await self._store.put(policy, only_new=True)
        self._wake_loops(kind)
        return policy

    async def modify_policy(
        self, caller: Caller, kind: QuotaScopeKind | None, name: str, values: Mapping[str, Any]
    ) -> ResourcePolicy | StoragePolicy:
        """Changes a policy, and updates quota scopes at once."""
        require(caller, Operation.CHANGE_POLICIES)
        changed_policy: ResourcePolicy | StoragePolicy | None
        if kind is None:
            changed_policy = await self._store.change(ResourcePolicy, name, **without_none(values))
        else:
            changed_policy = await self._store.change(StoragePolicy, kind, name, **without_none(values))
        if changed_policy is None:
            raise _policy_not_found_error(kind, name)
        self._wake_loops(kind)
        return changed_policy

    async def delete_policy(self, caller: Caller, kind: QuotaScopeKind | None, name: str) -> None:
        """Deletes a policy. Raises Conflict while it is in use."""
        require(caller, Operation.CHANGE_POLICIES)
        if not await self._store.delete_policy(kind, name):
            raise _policy_not_found_error(kind, name)

    def _wake_loops(self, kind: QuotaScopeKind | None) -> None:
        for background_loop in self._quota_loops if kind is not None else ():
            background_loop.wake()


def _policy_not_found_error(kind: QuotaScopeKind | None, name: str) -> NotFound:
    return NotFound(f"There is no {f'{kind} ' if kind else ''}resource policy {name[:64]!r}.")
