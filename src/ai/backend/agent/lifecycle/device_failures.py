"""Withdraws failed devices at once, reports them for the kernels that hold them, and restores recovered devices."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from ai.backend.agent.lifecycle.context import AgentContext
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.common.devices import DeviceHealth
from ai.backend.common.ids import DeviceId
from ai.backend.common.states import KernelEventReason
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.infra.bus import Signal
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.accelerator import DeviceHealthChange, HealthWatching
from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)
_SETTLED_S = 1.0
"""A watch that has run for so long has begun well."""
_CHANGE_PAUSE_S = 0.05
"""Changes within this time are handled together."""
_RETRY_FIRST_S, _RETRY_MAX_S = 0.5, 30.0
_MAX_UNLISTED = 16


@dataclass(slots=True, eq=False)
class HealthLoop:
    """Watches the devices of every plugin with the capability :class:`HealthWatching`.

    A watch that ends is restarted with growing delays, and ``refresh`` then triggers a refresh of the inventory, which
    finds changes between two watches. ``beat`` triggers a heartbeat.
    """

    context: AgentContext
    supervisor: Supervisor
    _: KW_ONLY
    refresh: Callable[[], None]
    beat: Callable[[], None]
    _changes: dict[str, dict[DeviceId, list[DeviceHealthChange]]] = field(default_factory=dict, init=False)
    _wake: Signal = field(default_factory=Signal, init=False)
    _watches: dict[str, tuple[object, asyncio.Task[None]]] = field(default_factory=dict, init=False)
    _begun: dict[str, float] = field(default_factory=dict, init=False)
    _unlisted: set[tuple[str, DeviceId]] = field(default_factory=set, init=False)

    async def run(self) -> None:
        """Watches devices and applies health changes until cancelled."""
        try:
            while True:
                try:
                    self._watch_all()
                    await self._apply_changes()
                except Exception:
                    log.exception("the loop health failed once and goes on")
                await asyncio.sleep(_CHANGE_PAUSE_S)
                await self._wait()
        finally:
            tasks = [task for _, task in self._watches.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self) -> None:
        """Waits until a change arrives, a device may be restored, or the next round is due."""
        due_at = self.context.inventory.next_recovery_at()
        period_s = self.context.settings.intervals.health
        timeout_s = period_s if due_at is None else min(period_s, max(0.0, due_at - asyncio.get_running_loop().time()))
        await self._wake.wait(timeout_s)

    async def _apply_changes(self) -> None:
        pending_changes, self._changes = self._changes, {}
        is_changed = False
        inventory, now = self.context.inventory, asyncio.get_running_loop().time()
        for key in list(inventory.kinds):
            changes = [
                change for changes_of_device in pending_changes.get(key, {}).values() for change in changes_of_device
            ]
            if changes or inventory.may_change_at(key, now):
                is_changed |= inventory.on_health_changes(key, changes)
        if is_changed:
            self.beat()
        if inventory.is_stale:
            await inventory.rebuild()
        self.report()

    def report(self) -> None:
        """Reports the failed devices of each running kernel, if they differ from the kernel's last report."""
        for kernel in self.supervisor.live_kernels():
            if kernel.phase is not Phase.RUNNING:
                continue
            failed_devices = self.context.inventory.unhealthy_devices(kernel.id)
            if failed_devices == list(kernel.unhealthy):
                continue
            self.context.observer.report(
                kernel.id, kernel.attempt, kernel.status, KernelEventReason.UNKNOWN, unhealthy_devices=failed_devices
            )
            kernel.save(unhealthy=failed_devices)

    def _watch_all(self) -> None:
        for handle in self.context.plugins.started():
            plugin = handle.plugin
            watched_plugin, task = self._watches.get(handle.key, (None, None))
            if watched_plugin is plugin and task is not None and not task.done():
                if asyncio.get_running_loop().time() - self._begun.get(handle.key, math.inf) > _SETTLED_S:
                    handle.complain("watch_health", None)
                continue
            if task is not None:
                task.cancel()
            if plugin.capabilities.health_watching and isinstance(plugin, HealthWatching):
                watch_task = asyncio.create_task(self._watch(handle, plugin), name=f"agent-health-{handle.key}")
                self._watches[handle.key] = plugin, watch_task

    async def _watch(self, handle: PluginHandle, plugin: HealthWatching) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while handle.started:
            watch_started_at = self._begun[handle.key] = asyncio.get_running_loop().time()
            try:
                async for change in plugin.watch_health():
                    self._record(handle.key, change)
                    await asyncio.sleep(0)  # a stream that never waits must not block the agent
                problem = "it ended"
            except Exception as e:
                log.exception("the health watch of the plugin %s failed", handle.key)
                problem = f"{type(e).__name__}: {e}"
            if asyncio.get_running_loop().time() - watch_started_at > _RETRY_MAX_S:
                backoff.reset()
            self._begun[handle.key] = math.inf
            pause_s = backoff.next_s()
            handle.complain("watch_health", f"watch_health: {problem:.500}; again in {pause_s:g} s")
            self.refresh()
            await asyncio.sleep(pause_s)

    def _record(self, plugin_key: str, change: DeviceHealthChange) -> None:
        """Stores a device's first failure and last change. Raises TypeError if ``change`` is no DeviceHealthChange."""
        if not isinstance(change, DeviceHealthChange):
            raise TypeError(f"{change!r:.200} is not a DeviceHealthChange")
        kind = self.context.inventory.kinds.get(plugin_key)
        if kind is None or all(device.device_id != change.device_id for device in kind.listed_devices):
            if (plugin_key, change.device_id) not in self._unlisted and len(self._unlisted) < _MAX_UNLISTED:
                self._unlisted.add((plugin_key, change.device_id))
                log.warning(
                    "the plugin %s reports a device %.100r that it has not listed", plugin_key, change.device_id
                )
                self.refresh()
            return
        changes_of_device = self._changes.setdefault(plugin_key, {})
        failure_changes = [
            change_of_device
            for change_of_device in changes_of_device.get(change.device_id, ())
            if change_of_device.health is not DeviceHealth.HEALTHY
        ]
        is_failure = change.health is not DeviceHealth.HEALTHY
        changes_of_device[change.device_id] = (
            failure_changes if failure_changes and is_failure else [*failure_changes, change]
        )
        self._wake.set()
