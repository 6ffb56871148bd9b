"""Declares the stores of identity, and what its services need from higher features."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from ai.backend.common.ids import AccessKey, GroupId, UserId
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.identity.model import (
    Credentials,
    Domain,
    Group,
    Keypair,
    NewKeypair,
    ResourcePolicy,
    SignInRecord,
    StoragePolicy,
    Tenant,
    TotpDevice,
    User,
)
from ai.backend.manager.query.model import ListQuery, Page


class UserScope(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the domain, groups (by name) and policies of a user, and the model stores, which everybody may read."""

    domain: Domain | None
    groups: tuple[Group, ...]
    policy: ResourcePolicy | None
    storage_policy: StoragePolicy | None = None
    model_stores: tuple[Group, ...] = ()


class SessionCounts(Protocol):
    """Counts live sessions."""

    async def count_live(self, access_keys: Collection[AccessKey]) -> Mapping[AccessKey, int]:
        """Returns the number of live sessions of each keypair; keypairs without sessions may be missing."""
        ...


class OwnedSessions(SessionCounts, Protocol):
    """Counts and ends the sessions of owners who are removed."""

    async def count_live_of_group(self, group_id: GroupId) -> int: ...

    async def count_live_of_member(self, group_id: GroupId, user_id: UserId) -> int:
        """Returns the number of live sessions of a user in a group."""
        ...

    async def end_all(self, caller: Caller, access_keys: Sequence[AccessKey]) -> None:
        """Requests the forced end of all live sessions of the keypairs."""


class OwnedFolders(Protocol):
    """Removes the folders of owners who are removed; every call may be repeated. Raises Conflict if a live session
    mounts one of them, or a clone is made of it.
    """

    async def remove_of_user(self, user_id: UserId, *, heir: User | None) -> None:
        """Removes the folders of a user; folders that other users share go to ``heir``, if there is one."""

    async def remove_of_group(self, group_id: GroupId) -> None: ...


class UserStore(Protocol):
    """Stores changes of users and keypairs. Every method is one transaction.

    ``delete_*`` return False if there is no such object. A change that would leave no superadmin with an active keypair
    raises Conflict with ``data.admin`` and changes nothing.
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
        """Sets fields of a user; ``keypairs`` are fields of the user's keypairs, ``groups`` replaces the memberships.
        The password before ``password_hash`` is kept as an old one. Returns None for a missing user. Raises Conflict if
        the new username is taken.
        """
        ...

    async def delete_user(self, user_id: UserId) -> bool:
        """Deletes a user with keypairs and memberships."""
        ...

    async def password_hash(self, email: str) -> str | None:
        """Returns a user's password hash, or None if the user does not exist or has no password."""
        ...

    async def old_passwords(self, user_id: UserId, count: int) -> list[str]:
        """Returns the hashes of the present and the earlier passwords of a user, newest first."""
        ...

    async def rotate_keypair(self, access_key: AccessKey, secret_key: str, *, at: datetime) -> bool:
        """Replaces the secret of a keypair, and returns False if the keypair does not exist."""
        ...

    async def put_keypair(self, keypair: KeypairSecret) -> None:
        """Inserts a keypair."""

    async def change_keypair(self, access_key: str, **values: Any) -> Keypair | None: ...

    async def delete_keypair(self, access_key: str) -> bool:
        """Deletes a keypair. Raises Conflict if it is the main keypair of its user."""
        ...

    async def keys_of(self, *, user_id: UserId | None = None, domain_name: str | None = None) -> list[AccessKey]:
        """Returns the access keys of a user or of a domain, or all access keys."""
        ...

    async def keys_of_deleted_users(self, access_keys: Collection[AccessKey]) -> set[AccessKey]:
        """Returns those of the given access keys that belong to deleted users."""
        ...

    async def delete_group(self, group_id: GroupId) -> bool:
        """Deletes a group with its memberships."""
        ...

    async def delete_domain(self, name: str) -> bool:
        """Deletes a domain. Raises Conflict while it has users or groups."""
        ...


class IdentityStore(UserStore, Protocol):
    """Stores domains, groups, users, keypairs and policies. Every method is one transaction."""

    async def put(self, value: Domain | Group | ResourcePolicy | StoragePolicy, *, only_new: bool = False) -> None:
        """Inserts or replaces a tenant or policy; with ``only_new``, raises Conflict if the key exists."""

    async def change(self, model: type[Tenant], /, *key: Any, **values: Any) -> Tenant | None:
        """Sets fields of the object with this key, and returns None if the object does not exist. The key is a
        group's id, a storage policy's kind and name, or a name. Raises Conflict if a new name of a group is taken in
        its domain.
        """
        ...

    async def domain(self, name: str) -> Domain | None: ...
    async def domains(self) -> list[Domain]: ...
    async def groups(
        self, *, domain_name: str | None = None, user_id: UserId | None = None, name: str | None = None
    ) -> list[Group]: ...
    async def user_scope(self, domain_name: str, user_id: UserId, policy: str) -> UserScope: ...
    async def change_members(
        self, group_id: GroupId, *, add: Collection[UserId] = (), remove: Collection[UserId] = ()
    ) -> None:
        """Adds the users ``add`` to a group and removes the users ``remove`` from the group.

        Users to add who are already members, and users to remove who are no members, are ignored.
        """

    async def change_group_admins(self, group_id: GroupId, users: Collection[UserId], *, is_admin: bool) -> bool:
        """Makes members of a group its administrators, or ordinary members again. Returns False, changing nothing, if
        one of them is no member.
        """
        ...

    async def group_admins(self, group_id: GroupId) -> list[UserId]: ...

    async def policies(self, *, name: str | None = None) -> list[ResourcePolicy]: ...
    async def storage_policies(self, kind: QuotaScopeKind, *, name: str | None = None) -> list[StoragePolicy]: ...
    async def delete_policy(self, kind: QuotaScopeKind | None, name: str) -> bool:
        """Deletes a policy of users, of projects, or (if ``kind`` is None) of keypairs. Raises Conflict while it is in
        use.
        """
        ...

    async def put_user(
        self, user: User, *, password_hash: str | None, groups: Sequence[GroupId], keypair: KeypairSecret
    ) -> None:
        """Inserts a user with memberships and the main keypair. Raises Conflict if the email or username is taken."""

    async def user(self, *, email: str | None = None, uuid: UserId | None = None) -> User | None: ...
    async def users(
        self,
        query: ListQuery,
        *,
        domain_name: str | None,
        status: str | None,
        is_active: bool | None = None,
        group_id: GroupId | None = None,
    ) -> Page[User]: ...
    async def credentials(self, access_key: str) -> Credentials | None: ...
    async def active_keys(self, access_keys: Collection[str]) -> set[str]:
        """Returns those of the given access keys that may sign requests now."""
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
    async def touch(self, uses_by_key: Mapping[AccessKey, tuple[datetime, int]]) -> None:
        """Sets ``last_used`` of keypairs and adds to ``num_queries``."""


class AccountStore(Protocol):
    """Stores one-time passwords, recovery codes and sign-ins. Every method is one transaction."""

    async def totp(self, user_id: UserId) -> TotpDevice | None: ...

    async def put_totp(self, user_id: UserId, device: TotpDevice) -> bool:
        """Stores a new, inactive one-time password device of a user in the place of an earlier inactive device.

        Returns False if the user has an active device.
        """
        ...

    async def activate_totp(self, user_id: UserId, *, step: int, digests: Collection[str]) -> bool:
        """Activates the inactive one-time password device of a user and stores its recovery codes.

        ``step`` is the time step of its first accepted password. Returns False if there is no inactive device.
        """
        ...

    async def delete_totp(self, user_id: UserId) -> bool:
        """Deletes a device and its recovery codes, and returns False if the user has no device."""
        ...

    async def replace_recovery_codes(self, user_id: UserId, digests: Collection[str]) -> None: ...

    async def count_totp_try(self, user_id: UserId, *, now: datetime, limit: int, window: timedelta) -> bool:
        """Counts an attempt to give a one-time password as a failure, until a right one resets the count.

        Returns False, and counts nothing, after ``limit`` failures within ``window``.
        """
        ...

    async def spend_step(self, user_id: UserId, step: int) -> bool:
        """Marks the one-time password of a time step as used, and resets the count of failures.

        Returns False if the password of this or a later step was used before.
        """
        ...

    async def spend_recovery_code(self, user_id: UserId, digest: str) -> bool:
        """Deletes a recovery code and resets the count of failures, or returns False if the code does not exist."""
        ...

    async def add_sign_ins(self, records: Sequence[SignInRecord]) -> None:
        """Stores sign-ins, except sign-ins of users who do not exist any more."""

    async def sign_ins(self, user_id: UserId, *, limit: int, offset: int) -> Page[SignInRecord]:
        """Returns the sign-ins of a user, newest first."""
        ...

    async def purge_sign_ins(self, *, before: datetime) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class KeypairSecret:
    """Holds a keypair with its secret, to be stored."""

    keypair: Keypair
    secret_key: str = field(repr=False)

    def reveal(self) -> NewKeypair:
        """Returns the access key with its secret, for the reply to the creation of the keypair."""
        return NewKeypair(access_key=self.keypair.access_key, secret_key=self.secret_key)
