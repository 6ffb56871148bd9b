"""The services behind a manager, as its settings name them."""

from __future__ import annotations

import json
import logging
import socket
from dataclasses import dataclass
from pathlib import Path

from ai.backend.common.errors import BackendError
from ai.backend.infra.bus import Bus
from ai.backend.infra.config_store import ConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.infra.http.ratelimit import Limiter
from ai.backend.manager.adapters.db.sealing import Sealer, load_or_make_keys, read_keys
from ai.backend.manager.config.settings import ManagerSettings

log = logging.getLogger(__name__)
MANAGERS = "nodes/managers"
"""Where managers say in the shared configuration how agents reach them."""


def default_database(settings: ManagerSettings) -> Database:
    """The database that the settings name; SQLite in the data directory without a name."""
    pool_size = settings.db.pool_size if settings.db is not None else 5
    if settings.database_url is not None:
        return Database(settings.database_url, pool_size=pool_size)
    directory = settings.data_dir.expanduser().absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Database(f"sqlite+aiosqlite:///{directory / 'manager.db'}")


def secrets_file(settings: ManagerSettings) -> Path:
    """The keys that seal secrets in the database."""
    return (settings.secrets.key_file or settings.data_dir / "secrets.key").expanduser()


def sealer_of(settings: ManagerSettings) -> Sealer:
    """With the keys of the key file, which is made if it is not there.

    Raises:
        InvalidInput: the file is no key file, or open to others.
        OSError: it can be neither read nor made.
    """
    path = secrets_file(settings)
    return Sealer(load_or_make_keys(path), reload=lambda: read_keys(path))


def link_key_file(settings: ManagerSettings) -> Path:
    """The CURVE key of managers; its directory is there."""
    path = (settings.agent_link.key_file or settings.data_dir / "manager.key").expanduser()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def agent_keys_folder(settings: ManagerSettings) -> Path:
    """The public keys of the agents that may connect."""
    path = (settings.agent_link.agent_keys or settings.data_dir / "agent-keys").expanduser()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def config_store(settings: ManagerSettings, database: Database) -> ConfigStore:
    """Where the shared configuration is: etcd if the settings name one."""
    if settings.etcd is None:
        return SQLiteConfigStore(database)
    from ai.backend.infra.config_store.etcd import EtcdConfigStore

    etcd = settings.etcd
    return EtcdConfigStore(
        etcd.endpoints, namespace=etcd.namespace, user=etcd.user or None, password=etcd.password.get_secret_value()
    )


@dataclass(slots=True)
class Backing:
    """What a manager stands on. ``stop`` lets go of everything; safe without ``start``."""

    database: Database
    config: ConfigStore
    bus: Bus
    limiter: Limiter | None

    @classmethod
    def of(cls, settings: ManagerSettings) -> Backing:
        """Raises InvalidInput for what cannot be connected to at all."""
        database = default_database(settings)
        bus, limiter = Bus(), None
        if settings.redis is not None:
            from ai.backend.infra.redis.bus import RedisBus
            from ai.backend.infra.redis.ratelimit import RedisRateLimiter

            bus, limiter = RedisBus(settings.redis.url), RedisRateLimiter(settings.redis.url)
        return cls(database, config_store(settings, database), bus, limiter)

    async def start(self) -> None:
        start = getattr(self.bus, "start", None)
        if start is not None:
            await start()

    async def stop(self) -> None:
        for part, method in ((self.bus, "stop"), (self.limiter, "close"), (self.config, "close")):
            end = getattr(part, method, None)
            if end is not None:
                await end()
        await self.database.close()

    async def tell_agents(self, name: str, address: str, public_key: str) -> None:
        """Say in the shared configuration how agents reach this manager."""
        if isinstance(self.config, SQLiteConfigStore):
            return
        try:
            await self.config.put_many({f"{MANAGERS}/{name}": json.dumps({"addr": address, "key": public_key})})
        except BackendError as e:
            log.warning("agents are not told of this manager: %s", e)


def advertised(settings: ManagerSettings, bound: str) -> str:
    """What agents are told: an address of all interfaces becomes the name of this host."""
    if settings.agent_link.advertise is not None:
        return settings.agent_link.advertise
    scheme, _, rest = bound.partition("://")
    host, _, port = rest.rpartition(":")
    return f"{scheme}://{socket.getfqdn() if host in ('0.0.0.0', '*', '[::]') else host}:{port}"
