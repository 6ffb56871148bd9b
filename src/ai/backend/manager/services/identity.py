"""Users, keypairs, and on whose behalf a request acts."""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.common.ids import AccessKey, UserId
from ai.backend.common.states import UserRole
from ai.backend.manager.model.identity import (
    BootstrapResult,
    Caller,
    Credentials,
    Domain,
    Group,
    Keypair,
    NewKeypair,
    ResourceGroup,
    ResourcePolicy,
    User,
)
from ai.backend.manager.model.query import ListQuery, Page


class IdentityService:
    """Reads are bounded by the caller's role; what they may not see is NotFound."""

    async def bootstrap(self, *, resource_group: str = "default") -> BootstrapResult:
        """Make the default domain, group, resource group, policy, an admin and a user, each if missing."""
        raise NotImplementedError

    async def credentials(self, access_key: str) -> Credentials | None:
        """For the signature check. At most one second stale; None for an unknown key.

        The API must compare a signature even then (against a dummy secret), so that timing tells nothing.
        """
        raise NotImplementedError

    def touch(self, access_key: AccessKey) -> None:
        """Note one authenticated request: last_used and num_queries are written in batches."""
        raise NotImplementedError

    async def resolve_owner(self, caller: Caller, owner_access_key: str | None) -> Caller:
        """Whose sessions are meant: the caller's without a key; superadmins may name any, admins any of their domain,
        users only their own.

        Raises:
            Forbidden: not allowed, or no such key.
        """
        raise NotImplementedError

    async def keypair(self, caller: Caller, access_key: str | None = None) -> Keypair:
        """None is the caller's own. ``concurrency_used`` is filled in."""
        raise NotImplementedError

    async def keypairs(
        self,
        caller: Caller,
        query: ListQuery,
        *,
        email: str | None = None,
        is_active: bool | None = None,
        domain_name: str | None = None,
    ) -> Page[Keypair]:
        raise NotImplementedError

    async def user(self, caller: Caller, *, email: str | None = None, uuid: UserId | None = None) -> User:
        raise NotImplementedError

    async def users(self, caller: Caller, query: ListQuery, *, status: str | None = None) -> Page[User]:
        raise NotImplementedError

    async def domain(self, caller: Caller, name: str | None = None) -> Domain:
        raise NotImplementedError

    async def groups(self, caller: Caller, *, name: str | None = None) -> Sequence[Group]:
        raise NotImplementedError

    async def resource_policy(self, caller: Caller, name: str | None = None) -> ResourcePolicy:
        raise NotImplementedError

    async def resource_policies(self, caller: Caller) -> Sequence[ResourcePolicy]:
        raise NotImplementedError

    async def resource_groups(
        self, caller: Caller, *, group: str | None = None, is_active: bool | None = True
    ) -> Sequence[ResourceGroup]:
        """Public ones and those associated with the caller's domain, group or keypair."""
        raise NotImplementedError

    async def create_user(
        self, caller: Caller, *, email: str, password: str, role: UserRole = UserRole.USER, username: str | None = None
    ) -> tuple[User, NewKeypair]:
        """Superadmins only; the user joins the default group of the caller's domain."""
        raise NotImplementedError

    async def set_keypair_active(self, caller: Caller, access_key: str, active: bool) -> Keypair:
        """Revokes (or revives) a keypair: in force within one second everywhere, at once in this process."""
        raise NotImplementedError
