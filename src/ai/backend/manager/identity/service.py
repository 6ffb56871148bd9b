"""Reads users, keypairs, domains, groups and policies, and authenticates keypairs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from ai.backend.common.errors import Forbidden, NotFound
from ai.backend.common.ids import AccessKey, DomainName, GroupId, UserId
from ai.backend.common.states import UserRole
from ai.backend.common.structs import replace
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.http.signature import SigningKey
from ai.backend.manager.access.caller import ADMIN_ROLES, Caller
from ai.backend.manager.access.checks import is_permitted, require_any, scope_of, visibility_filter
from ai.backend.manager.access.permissions import Operation, Scope
from ai.backend.manager.identity.model import Credentials, Domain, Group, Keypair, NewKeypair, ResourcePolicy, User
from ai.backend.manager.identity.store import IdentityStore, KeypairSecret, SessionCounts
from ai.backend.manager.query.model import ListQuery, Page

CREDENTIALS_CACHE_S = 1.0
"""Seconds for which credentials are cached."""
_MAX_CACHED_KEYS = 10_000
T = TypeVar("T")


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a partial change except those with the value None."""
    return {name: value for name, value in values.items() if value is not None}


def require_existing(value: T | None, object_noun: str) -> T:
    """Returns the value unchanged. Raises NotFound, which names the missing object, if the value is None."""
    if value is None:
        raise NotFound(f"There is no such {object_noun}.")
    return value


async def check_policy(store: IdentityStore, kind: QuotaScopeKind | None, fields: Mapping[str, Any]) -> None:
    """Raises NotFound if the resource policy that ``fields`` names does not exist.

    ``kind`` is the kind of the policy: of users, of projects, or None for keypairs.
    """
    name = fields.get("resource_policy")
    if name is None or (kind is not None and name == "default"):
        return
    if not await (store.policies(name=name) if kind is None else store.storage_policies(kind, name=name)):
        policy_noun = "resource policy" if kind is None else f"{kind} resource policy"
        raise NotFound(f"There is no {policy_noun} {name[:64]!r}.", data={"resource_policy": "unknown"})


class IdentityService:
    """Reads the users, keypairs, domains, groups and policies that the caller may see.

    Raises NotFound for objects that the caller may not see.
    """

    def __init__(self, store: IdentityStore, sessions: SessionCounts, clock: Clock, id_generator: IdGenerator) -> None:
        self._store = store
        self._sessions = sessions
        self._clock = clock
        self._id_generator = id_generator
        self._cache: dict[str, tuple[float, Credentials | None]] = {}
        self._used: dict[AccessKey, tuple[datetime, int]] = {}

    def new_keypair(self, user_id: UserId, email: str, role: UserRole, **fields: Any) -> KeypairSecret:
        """Returns a new keypair of a user, without storing it."""
        now = self._clock.now()
        keypair = Keypair(
            access_key=AccessKey("AKIA" + self._id_generator.token(16).upper()),
            user_id=user_id,
            user_email=email,
            created_at=now,
            modified_at=now,
            **{"is_admin": role in ADMIN_ROLES, **fields},
        )
        return KeypairSecret(keypair=keypair, secret_key=self._id_generator.token(48))

    def new_suffix(self) -> str:
        """Returns random letters, to be added to a name that is taken."""
        return self._id_generator.token(6).lower()

    async def make_user(
        self,
        email: str,
        username: str,
        role: UserRole,
        domain: DomainName,
        groups: Sequence[GroupId],
        *,
        password_hash: str | None,
        **details: Any,
    ) -> tuple[User, NewKeypair]:
        """Creates a user with a main keypair, without checking rights or values. Raises Conflict if the e-mail or
        username is taken.
        """
        user_id = UserId(self._id_generator.uuid())
        new_keypair = self.new_keypair(user_id, email, role)
        user = User(
            uuid=user_id,
            username=username,
            email=email,
            role=role,
            domain_name=domain,
            created_at=new_keypair.keypair.created_at,
            modified_at=new_keypair.keypair.created_at,
            main_access_key=new_keypair.keypair.access_key,
            **{"full_name": username, **details},
        )
        await self._store.put_user(user, password_hash=password_hash, groups=groups, keypair=new_keypair)
        self.invalidate(new_keypair.keypair.access_key)
        return user, new_keypair.reveal()

    # ---- authentication ----

    async def credentials(self, access_key: str) -> Credentials | None:
        """Returns the credentials of a keypair, at most one second old, or None for an unknown key."""
        now = self._clock.monotonic()
        cache_entry = self._cache.get(access_key)
        if cache_entry is not None and now - cache_entry[0] < CREDENTIALS_CACHE_S:
            return cache_entry[1]
        credentials = await self._store.credentials(access_key)
        if len(self._cache) >= _MAX_CACHED_KEYS:
            self._cache.clear()
        self._cache[access_key] = (now, credentials)
        return credentials

    async def find_key(self, access_key: str) -> SigningKey | None:
        """Returns the secret and the limits of a keypair for checking a signature, or None for an unknown access key.

        For None the check compares with a dummy, to hide which keys exist.
        """
        credentials = await self.credentials(access_key)
        if credentials is None:
            return None
        return SigningKey(
            secret_key=credentials.secret_key,
            is_active=credentials.is_active,
            rate_limit=credentials.caller.rate_limit or None,
            identity=credentials.caller,
            networks=credentials.caller.allowed_client_ip,
            own_networks=credentials.key_networks,
        )

    async def active_keys(self, access_keys: Collection[str]) -> set[str]:
        """Returns those of the given access keys that may sign requests now, as read from the store."""
        return await self._store.active_keys(access_keys)

    def invalidate(self, access_key: str) -> None:
        """Drops a keypair from the cache after this process has changed the keypair."""
        self._cache.pop(access_key, None)

    def invalidate_all(self) -> None:
        """Drops all keypairs from the cache after a change that concerns many keypairs, such as of a domain."""
        self._cache.clear()

    def touch(self, access_key: AccessKey) -> None:
        """Counts one authenticated request of a keypair in memory, and remembers its time as the last use.

        :meth:`flush` writes last_used and num_queries later, in batches.
        """
        _, count = self._used.get(access_key, (None, 0))
        self._used[access_key] = (self._clock.now(), count + 1)

    async def flush(self) -> None:
        """Writes the requests that :meth:`touch` has counted."""
        uses_by_key, self._used = self._used, {}
        if uses_by_key:
            await self._store.touch(uses_by_key)

    async def resolve_owner(self, caller: Caller, owner_access_key: str | None) -> Caller:
        """Returns the owner of ``owner_access_key``, or the caller if the key is None.

        Raises Forbidden if the caller may not act for the owner.
        """
        if owner_access_key is None or owner_access_key == caller.access_key:
            return caller
        credentials = await self.credentials(owner_access_key)
        if credentials is not None:
            owner = credentials.caller
            is_own, domain, role = owner.user_id == caller.user_id, owner.domain_name, owner.role
            if is_permitted(caller, Operation.ACT_FOR_KEYPAIRS, domain_name=domain, is_own=is_own, owner_role=role):
                return replace(owner, unproved=caller.unproved)
        raise Forbidden("You may not act for that access key.", data={"owner_access_key": "not allowed"})

    # ---- reading ----

    async def keypair(
        self, caller: Caller, access_key: str | None = None, *, domain_name: str | None = None
    ) -> Keypair:
        """Returns a keypair, by default the caller's own, with ``concurrency_used``. Raises NotFound if its user is not
        of ``domain_name``."""
        key = access_key or caller.access_key
        keypair = require_existing(await self._store.keypair(key), "keypair")
        owner = require_existing(await self._store.user(uuid=keypair.user_id), "keypair")
        is_own = owner.uuid == caller.user_id
        is_visible = is_permitted(caller, Operation.SEE_KEYPAIRS, domain_name=owner.domain_name, is_own=is_own)
        if not is_visible or domain_name not in (None, owner.domain_name):
            raise NotFound("There is no such keypair.")
        return (await self._add_concurrency([keypair]))[0]

    async def _add_concurrency(self, keypairs: Sequence[Keypair]) -> list[Keypair]:
        session_counts = await self._sessions.count_live([keypair.access_key for keypair in keypairs])
        return [replace(keypair, concurrency_used=session_counts.get(keypair.access_key, 0)) for keypair in keypairs]

    async def keypairs(
        self,
        caller: Caller,
        query: ListQuery,
        *,
        email: str | None = None,
        is_active: bool | None = None,
        domain_name: str | None = None,
    ) -> Page[Keypair]:
        """Returns a page of the keypairs that the caller may see."""
        scope = scope_of(caller, Operation.SEE_KEYPAIRS)
        if scope is Scope.OWN:
            email, domain_name = caller.email, caller.domain_name
        elif scope is Scope.DOMAIN:
            if domain_name not in (None, caller.domain_name):
                return Page(items=[], total_count=0)
            domain_name = caller.domain_name
        page = await self._store.keypairs(query, domain_name=domain_name, email=email, is_active=is_active)
        return Page(items=await self._add_concurrency(page.items), total_count=page.total_count)

    async def user(
        self, caller: Caller, *, email: str | None = None, uuid: UserId | None = None, domain_name: str | None = None
    ) -> User:
        """Returns a user, by default the caller. Raises NotFound if the user is not of ``domain_name``."""
        if email is None and uuid is None:
            uuid = caller.user_id
        user = require_existing(await self._store.user(email=email, uuid=uuid), "user")
        is_own = user.uuid == caller.user_id
        is_visible = is_permitted(caller, Operation.SEE_USERS, domain_name=user.domain_name, is_own=is_own)
        if not is_visible or domain_name not in (None, user.domain_name):
            raise NotFound("There is no such user.")
        return user

    async def users(
        self,
        caller: Caller,
        query: ListQuery,
        *,
        status: str | None = None,
        is_active: bool | None = None,
        domain_name: str | None = None,
        group_id: GroupId | None = None,
    ) -> Page[User]:
        """Returns a page of the users that the caller may see. Raises Forbidden for callers who are no
        administrators.
        """
        require_any(caller, Operation.LIST_USERS)
        if scope_of(caller, Operation.LIST_USERS) is Scope.DOMAIN:
            if domain_name not in (None, caller.domain_name):
                return Page(items=[], total_count=0)
            domain_name = caller.domain_name
        selection: dict[str, Any] = {"status": status, "is_active": is_active, "group_id": group_id}
        return await self._store.users(query, domain_name=domain_name, **selection)

    async def domain(self, caller: Caller, name: str | None = None) -> Domain:
        """Returns a domain, by default the caller's."""
        name = name or caller.domain_name
        if not is_permitted(caller, Operation.SEE_DOMAINS, domain_name=name):
            raise NotFound("There is no such domain.")
        return require_existing(await self._store.domain(name), "domain")

    async def check_domain(self, name: str) -> None:
        """Raises NotFound if the domain of a new user or group does not exist."""
        if await self._store.domain(name) is None:
            raise NotFound(f"There is no domain {name[:64]!r}.", data={"domain_name": "unknown"})

    async def domains(self, caller: Caller) -> Sequence[Domain]:
        """Returns the domains that the caller may see."""
        sees_all = scope_of(caller, Operation.SEE_DOMAINS) is Scope.ALL
        return await self._store.domains() if sees_all else [await self.domain(caller)]

    async def groups(self, caller: Caller, *, name: str | None = None) -> Sequence[Group]:
        """Returns the groups that the caller's role may see: own groups, groups of the domain, or all groups."""
        return await self._store.groups(name=name, **visibility_filter(caller, Operation.SEE_GROUPS))

    async def group(self, caller: Caller, group_id: GroupId) -> Group:
        """Returns the group of an id, if the caller may see the group. Raises NotFound."""
        for group in await self.groups(caller):
            if group.id == group_id:
                return group
        raise NotFound("There is no such group.", data={"gid": "unknown"})

    async def resource_policy(self, caller: Caller, name: str | None = None) -> ResourcePolicy:
        """Returns a resource policy, by default the caller's."""
        name = name or caller.resource_policy
        if not is_permitted(caller, Operation.SEE_KEYPAIR_POLICIES, is_own=name == caller.resource_policy):
            raise NotFound("There is no such resource policy.")
        policies = await self._store.policies(name=name)
        return require_existing(policies[0] if policies else None, "resource policy")

    async def resource_policies(self, caller: Caller) -> Sequence[ResourcePolicy]:
        sees_all = scope_of(caller, Operation.SEE_KEYPAIR_POLICIES) is Scope.ALL
        return await self._store.policies(name=None if sees_all else caller.resource_policy)
