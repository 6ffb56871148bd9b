"""Starts and holds the plugins of this agent, in the order in which they allocate (decision 0056)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import PluginError
from ai.backend.core.allocation.node import order_plugins
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.discovery import PluginSource
from ai.backend.pluginhost.handle import RETRY_FIRST_S, RETRY_MAX_S, PluginHandle

log = logging.getLogger(__name__)
START_PATIENCE_S = 10.0
"""How long :meth:`PluginSet.start` waits for the first start of slow plugins."""


class PluginSet:
    """Holds the plugins of this agent in allocation order. ``changed`` is called when :meth:`start` is due again."""

    def __init__(self, sources: Iterable[PluginSource], settings: AgentSettings) -> None:
        self.order = settings.resource.allocation_order
        self.settings = settings.plugin_settings
        self._warned_keys: set[str] = set()
        self._starting: dict[PluginHandle, asyncio.Task[None]] = {}
        self._attempted: set[PluginHandle] = set()
        self.changed: Callable[[], None] = lambda: None
        self._timeout_s, self._environment = (
            settings.kernel_lifecycles.plugin_timeout,
            settings.agent.plugin_environment,
        )
        self.handles: list[PluginHandle] = []
        for source in sources:
            self.add(source)

    def add(self, source: PluginSource) -> None:
        """Adds a plugin, which the next :meth:`start` starts."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_MAX_S)
        self.handles.append(
            PluginHandle(source, self.settings, self._timeout_s, self._environment, self._notify, backoff)
        )

    async def remove(self, handle: PluginHandle) -> None:
        """Stops a plugin and drops it."""
        self.handles.remove(handle)
        if (start_task := self._starting.pop(handle, None)) is not None:
            start_task.cancel()
            await asyncio.gather(start_task, return_exceptions=True)
        await handle.stop()

    def _notify(self) -> None:
        self.changed()

    async def start(self, now: float) -> None:
        """Starts the plugins that are not started and are due, and orders the plugins.

        Slow plugins, and those that are started again after a failure, continue in the background, then call
        ``changed``.
        """
        startable = [handle for handle in self.handles if handle not in self._starting and handle.may_start(now)]
        first_handles = [handle for handle in startable if handle not in self._attempted]
        self._attempted.update(first_handles)
        start_tasks = {handle: self._begin_start(handle, now) for handle in startable}
        first_tasks = [start_tasks[handle] for handle in first_handles]
        if first_tasks:
            await asyncio.wait(first_tasks, timeout=START_PATIENCE_S)
        for task in start_tasks.values():
            if not task.done():
                task.add_done_callback(lambda _: self._notify())
        handle_of_key: dict[str, PluginHandle] = {}
        for handle in self.handles:
            if handle.started and handle_of_key.setdefault(handle.key, handle) is not handle:
                await handle.refuse(f"another plugin already serves {handle.key}")
        position_of_key = {
            key: position
            for position, key in enumerate(order_plugins({handle.key for handle in self.handles}, self.order))
        }
        self.handles.sort(key=lambda handle: position_of_key[handle.key])
        for key in self._unused_settings() - self._warned_keys:
            self._warned_keys.add(key)
            log.warning("the settings plugins.%s are for no plugin of this agent", key)

    def _begin_start(self, handle: PluginHandle, now: float) -> asyncio.Task[None]:
        task = self._starting[handle] = asyncio.create_task(handle.start(now), name=f"agent-start-{handle.key}")
        task.add_done_callback(lambda _: self._starting.pop(handle, None))
        return task

    async def stop(self) -> None:
        self.changed = lambda: None
        start_tasks = list(self._starting.values())
        for task in start_tasks:
            task.cancel()
        await asyncio.gather(*start_tasks, return_exceptions=True)
        await asyncio.gather(*(handle.stop() for handle in self.handles))

    def started(self) -> list[PluginHandle]:
        return [handle for handle in self.handles if handle.started]

    def get(self, plugin_key: str) -> PluginHandle:
        """Returns the started plugin with this key. Raises PluginError with the reason if no such plugin is started."""
        reason = ""
        for handle in self.handles:
            if handle.key == plugin_key and handle.started:
                return handle
            if handle.key == plugin_key and handle.reason:
                reason = f": {handle.reason}"
        raise PluginError(f"the plugin {plugin_key} is not available on this agent{reason}")

    def _unused_settings(self) -> set[str]:
        """Returns the keys of plugin settings that belong to no plugin of this agent.

        The result is empty until every plugin was loaded.
        """
        are_loaded = all(handle.version for handle in self.handles)
        return set(self.settings) - {handle.key for handle in self.handles} if are_loaded else set()
