"""Stores domains, groups, users, keypairs and policies in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AccessKey, GroupId, UserId
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.identity.memory_users import MemoryUserStore, RemovalStep
from ai.backend.manager.identity.model import Credentials, Domain, Group, Keypair, ResourcePolicy, StoragePolicy, User
from ai.backend.manager.identity.store import KeypairSecret, UserScope
from ai.backend.manager.query.memory import select
from ai.backend.manager.query.model import ListQuery, Page


def _check_new(is_taken: bool, name: str) -> None:
    if is_taken:
        raise Conflict(f"{name!r} is taken already.", data={"name": "taken"})


class MemoryIdentityStore(MemoryUserStore):
    """Implements :class:`ai.backend.manager.identity.store.IdentityStore`."""

    def __init__(self, on_removal: RemovalStep = lambda kind, targets: None) -> None:
        super().__init__(on_removal)
        self._policies: dict[str, ResourcePolicy] = {}
        self._storage_policies: dict[tuple[QuotaScopeKind, str], StoragePolicy] = {}

    async def put_domain(self, domain: Domain, *, only_new: bool = False) -> None:
        _check_new(only_new and domain.name in self._domains, domain.name)
        self._domains[domain.name] = domain

    async def change_domain(self, name: str, **values: Any) -> Domain | None:
        if name in self._domains:
            self._domains[name] = replace(self._domains[name], **values)
        return self._domains.get(name)

    async def domain(self, name: str) -> Domain | None:
        return self._domains.get(name)

    async def domains(self) -> list[Domain]:
        return [self._domains[name] for name in sorted(self._domains)]

    async def put_group(self, group: Group, *, only_new: bool = False) -> None:
        _check_new(only_new and self._has_group(group), group.name)
        self._groups[group.id] = group

    def _has_group(self, group: Group) -> bool:
        return any(
            (g.domain_name, g.name) == (group.domain_name, group.name) and g.id != group.id
            for g in self._groups.values()
        )

    async def change_group(self, group_id: GroupId, **values: Any) -> Group | None:
        if group_id in self._groups:
            changed = replace(self._groups[group_id], **values)
            _check_new(self._has_group(changed), changed.name)
            self._groups[group_id] = changed
        return self._groups.get(group_id)

    async def groups(
        self, *, domain_name: str | None = None, user_id: UserId | None = None, name: str | None = None
    ) -> list[Group]:
        groups = [
            g
            for g in self._groups.values()
            if domain_name in (None, g.domain_name)
            and name in (None, g.name)
            and (user_id is None or (user_id, g.id) in self._members)
        ]
        return sorted(groups, key=lambda g: g.name)

    async def user_scope(self, domain_name: str, user_id: UserId, policy: str) -> UserScope:
        user = self._users.get(user_id)
        storage = (QuotaScopeKind.USER, user.resource_policy if user is not None else "")
        return UserScope(
            domain=self._domains.get(domain_name),
            groups=tuple(await self.groups(user_id=user_id)),
            policy=self._policies.get(policy),
            storage_policy=self._storage_policies.get(storage),
            model_stores=tuple(g for g in await self.groups() if g.is_model_store),
        )

    async def change_members(
        self, group_id: GroupId, *, add: Collection[UserId] = (), remove: Collection[UserId] = ()
    ) -> None:
        self._members -= {(user_id, group_id) for user_id in remove}
        self._members |= {(user_id, group_id) for user_id in add}

    async def put_policy(self, policy: ResourcePolicy, *, only_new: bool = False) -> None:
        _check_new(only_new and policy.name in self._policies, policy.name)
        self._policies[policy.name] = policy

    async def change_policy(self, name: str, **values: Any) -> ResourcePolicy | None:
        if name in self._policies:
            self._policies[name] = replace(self._policies[name], **values)
        return self._policies.get(name)

    async def policies(self, *, name: str | None = None) -> list[ResourcePolicy]:
        return [self._policies[n] for n in sorted(self._policies) if name in (None, n)]

    async def delete_policy(self, name: str) -> bool:
        if any(pair.keypair.resource_policy == name for pair in self._pairs.values()):
            raise Conflict(f"Keypairs have the resource policy {name!r}.", data={"name": "in use"})
        return self._policies.pop(name, None) is not None

    async def put_storage_policy(self, policy: StoragePolicy) -> None:
        self._storage_policies[policy.kind, policy.name] = policy

    async def storage_policies(self, kind: QuotaScopeKind, *, name: str | None = None) -> list[StoragePolicy]:
        policies = [p for p in self._storage_policies.values() if p.kind is kind and name in (None, p.name)]
        return sorted(policies, key=lambda p: p.name)

    async def delete_storage_policy(self, kind: QuotaScopeKind, name: str) -> bool:
        owners = self._users.values() if kind is QuotaScopeKind.USER else self._groups.values()
        if any(owner.resource_policy == name for owner in owners):
            raise Conflict(f"The {kind} resource policy {name!r} is in use.", data={"name": "in use"})
        return self._storage_policies.pop((kind, name), None) is not None

    async def put_user(
        self, user: User, *, password_hash: str | None, groups: Sequence[GroupId], keypair: KeypairSecret
    ) -> None:
        if any(user.email == u.email or user.username == u.username for u in self._users.values()):
            raise Conflict(f"a user {user.email} exists already", data={"email": "taken"})
        self._users[user.uuid] = user
        self._passwords[user.uuid] = password_hash
        self._members |= {(user.uuid, g) for g in groups}
        self._pairs[keypair.keypair.access_key] = keypair

    async def user(self, *, email: str | None = None, uuid: UserId | None = None) -> User | None:
        matches = (u for u in self._users.values() if (u.email == email if email is not None else u.uuid == uuid))
        user = next(matches, None)
        return self._with_groups(user) if user is not None else None

    async def users(
        self, query: ListQuery, *, domain_name: str | None, status: str | None, group_id: GroupId | None = None
    ) -> Page[User]:
        users = [
            self._with_groups(u)
            for u in sorted(self._users.values(), key=lambda u: str(u.uuid))
            if domain_name in (None, u.domain_name)
            and status in (None, u.status)
            and (group_id is None or (u.uuid, group_id) in self._members)
        ]
        return select(users, query)

    async def credentials(self, access_key: str) -> Credentials | None:
        pair = self._pairs.get(access_key)
        if pair is None:
            return None
        keypair, user = pair.keypair, self._users[pair.keypair.user_id]
        caller = Caller(
            user_id=user.uuid,
            email=user.email,
            username=user.username,
            role=user.role,
            domain_name=user.domain_name,
            access_key=keypair.access_key,
            is_admin=keypair.is_admin,
            resource_policy=keypair.resource_policy,
            rate_limit=keypair.rate_limit,
            allowed_client_ip=user.allowed_client_ip,
        )
        domain = self._domains.get(user.domain_name)
        is_open = domain is None or domain.is_active or caller.is_superadmin
        is_active = keypair.is_active and user.is_active and is_open
        return Credentials(
            caller=caller,
            secret_key=pair.secret_key,
            is_active=is_active,
            ssh_public_key=keypair.ssh_public_key,
        )

    async def active_keys(self, access_keys: Collection[str]) -> set[str]:
        credentials_of = {key: await self.credentials(key) for key in access_keys}
        return {key for key, credentials in credentials_of.items() if credentials is not None and credentials.is_active}

    async def keypair(self, access_key: str) -> Keypair | None:
        pair = self._pairs.get(access_key)
        return self._keypair(pair) if pair is not None else None

    async def keypairs(
        self,
        query: ListQuery,
        *,
        domain_name: str | None = None,
        email: str | None = None,
        is_active: bool | None = None,
    ) -> Page[Keypair]:
        keypairs = [
            self._keypair(p)
            for _, p in sorted(self._pairs.items())
            if domain_name in (None, self._users[p.keypair.user_id].domain_name)
            and email in (None, self._users[p.keypair.user_id].email)
            and is_active in (None, p.keypair.is_active)
        ]
        return select(keypairs, query)

    async def touch(self, used: Mapping[AccessKey, tuple[datetime, int]]) -> None:
        for access_key, (at, count) in used.items():
            pair = self._pairs.get(access_key)
            if pair is not None:
                keypair = replace(pair.keypair, last_used=at, num_queries=pair.keypair.num_queries + count)
                self._pairs[access_key] = replace(pair, keypair=keypair)
