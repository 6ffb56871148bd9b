"""Users and keypairs as administrators change them; a part of the identity store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ai.backend.common.ids import AccessKey, GroupId, UserId
from ai.backend.manager.model.identity import Keypair, User


@dataclass(frozen=True, slots=True, kw_only=True)
class KeypairSecret:
    """A keypair to be stored."""

    keypair: Keypair
    secret_key: str = field(repr=False)


class PeopleStore(Protocol):
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
