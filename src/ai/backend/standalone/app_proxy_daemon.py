"""Builds the app proxy of the embedded cluster: a coordinator, and a worker with a port for each app."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from ai.backend.appproxy.coordinator.composition import Coordinator
from ai.backend.appproxy.coordinator.config.settings import CoordinatorSettings
from ai.backend.appproxy.worker.composition import Worker
from ai.backend.appproxy.worker.config.settings import WorkerSettings
from ai.backend.infra.settings import load_settings
from ai.backend.standalone.instance import ClusterFile
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.storage_daemon import secret

SECRET_NAME = "app-proxy"
_AUTHORITY_NAME = "local"
_DRAIN_S = 1.0


def coordinator_settings(layout: Layout, cluster: ClusterFile) -> CoordinatorSettings:
    """Returns the coordinator's settings, completed by a ``proxy-coordinator.toml`` in the data directory.

    Raises InvalidInput.
    """
    fixed_settings = {
        "proxy-coordinator": {
            "bind-addr": {"host": cluster.host, "port": cluster.coordinator_port},
            "data-dir": str(layout.app_proxy),
        },
        "secrets": {"api-secret": secret(layout, SECRET_NAME)},
    }
    settings_path = layout.root / "proxy-coordinator.toml"
    if settings_path.exists():
        return load_settings(
            CoordinatorSettings, name="proxy-coordinator", path=settings_path, fixed_values=fixed_settings
        )
    return CoordinatorSettings.model_validate(fixed_settings)


def worker_settings(layout: Layout, cluster: ClusterFile) -> WorkerSettings:
    """Returns the worker's settings, completed by a ``proxy-worker.toml`` in the data directory.

    Raises InvalidInput.
    """
    fixed_settings = {
        "proxy-worker": {
            "coordinator-endpoint": cluster.coordinator_url,
            "authority": _AUTHORITY_NAME,
            "api-bind-addr": {"host": "127.0.0.1", "port": 0},
            "port-proxy": {
                "bind-host": cluster.host,
                "advertised-host": _shown_host(cluster.host),
                "bind-port-range": list(cluster.app_ports),
            },
            "data-dir": str(layout.app_proxy),
            "drain-timeout": _DRAIN_S,
        },
        "secrets": {"api-secret": secret(layout, SECRET_NAME)},
    }
    settings_path = layout.root / "proxy-worker.toml"
    if settings_path.exists():
        return load_settings(WorkerSettings, name="proxy-worker", path=settings_path, fixed_values=fixed_settings)
    return WorkerSettings.model_validate(fixed_settings)


def _shown_host(host: str) -> str:
    """Returns the host name by which browsers reach this host."""
    try:
        return socket.gethostname() if ipaddress.ip_address(host).is_unspecified else host
    except ValueError:
        return host


@dataclass(eq=False)
class AppProxyDaemon:
    """Runs the app proxy. The coordinator serves on ``listener``, or on the port that the cluster file names."""

    layout: Layout
    cluster: ClusterFile
    listener: socket.socket | None = None

    def __post_init__(self) -> None:
        self.layout.app_proxy.mkdir(mode=0o700, exist_ok=True)
        self._coordinator = Coordinator(coordinator_settings(self.layout, self.cluster))
        self._worker = Worker(worker_settings(self.layout, self.cluster))

    async def start(self) -> None:
        await self._coordinator.start(self.listener)
        await self._worker.start()

    async def stop(self) -> None:
        await self._worker.stop()
        await self._coordinator.stop()
