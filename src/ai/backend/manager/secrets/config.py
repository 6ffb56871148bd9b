"""Seals the secrets in the shared configuration (decisions 0180, 0168)."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence

from ai.backend.common.errors import InternalError, InvalidInput
from ai.backend.infra.config_store import GLOBAL, ConfigChange, ConfigScope, ConfigStore, SQLiteConfigStore
from ai.backend.manager.secrets.sealer import Sealer

log = logging.getLogger(__name__)
_REGISTRIES_PREFIX = "config/docker/registry"
_PASSWORD_KEY = re.compile(rf"{_REGISTRIES_PREFIX}/[^/]+/password")
_SEALING_LOCATION = f"{_REGISTRIES_PREFIX}:password"
"""The one sealing place of all keys of the shared configuration, because `mgr etcd move-subtree` may move keys."""


class SealedConfigStore:
    """A configuration store that seals the passwords of container registries before it writes them.

    If ``opens`` is True, reads return the opened passwords. Values that are sealed already are written as they are,
    so that a backup can be restored.
    """

    def __init__(self, inner: ConfigStore, sealer: Sealer, *, opens: bool) -> None:
        self._inner = inner
        self._sealer = sealer
        self._opens = opens

    async def get(self, key: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> str | None:
        value = await self._inner.get(key, scopes=scopes)
        return value if value is None else self._open_password(key, value)

    async def get_prefix(self, prefix: str, *, scopes: Sequence[ConfigScope] = (GLOBAL,)) -> dict[str, str]:
        values = await self._inner.get_prefix(prefix, scopes=scopes)
        return {key: self._open_password(key, value) for key, value in values.items()}

    async def put_many(self, values: Mapping[str, str], *, scope: ConfigScope = GLOBAL) -> int:
        sealed_values = {key: self._seal_password(key, value) for key, value in values.items()}
        return await self._inner.put_many(sealed_values, scope=scope)

    async def delete(self, key: str, *, scope: ConfigScope = GLOBAL, prefix: bool = False) -> int:
        return await self._inner.delete(key, scope=scope, prefix=prefix)

    def watch(self, prefix: str, *, after: int | None = None) -> AsyncIterator[ConfigChange]:
        """Yields changes with their values as stored, in which passwords are still sealed."""
        return self._inner.watch(prefix, after=after)

    async def revision(self) -> int:
        return await self._inner.revision()

    async def read_all(self) -> tuple[int, list[ConfigChange]]:
        """Returns the revision and all values as stored, in which passwords are still sealed."""
        return await self._inner.read_all()

    def _open_password(self, key: str, value: str) -> str:
        if not self._opens or not _PASSWORD_KEY.fullmatch(key):
            return value
        try:
            return self._sealer.open(value, _SEALING_LOCATION)
        except InternalError as e:  # one password must not block the other registries
            log.error("%s cannot be opened: %s", key, e.message)
            return ""

    def _seal_password(self, key: str, value: str) -> str:
        if not value or not _PASSWORD_KEY.fullmatch(key) or self._sealer.is_sealed(value):
            return value
        return self._sealer.seal(value, _SEALING_LOCATION)


async def _registry_passwords(store: ConfigStore) -> dict[str, str]:
    values = await store.get_prefix(_REGISTRIES_PREFIX)
    return {key: value for key, value in values.items() if value and _PASSWORD_KEY.fullmatch(key)}


async def seal_config(store: ConfigStore, sealer: Sealer) -> int:
    """Seals registry passwords that are plain or sealed with older keys, and returns the number of these passwords.

    Raises InvalidInput, changing nothing, if a key is missing.
    """
    if not sealer.is_on:
        return 0
    stale_passwords = {
        key: password for key, password in (await _registry_passwords(store)).items() if not sealer.is_current(password)
    }
    missing_ids = {key for password in stale_passwords.values() if (key := sealer.missing_key_id(password)) is not None}
    if missing_ids:
        raise InvalidInput(
            f"Passwords of container registries were sealed with the key {', '.join(sorted(missing_ids))}, which is "
            "not in the key file. Put that file back; if it is lost, `backend.ai mgr secrets reissue` forgets them."
        )
    if stale_passwords:
        await store.put_many(
            {
                key: sealer.seal(sealer.open(password, _SEALING_LOCATION), _SEALING_LOCATION)
                for key, password in stale_passwords.items()
            }
        )
        if isinstance(store, SQLiteConfigStore):
            await store.forget_past(stale_passwords)
    return len(stale_passwords)


async def forget_lost(store: ConfigStore, sealer: Sealer) -> int:
    """Empties the registry passwords whose sealing key is missing, and returns the number of these passwords."""
    lost_passwords = {
        key: ""
        for key, password in (await _registry_passwords(store)).items()
        if sealer.missing_key_id(password) is not None
    }
    if lost_passwords:
        await store.put_many(lost_passwords)
    return len(lost_passwords)
