"""Users, keypairs, domains, groups, policies and resource groups as the manager keeps them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ai.backend.common.ids import AccessKey, DomainName, GroupId, ResourceGroupName, UserId
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.manager.model.identity import (
    Credentials,
    Domain,
    Group,
    Keypair,
    ResourceGroup,
    ResourcePolicy,
    StoragePolicy,
    User,
)
from ai.backend.manager.model.query import ListQuery, Page
from ai.backend.manager.ports.people_store import KeypairSecret, PeopleStore

__all__ = ["IdentityStore", "KeypairSecret", "PeopleStore", "Surroundings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What bounds a user: the domain, the groups that they are in, by name, and the policies of keypair and user.

    ``model_stores`` are those groups whose models everybody may read, whether the user is in them or not.
    """

    domain: Domain | None
    groups: tuple[Group, ...]
    policy: ResourcePolicy | None
    storage_policy: StoragePolicy | None = None
    model_stores: tuple[Group, ...] = ()


class IdentityStore(PeopleStore, Protocol):
    """Every method is one transaction. ``put_*`` insert or replace by primary key, or with ``only_new`` raise Conflict
    for one that is there. ``change_*`` set fields; None where there is no such object."""

    async def put_domain(self, domain: Domain, *, only_new: bool = False) -> None: ...
    async def change_domain(self, name: str, **values: Any) -> Domain | None: ...
    async def domain(self, name: str) -> Domain | None: ...
    async def domains(self) -> list[Domain]: ...
    async def put_group(self, group: Group, *, only_new: bool = False) -> None: ...
    async def change_group(self, group_id: GroupId, **values: Any) -> Group | None:
        """Raises Conflict if a new name is taken in the domain."""
        ...

    async def groups(
        self, *, domain_name: str | None = None, user_id: UserId | None = None, name: str | None = None
    ) -> list[Group]: ...
    async def surroundings(self, domain_name: str, user_id: UserId, policy: str) -> Surroundings: ...
    async def change_members(
        self, group_id: GroupId, *, add: Collection[UserId] = (), remove: Collection[UserId] = ()
    ) -> None:
        """Harmless for those who are in the group, or out of it, already."""

    async def put_policy(self, policy: ResourcePolicy, *, only_new: bool = False) -> None: ...
    async def change_policy(self, name: str, **values: Any) -> ResourcePolicy | None: ...
    async def policies(self, *, name: str | None = None) -> list[ResourcePolicy]: ...
    async def delete_policy(self, name: str) -> bool:
        """False if there is none. Raises Conflict if a keypair has it."""
        ...

    async def put_storage_policy(self, policy: StoragePolicy) -> None: ...
    async def storage_policies(self, kind: QuotaScopeKind, *, name: str | None = None) -> list[StoragePolicy]: ...
    async def delete_storage_policy(self, kind: QuotaScopeKind, name: str) -> bool:
        """False if there is none. Raises Conflict if a user or group has it."""
        ...

    async def put_resource_group(self, group: ResourceGroup, *, only_new: bool = False) -> None: ...
    async def change_resource_group(self, name: str, **values: Any) -> ResourceGroup | None: ...
    async def delete_resource_group(self, name: str) -> bool:
        """With its associations. False if there is none."""
        ...

    async def resource_group(self, name: str) -> ResourceGroup | None: ...
    async def resource_groups(
        self,
        *,
        domain_name: str | None = None,
        group_ids: Sequence[GroupId] = (),
        access_key: str | None = None,
        is_active: bool | None = None,
    ) -> list[ResourceGroup]:
        """All of them without arguments; else the public ones and those associated with any of the three."""
        ...

    async def associate(
        self,
        resource_group: ResourceGroupName,
        *,
        domain_name: DomainName | None = None,
        group_id: GroupId | None = None,
        access_key: AccessKey | None = None,
    ) -> None: ...

    async def dissociate(
        self,
        resource_group: ResourceGroupName | None,
        *,
        domain_name: DomainName | None = None,
        group_id: GroupId | None = None,
        access_key: AccessKey | None = None,
    ) -> int:
        """Of one of the three with this resource group, or with all (None); how many associations were there."""
        ...

    async def put_user(
        self, user: User, *, password_hash: str | None, groups: Sequence[GroupId], keypair: KeypairSecret
    ) -> None:
        """Insert a user with memberships and the main keypair. Raises Conflict if the email or username is taken."""

    async def user(self, *, email: str | None = None, uuid: UserId | None = None) -> User | None: ...
    async def users(
        self, query: ListQuery, *, domain_name: str | None, status: str | None, group_id: GroupId | None = None
    ) -> Page[User]: ...
    async def credentials(self, access_key: str) -> Credentials | None: ...
    async def active_keys(self, access_keys: Collection[str]) -> set[str]:
        """Those whose credentials are active."""
        ...

    async def keypair(self, access_key: str) -> Keypair | None: ...
    async def keypairs(
        self,
        query: ListQuery,
        *,
        domain_name: str | None = None,
        email: str | None = None,
        is_active: bool | None = None,
    ) -> Page[Keypair]: ...
    async def touch(self, used: Mapping[AccessKey, tuple[datetime, int]]) -> None:
        """Set ``last_used`` and add to ``num_queries``."""
