"""Stores changes of users and keypairs in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from ai.backend.common.errors import Conflict
from ai.backend.common.ids import AccessKey, GroupId, UserId
from ai.backend.common.states import UserRole, UserStatus
from ai.backend.manager.identity.model import Domain, Group, GroupRef, Keypair, User
from ai.backend.manager.identity.store import KeypairSecret

T = TypeVar("T")
RemovalStep = Callable[[str, Collection[str]], None]


class MemoryUserStore:
    """Implements :class:`ai.backend.manager.identity.store.UserStore`; calls ``on_removal`` as the SQL store does."""

    def __init__(self, on_removal: RemovalStep = lambda kind, targets: None) -> None:
        self._on_removal = on_removal
        self._domains: dict[str, Domain] = {}
        self._groups: dict[GroupId, Group] = {}
        self._users: dict[UserId, User] = {}
        self._passwords: dict[UserId, str | None] = {}
        self._members: set[tuple[UserId, GroupId]] = set()
        self._pairs: dict[str, KeypairSecret] = {}

    def _with_groups(self, user: User) -> User:
        refs = [GroupRef(id=g, name=self._groups[g].name) for u, g in self._members if u == user.uuid]
        return replace(user, groups=tuple(sorted(refs, key=lambda r: r.name)))

    def _keypair(self, pair: KeypairSecret) -> Keypair:
        user = self._users[pair.keypair.user_id]
        return replace(pair.keypair, user_email=user.email, user_full_name=user.full_name)

    def _count_admins(self) -> int:
        return sum(
            pair.keypair.is_active
            and (user := self._users[pair.keypair.user_id]).role is UserRole.SUPERADMIN
            and user.is_active
            for pair in self._pairs.values()
        )

    def _with_an_admin_left(self, work: Callable[[], T]) -> T:
        before, stored = self._count_admins(), (dict(self._users), dict(self._pairs), set(self._members))
        result = work()
        if before and not self._count_admins():
            self._users, self._pairs, self._members = stored
            raise Conflict("That would leave no superadmin who can sign in.", data={"admin": "the last one"})
        return result

    async def change_user(
        self,
        user_id: UserId,
        *,
        groups: Sequence[GroupId] | None = None,
        password_hash: str | None = None,
        keypairs: dict[str, Any] | None = None,
        **values: Any,
    ) -> User | None:
        if user_id not in self._users:
            return None
        if any(u.username == values.get("username") and u.uuid != user_id for u in self._users.values()):
            raise Conflict("That username is taken already.", data={"username": "taken"})

        def change() -> User:
            self._users[user_id] = replace(self._users[user_id], **values)
            for key, pair in list(self._pairs.items()):
                if keypairs and pair.keypair.user_id == user_id:
                    self._pairs[key] = replace(pair, keypair=replace(pair.keypair, **keypairs))
            if groups is not None:
                self._members = {m for m in self._members if m[0] != user_id} | {(user_id, g) for g in groups}
            return self._with_groups(self._users[user_id])

        user = self._with_an_admin_left(change)
        if password_hash is not None:
            self._passwords[user_id] = password_hash
        return user

    async def delete_user(self, user_id: UserId) -> bool:
        keys = {key for key, pair in self._pairs.items() if pair.keypair.user_id == user_id}

        def remove() -> bool:
            self._pairs = {key: pair for key, pair in self._pairs.items() if key not in keys}
            self._members = {m for m in self._members if m[0] != user_id}
            return self._users.pop(user_id, None) is not None

        is_removed = self._with_an_admin_left(remove)
        self._on_removal("keypair", keys)
        return is_removed

    async def password_hash(self, email: str) -> str | None:
        hashes = (self._passwords.get(user.uuid) for user in self._users.values() if user.email == email)
        return next(hashes, None)

    async def put_keypair(self, keypair: KeypairSecret) -> None:
        self._pairs[keypair.keypair.access_key] = keypair

    async def change_keypair(self, access_key: str, **values: Any) -> Keypair | None:
        pair = self._pairs.get(access_key)
        if pair is None:
            return None

        def change() -> None:
            self._pairs[access_key] = replace(pair, keypair=replace(pair.keypair, **values))

        self._with_an_admin_left(change)
        return self._keypair(self._pairs[access_key])

    async def delete_keypair(self, access_key: str) -> bool:
        if any(user.main_access_key == access_key for user in self._users.values()):
            raise Conflict("It is the main keypair of its user.", data={"access_key": "in use"})

        is_removed = self._with_an_admin_left(lambda: self._pairs.pop(access_key, None) is not None)
        self._on_removal("keypair", [access_key])
        return is_removed

    async def keys_of(self, *, user_id: UserId | None = None, domain_name: str | None = None) -> list[AccessKey]:
        return [
            AccessKey(key)
            for key, pair in sorted(self._pairs.items())
            if user_id in (None, pair.keypair.user_id)
            and domain_name in (None, self._users[pair.keypair.user_id].domain_name)
        ]

    async def owned_by_deleted(self, access_keys: Collection[AccessKey]) -> set[AccessKey]:
        return {
            key
            for key in access_keys
            if key in self._pairs and self._users[self._pairs[key].keypair.user_id].status is UserStatus.DELETED
        }

    async def delete_group(self, group_id: GroupId) -> bool:
        self._on_removal("group", [str(group_id)])
        self._members = {m for m in self._members if m[1] != group_id}
        return self._groups.pop(group_id, None) is not None

    async def delete_domain(self, name: str) -> bool:
        for what, objects in (("users", self._users.values()), ("groups", self._groups.values())):
            count = sum(one.domain_name == name for one in objects)
            if count:
                raise Conflict(f"The domain {name!r} has {count} {what}.", data={"name": "in use", what: count})
        self._on_removal("domain", [name])
        return self._domains.pop(name, None) is not None
