"""Builds the storage proxy of the embedded cluster: one volume in the data directory."""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import InvalidInput
from ai.backend.infra.files import write_atomically
from ai.backend.infra.settings import load_settings
from ai.backend.runtime.settings import RuntimeSettings
from ai.backend.standalone.agent_files import merge_settings, own_settings
from ai.backend.standalone.instance import ClusterFile
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.options import agent_ids
from ai.backend.storage.config.settings import StorageSettings
from ai.backend.storage.main import StorageProxy

PROXY_NAME = "local"
VOLUME_NAME = "volume1"
FOLDER_HOST = f"{PROXY_NAME}:{VOLUME_NAME}"
"""How users name the volume."""
_SECRET_BYTES = 32
_OWNER_KEYS = ("kernel-uid", "kernel_uid", "kernel-gid", "kernel_gid")


def secret(layout: Layout, name: str) -> str:
    """Returns a secret of the cluster. The secret is created at the first call."""
    path = layout.keys / f"{name}.secret"
    if not path.exists():
        write_atomically(path, secrets.token_hex(_SECRET_BYTES).encode())
    return path.read_text().strip()


def shared_configuration(layout: Layout, cluster: ClusterFile) -> dict[str, str]:
    """Returns the configuration by which the manager reaches the proxy (spec 03-02); empty if the cluster has none."""
    if not cluster.storage_port:
        return {}
    key_prefix = f"volumes/proxies/{PROXY_NAME}"
    return {
        f"{key_prefix}/client_api": cluster.storage_url,
        f"{key_prefix}/manager_api": f"http://127.0.0.1:{cluster.storage_manager_port}",
        f"{key_prefix}/secret": secret(layout, "storage-manager"),
        f"{key_prefix}/ssl_verify": "false",
    }


def settings(layout: Layout, cluster: ClusterFile) -> StorageSettings:
    """Returns the proxy's settings, completed by a ``storage-proxy.toml`` in the data directory. Raises InvalidInput.

    As root, files belong to the user that sessions run as.
    """
    user, group = _owner(cluster)
    owner_settings = {"user": user, "group": group} if os.geteuid() == 0 else {}
    proxy_settings = {
        "storage-proxy": {"node-id": PROXY_NAME, "secret": secret(layout, "storage-tokens"), **owner_settings},
        "api": {
            "client": {
                "service-addr": {"host": cluster.host, "port": cluster.storage_port},
                "public-url": cluster.storage_url,
            },
            "manager": {
                "service-addr": {"host": "127.0.0.1", "port": cluster.storage_manager_port},
                "secret": secret(layout, "storage-manager"),
            },
        },
        "volume": {VOLUME_NAME: {"backend": "vfs", "path": str(volume_path(layout))}},
    }
    settings_path = layout.root / "storage-proxy.toml"
    if settings_path.exists():
        return load_settings(StorageSettings, name="storage-proxy", path=settings_path, fixed_values=proxy_settings)
    return StorageSettings.model_validate(proxy_settings)


def _owner(cluster: ClusterFile) -> tuple[int, int]:
    """Returns the (user id, group id) under which the agents of a cluster run sessions.

    Raises InvalidInput if agents of the cluster differ in it.
    """
    agent_by_owner: dict[tuple[int, int], str] = {}
    for agent_id in agent_ids(cluster.agents):
        base_settings = {"agent": {"id": agent_id, "runtime": cluster.runtime}}
        agent = AgentSettings.model_validate(
            merge_settings(base_settings, own_settings(cluster.agent_config, agent_id))
        )
        runtime = RuntimeSettings.model_validate(
            {key: value for key, value in agent.runtime_settings.items() if key in _OWNER_KEYS}
        )
        agent_by_owner.setdefault((runtime.kernel_uid, runtime.kernel_gid), agent_id)
    if len(agent_by_owner) > 1:
        message = (
            f"{' and '.join(agent_by_owner.values())} have different kernel-uid or kernel-gid: folders have one owner"
        )
        raise InvalidInput(message, data={"runtime.kernel-uid": "differs"})
    return next(iter(agent_by_owner))


def volume_path(layout: Layout) -> Path:
    return layout.root / "volumes" / VOLUME_NAME


@dataclass(eq=False)
class StorageDaemon:
    """Runs the storage proxy on its two sockets. A socket of None means the port that the cluster file names."""

    layout: Layout
    cluster: ClusterFile
    client: socket.socket | None = None
    manager: socket.socket | None = None

    def __post_init__(self) -> None:
        volume_path(self.layout).parent.mkdir(mode=0o700, exist_ok=True)  # sessions see folders by mounts only
        self._proxy = StorageProxy(settings(self.layout, self.cluster))

    async def start(self) -> None:
        await self._proxy.start(client=self.client, manager=self.manager)

    async def stop(self) -> None:
        await self._proxy.stop()
