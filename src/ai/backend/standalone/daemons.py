"""Each daemon of the embedded cluster, wired: the only place that knows how they fit together."""

from __future__ import annotations

import logging
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.main import Agent
from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.infra.bus import Bus
from ai.backend.infra.config_store import GLOBAL, ConfigScope, ScopeKind, SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.infra.http.server import make_runner, serve_on
from ai.backend.infra.rpc.endpoints import AgentEndpoint, ManagerEndpoint
from ai.backend.manager.api.app import build_app
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.main import Manager
from ai.backend.runtime.process.runtime import ProcessRuntime
from ai.backend.runtime.process.settings import ProcessRuntimeSettings
from ai.backend.standalone.credentials import Keys, read_env_file, write_env_file
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.options import DEFAULT_MOCK

log = logging.getLogger(__name__)
PLUGIN_CONFIGURATION = "config/plugins/accelerator"
DEFAULT_RESOURCE_GROUP = "default"
_DEFAULT_USERS = {"admin@local": "administrator", "user@local": "user"}


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; the caller owns it.

    Raises:
        Conflict: the port is taken or the address is not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        raise Conflict(f"Cannot listen on {host}:{port}: {e.strerror}. Name another one with --port.") from None
    return sock


class ManagerDaemon:
    """Manager and its HTTP server on the embedded database.

    ``start`` returns once requests are served; sessions left half-way by a former life go on at once.
    """

    def __init__(self, layout: Layout, endpoint: ManagerEndpoint, sock: socket.socket, *, url: str) -> None:
        self._layout = layout
        self._endpoint = endpoint
        self._sock = sock
        self._url = url
        self.database = Database(f"sqlite+aiosqlite:///{layout.database}")
        self.bus = Bus()
        settings = ManagerSettings(data_dir=layout.database.parent)
        self.manager = Manager(settings, self.database, self.bus, endpoint)
        self._runner = make_runner(build_app(self.manager, readiness=self._readiness))

    async def start(self) -> None:
        await self.manager.migrate()
        await self._bootstrap()
        await self.manager.start()
        await self._endpoint.start(self.manager.reports)
        await serve_on(self._runner, self._sock)

    async def _bootstrap(self) -> None:
        """Default identities, and env files with their keys, written again if they were lost."""
        identity = self.manager.services.identity
        await identity.bootstrap()
        files = {"admin@local": self._layout.admin_env, "user@local": self._layout.user_env}
        for email, path in files.items():
            pair = await identity.main_keypair(email)
            if pair is None:
                log.warning("%s has no active keypair any more; %s is left as it is", email, path)
                continue
            keys = Keys(access_key=pair.access_key, secret_key=pair.secret_key)
            write_env_file(path, endpoint=self._url, keys=keys, who=_DEFAULT_USERS[email])

    async def _readiness(self) -> Mapping[str, bool]:
        return {"agents": bool(self._endpoint.agents)}

    async def stop(self) -> None:
        """Serve no more, end the loops, leave sessions alone. Safe after a failed start."""
        await self._runner.cleanup()
        await self._endpoint.stop()
        await self.manager.stop()
        await self.database.close()
        self._sock.close()


class AgentDaemon:
    """One agent with the process runtime, configured from the shared configuration at its start."""

    def __init__(self, layout: Layout, agent_id: str, endpoint: AgentEndpoint, *, mock: str | None) -> None:
        self._layout = layout
        self._agent_id = agent_id
        self._endpoint = endpoint
        self._mock = mock
        self._agent: Agent | None = None

    async def start(self) -> None:
        data_dir = self._layout.agent(self._agent_id)
        shared = await plugin_configuration(self._layout, self._agent_id)
        settings = AgentSettings.model_validate(
            agent_settings(self._agent_id, data_dir, mock=self._mock, shared=shared)
        )
        runtime = ProcessRuntime(ProcessRuntimeSettings.model_validate(settings.runtime), data_dir / "process")
        self._agent = Agent(settings, runtime, self._endpoint.reports)
        await self._agent.start()
        await self._endpoint.start(self._agent.commands)

    async def stop(self) -> None:
        await self._endpoint.stop()
        if self._agent is not None:
            await self._agent.stop()


async def plugin_configuration(layout: Layout, agent_id: str) -> dict[str, dict[str, str]]:
    """Settings of accelerator plugins by name, from ``config/plugins/accelerator/<name>/<key>`` (spec 03-06).

    What is set for the node wins over what is set for its resource group and for all.
    """
    database = Database(f"sqlite+aiosqlite:///{layout.database}", pool_size=1)
    try:
        store = SQLiteConfigStore(database)
        await store.setup()
        scopes = (
            GLOBAL,
            ConfigScope(ScopeKind.RESOURCE_GROUP, DEFAULT_RESOURCE_GROUP),
            ConfigScope(ScopeKind.NODE, agent_id),
        )
        entries = await store.get_prefix(PLUGIN_CONFIGURATION, scopes=scopes)
    finally:
        await database.close()
    found: dict[str, dict[str, str]] = {}
    for path, value in entries.items():
        name, _, key = path.removeprefix(PLUGIN_CONFIGURATION + "/").partition("/")
        if name and key and "/" not in key:
            found.setdefault(name, {})[key.replace("_", "-")] = value
    return found


def agent_settings(
    agent_id: str, data_dir: Path, *, mock: str | None, shared: Mapping[str, Mapping[str, str]]
) -> dict[str, Any]:
    """The ``agent.toml`` of an embedded agent.

    Args:
        agent_id: its name.
        data_dir: where it keeps its things.
        mock: a declaration file, ``default``, or None for no mock devices.
        shared: see :func:`plugin_configuration`. The mock plugin listens to the slot name that its file declares.
    """
    plugins: dict[str, Any] = {name: dict(settings) for name, settings in shared.items()}
    allowed: list[str] = []
    if mock is not None:
        allowed.append("ai.backend.accelerator.mock")
        own = {"default-devices": 2} if mock == DEFAULT_MOCK else {"config-path": mock}
        plugins["mock"] = {**shared.get("mock", {}), **shared.get(_declared_slot(mock), {}), **own}
    return {
        "agent": {
            "id": agent_id,
            "resource-group": DEFAULT_RESOURCE_GROUP,
            "data-dir": str(data_dir),
            "allow-compute-plugins": allowed,
        },
        "plugins": plugins,
    }


def _declared_slot(mock: str) -> str:
    if mock == DEFAULT_MOCK:
        return "mock"
    try:
        return str(tomllib.loads(Path(mock).read_text()).get("slot_name", "mock"))
    except (OSError, ValueError):
        return "mock"  # the plugin itself says what is wrong with the file


def keys_of(layout: Layout) -> tuple[Keys, Keys]:
    """The user's and the administrator's keys.

    Raises:
        Unavailable: the env files are not there (yet).
    """
    user, admin = read_env_file(layout.user_env), read_env_file(layout.admin_env)
    if user is None or admin is None:
        raise Unavailable(f"The cluster wrote no keys to {layout.root}.")
    return user, admin
