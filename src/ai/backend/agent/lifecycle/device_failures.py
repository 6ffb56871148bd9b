"""Withdraws failed devices at once, reports them for the kernels that hold them, and restores recovered devices."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.plugins import PluginHandle, PluginSet
from ai.backend.agent.kernels.observer import ObservationQueue
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.common.devices import DeviceHealth
from ai.backend.common.ids import DeviceId
from ai.backend.common.states import KernelEventReason
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.accelerator import DeviceHealthChange, HealthWatching

log = logging.getLogger(__name__)
_ROUND_S = 1.0
"""How often the loop looks for plugins to watch."""
_PAUSE_S = 0.05
"""Changes within this time are handled together."""
_RETRY_FIRST_S, _RETRY_MAX_S = 0.5, 30.0
_MAX_UNLISTED = 16


class HealthLoop:
    """Watches the devices of every plugin with the capability :class:`HealthWatching`.

    A watch that ends or raises is restarted with growing delays. Other plugins, and changes that are lost between two
    watches, are covered by the refresh of the inventory, which is triggered after each end of a watch.

    Args:
        refresh: triggers a refresh of the inventory.
        beat: triggers a heartbeat.
    """

    def __init__(
        self,
        plugins: PluginSet,
        inventory: Inventory,
        supervisor: Supervisor,
        observer: ObservationQueue,
        *,
        refresh: Callable[[], None],
        beat: Callable[[], None],
    ) -> None:
        self._plugins = plugins
        self._inventory = inventory
        self._supervisor = supervisor
        self._observer = observer
        self._refresh = refresh
        self._beat = beat
        self._changes: dict[str, dict[DeviceId, list[DeviceHealthChange]]] = {}
        self._wake = asyncio.Event()
        self._watches: dict[str, tuple[object, asyncio.Task[None]]] = {}
        self._begun: dict[str, float] = {}
        self._unlisted: set[tuple[str, DeviceId]] = set()

    async def run(self) -> None:
        """Run until it is cancelled."""
        try:
            while True:
                try:
                    self._watch_all()
                    await self._apply_changes()
                except Exception:
                    log.exception("the loop health failed once and goes on")
                await asyncio.sleep(_PAUSE_S)
                await self._wait()
        finally:
            tasks = [task for _, task in self._watches.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait(self) -> None:
        """Wait until a change arrives, a device may be restored, or the next round is due."""
        due = self._inventory.health_due()
        timeout_s = _ROUND_S if due is None else min(_ROUND_S, max(0.0, due - asyncio.get_running_loop().time()))
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _apply_changes(self) -> None:
        self._wake.clear()
        pending, self._changes = self._changes, {}
        is_changed = False
        for key in list(self._inventory.kinds):
            changes = [change for of_device in pending.get(key, {}).values() for change in of_device]
            is_changed |= self._inventory.on_health_changes(key, changes)
        if is_changed:
            self._beat()
        if self._inventory.is_stale:
            await self._inventory.rebuild()
        self.report()

    def report(self) -> None:
        """Report the failed devices of every running kernel for which they differ from the last report.

        Current state is compared with recorded state, so a crash or an unreachable manager loses no report.
        """
        for kernel in self._supervisor.live():
            if kernel.phase is not Phase.RUNNING:
                continue
            failed = self._inventory.unhealthy(kernel.id)
            if failed == kernel.record.unhealthy:
                continue
            self._observer.report(
                kernel.id, kernel.attempt, kernel.status, KernelEventReason.UNKNOWN, unhealthy_devices=failed
            )
            kernel.save(unhealthy=failed)

    # ---- watching

    def _watch_all(self) -> None:
        for handle in self._plugins.started():
            plugin = handle.plugin
            watched, task = self._watches.get(handle.key, (None, None))
            if watched is plugin and task is not None and not task.done():
                if asyncio.get_running_loop().time() - self._begun.get(handle.key, math.inf) > _ROUND_S:
                    handle.complain("watch_health", None)
                continue
            if task is not None:
                task.cancel()
            if plugin.capabilities.health_watching and isinstance(plugin, HealthWatching):
                watch = asyncio.create_task(self._watch(handle, plugin), name=f"agent-health-{handle.key}")
                self._watches[handle.key] = plugin, watch

    async def _watch(self, handle: PluginHandle, plugin: HealthWatching) -> None:
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S)
        while handle.started:
            begun = self._begun[handle.key] = asyncio.get_running_loop().time()
            try:
                async for change in plugin.watch_health():
                    self._record(handle.key, change)
                    await asyncio.sleep(0)  # a stream that never waits must not block the agent
                problem = "it ended"
            except Exception as e:
                log.exception("the health watch of the plugin %s failed", handle.key)
                problem = f"{type(e).__name__}: {e}"
            if asyncio.get_running_loop().time() - begun > _RETRY_MAX_S:
                backoff.reset()
            self._begun[handle.key] = math.inf
            pause_s = backoff.next_s()
            handle.complain("watch_health", f"watch_health: {problem:.500}; again in {pause_s:g} s")
            self._refresh()
            await asyncio.sleep(pause_s)

    def _record(self, key: str, change: DeviceHealthChange) -> None:
        """Store the first failure and the last change of each device. Raises TypeError for a value of another type."""
        if not isinstance(change, DeviceHealthChange):
            raise TypeError(f"{change!r:.200} is not a DeviceHealthChange")
        kind = self._inventory.kinds.get(key)
        if kind is None or all(device.device_id != change.device_id for device in kind.answered):
            if (key, change.device_id) not in self._unlisted and len(self._unlisted) < _MAX_UNLISTED:
                self._unlisted.add((key, change.device_id))
                log.warning("the plugin %s reports a device %.100r that it has not listed", key, change.device_id)
                self._refresh()
            return
        of_device = self._changes.setdefault(key, {})
        failures = [c for c in of_device.get(change.device_id, ()) if c.health is not DeviceHealth.HEALTHY]
        is_failure = change.health is not DeviceHealth.HEALTHY
        of_device[change.device_id] = failures if failures and is_failure else [*failures, change]
        self._wake.set()
