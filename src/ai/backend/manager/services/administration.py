"""Domains, groups and policies as superadmins make and change them (spec 03-09, client wire contract 3.2)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, NotFound
from ai.backend.common.ids import DomainName, GroupId, UserId
from ai.backend.common.names import check_slug
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.manager.model.identity import Caller, Domain, Group, ResourcePolicy, StoragePolicy
from ai.backend.manager.ports.identity_store import IdentityStore
from ai.backend.manager.ports.world import Clock, Minter
from ai.backend.manager.services.loops.running import Loop


class AdministrationService:
    """``values`` are fields of the object; those that are None are left as they are.

    Every method raises Forbidden for callers who are no superadmins, NotFound for what is to be changed and is not
    there, and Conflict for what is to be made and is.
    """

    def __init__(
        self, store: IdentityStore, clock: Clock, minter: Minter, after_storage_policy: Sequence[Loop] = ()
    ) -> None:
        self._store = store
        self._clock = clock
        self._minter = minter
        self._after_storage_policy = after_storage_policy

    # ---- domains ----

    async def create_domain(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Domain:
        """Raises InvalidName."""
        _check(caller)
        check_slug(name, what="name", allow_dots=True)
        domain = Domain(name=DomainName(name), created_at=self._clock.now(), **_given(values))
        await self._store.put_domain(domain, only_new=True)
        return domain

    async def modify_domain(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Domain:
        """Raises InvalidInput for another name: users and sessions carry it."""
        _check(caller)
        if values.get("name") not in (None, name):
            raise InvalidInput("A domain keeps its name.", data={"name": "cannot be changed"})
        changed = await self._store.change_domain(name, **_given(values))
        if changed is None:
            raise NotFound(f"There is no domain {name[:64]!r}.")
        return changed

    # ---- groups ----

    async def create_group(self, caller: Caller, name: str, values: Mapping[str, Any]) -> Group:
        """Raises InvalidName; NotFound for the domain."""
        _check(caller)
        given = _given(values)
        domain = given.pop("domain_name", caller.domain_name)
        if await self._store.domain(domain) is None:
            raise NotFound(f"There is no domain {domain[:64]!r}.", data={"domain_name": "unknown"})
        check_slug(name, what="name", allow_dots=True)
        group = Group(
            id=GroupId(self._minter.uuid()),
            name=name,
            domain_name=DomainName(domain),
            created_at=self._clock.now(),
            **given,
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
        """Raises InvalidName; NotFound also for users to be added."""
        _check(caller)
        given = _given(values)
        if "name" in given:
            check_slug(given["name"], what="name", allow_dots=True)
        for user_id in add:
            if await self._store.user(uuid=user_id) is None:
                raise NotFound(f"There is no user {user_id}.", data={"user_uuids": "unknown"})
        changed = await self._store.change_group(group_id, **given)
        if changed is None:
            raise NotFound("There is no such group.", data={"gid": "unknown"})
        if add or remove:
            await self._store.change_members(group_id, add=add, remove=remove)
        return changed

    # ---- policies ----

    async def create_policy(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourcePolicy:
        """Of keypairs. Raises InvalidName."""
        _check(caller)
        check_slug(name, what="name", allow_dots=True)
        policy = ResourcePolicy(name=name, created_at=self._clock.now(), **_given(values))
        await self._store.put_policy(policy, only_new=True)
        return policy

    async def modify_policy(self, caller: Caller, name: str, values: Mapping[str, Any]) -> ResourcePolicy:
        _check(caller)
        changed = await self._store.change_policy(name, **_given(values))
        if changed is None:
            raise NotFound(f"There is no resource policy {name[:64]!r}.")
        return changed

    async def delete_policy(self, caller: Caller, name: str) -> None:
        """Raises Conflict while keypairs have it."""
        _check(caller)
        if not await self._store.delete_policy(name):
            raise NotFound(f"There is no resource policy {name[:64]!r}.")

    async def storage_policies(
        self, caller: Caller, kind: QuotaScopeKind, name: str | None = None
    ) -> Sequence[StoragePolicy]:
        """For administrators."""
        if not caller.is_any_admin:
            raise Forbidden("Only administrators see the policies of users and projects.")
        return await self._store.storage_policies(kind, name=name)

    async def put_storage_policy(
        self, caller: Caller, kind: QuotaScopeKind, name: str, values: Mapping[str, Any], *, is_new: bool
    ) -> StoragePolicy:
        """Of users or groups; limits of quota scopes follow at once. Raises InvalidName."""
        _check(caller)
        found = await self._store.storage_policies(kind, name=name)
        if is_new and found:
            raise Conflict(f"There is a {kind} resource policy {name!r} already.", data={"name": "taken"})
        if not is_new and not found:
            raise NotFound(f"There is no {kind} resource policy {name[:64]!r}.")
        check_slug(name, what="name", allow_dots=True)
        base = found[0] if found else StoragePolicy(kind=kind, name=name, created_at=self._clock.now())
        policy = replace(base, **_given(values))
        await self._store.put_storage_policy(policy)
        for loop in self._after_storage_policy:
            loop.wake()
        return policy

    async def delete_storage_policy(self, caller: Caller, kind: QuotaScopeKind, name: str) -> None:
        """Raises Conflict while somebody has it."""
        _check(caller)
        if not await self._store.delete_storage_policy(kind, name):
            raise NotFound(f"There is no {kind} resource policy {name[:64]!r}.")


def _check(caller: Caller) -> None:
    if not caller.is_superadmin:
        raise Forbidden("Only superadmins change domains, groups and policies.")


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
