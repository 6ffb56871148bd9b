"""Reads the addresses of the managers and the settings of this agent's plugins from the settings and from etcd."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ai.backend.accelerator.mock.declaration import declared_slot
from ai.backend.agent.config.settings import AgentSettings, LinkSettings
from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.infra.config_store import GLOBAL, MANAGERS, ConfigScope, ScopeKind
from ai.backend.infra.rpc.zmq.key_files import AgentKeyFiles, load_public_keys

if TYPE_CHECKING:
    from ai.backend.infra.config_store.etcd import EtcdConfigStore
    from ai.backend.infra.rpc.fanout import ManagerFanout

log = logging.getLogger(__name__)
PLUGINS = "config/plugins/accelerator"
MOCK_PACKAGE = "ai.backend.accelerator.mock"
_RETRY_S = 2.0


def named_managers(link: LinkSettings) -> dict[str, str]:
    """Returns the public key of each manager whose address is in the settings, or nothing without a key.

    Raises InvalidInput.
    """
    default_key = link.manager_key
    if default_key is None and link.manager_key_file is not None:
        default_key = load_public_keys(link.manager_key_file)[0]
    if default_key is None:
        return {}
    return {address.strip(): default_key for address in link.manager_addr.split(",") if address.strip()}


def key_files(settings: AgentSettings) -> AgentKeyFiles:
    """Returns the reader of the key files in the settings: the agent's key pair and the managers' public keys.

    Creates the agent's pair if it is missing. Raises InvalidInput if a file cannot be used.
    """
    link = settings.link
    keypair_file = link.keypair_file or settings.data_dir / "agent.key"
    keypair_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return AgentKeyFiles(keypair_file, link.manager_key_file if link.manager_key is None else None)


def _read(entries: Mapping[str, str]) -> dict[str, str]:
    managers = {}
    for name, entry_text in entries.items():
        try:
            entry = msgspec.json.decode(entry_text, type=dict[str, str])
            managers[entry["addr"]] = entry["key"]
        except (msgspec.MsgspecError, KeyError):
            log.warning("%s describes no manager", name)
    return managers


def _is_mock(plugin_name: str) -> bool:
    return plugin_name == MOCK_PACKAGE or plugin_name.startswith((f"{MOCK_PACKAGE}.", f"{MOCK_PACKAGE}:"))


def _take_over_mock_settings(settings_of_plugin: dict[str, dict[str, Any]], settings: AgentSettings) -> None:
    """Adds to the mock accelerator's settings those that stand under the slot name of its declaration (spec 03-06).

    A plugin of that name keeps them as well.
    """
    declaration_path = settings.plugins.get("mock", {}).get("config-path")
    slot = declared_slot(Path(declaration_path) if declaration_path is not None else None)
    if slot in settings_of_plugin:
        settings_of_plugin["mock"] = {**settings_of_plugin.get("mock", {}), **settings_of_plugin[slot]}


class SharedConfiguration:
    """Reads this agent's scopes in etcd. Without the table ``[etcd]`` of the settings it reads nothing."""

    def __init__(self, settings: AgentSettings) -> None:
        self._store: EtcdConfigStore | None = None
        self._scopes = (
            GLOBAL,
            ConfigScope(ScopeKind.RESOURCE_GROUP, settings.agent.resource_group),
            ConfigScope(ScopeKind.NODE, settings.agent.id),
        )
        if settings.etcd is not None:
            from ai.backend.infra.config_store.etcd import EtcdConfigStore

            etcd = settings.etcd
            agent_secret = etcd.password.get_secret_value()
            self._store = EtcdConfigStore(
                etcd.endpoints, namespace=etcd.namespace, user=etcd.user or None, password=agent_secret
            )

    async def managers(self) -> dict[str, str]:
        """Maps the listed managers' addresses to their public keys; waits until there is one.

        Raises InvalidInput if there is no shared configuration.
        """
        if self._store is None:
            message = "link.manager-key or link.manager-key-file is needed, or a table [etcd]"
            raise InvalidInput(message, data={"link.manager-key": "missing"})
        while True:
            try:
                managers = _read(await self._store.get_prefix(MANAGERS))
            except BackendError as e:
                log.warning("the list of managers cannot be read: %s", e)
                managers = {}
            if managers:
                return managers
            log.info("no manager is listed yet")
            await asyncio.sleep(_RETRY_S)

    async def follow(self, endpoints: ManagerFanout) -> None:
        """Connects to the managers that etcd lists whenever the list changes, until cancelled."""
        if self._store is None:
            return
        while True:
            try:
                # The watch then sees a change that happens while the list is read.
                revision = await self._store.revision()
                await endpoints.change(_read(await self._store.get_prefix(MANAGERS)))
                async for _ in self._store.watch(MANAGERS, after=revision):
                    await endpoints.change(_read(await self._store.get_prefix(MANAGERS)))
            except BackendError as e:
                log.warning("the list of managers cannot be read: %s", e)
                await asyncio.sleep(_RETRY_S)

    async def merged(self, settings: AgentSettings) -> AgentSettings:
        """Returns the agent's settings with the plugin settings in etcd added. Settings in the file take precedence."""
        if self._store is None:
            return settings
        settings_of_plugin: dict[str, dict[str, Any]] = {}
        try:
            entries = await self._store.get_prefix(PLUGINS, scopes=self._scopes)
        except BackendError as e:
            log.warning("the shared configuration cannot be read, the file alone counts: %s", e)
            return settings
        for path, value in entries.items():
            name, _, key = path.removeprefix(PLUGINS + "/").partition("/")
            if name and key and "/" not in key:
                settings_of_plugin.setdefault(name, {})[key.replace("_", "-")] = value
        if any(_is_mock(name) for name in settings.agent.allow_compute_plugins):
            _take_over_mock_settings(settings_of_plugin, settings)
        for name, own_settings in settings.plugins.items():
            settings_of_plugin[name] = {**settings_of_plugin.get(name, {}), **own_settings}
        return settings.model_copy(update={"plugins": settings_of_plugin})

    async def close(self) -> None:
        if self._store is not None:
            await self._store.close()
