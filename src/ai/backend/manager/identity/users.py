"""Creates, changes and removes users and keypairs (spec 03-09, client wire contract 3.2)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, NotFound
from ai.backend.common.ids import AccessKey, DomainName, GroupId
from ai.backend.common.names import check_slug
from ai.backend.common.states import UserRole, UserStatus
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.http.addresses import may_come_from
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.access.caller import ADMIN_ROLES, Caller
from ai.backend.manager.access.checks import is_permitted, require, require_any
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.identity.model import Keypair, NewKeypair, User
from ai.backend.manager.identity.passwords import PasswordService
from ai.backend.manager.identity.service import IdentityService, check_policy, require_existing, without_none
from ai.backend.manager.identity.store import IdentityStore, OwnedFolders, OwnedSessions
from ai.backend.manager.identity.totp import TotpService
from ai.backend.manager.query.model import Condition, ListQuery

_DOMAIN_ADMIN_FIELDS = frozenset(
    {"username", "full_name", "description", "need_password_change", "status", "domain_name", "role", "group_ids"}
    | {"allowed_client_ip", "totp_activated", "password_changed_at"}
)
EMAIL_PATTERN = re.compile(r"[^@\s\x00-\x1f]{1,128}@[^@\s\x00-\x1f]{1,127}")


@dataclass(eq=False, slots=True)
class UserService:
    """Creates, changes and removes users and keypairs on behalf of callers. ``values`` are fields of the object; those
    that are None stay unchanged.

    Every method raises NotFound for users whom the caller does not see, Forbidden for users whom the caller may not
    change, and Conflict if no superadmin could sign in afterwards.
    """

    _store: IdentityStore
    _identity: IdentityService
    _sessions: OwnedSessions
    _folders: OwnedFolders | None
    _clock: Clock
    _id_generator: IdGenerator
    _passwords: PasswordService
    _totp: TotpService
    _owner_loop: PeriodicLoop

    # ---- users ----

    async def create_user(
        self, caller: Caller, email: str, password: str, values: Mapping[str, Any]
    ) -> tuple[User, NewKeypair]:
        """Creates a user with a keypair, by default in the group ``default`` of the domain. Raises InvalidInput and
        InvalidName for a malformed address, name or password, Conflict if one is taken."""
        require_any(caller, Operation.CHANGE_USERS)
        fields = without_none(values)
        role = fields.pop("role", UserRole.USER)
        domain = DomainName(fields.pop("domain_name", caller.domain_name))
        _check_rights(caller, domain, role, fields)
        if fields.pop("totp_activated", False):
            raise _totp_activation_error()
        if not EMAIL_PATTERN.fullmatch(email):
            raise InvalidInput("That is no e-mail address.", data={"email": "malformed"})
        await self._identity.check_domain(domain)
        await check_policy(self._store, QuotaScopeKind.USER, fields)
        groups = await self._check_group_ids(domain, fields.pop("group_ids", None))
        username = fields.pop("username", "") or await unused_username(self._store, email, self._identity.new_suffix)
        check_slug(username, what="username", allow_dots=True)
        password_hash = await self._passwords.check_and_hash(password)
        fields["password_changed_at"] = self._clock.now()
        return await self._identity.make_user(
            email, username, role, domain, groups, password_hash=password_hash, **{"full_name": username, **fields}
        )

    async def modify_user(
        self,
        caller: Caller,
        email: str,
        values: Mapping[str, Any],
        *,
        password: str | None = None,
        address: str | None = None,
    ) -> User:
        """Changes a user; a user who moves to another domain leaves the groups of the old one. Raises Conflict also if
        the caller could no longer connect from ``address``.
        """
        user = await self._user(caller, email)
        fields = without_none(values)
        if user.uuid == caller.user_id and not may_come_from(address or "", fields.get("allowed_client_ip", ())):
            raise Conflict(
                "You could no longer connect from your address.", data={"allowed_client_ip": "without your own"}
            )
        domain = DomainName(fields.get("domain_name", user.domain_name))
        role = fields.get("role", user.role)
        _check_rights(caller, user.domain_name, user.role, fields)
        _check_rights(caller, domain, role, fields)
        if "username" in fields:
            check_slug(fields["username"], what="username", allow_dots=True)
        if domain != user.domain_name:
            await self._identity.check_domain(domain)
        await check_policy(self._store, QuotaScopeKind.USER, fields)
        await self._check_main_key(user, fields.get("main_access_key"))
        is_totp_wanted = fields.pop("totp_activated", None)
        if is_totp_wanted and not user.totp_activated:
            raise _totp_activation_error()
        password_hash = (
            await self._passwords.check_and_hash(password, user_id=user.uuid) if password is not None else None
        )
        if password_hash is not None:
            fields["password_changed_at"] = self._clock.now()
        group_ids = fields.pop("group_ids", None)
        groups = (
            await self._check_group_ids(domain, group_ids)
            if group_ids is not None or domain != user.domain_name
            else None
        )
        keypair_fields: dict[str, Any] = {}
        if role is not user.role:
            keypair_fields["is_admin"] = role in ADMIN_ROLES
        if fields.get("status") is UserStatus.DELETED:
            keypair_fields["is_active"] = False
        changed_user = await self._store.change_user(
            user.uuid,
            groups=groups,
            password_hash=password_hash,
            keypairs=keypair_fields or None,
            modified_at=self._clock.now(),
            **fields,
        )
        await self._refresh_keypairs(user)
        if is_totp_wanted is False and user.totp_activated:
            await self._totp.reset(user.uuid)
            changed_user = await self._store.user(uuid=user.uuid)
        return require_existing(changed_user, "user")

    async def delete_user(self, caller: Caller, email: str) -> None:
        """Marks a user as deleted; the user's keypairs become inactive at once, and the sessions end."""
        user = await self._user(caller, email)
        _check_rights(caller, user.domain_name, user.role, {})
        if user.uuid == caller.user_id:
            raise Conflict("You cannot delete yourself.", data={"email": "your own"})
        await self._store.change_user(
            user.uuid,
            keypairs={"is_active": False},
            status=UserStatus.DELETED,
            status_info="admin-requested",
            modified_at=self._clock.now(),
        )
        await self._refresh_keypairs(user)

    async def purge_user(self, caller: Caller, email: str, *, purge_shared: bool = False) -> None:
        """Deletes a user with sessions and folders; a repeated call continues an interrupted one. Shared folders go to
        the caller, unless ``purge_shared``. Raises Conflict while sessions are ending.
        """
        require(caller, Operation.PURGE_USERS)
        user = await self._user(caller, email)
        await self.delete_user(caller, email)
        keys = await self._store.keys_of(user_id=user.uuid)
        await self._sessions.end_all(caller, keys)
        live_count = sum((await self._sessions.count_live(keys)).values())
        if live_count:
            raise Conflict(f"{live_count} sessions are still ending; try again.", data={"sessions": live_count})
        if self._folders is not None:
            heir = require_existing(await self._store.user(uuid=caller.user_id), "user")
            await self._folders.remove_of_user(user.uuid, heir=None if purge_shared else heir)
        await self._store.delete_user(user.uuid)
        for key in keys:
            self._identity.invalidate(key)

    async def remove_totp(self, caller: Caller, *, email: str | None, otp: str, address: str) -> None:
        """Removes the one-time passwords of the caller, who gives one as ``otp``, or for administrators those of
        the user ``email``. Raises as :meth:`modify_user` and ``TotpService.remove``.
        """
        if email is None or email == caller.email:
            await self._totp.remove(await self._identity.user(caller), otp)
        else:
            await self.modify_user(caller, email, {"totp_activated": False}, address=address)

    async def _user(self, caller: Caller, email: str) -> User:
        """Returns the user with this e-mail address, if the caller may change users and may see the user.

        Raises NotFound if the caller does not see the user.
        """
        require_any(caller, Operation.CHANGE_USERS)
        return await self._identity.user(caller, email=email)

    async def _refresh_keypairs(self, user: User) -> None:
        for key in await self._store.keys_of(user_id=user.uuid):
            self._identity.invalidate(key)
        self._owner_loop.wake()

    async def _check_group_ids(self, domain: str, ids: Sequence[GroupId] | None) -> list[GroupId]:
        if ids is None:
            return [group.id for group in await self._store.groups(domain_name=domain, name="default")]
        existing_ids = {group.id for group in await self._store.groups(domain_name=domain)}
        if not {*ids} <= existing_ids:
            raise NotFound("There is no such group in the domain.", data={"group_ids": "unknown"})
        return list(ids)

    async def _check_main_key(self, user: User, access_key: str | None) -> None:
        if access_key is None:
            return
        keypair = await self._store.keypair(access_key)
        if keypair is None or keypair.user_id != user.uuid or not keypair.is_active:
            raise NotFound("The user has no such active keypair.", data={"main_access_key": "unknown"})

    # ---- keypairs ----

    async def create_keypair(self, caller: Caller, email: str, values: Mapping[str, Any]) -> NewKeypair:
        """Creates an additional keypair of a user. Its secret is returned only once."""
        require_any(caller, Operation.CHANGE_KEYPAIRS)
        user = await self._user(caller, email)
        fields = without_none(values)
        await self._check_keypair(caller, user, fields)
        new_keypair = self._identity.new_keypair(user.uuid, user.email, user.role, **fields)
        await self._store.put_keypair(new_keypair)
        self._identity.invalidate(new_keypair.keypair.access_key)
        return new_keypair.reveal()

    async def modify_keypair(self, caller: Caller, access_key: str, values: Mapping[str, Any]) -> Keypair:
        """Changes a keypair, with effect at once in this manager and within a second in other managers."""
        fields = without_none(values)
        await self._check_keypair(caller, await self._owner_of_key(caller, access_key), fields)
        changed_keypair = await self._store.change_keypair(access_key, **fields, modified_at=self._clock.now())
        self._identity.invalidate(access_key)
        return require_existing(changed_keypair, "keypair")

    async def delete_keypair(self, caller: Caller, access_key: str) -> None:
        """Deletes a keypair. Raises Conflict for a main keypair, and while it has live sessions."""
        await self._check_keypair(caller, await self._owner_of_key(caller, access_key), {})
        key = AccessKey(access_key)
        live_count = (await self._sessions.count_live([key])).get(key, 0)
        if live_count:
            raise Conflict(f"{live_count} sessions of that keypair live.", data={"sessions": live_count})
        if not await self._store.delete_keypair(access_key):
            raise NotFound("There is no such keypair.")
        self._identity.invalidate(access_key)

    async def rotate_keypair(self, caller: Caller, access_key: str) -> NewKeypair:
        """Gives a keypair a new secret. The old secret is refused at once in this manager, and within a second in
        others. The owner may do it as administrators may.
        """
        keypair = await self._identity.keypair(caller, access_key)
        if keypair.user_id == caller.user_id:
            require(caller, Operation.ROTATE_OWN_KEYPAIRS, is_own=True)
        else:
            await self._check_keypair(caller, await self._owner_of_key(caller, access_key), {})
        secret_key = self._id_generator.token(48)
        if not await self._store.rotate_keypair(keypair.access_key, secret_key, at=self._clock.now()):
            raise NotFound("There is no such keypair.")
        self._identity.invalidate(access_key)
        return NewKeypair(access_key=keypair.access_key, secret_key=secret_key)

    async def _owner_of_key(self, caller: Caller, access_key: str) -> User:
        require_any(caller, Operation.CHANGE_KEYPAIRS)
        keypair = await self._identity.keypair(caller, access_key)
        return require_existing(await self._store.user(uuid=keypair.user_id), "keypair")

    async def _check_keypair(self, caller: Caller, owner: User, fields: Mapping[str, Any]) -> None:
        _check_rights(caller, owner.domain_name, owner.role, {})
        if {*fields} - {"is_active", "allowed_client_ip"}:
            require(caller, Operation.CHANGE_KEYPAIR_LIMITS)
        await check_policy(self._store, None, fields)


def _check_rights(caller: Caller, domain_name: str, role: UserRole, fields: Mapping[str, Any]) -> None:
    if not is_permitted(caller, Operation.CHANGE_USERS, domain_name=domain_name, owner_role=role):
        raise Forbidden("You do not administrate that user.")
    if {*fields} - _DOMAIN_ADMIN_FIELDS:
        require(caller, Operation.CHANGE_USER_LIMITS)


async def unused_username(store: IdentityStore, preferred_name: str, new_suffix: Callable[[], str]) -> str:
    """Returns an unused username that is derived from a name or an e-mail address."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", preferred_name.partition("@")[0]).strip("-")[:56] or "user"
    same_name_query = ListQuery(limit=1, filter=Condition(field="username", op="==", value=name))
    page = await store.users(same_name_query, domain_name=None, status=None)
    return name if not page.items else f"{name}-{new_suffix()}"


def _totp_activation_error() -> InvalidInput:
    message = "Users activate one-time passwords themselves; you may only take them away."
    return InvalidInput(message, data={"totp_activated": "cannot be activated"})
