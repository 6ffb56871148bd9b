"""Writes Traefik's configuration to etcd, and waits until Traefik serves it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from urllib.parse import quote

import aiohttp
import msgspec

from ai.backend.appproxy.worker.planes.traefik.tree import VERSION_KEY, VERSION_MIDDLEWARE
from ai.backend.common.errors import Unavailable
from ai.backend.infra.config_store.etcd import EtcdConfigStore

log = logging.getLogger(__name__)
_TIMEOUT = aiohttp.ClientTimeout(total=5.0)
_POLL_S, _MAX_POLL_S = 0.005, 0.03
_SERVED_WITHIN_S = 15.0
LEASE_S = 10
"""Seconds after which Traefik relays no connections of raw TCP any more, if no worker of the authority lives."""
_LEASED = "tcp/"
_ONE_WRITE = 3_000
"""Keys of one transaction."""


class _Headers(msgspec.Struct):
    custom: dict[str, str] = msgspec.field(name="customRequestHeaders", default_factory=dict)


class _Middleware(msgspec.Struct):
    headers: _Headers = msgspec.field(default_factory=_Headers)


class _EntryPoint(msgspec.Struct):
    name: str


class TraefikControl:
    """Manages the dynamic configuration of one worker's Traefik. ``api`` is the URL of Traefik's own API.

    Connections of raw TCP go through no gate, so that their keys end with a lease, which all nodes of the authority
    keep: its number is made of the authority's name.
    """

    def __init__(self, store: EtcdConfigStore, authority: str, api: str) -> None:
        self._store, self._root, self.api = store, f"traefik/worker_{authority}/", api
        self._lease = int.from_bytes(hashlib.sha256(self._root.encode()).digest()[:8], "big") >> 1 or 1
        self._is_held = False
        self._lock = asyncio.Lock()
        self._written: dict[str, str] = {}
        self._version = 0
        self._http: aiohttp.ClientSession | None = None

    async def start(self) -> frozenset[str]:
        """Reads the configuration in etcd, and returns the entry points of Traefik. Raises Unavailable."""
        async with self._lock:
            self._written = await self._store.read_tree(self._root)
            await self._hold_lease()  # earlier releases wrote them without a lease
        self._version = _parse_number(self._written.get(VERSION_KEY, ""))
        entry_points = msgspec.json.decode(await self._query_traefik("entrypoints"), type=list[_EntryPoint])
        return frozenset(entry_point.name for entry_point in entry_points)

    async def write(self, tree: Mapping[str, str]) -> None:
        """Replaces the whole configuration, and returns when Traefik serves it.

        Raises Unavailable if it does not in time.
        """
        changed_values: dict[str, str | None] = {
            key: value for key, value in tree.items() if self._written.get(key) != value
        }
        # Rules go first: a router without its rule takes no request, one without its middlewares would admit anybody.
        removed_keys = sorted(
            self._written.keys() - tree.keys() - {VERSION_KEY}, key=lambda key: (not key.endswith("/rule"), key)
        )
        changed_values |= dict.fromkeys(removed_keys)
        if not changed_values and VERSION_KEY in self._written:
            return
        async with self._lock:
            await self._hold_lease()
            self._version += 1
            changed_values[VERSION_KEY] = str(self._version)  # the last one: with it Traefik has them all
            await self._put_values(changed_values)
        await self._wait_until_served()

    async def keep_lease(self) -> None:
        """Renews the lease. Writes the keys again if the lease has ended."""
        async with self._lock:
            await self._hold_lease()

    async def _hold_lease(self) -> None:
        had_lease, self._is_held = self._is_held, False
        if await self._store.hold_lease(self._lease, LEASE_S) or not had_lease:
            await self._put_leased_values()
        self._is_held = True

    async def _put_leased_values(self) -> None:
        await self._put_values({key: value for key, value in self._written.items() if key.startswith(_LEASED)})

    async def _put_values(self, values: Mapping[str, str | None]) -> None:
        keys = list(values)
        for start in range(0, len(keys), _ONE_WRITE):
            batch = {key: values[key] for key in keys[start : start + _ONE_WRITE]}
            leased_keys = [key for key in batch if key.startswith(_LEASED)]
            await self._store.write_tree(self._root, batch, lease=self._lease, leased=leased_keys)
            for key, value in batch.items():
                if value is None:
                    self._written.pop(key, None)
                else:
                    self._written[key] = value

    async def _wait_until_served(self) -> None:
        pause_s = _POLL_S
        try:
            async with asyncio.timeout(_SERVED_WITHIN_S):
                while await self._served_version() < self._version:  # another node may have written since
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _MAX_POLL_S)
        except TimeoutError:
            message = f"Traefik does not serve version {self._version} of {self._root} within {_SERVED_WITHIN_S:g} s"
            raise Unavailable(message) from None

    async def _served_version(self) -> int:
        try:
            reply = await self._query_traefik(f"http/middlewares/{quote(VERSION_MIDDLEWARE)}")
            middleware = msgspec.json.decode(reply, type=_Middleware)
        except (Unavailable, msgspec.MsgspecError):
            return -1
        return _parse_number(middleware.headers.custom.get("X-Version", ""))

    async def _query_traefik(self, path: str) -> bytes:
        """Returns a reply of Traefik's API. Raises Unavailable."""
        if self._http is None or self._http.closed:
            self._http = aiohttp.ClientSession(timeout=_TIMEOUT)
        try:
            async with self._http.get(f"{self.api}/api/{path}") as response:
                if response.status != 200:
                    raise Unavailable(f"the API of Traefik at {self.api} answers {path} by {response.status}")
                return await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise Unavailable(f"the API of Traefik at {self.api} does not answer: {e}") from None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
        await self._store.close()


def _parse_number(text: str) -> int:
    return int(text) if text.isdigit() else 0
