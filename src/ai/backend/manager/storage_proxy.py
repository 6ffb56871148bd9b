"""Connects the manager to the storage proxies, as ``docs/reference/storage-proxy-api.md`` describes.

The proxies are entries of the shared configuration (peer facts 4.5): ``volumes/proxies/<name>/{manager_api,client_api,
secret,ssl_verify}``, ``volumes/default_host`` and ``volumes/blocked/<proxy:volume>``, the operations that nobody may
use there. The entries are read again every two seconds, so a change needs no restart.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from ai.backend.common import errors
from ai.backend.infra.config_store import ConfigStore
from ai.backend.infra.http.client_traces import client_traces

_PROXIES_PREFIX = "volumes/proxies/"
_DEFAULT_HOST_KEY = "volumes/default_host"
_BLOCKED_PREFIX = "volumes/blocked/"
_TOKEN_HEADER = "X-BackendAI-Storage-Auth-Token"
_CONFIG_CACHE_S = 2.0
_TIMEOUT = aiohttp.ClientTimeout(total=30.0, sock_connect=5.0)


class ProxySettings(msgspec.Struct, frozen=True):
    """Addresses and secret of one storage proxy."""

    name: str
    manager_api: str
    client_api: str
    secret: str
    ssl_verify: bool


class StorageSettings(msgspec.Struct, frozen=True):
    """Entries of the shared configuration about storage."""

    proxies: Mapping[str, ProxySettings]
    default_host: str | None
    blocked: Mapping[str, frozenset[str]]


class StorageProxies:
    """Sends requests to the storage proxies that the shared configuration names."""

    def __init__(self, config: ConfigStore) -> None:
        self._config = config
        self._http: aiohttp.ClientSession | None = None
        self._cached: tuple[float, StorageSettings] | None = None

    async def close(self) -> None:
        """Closes the HTTP connections. May be called twice."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def settings(self) -> StorageSettings:
        """Returns the storage settings of the shared configuration, at most two seconds old."""
        if self._cached is None or time.monotonic() - self._cached[0] > _CONFIG_CACHE_S:
            self._cached = time.monotonic(), _parse_settings(await self._config.get_prefix("volumes"))
        return self._cached[1]

    async def names(self) -> Sequence[str]:
        """Returns the names of all proxies, reachable or not, with the proxy of the default volume first."""
        settings = await self.settings()
        default_proxy = (settings.default_host or "").partition(":")[0]
        return sorted(settings.proxies, key=lambda name: (name != default_proxy, name))

    async def proxy(self, name: str) -> ProxySettings:
        """Returns the settings of a proxy. Raises VolumeNotFound."""
        proxies = (await self.settings()).proxies
        if name not in proxies:
            raise errors.VolumeNotFound(f"There is no storage proxy {name[:64]!r}.")
        return proxies[name]

    async def ask(
        self, proxy: str, method: str, path: str, body: Any = None, *, timeout: aiohttp.ClientTimeout | None = None
    ) -> dict[str, Any]:
        """Sends a request to the manager-facing API of a proxy; ``body`` is any value that msgspec can encode. Raises
        the error of the proxy, or Unavailable.
        """
        status, reply_bytes = await self._request(proxy, method, path, body, timeout=timeout or _TIMEOUT)
        return _decode_reply(proxy, status, reply_bytes)

    async def fetch(self, proxy: str, path: str, body: Any, *, max_bytes: int) -> bytes:
        """Sends a POST to a proxy and returns the bytes of the reply. Raises as :meth:`ask`; LimitExceeded if there are
        more than ``max_bytes``.
        """
        status, reply_bytes = await self._request(proxy, "POST", path, body, limit=max_bytes + 1)
        if status != 200:
            _decode_reply(proxy, status, reply_bytes)
            raise errors.Unavailable(f"The storage proxy {proxy} answers {status}.")
        if len(reply_bytes) > max_bytes:
            raise errors.LimitExceeded(f"The file is larger than {max_bytes} bytes.", data={"size": max_bytes})
        return reply_bytes

    async def _request(
        self,
        proxy: str,
        method: str,
        path: str,
        body: Any,
        *,
        timeout: aiohttp.ClientTimeout = _TIMEOUT,
        limit: int = -1,
    ) -> tuple[int, bytes]:
        """Sends a request to a proxy, and returns the status and at most ``limit`` bytes of the body. Raises
        Unavailable.
        """
        settings = await self.proxy(proxy)
        if self._http is None or self._http.closed:
            self._http = aiohttp.ClientSession(timeout=_TIMEOUT, trace_configs=client_traces())
        try:
            async with self._http.request(
                method,
                settings.manager_api + path,
                timeout=timeout,
                data=msgspec.json.encode({} if body is None else body),
                headers={_TOKEN_HEADER: settings.secret, "Content-Type": "application/json"},
                ssl=settings.ssl_verify,
                allow_redirects=False,
            ) as response:
                if limit < 0:
                    return response.status, await response.read()
                received_bytes = bytearray()
                while len(received_bytes) < limit and (
                    chunk := await response.content.read(limit - len(received_bytes))
                ):
                    received_bytes += chunk
                return response.status, bytes(received_bytes)
        except (aiohttp.ClientError, TimeoutError, OSError) as e:
            raise errors.Unavailable(f"The storage proxy {proxy} does not answer: {str(e) or type(e).__name__}") from e


def problem_of(document: Mapping[str, Any], default_message: str) -> errors.BackendError:
    """Returns the error that a problem document describes; without a message in the document, its
    message is ``default_message``.
    """
    code = str(document.get("type", "")).rpartition("/")[2]
    message = str(document.get("detail") or document.get("title") or default_message)
    details = document.get("data")
    return errors.from_wire(code or errors.Unavailable.code, message, details if isinstance(details, Mapping) else None)


def _parse_settings(config_values: Mapping[str, str]) -> StorageSettings:
    settings_by_proxy: dict[str, dict[str, str]] = {}
    for config_key, config_value in config_values.items():
        proxy_name, _, setting_name = config_key.removeprefix(_PROXIES_PREFIX).partition("/")
        if config_key.startswith(_PROXIES_PREFIX) and setting_name:
            settings_by_proxy.setdefault(proxy_name, {})[setting_name] = config_value
    proxies = {
        proxy_name: ProxySettings(
            name=proxy_name,
            manager_api=proxy_settings["manager_api"].rstrip("/"),
            client_api=proxy_settings.get("client_api", "").rstrip("/"),
            secret=proxy_settings.get("secret", ""),
            ssl_verify=proxy_settings.get("ssl_verify", "true").lower() not in ("false", "0", "no"),
        )
        for proxy_name, proxy_settings in settings_by_proxy.items()
        if proxy_settings.get("manager_api")
    }
    blocked_operations = {
        config_key.removeprefix(_BLOCKED_PREFIX): frozenset(config_value.replace(",", " ").split())
        for config_key, config_value in config_values.items()
        if config_key.startswith(_BLOCKED_PREFIX)
    }
    return StorageSettings(proxies, config_values.get(_DEFAULT_HOST_KEY), blocked_operations)


def _decode_reply(proxy: str, status: int, reply_bytes: bytes) -> dict[str, Any]:
    try:
        reply_document = msgspec.json.decode(reply_bytes) if reply_bytes else {}
    except msgspec.DecodeError:
        reply_document = None
    if not isinstance(reply_document, dict):
        raise errors.Unavailable(f"The storage proxy {proxy} answers {status} with something that is no JSON object.")
    if status < 400 or "results" in reply_document:
        return reply_document
    if status >= 500 and not reply_document.get("type"):
        raise errors.Unavailable(f"The storage proxy {proxy} answers {status}.")
    error = problem_of(reply_document, f"The storage proxy {proxy} answers {status}.")
    if type(error) in (errors.AuthenticationFailed, errors.Forbidden):  # other refusals have codes of their own
        raise errors.Unavailable(f"The storage proxy {proxy} does not take our secret.")
    raise error
