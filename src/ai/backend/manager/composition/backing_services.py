"""Connects the manager to its external services: database, shared configuration, bus, and keys."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import select

from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.infra.bus import Bus
from ai.backend.infra.config_store import MANAGERS, CachingConfigStore, ConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database, Pool
from ai.backend.infra.http.ratelimit import Limiter
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.secrets.sealer import Sealer, load_or_make_keys, read_keys, stamp_of

if TYPE_CHECKING:
    from ai.backend.infra.config_store.etcd import EtcdConfigStore

log = logging.getLogger(__name__)
BALLAST_BYTES = 16 * 1024 * 1024
"""The size of a reserve file; when the disk of an SQLite database is full, it gives room to delete sessions and
folders.
"""
_LISTING_TTL_S = 60
"""Seconds for which a manager that has stopped stays listed."""
_RETRY_S, _RETRY_MAX_S, _RETRY_JITTER = 0.5, 5.0, 0.5
_PROBE_S = 2.0
"""Seconds after which a database that is silent counts as unavailable: less than a request waits for it."""


def default_database(settings: ManagerSettings) -> Database:
    """Returns the database that the settings name, or by default SQLite in the data directory."""
    if settings.database_url is not None:
        pool = settings.db.pool if settings.db is not None else Pool()
        return Database(settings.database_url, pool=pool, ballast_bytes=BALLAST_BYTES)
    directory = settings.data_dir.expanduser().absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Database(f"sqlite:///{directory / 'manager.db'}", ballast_bytes=BALLAST_BYTES)


def secrets_file(settings: ManagerSettings) -> Path:
    """Returns the path of the file with the keys that encrypt secrets in the database."""
    return (settings.secrets.key_file or settings.data_dir / "secrets.key").expanduser()


def sealer_of(settings: ManagerSettings) -> Sealer:
    """Returns the sealer with the keys of the key file; a missing file is created. Raises InvalidInput if the file is
    malformed or readable by others, OSError if it can be neither read nor created.
    """
    path = secrets_file(settings)
    return Sealer(load_or_make_keys(path), reload=lambda: read_keys(path), file_stamp=lambda: stamp_of(path))


def settings_of_process(settings: ManagerSettings, number: int) -> ManagerSettings:
    """Returns the settings of manager process ``number``, which listens for agents on ports of its own.

    The ports of the processes are numbered consecutively. Raises InvalidInput if an address has no port number from
    which the port of a further process (``number`` above 0) is counted, or if a port is beyond the last port.
    """
    link = settings.agent_link
    link_update: dict[str, object] = {"data_port": link.data_port and _next_port(link.data_port, number)}
    for key in ("bind", "advertise"):
        address = getattr(link, key)
        host_part, _, port = (address or "").rpartition(":")
        if port.isdecimal() and port != "0":
            link_update[key] = f"{host_part}:{_next_port(int(port), number)}"
        elif address and port != "0" and number:
            raise InvalidInput(f"With num-proc above 1, agent-link.{key} needs a port.", data={key: "no port"})
    return settings.model_copy(update={"agent_link": link.model_copy(update=link_update)})


def _next_port(port: int, number: int) -> int:
    if port + number > 65_535:
        raise InvalidInput(f"Too few ports are left after {port} for manager.num-proc.", data={"num-proc": "too large"})
    return port + number


def link_key_file(settings: ManagerSettings) -> Path:
    """Returns the path of the CURVE key of managers and creates its directory."""
    path = (settings.agent_link.key_file or settings.data_dir / "manager.key").expanduser()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def agent_keys_folder(settings: ManagerSettings) -> Path:
    """Returns the folder with the public keys of the agents that may connect, and creates it."""
    path = (settings.agent_link.agent_keys or settings.data_dir / "agent-keys").expanduser()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def etcd_store(settings: ManagerSettings) -> EtcdConfigStore | None:
    """Returns the etcd of the settings, or None."""
    if settings.etcd is None:
        return None
    from ai.backend.infra.config_store.etcd import EtcdConfigStore

    etcd = settings.etcd
    return EtcdConfigStore(
        etcd.endpoints, namespace=etcd.namespace, user=etcd.user or None, password=etcd.password.get_secret_value()
    )


def config_store(settings: ManagerSettings, database: Database) -> ConfigStore:
    """Returns the shared configuration, which is in etcd if the settings name an etcd."""
    return etcd_store(settings) or SQLiteConfigStore(database)


async def keep_announced(store: EtcdConfigStore, announced_values: Mapping[str, str]) -> None:
    """Stores the keys and values ``announced_values`` in etcd until cancelled, and renews them before they expire.

    After a failure of the store, they are stored again.
    """
    backoff, is_announced = Backoff(_RETRY_S, _RETRY_MAX_S, jitter=_RETRY_JITTER), False
    while True:
        try:
            await store.keep(announced_values, ttl_s=_LISTING_TTL_S)
            if not is_announced:
                log.info("agents find this manager in the shared configuration")
            backoff.reset()
            is_announced = True
            await asyncio.sleep(_LISTING_TTL_S / 4)
        except Exception as e:  # noqa: BLE001  # the keys must be stored again after any failure
            if is_announced or backoff.failures == 0:
                log.warning("agents do not find this manager until the shared configuration is back: %s", e)
            is_announced = False
            await backoff.wait()


@dataclass(slots=True)
class BackingServices:
    """Holds the database, shared configuration, bus and rate limiter of a manager. ``stop`` is safe
    without ``start``.
    """

    database: Database
    config: ConfigStore
    bus: Bus
    limiter: Limiter | None
    etcd: EtcdConfigStore | None = None
    _announce_task: asyncio.Task[None] | None = field(default=None, init=False)
    _announced_key: str | None = field(default=None, init=False)
    _probe: asyncio.Task[bool] | None = field(default=None, init=False)

    @classmethod
    def of(cls, settings: ManagerSettings) -> BackingServices:
        """Returns the external services that the settings name. Raises InvalidInput for malformed addresses."""
        database = default_database(settings)
        bus, limiter = Bus(), None
        if settings.redis is not None:
            from ai.backend.infra.redis import RedisBus, RedisRateLimiter

            bus, limiter = RedisBus(settings.redis.url), RedisRateLimiter(settings.redis.url)
        etcd = etcd_store(settings)
        config = SQLiteConfigStore(database) if etcd is None else CachingConfigStore(etcd)
        return cls(database, config, bus, limiter, etcd)

    async def start(self) -> None:
        for service in (self.bus, self.config):
            start_method = getattr(service, "start", None)
            if start_method is not None:
                await start_method()

    async def readiness(self) -> Mapping[str, bool]:
        """Returns True under ``database`` if the database answers. Probes at the same time share one query, because
        anyone may send them.
        """
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._probe_database())
        answered_probes, _ = await asyncio.wait({self._probe}, timeout=_PROBE_S)
        return {"database": any(probe.result() for probe in answered_probes)}

    async def _probe_database(self) -> bool:
        try:
            async with asyncio.timeout(_PROBE_S):
                await self.database.fetch(select(1))
        except Exception:  # noqa: BLE001  # whatever fails here fails in every request
            return False
        return True

    def measure(self, metrics: Metrics) -> None:
        """Exposes the age of the cached configuration as a metric."""
        if isinstance(self.config, CachingConfigStore):
            help_text = "Seconds for which the shared configuration has been read from memory, its server being away."
            store = self.config
            metrics.add_computed_gauge("shared_configuration_stale_seconds", help_text, lambda: store.stale_s)

    async def stop(self) -> None:
        await self._remove_announcement()
        if self._probe is not None:
            await cancel_all(self._probe)
        for service, method_name in ((self.bus, "stop"), (self.limiter, "close"), (self.config, "close")):
            end_method = getattr(service, method_name, None)
            if end_method is not None:
                await end_method()
        await self.database.close()

    def announce(self, name: str, address: str, public_key: str) -> None:
        """Keeps the manager's address and key in etcd until this process stops, and drops an earlier announcement.
        Without etcd, it does nothing.
        """
        if self.etcd is not None:
            if self._announce_task is not None:
                self._announce_task.cancel()
            self._announced_key = f"{MANAGERS}/{name}"
            listed_values = {self._announced_key: json.dumps({"addr": address, "key": public_key})}
            self._announce_task = asyncio.create_task(keep_announced(self.etcd, listed_values))

    async def _remove_announcement(self) -> None:
        if self._announce_task is None or self._announced_key is None:
            return
        await cancel_all(self._announce_task)
        self._announce_task = None
        try:
            async with asyncio.timeout(1):
                await self.config.delete(self._announced_key)
        except (BackendError, TimeoutError) as e:
            log.info("this manager stays listed for up to %d s: %s", _LISTING_TTL_S, e)


def advertised_address(settings: ManagerSettings, bound: str) -> str:
    """Returns the address that agents shall use; the name of this host replaces an address of all interfaces."""
    if settings.agent_link.advertise is not None:
        return settings.agent_link.advertise
    scheme, _, host_and_port = bound.partition("://")
    host, _, port = host_and_port.rpartition(":")
    return f"{scheme}://{socket.getfqdn() if host in ('0.0.0.0', '*', '[::]') else host}:{port}"
