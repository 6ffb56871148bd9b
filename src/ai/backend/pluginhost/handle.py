"""Starts one accelerator plugin, calls it with deadlines, and isolates its failures (decision 0056)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from ai.backend.common.errors import BackendError, DeadlineExceeded, PluginError
from ai.backend.plugin.accelerator import AbstractComputePlugin, TerminationDeferred
from ai.backend.plugin.accelerator.shapes import PLUGIN_CALLS, InvalidResponse
from ai.backend.plugin.discovery import PluginSource, make_plugin
from ai.backend.plugin.tracebacks import description_of
from ai.backend.pluginhost.process import GRACE_S, HostedCallFailed
from ai.backend.pluginhost.proxy import HostedPlugin, launch

log = logging.getLogger(__name__)
T = TypeVar("T")
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 300.0
"""The delays between attempts to start a plugin."""
_MAX_REASON_LENGTH = 500


class Delays(Protocol):
    """Computes the delays between repeated attempts, as ``ai.backend.infra.retry.Backoff`` does."""

    def next_s(self) -> float:
        """Records a failure, and returns the seconds until the next attempt."""

    def reset(self) -> None:
        """Records a success, so that the next delay is short again."""


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
    on_change: Callable[[], None]
    delays: Delays
    _class: type[AbstractComputePlugin] | None = field(default=None, init=False)
    _plugin: AbstractComputePlugin | None = field(default=None, init=False)
    _options_schema: Mapping[str, Any] | None = field(default=None, init=False)
    _generation: int = field(default=0, init=False)
    """The number of the valid attempt to start the plugin. The end of a host of an earlier attempt is ignored."""
    _call_counts: dict[AbstractComputePlugin, int] = field(default_factory=dict, init=False)
    """The number of unanswered calls of each plugin."""
    _calls_answered: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _started_at: float = field(default=0.0, init=False)
    _retry_at: float = field(default=0.0, init=False)
    _faults: dict[str, str] = field(default_factory=lambda: {"init": "not started"}, init=False)
    _logged_faults: dict[str, str] = field(default_factory=dict, init=False)

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
    def options_schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of the options that sessions may give the plugin; None if the plugin takes no options.

        None also if it was never started.
        """
        return self._options_schema

    @property
    def started(self) -> bool:
        return self._plugin is not None

    @property
    def may_return(self) -> bool:
        """True while the plugin is not started and will be started again."""
        return self._plugin is None and self._retry_at < float("inf")

    @property
    def reason(self) -> str | None:
        """The text of the plugin's oldest fault that is not cleared; None for a healthy plugin.

        A fault is cleared by a later call of the same kind that succeeds.
        """
        return next(iter(self._faults.values()), None)

    @property
    def standing(self) -> tuple[object, ...]:
        """The objects that determine the heartbeat's report about the plugin.

        A change of the report replaces at least one of them.
        """
        first_fault = next(iter(self._faults.values()), None)
        return self._class, self._plugin, self._options_schema, first_fault, self._retry_at < float("inf")

    @property
    def has_ended(self) -> bool:
        """True if no plugin runs: none is started, or its host process has ended. The plugin may be started again."""
        plugin = self._plugin
        return plugin is None or (isinstance(plugin, HostedPlugin) and plugin.host.reason is not None)

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
        self._generation += 1
        try:
            plugin = await self._make_initialised(self._generation)
        except BaseException as e:
            if not isinstance(e, Exception | SystemExit):
                raise
            self._on_start_failed(self._start_reason(e), e)
        else:
            self._use_plugin(plugin)

    async def reload(self, settings: Mapping[str, Mapping[str, Any]]) -> None:
        """Replaces the running plugin by one with other settings.

        The new plugin starts beside the old one, which ends once its calls are answered. Raises PluginError with the
        reason if it cannot be started; the running one then goes on as it was. One that does not run is started at the
        next :meth:`start`.
        """
        old_plugin, old_settings, old_class = self._plugin, self.settings, self._class
        self.settings = settings
        if old_plugin is None:
            if self._retry_at < float("inf"):
                self._retry_at = 0.0
            return
        try:
            plugin = await self._make_initialised(self._generation + 1)
        except BaseException as e:
            self.settings, self._class = old_settings, old_class
            if not isinstance(e, Exception | SystemExit):
                raise
            raise PluginError(self._start_reason(e)) from None
        if plugin.key != old_plugin.key:
            self.settings, self._class = old_settings, old_class
            await self._end(plugin)
            raise PluginError(f"it is the plugin {plugin.key} now, and was {old_plugin.key}: restart the agent")
        self._generation += 1
        self._use_plugin(plugin)
        await self._end(old_plugin)

    async def _make_initialised(self, generation: int) -> AbstractComputePlugin:
        """Makes and initialises a plugin, and removes it again if that fails. Raises whatever the plugin raises."""
        plugin: AbstractComputePlugin | None = None
        try:
            plugin = await self._create(generation)
            plugin.options_schema()
            async with asyncio.timeout(self._patience_s(plugin)):
                await plugin.init()
            if isinstance(plugin, HostedPlugin) and plugin.host.reason is not None:
                raise PluginError(f"its host process ended: {plugin.host.reason}")
        except BaseException:
            if isinstance(plugin, HostedPlugin):
                await plugin.close()
            raise
        return plugin

    def _use_plugin(self, plugin: AbstractComputePlugin) -> None:
        self._plugin, self._faults, self._logged_faults = plugin, {}, {}
        self._options_schema = plugin.options_schema()
        self._started_at = asyncio.get_running_loop().time()

    def _start_reason(self, error: BaseException) -> str:
        is_timeout = isinstance(error, TimeoutError)
        return f"init took longer than {self.timeout_s:g} s" if is_timeout else _description_of(error)

    async def _end(self, plugin: AbstractComputePlugin) -> None:
        """Ends a plugin that is no longer used, once all its calls are answered or a timeout has passed."""
        try:
            async with asyncio.timeout(self._patience_s(plugin)):
                while self._call_counts.get(plugin):
                    self._calls_answered.clear()
                    await self._calls_answered.wait()
        except TimeoutError:
            log.warning("the plugin %s is ended in the middle of a call", self.key)
        await self._clean_up(plugin)

    async def _create(self, generation: int) -> AbstractComputePlugin:
        source, reference = self.source, self.source.reference
        if not source.isolated:
            self._class = plugin_class = source.load()
            if reference is None or not plugin_class.capabilities.blocking:
                return make_plugin(plugin_class, self.settings.get(plugin_class.key, {}))
            log.info("the plugin %s may block: it gets a host process", plugin_class.key)
        if reference is None:
            raise PluginError(f"{source.name} has no name that a host process could import")
        hosted_plugin = await launch(
            reference,
            lambda key: self.settings.get(key, {}),
            deadline_s=self.timeout_s,
            on_ended=partial(self._on_host_ended, generation),
            environment=self.environment,
        )
        self._class = type(hosted_plugin)
        return hosted_plugin

    def _patience_s(self, plugin: AbstractComputePlugin) -> float:
        """Returns the timeout of a call. A host process enforces the deadline itself."""
        return self.timeout_s + (2 * GRACE_S if isinstance(plugin, HostedPlugin) else 0.0)

    def _on_host_ended(self, generation: int, reason: str) -> None:
        if generation != self._generation:
            return  # it has been replaced, or was to replace the one that runs
        plugin, self._plugin = self._plugin, None
        if plugin is None:
            return  # it was not started yet: start() reports the failure
        if asyncio.get_running_loop().time() - self._started_at > RETRY_MAX_S:
            self.delays.reset()
        self._on_start_failed(f"its host process ended: {reason}")
        self.on_change()

    def _on_start_failed(self, reason: str, error: BaseException | None = None) -> None:
        self._faults = {}
        logged_error = error if error is not None and not isinstance(error, BackendError | TimeoutError) else None
        self._record_fault("init", reason, logged_error)
        loop = asyncio.get_running_loop()
        delay_s = self.delays.next_s()
        self._retry_at = loop.time() + delay_s
        loop.call_later(delay_s + 0.01, self.on_change)

    def _record_fault(self, call_kind: str, fault_text: str, error: BaseException | None = None) -> str:
        """Records a fault of the plugin, and returns the shortened text.

        Logs the text, unless it is the last text that was logged for this kind of call.
        """
        fault_text = " ".join(fault_text.split())[:_MAX_REASON_LENGTH]
        self._faults[call_kind] = fault_text
        if self._logged_faults.get(call_kind) != fault_text:
            self._logged_faults[call_kind] = fault_text
            log.warning("the plugin %s is degraded: %s", self.key, fault_text, exc_info=error)
        return fault_text

    async def call(
        self,
        call_kind: str,
        call: Callable[[AbstractComputePlugin], Awaitable[T]],
        *,
        check: Callable[[T], T] | None = None,
    ) -> T:
        """Calls the plugin with a deadline. A success clears the fault of earlier calls of the same kind.

        Args:
            call_kind: the kind of call, a method's name.
            call: makes the call.
            check: validates the answer and returns it, or raises InvalidResponse.

        Raises:
            PluginError: the call failed, timed out or returned an invalid answer; the plugin is unhealthy now.
            BackendError, TerminationDeferred: the plugin raised it on purpose, in a hook or an operation.
        """
        plugin = self.plugin
        self._call_counts[plugin] = self._call_counts.get(plugin, 0) + 1
        try:
            async with asyncio.timeout(self._patience_s(plugin)):
                result = await call(plugin)
            if check is not None:
                result = check(result)
        except TimeoutError:
            fault_text = self._record_fault(call_kind, f"{call_kind} took longer than {self.timeout_s:g} s")
            raise DeadlineExceeded(f"the plugin {self.key} did not answer: {fault_text}") from None
        except TerminationDeferred:
            raise
        except BackendError as e:
            if not isinstance(e, PluginError) and call_kind not in PLUGIN_CALLS:
                raise
            fault_text = self._record_fault(call_kind, f"{call_kind} failed: {e.message}")
            raise PluginError(f"the plugin {self.key}: {fault_text}", data=e.data) from None
        except InvalidResponse as e:
            raise PluginError(f"the plugin {self.key}: {self._record_fault(call_kind, f'{call_kind}: {e}')}") from None
        except (Exception, SystemExit) as e:
            fault_text = self._record_fault(call_kind, f"{call_kind} failed: {_description_of(e)}", e)
            raise PluginError(f"the plugin {self.key}: {fault_text}") from e
        finally:
            self._call_counts[plugin] -= 1
            if not self._call_counts[plugin]:
                del self._call_counts[plugin]
                self._calls_answered.set()
        self._faults.pop(call_kind, None)
        return result

    def complain(self, call_kind: str, reason: str | None) -> None:
        """Records the fault ``reason`` of one kind of the plugin's answers; None clears the fault of this kind."""
        self._faults.pop(call_kind, None)
        if reason is not None:
            self._record_fault(call_kind, reason)

    async def refuse(self, reason: str) -> None:
        """Stops the plugin permanently because another plugin serves the same devices."""
        await self.stop()
        self._faults = {}
        self._record_fault("init", reason)
        self._retry_at = float("inf")

    async def stop(self) -> None:
        plugin, self._plugin = self._plugin, None
        if plugin is not None:
            await self._clean_up(plugin)

    async def _clean_up(self, plugin: AbstractComputePlugin) -> None:
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
