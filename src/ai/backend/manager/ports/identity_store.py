"""Users, keypairs, domains, groups, policies and resource groups as the manager keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from ai.backend.common.ids import AccessKey, DomainName, GroupId, ResourceGroupName, UserId
from ai.backend.manager.model.identity import (
    Credentials,
    Domain,
    Group,
    Keypair,
    ResourceGroup,
    ResourcePolicy,
    User,
)
from ai.backend.manager.model.query import ListQuery, Page


@dataclass(frozen=True, slots=True, kw_only=True)
class KeypairSecret:
    """A keypair to be stored."""

    keypair: Keypair
    secret_key: str = field(repr=False)


class IdentityStore(Protocol):
    """Every method is one transaction. ``put_*`` insert or replace by primary key."""

    async def put_domain(self, domain: Domain) -> None: ...
    async def domain(self, name: str) -> Domain | None: ...
    async def put_group(self, group: Group) -> None: ...
    async def groups(
        self, *, domain_name: str | None = None, user_id: UserId | None = None, name: str | None = None
    ) -> list[Group]: ...
    async def put_policy(self, policy: ResourcePolicy) -> None: ...
    async def policies(self, *, name: str | None = None) -> list[ResourcePolicy]: ...
    async def put_resource_group(self, group: ResourceGroup) -> None: ...
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

    async def put_user(
        self, user: User, *, password_hash: str | None, groups: Sequence[GroupId], keypair: KeypairSecret
    ) -> None:
        """Insert a user with memberships and the main keypair. Raises Conflict if the email or username is taken."""

    async def user(self, *, email: str | None = None, uuid: UserId | None = None) -> User | None: ...
    async def users(self, query: ListQuery, *, domain_name: str | None, status: str | None) -> Page[User]: ...
    async def credentials(self, access_key: str) -> Credentials | None: ...
    async def keypair(self, access_key: str) -> Keypair | None: ...
    async def keypairs(
        self,
        query: ListQuery,
        *,
        domain_name: str | None = None,
        email: str | None = None,
        is_active: bool | None = None,
    ) -> Page[Keypair]: ...
    async def set_keypair_active(self, access_key: str, active: bool, *, at: datetime) -> bool: ...
    async def touch(self, used: Mapping[AccessKey, tuple[datetime, int]]) -> None:
        """Set ``last_used`` and add to ``num_queries``."""
