"""Stores login sessions in Redis or Valkey, which several web servers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from redis.exceptions import RedisError

from ai.backend.common.errors import Unavailable
from ai.backend.web.login.model import StoredLogin

T = TypeVar("T")
_PREFIX = "backendai:web:"

_FIELDS = frozenset({b"username", b"sealed", b"expires_at", b"created_at", b"address", b"client"})


class RedisLoginStore:
    """Stores login sessions in Redis, which removes expired ones (:class:`~ai.backend.web.login.store.LoginStore`).

    A login session is a hash; the ids of a user's sessions are a set, in which ids of ended sessions may remain until
    the set expires.
    """

    def __init__(self, redis: Any) -> None:
        self._redis = redis

    async def start(self) -> None:
        await self._call(self._redis.ping)

    async def stop(self) -> None:
        await self._redis.aclose()

    async def put(self, login: StoredLogin) -> None:
        def write(pipe: Any) -> None:
            values: dict[str, Any] = {
                "username": login.username,
                "sealed": login.sealed,
                "expires_at": login.expires_at.timestamp(),
                "created_at": login.created_at.timestamp(),
                "address": login.address,
                "client": login.client,
            }
            pipe.hset(_login_key(login.login_id), mapping=values)
            pipe.expireat(_login_key(login.login_id), login.expires_at)
            pipe.sadd(_user_key(login.username), login.login_id)
            pipe.expireat(_user_key(login.username), login.expires_at)

        await self._transact(write)

    async def remove_expired(self, *, now: datetime) -> None:
        """Does nothing, because Redis removes expired login sessions."""

    async def get(self, login_id: str, *, now: datetime) -> StoredLogin | None:
        values = await self._call(lambda: self._redis.hgetall(_login_key(login_id)))
        if not values.keys() >= _FIELDS:
            return None
        expires_at = datetime.fromtimestamp(float(values[b"expires_at"]), UTC)
        if expires_at <= now:
            return None
        return StoredLogin(
            login_id=login_id,
            username=values[b"username"].decode(),
            sealed=values[b"sealed"],
            expires_at=expires_at,
            created_at=datetime.fromtimestamp(float(values[b"created_at"]), UTC),
            address=values[b"address"].decode(),
            client=values[b"client"].decode(),
            used_at=datetime.fromtimestamp(float(values[b"used_at"]), UTC) if b"used_at" in values else None,
        )

    async def of_user(self, username: str, *, now: datetime) -> list[StoredLogin]:
        login_id_members = await self._call(lambda: self._redis.smembers(_user_key(username)))
        stored_or_none = [await self.get(member.decode(), now=now) for member in login_id_members]
        logins = [login for login in stored_or_none if login is not None]
        return sorted(logins, key=lambda login: (login.created_at, login.login_id), reverse=True)

    async def extend(self, login_id: str, expires_at: datetime) -> None:
        key = _login_key(login_id)
        username = await self._call(lambda: self._redis.hget(key, "username"))
        if username is None:
            return

        def write(pipe: Any) -> None:
            pipe.hset(key, "expires_at", expires_at.timestamp())
            pipe.expireat(key, expires_at)
            pipe.expireat(_user_key(username.decode()), expires_at)

        await self._transact(write)

    async def touch(self, login_id: str, used_at: datetime) -> None:
        # A session that ends at the same moment leaves this field alone, which `get` ignores, until it expires.
        key = _login_key(login_id)
        expires_at = await self._call(lambda: self._redis.hget(key, "expires_at"))
        if expires_at is None:
            return

        def write(pipe: Any) -> None:
            pipe.hset(key, "used_at", used_at.timestamp())
            pipe.expireat(key, datetime.fromtimestamp(float(expires_at), UTC))

        await self._transact(write)

    async def delete(self, login_id: str) -> None:
        await self._call(lambda: self._redis.delete(_login_key(login_id)))

    async def delete_of_user(self, username: str, *, except_id: str | None = None) -> None:
        login_id_members = await self._call(lambda: self._redis.smembers(_user_key(username)))
        login_ids = {member.decode() for member in login_id_members} - {except_id}
        if login_ids:
            await self._call(lambda: self._redis.delete(*map(_login_key, login_ids)))
            await self._call(lambda: self._redis.srem(_user_key(username), *login_ids))

    async def delete_all(self) -> None:
        async def delete_each() -> None:
            async for key in self._redis.scan_iter(match=f"{_PREFIX}login:*", count=1000):
                await self._redis.delete(key)

        await self._call(delete_each)

    async def add_failures(self, key: str, count: int, *, now: datetime, expires_at: datetime) -> int:
        def write(pipe: Any) -> None:
            pipe.incrby(_failure_key(key), count)
            pipe.expireat(_failure_key(key), expires_at)

        replies = await self._transact(write)
        return int(replies[0])

    async def clear_failures(self, key: str) -> None:
        await self._call(lambda: self._redis.delete(_failure_key(key)))

    async def _transact(self, write: Callable[[Any], None]) -> list[Any]:
        pipe = self._redis.pipeline(transaction=True)
        write(pipe)
        return await self._call(pipe.execute)

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except (RedisError, OSError) as e:
            raise Unavailable("The store of login sessions is away; try again.") from e


def _login_key(login_id: str) -> str:
    return f"{_PREFIX}login:{login_id}"


def _user_key(username: str) -> str:
    return f"{_PREFIX}user:{username}"


def _failure_key(key: str) -> str:
    return f"{_PREFIX}failures:{key}"
