"""Reloads plugins with changed settings, while workloads and their devices stay (decision 0503)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.devices.inventory import INTRINSIC, Inventory
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.common.errors import BackendError
from ai.backend.plugin.discovery import PluginSource
from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)


class PluginReload:
    """Adds, removes and reloads plugins, one reload at a time. ``refresh`` asks all plugins for their devices
    afterwards.

    A plugin is always started anew, which brings changed files that it reads, and an upgrade if it has a host process;
    cores and memory only if their settings have changed. The new one is started beside the old one, which ends once its
    calls have been answered. One that cannot be started changes nothing: the old one goes on, and the reason is logged.
    A plugin that is not allowed any more is stopped unless kernels hold its devices.
    """

    def __init__(self, plugins: PluginSet, inventory: Inventory, *, refresh: Callable[[], Awaitable[object]]) -> None:
        self._plugins = plugins
        self._inventory = inventory
        self._refresh = refresh
        self._reloading = asyncio.Lock()

    async def reload(self, settings: AgentSettings, sources: Sequence[PluginSource]) -> dict[str, str]:
        """Reloads the plugins that the settings change. Returns by plugin name the reason why a plugin was not
        reloaded, empty if all were.
        """
        async with self._reloading:
            old_settings, new_settings = self._plugins.settings, settings.plugin_settings
            self._plugins.settings = new_settings
            reason_of_refused: dict[str, str] = {}
            source_of_name = {source.name: source for source in sources}
            for handle in list(self._plugins.handles):
                if handle.source.name not in source_of_name:
                    await self._remove(handle, reason_of_refused)
                    continue
                is_changed = old_settings.get(handle.key, {}) != new_settings.get(handle.key, {})
                if handle.started and handle.key in INTRINSIC and not is_changed:
                    handle.settings = new_settings
                    continue
                old_source, handle.source = handle.source, source_of_name[handle.source.name]
                try:
                    await handle.reload(new_settings)
                except BackendError as e:
                    handle.source, reason_of_refused[handle.key] = old_source, e.message
            present_names = {handle.source.name for handle in self._plugins.handles}
            for name, source in source_of_name.items():
                if name not in present_names:
                    self._plugins.add(source)
            await self._refresh()
            for name, reason in reason_of_refused.items():
                log.error("the plugin %s stays as it was: %s", name, reason)
            log.warning("plugins are reloaded: %s", ", ".join(handle.key for handle in self._plugins.started()))
            return reason_of_refused

    async def _remove(self, handle: PluginHandle, reason_of_refused: dict[str, str]) -> None:
        if holders := self._inventory.holders_of(handle.key):
            reason_of_refused[handle.key] = f"it is allowed no more, and {len(holders)} kernels hold its devices"
            return
        await self._plugins.remove(handle)
        self._inventory.forget(handle.key)
