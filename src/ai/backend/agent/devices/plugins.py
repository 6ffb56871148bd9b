"""Starts accelerator plugins, calls them with deadlines, and isolates their failures (decision 0056)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import BackendError, DeadlineExceeded, PluginError
from ai.backend.core.allocation.node import order_plugins
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.accelerator import AbstractComputePlugin, TerminationDeferred
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.plugin.discovery import PluginSource, make_plugin
from ai.backend.plugin.tracebacks import description_of
from ai.backend.pluginhost import HostedPlugin, launch
from ai.backend.pluginhost.process import GRACE_S, HostedCallFailed

log = logging.getLogger(__name__)
R = TypeVar("R")
_RETRY_FIRST_S, _RETRY_MAX_S = 1.0, 300.0
START_PATIENCE_S = 10.0
"""How long :meth:`PluginSet.start` waits for the first start of slow plugins."""
_MAX_REASON_LENGTH = 500


@dataclass(slots=True, eq=False)
class PluginHandle:
    """Starts and calls one plugin and tracks its health.

    ``key`` is the device name once the plugin was loaded, the source's name before. A plugin whose host process has
    ended counts as not started until :meth:`start` launches another one.
    """

    source: PluginSource
    settings: Mapping[str, Mapping[str, Any]]
    timeout_s: float
    environment: Sequence[str]
    changed: Callable[[], None]
    _class: type[AbstractComputePlugin] | None = field(default=None, init=False)
    _plugin: AbstractComputePlugin | None = field(default=None, init=False)
    _started_at: float = field(default=0.0, init=False)
    _retry_at: float = field(default=0.0, init=False)
    _backoff: Backoff = field(default_factory=lambda: Backoff(_RETRY_FIRST_S, _RETRY_MAX_S), init=False)
    _faults: dict[str, str] = field(default_factory=lambda: {"init": "not started"}, init=False)
    _logged: dict[str, str] = field(default_factory=dict, init=False)

    @property
    def key(self) -> str:
        return self._class.key if self._class is not None else self.source.name

    @property
    def version(self) -> str:
        return self._class.version if self._class is not None else ""

    @property
    def key_is_slot_prefix(self) -> bool:
        return self._class is None or self._class.key_is_slot_prefix

    @property
    def verified_on(self) -> str | None:
        return self._class.verified_on if self._class is not None else None

    @property
    def started(self) -> bool:
        return self._plugin is not None

    @property
    def may_return(self) -> bool:
        """True while the plugin is not started and will be started again."""
        return self._plugin is None and self._retry_at < float("inf")

    @property
    def reason(self) -> str | None:
        """The oldest fault that no later call of the same kind has cleared; None for a healthy plugin."""
        return next(iter(self._faults.values()), None)

    @property
    def healthy(self) -> bool:
        return self.started and self.reason is None

    @property
    def plugin(self) -> AbstractComputePlugin:
        """The started plugin. Raises PluginError if the plugin is not started."""
        if self._plugin is None:
            raise PluginError(f"the plugin {self.key} is not available: {self.reason}")
        return self._plugin

    def may_start(self, now: float) -> bool:
        return self._plugin is None and now >= self._retry_at

    async def start(self, now: float) -> None:
        """Imports and initialises the plugin; a failure becomes the plugin's ``reason`` and is retried with backoff."""
        if not self.may_start(now):
            return
        self._faults = {"init": "it is being started"}
        plugin: AbstractComputePlugin | None = None
        try:
            plugin = await self._create()
            async with asyncio.timeout(self._patience_s(plugin)):
                await plugin.init()
            if isinstance(plugin, HostedPlugin) and plugin.host.reason is not None:
                raise PluginError(f"its host process ended: {plugin.host.reason}")
        except BaseException as e:
            if isinstance(plugin, HostedPlugin):
                await plugin.close()
            if not isinstance(e, Exception | SystemExit):
                raise
            reason = (
                f"init took longer than {self.timeout_s:g} s" if isinstance(e, TimeoutError) else _description_of(e)
            )
            self._failed(reason, e)
        else:
            self._plugin, self._faults, self._logged = plugin, {}, {}
            self._started_at = asyncio.get_running_loop().time()

    async def _create(self) -> AbstractComputePlugin:
        source, reference = self.source, self.source.reference
        if not source.isolated:
            self._class = plugin_class = source.load()
            if reference is None or not plugin_class.capabilities.blocking:
                return make_plugin(plugin_class, self.settings.get(plugin_class.key, {}))
            log.info("the plugin %s may block: it gets a host process", plugin_class.key)
        if reference is None:
            raise PluginError(f"{source.name} has no name that a host process could import")
        hosted = await launch(
            reference,
            lambda key: self.settings.get(key, {}),
            deadline_s=self.timeout_s,
            ended=self._host_ended,
            environment=self.environment,
        )
        self._class = type(hosted)
        return hosted

    def _patience_s(self, plugin: AbstractComputePlugin) -> float:
        """Returns the timeout of a call. A host process enforces the deadline itself."""
        return self.timeout_s + (2 * GRACE_S if isinstance(plugin, HostedPlugin) else 0.0)

    def _host_ended(self, reason: str) -> None:
        plugin, self._plugin = self._plugin, None
        if plugin is None:
            return  # it was not started yet: start() reports the failure
        if asyncio.get_running_loop().time() - self._started_at > _RETRY_MAX_S:
            self._backoff.reset()
        self._failed(f"its host process ended: {reason}")
        self.changed()

    def _failed(self, reason: str, error: BaseException | None = None) -> None:
        self._faults = {}
        logged_error = error if error is not None and not isinstance(error, BackendError | TimeoutError) else None
        self._fault("init", reason, logged_error)
        loop = asyncio.get_running_loop()
        delay_s = self._backoff.next_s()
        self._retry_at = loop.time() + delay_s
        loop.call_later(delay_s + 0.01, self.changed)

    def _fault(self, call_kind: str, fault_text: str, error: BaseException | None = None) -> str:
        """Records a fault of the plugin, logs each text once, and returns the text."""
        fault_text = " ".join(fault_text.split())[:_MAX_REASON_LENGTH]
        self._faults[call_kind] = fault_text
        if self._logged.get(call_kind) != fault_text:
            self._logged[call_kind] = fault_text
            log.warning("the plugin %s is degraded: %s", self.key, fault_text, exc_info=error)
        return fault_text

    async def call(
        self,
        call_kind: str,
        call: Callable[[AbstractComputePlugin], Awaitable[R]],
        *,
        check: Callable[[R], R] | None = None,
    ) -> R:
        """Calls the plugin with a deadline. A success clears the fault of earlier calls of the same kind.

        Args:
            call_kind: the kind of call, a method's name.
            call: makes the call.
            check: validates the answer and returns it, or raises InvalidResponse.

        Raises:
            PluginError: the call failed, timed out or returned an invalid answer; the plugin is unhealthy now.
            BackendError, TerminationDeferred: the plugin raised it on purpose.
        """
        plugin = self.plugin
        try:
            async with asyncio.timeout(self._patience_s(plugin)):
                result = await call(plugin)
            if check is not None:
                result = check(result)
        except TimeoutError:
            fault = self._fault(call_kind, f"{call_kind} took longer than {self.timeout_s:g} s")
            raise DeadlineExceeded(f"the plugin {self.key} did not answer: {fault}") from None
        except (BackendError, TerminationDeferred):
            raise
        except InvalidResponse as e:
            raise PluginError(f"the plugin {self.key}: {self._fault(call_kind, f'{call_kind}: {e}')}") from None
        except (Exception, SystemExit) as e:
            fault = self._fault(call_kind, f"{call_kind} failed: {_description_of(e)}", e)
            raise PluginError(f"the plugin {self.key}: {fault}") from e
        self._faults.pop(call_kind, None)
        return result

    def complain(self, call_kind: str, reason: str | None) -> None:
        """Records that a part of the plugin's answers is invalid; None clears the fault."""
        self._faults.pop(call_kind, None)
        if reason is not None:
            self._fault(call_kind, reason)

    async def refuse(self, reason: str) -> None:
        """Stops the plugin permanently because another plugin serves the same devices."""
        await self.stop()
        self._faults = {}
        self._fault("init", reason)
        self._retry_at = float("inf")

    async def stop(self) -> None:
        plugin, self._plugin = self._plugin, None
        if plugin is None:
            return
        try:
            async with asyncio.timeout(self._patience_s(plugin)):
                await plugin.cleanup()
        except Exception:
            log.exception("cleanup of the plugin %s failed", self.key)


def _description_of(error: BaseException) -> str:
    match error:
        case BackendError():
            return error.message
        case HostedCallFailed() | InvalidResponse():
            return str(error)
    return description_of(error)


class PluginSet:
    """The plugins of this agent in allocation order. ``changed`` is called when :meth:`start` is due again."""

    def __init__(self, sources: Iterable[PluginSource], settings: AgentSettings) -> None:
        self.order = settings.resource.allocation_order
        self._settings = settings.plugin_settings
        self._warned_keys: set[str] = set()
        self._starting: dict[PluginHandle, asyncio.Task[None]] = {}
        self._attempted: set[PluginHandle] = set()
        self.changed: Callable[[], None] = lambda: None
        timeout_s, environment = settings.kernel_lifecycles.plugin_timeout, settings.agent.plugin_environment
        self.handles = [
            PluginHandle(source, self._settings, timeout_s, environment, self._notify) for source in sources
        ]

    def _notify(self) -> None:
        self.changed()

    async def start(self, now: float) -> None:
        """Starts all plugins that are not started. Slow plugins, and those that are started again after a failure,
        continue in the background, then call ``changed``."""
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
        starting = list(self._starting.values())
        for task in starting:
            task.cancel()
        await asyncio.gather(*starting, return_exceptions=True)
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
        """Returns device names with settings but no plugin; empty until every plugin was loaded."""
        are_loaded = all(handle.version for handle in self.handles)
        return set(self._settings) - {handle.key for handle in self.handles} if are_loaded else set()
