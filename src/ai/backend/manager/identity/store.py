"""Users, keypairs, domains, groups, policies and resource groups as the manager keeps them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from ai.backend.common.ids import AccessKey, GroupId, UserId
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.identity.model import Credentials, Domain, Group, Keypair, ResourcePolicy, StoragePolicy, User
from ai.backend.manager.query.model import ListQuery, Page


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScope:
    """What bounds a user: the domain, the groups that they are in, by name, and the policies of keypair and user.

    ``model_stores`` are those groups whose models everybody may read, whether the user is in them or not.
    """

    domain: Domain | None
    groups: tuple[Group, ...]
    policy: ResourcePolicy | None
    storage_policy: StoragePolicy | None = None
    model_stores: tuple[Group, ...] = ()


class SessionCounts(Protocol):
    """Counts live sessions."""

    async def count_live(self, access_keys: Collection[AccessKey]) -> Mapping[AccessKey, int]:
        """Returns the live sessions of each keypair; keypairs without any may be missing."""
        ...


class OwnedSessions(SessionCounts, Protocol):
    """Counts and ends the sessions of owners that are removed."""

    async def count_live_of_group(self, group_id: GroupId) -> int: ...

    async def end_all(self, caller: Caller, access_keys: Sequence[AccessKey]) -> None:
        """Starts the forced end of all live sessions of the keypairs."""


class OwnedFolders(Protocol):
    """Removes the folders of owners that are removed. Every method may be repeated after an interruption.

    Raises:
        Conflict: a live session mounts one of the folders, or a clone is made of it.
    """

    async def of_user(self, user_id: UserId, *, heir: User | None) -> None:
        """Removes the folders of a user; those that others share go to ``heir`` if there is one."""

    async def of_group(self, group_id: GroupId) -> None: ...


class UserStore(Protocol):
    """Every method is one transaction.

    Where a change would leave nobody who can sign as a superadmin (an active user of that role with an active
    keypair), and there was somebody before, it raises Conflict with ``data.admin`` and changes nothing.
    """

    async def change_user(
        self,
        user_id: UserId,
        *,
        groups: Sequence[GroupId] | None = None,
        password_hash: str | None = None,
        keypairs: dict[str, Any] | None = None,
        **values: Any,
    ) -> User | None:
        """Set fields, and with ``groups`` replace the memberships; ``keypairs``: fields of all keypairs of the user.

        None if there is no such user. Raises Conflict if the new username is taken."""
        ...

    async def delete_user(self, user_id: UserId) -> bool:
        """The user for good, with keypairs and memberships. False if there is none."""
        ...

    async def password_hash(self, email: str) -> str | None:
        """None if there is no such user, or no password."""
        ...

    async def put_keypair(self, keypair: KeypairSecret) -> None:
        """A new one."""

    async def change_keypair(self, access_key: str, **values: Any) -> Keypair | None: ...

    async def delete_keypair(self, access_key: str) -> bool:
        """With its associations. False if there is none. Raises Conflict if it is the main keypair of its user."""
        ...

    async def keys_of(self, *, user_id: UserId | None = None, domain_name: str | None = None) -> list[AccessKey]:
        """Of a user, or of all of a domain; else of everybody."""
        ...

    async def owned_by_deleted(self, access_keys: Collection[AccessKey]) -> set[AccessKey]:
        """Those of them whose user is deleted."""
        ...

    async def delete_group(self, group_id: GroupId) -> bool:
        """For good, with memberships and associations. False if there is none."""
        ...

    async def delete_domain(self, name: str) -> bool:
        """For good, with its associations. False if there is none. Raises Conflict while users or groups are in it."""
        ...


class IdentityStore(UserStore, Protocol):
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
    async def surroundings(self, domain_name: str, user_id: UserId, policy: str) -> UserScope: ...
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KeypairSecret:
    """A keypair to be stored."""

    keypair: Keypair
    secret_key: str = field(repr=False)
