"""Builds an agent of the embedded cluster. It imports nothing of the manager, to save memory in each agent."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ai.backend.accelerator.mock.declaration import declared_slot
from ai.backend.agent.composition import Agent
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.runtimes import load_runtime
from ai.backend.common.errors import BackendError, InvalidInput, Unavailable
from ai.backend.infra.config_store import GLOBAL, ConfigScope, ScopeKind, SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.infra.rpc.endpoints import AgentEndpoint
from ai.backend.plugin.settings import problems_of
from ai.backend.standalone.agent_files import merge_settings, own_settings
from ai.backend.standalone.instance import ClusterFile
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.options import DEFAULT_MOCK, agent_index
from ai.backend.standalone.reloading import ReloadReport, write_report

log = logging.getLogger(__name__)
PLUGIN_CONFIGURATION_PREFIX = "config/plugins/accelerator"
DEFAULT_RESOURCE_GROUP = "default"
VXLAN_PORT, ENCRYPTED_OVERLAY_PORT = 4789, 5789
"""Of the first agent. They are on one node, so each has its own, and they reach each other on its loopback."""


@dataclass(eq=False)
class AgentDaemon:
    """Runs one agent of the embedded cluster, with the settings of the shared configuration at its start."""

    layout: Layout
    agent_id: str
    endpoint: AgentEndpoint
    cluster: ClusterFile
    _agent: Agent | None = field(default=None, init=False)

    async def prepare(self) -> Agent:
        """Reads the agent's settings, loads its runtime, and returns the new agent without starting it.

        Called before other daemons keep the processor busy. Raises InvalidInput.
        """
        settings = await self._settings()
        self._agent = Agent(settings, load_runtime(settings), self.endpoint.reports)
        return self._agent

    async def start(self) -> None:
        agent = self._agent or await self.prepare()
        await agent.start()
        await self.endpoint.start(agent.commands)

    async def _settings(self) -> AgentSettings:
        """Reads the settings of the agent. Raises InvalidInput."""
        data_dir = self.layout.agent(self.agent_id)
        shared_configuration = await plugin_configuration(self.layout, self.agent_id)
        base_settings = agent_settings(
            self.agent_id,
            data_dir,
            runtime=self.cluster.runtime,
            mock_declaration=self.cluster.mock,
            shared_plugin_settings=shared_configuration,
        )
        merged_settings = merge_settings(base_settings, own_settings(self.cluster.agent_config, self.agent_id))
        try:
            return AgentSettings.model_validate(merged_settings)
        except ValidationError as e:
            problems = problems_of(e)
            problem_list = "; ".join(f"{key}: {problem}" for key, problem in problems.items())
            raise InvalidInput(f"the settings of {self.agent_id} are wrong: {problem_list}", data=problems) from None

    async def reload(self) -> None:
        """Applies changed plugins and plugin settings, and writes a report. Sessions and their devices stay."""
        try:
            if self._agent is None:
                raise Unavailable("the agent starts or stops")
            report = ReloadReport(refused=await self._agent.reload_plugins(await self._settings()))
        except (BackendError, OSError) as e:
            log.error("the plugins of %s stay as they are: %s", self.agent_id, e)
            report = ReloadReport(error=str(e))
        write_report(self.layout.reload_report(self.agent_id), report)

    async def stop(self) -> None:
        await self.endpoint.stop()
        if self._agent is not None:
            await self._agent.stop()


async def plugin_configuration(layout: Layout, agent_id: str) -> dict[str, dict[str, str]]:
    """Reads settings of accelerator plugins by name, from ``config/plugins/accelerator/<name>/<key>`` (spec 03-06).

    Those of the node win over those of its resource group, which win over the global ones.
    """
    database = Database(f"sqlite:///{layout.database}")
    try:
        store = SQLiteConfigStore(database)
        await store.setup()
        scopes = (
            GLOBAL,
            ConfigScope(ScopeKind.RESOURCE_GROUP, DEFAULT_RESOURCE_GROUP),
            ConfigScope(ScopeKind.NODE, agent_id),
        )
        entries = await store.get_prefix(PLUGIN_CONFIGURATION_PREFIX, scopes=scopes)
    finally:
        await database.close()
    configuration: dict[str, dict[str, str]] = {}
    for path, value in entries.items():
        name, _, key = path.removeprefix(PLUGIN_CONFIGURATION_PREFIX + "/").partition("/")
        if name and key and "/" not in key:
            configuration.setdefault(name, {})[key.replace("_", "-")] = value
    return configuration


def agent_settings(
    agent_id: str,
    data_dir: Path,
    *,
    runtime: str,
    mock_declaration: str | None,
    shared_plugin_settings: Mapping[str, Mapping[str, str]],
) -> dict[str, Any]:
    """Returns the ``agent.toml`` of an embedded agent.

    ``mock_declaration`` is a file, ``default``, or None for no mock devices; its plugin uses the settings of the slot
    name that the file declares. ``shared_plugin_settings`` come from :func:`plugin_configuration`.
    """
    plugin_settings: dict[str, Any] = {
        plugin_name: dict(settings) for plugin_name, settings in shared_plugin_settings.items()
    }
    allowed_plugins: list[str] = []
    if mock_declaration is not None:
        allowed_plugins.append("ai.backend.accelerator.mock")
        own_plugin_settings: dict[str, Any] = {"state-path": str(data_dir / "mock-hardware.json")}
        default_mock = {"default-devices": 2, "control-path": str(data_dir / "mock-control.toml")}
        own_plugin_settings |= default_mock if mock_declaration == DEFAULT_MOCK else {"config-path": mock_declaration}
        plugin_settings["mock"] = {
            **shared_plugin_settings.get("mock", {}),
            **shared_plugin_settings.get(_declared_slot(mock_declaration), {}),
            **own_plugin_settings,
        }
    return {
        "agent": {
            "id": agent_id,
            "resource-group": DEFAULT_RESOURCE_GROUP,
            "data-dir": str(data_dir),
            "runtime": runtime,
            "allow-compute-plugins": allowed_plugins,
        },
        "underlay": {
            "address": "127.0.0.1",
            "port": VXLAN_PORT + agent_index(agent_id),
            "encrypted-port": ENCRYPTED_OVERLAY_PORT + agent_index(agent_id),
        },
        "plugins": plugin_settings,
    }


def _declared_slot(mock: str) -> str:
    return "mock" if mock == DEFAULT_MOCK else declared_slot(Path(mock))
