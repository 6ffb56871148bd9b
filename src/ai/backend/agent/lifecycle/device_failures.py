"""Takes failed devices out at once, tells the kernels that hold them, and brings them back when they are well."""

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
from ai.backend.plugin.accelerator import DeviceHealthChange, HealthWatching

log = logging.getLogger(__name__)
_ROUND_S = 1.0
"""How often plugins are looked for that are to be watched."""
_PAUSE_S = 0.05
"""News that come within this time are taken together."""
_AGAIN_FIRST_S, _AGAIN_MAX_S = 0.5, 30.0
_MAX_STRANGERS = 16


class HealthLoop:
    """Watches every plugin that has the power :class:`HealthWatching`.

    A watch that ends or raises begins again, ever later; until then, and for every other plugin, the next look at the
    inventory tells. Since a change may be lost while nobody listens, ``look`` is called after each end of a watch.

    Args:
        look: ask all plugins anew, soon.
        beat: tell the manager what this node has, now.
    """

    def __init__(
        self,
        plugins: PluginSet,
        inventory: Inventory,
        supervisor: Supervisor,
        observer: ObservationQueue,
        *,
        look: Callable[[], None],
        beat: Callable[[], None],
    ) -> None:
        self._plugins = plugins
        self._inventory = inventory
        self._supervisor = supervisor
        self._observer = observer
        self._look = look
        self._beat = beat
        self._news: dict[str, dict[DeviceId, list[DeviceHealthChange]]] = {}
        self._wake = asyncio.Event()
        self._watches: dict[str, tuple[object, asyncio.Task[None]]] = {}
        self._begun: dict[str, float] = {}
        self._strangers: set[tuple[str, DeviceId]] = set()

    async def run(self) -> None:
        """Run until it is cancelled."""
        try:
            while True:
                try:
                    self._watch_all()
                    await self._take()
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
        """Until there are news, a device may be given back, or the next round."""
        due = self._inventory.health_due()
        left_s = _ROUND_S if due is None else min(_ROUND_S, max(0.0, due - asyncio.get_running_loop().time()))
        try:
            async with asyncio.timeout(left_s):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _take(self) -> None:
        self._wake.clear()
        news, self._news = self._news, {}
        is_changed = False
        for key in list(self._inventory.kinds):
            changes = [change for of_device in news.get(key, {}).values() for change in of_device]
            is_changed |= self._inventory.hear(key, changes)
        if is_changed:
            self._beat()
        self.tell()
        if is_changed:
            await self._inventory.rebuild()

    def tell(self) -> None:
        """Report of every running kernel whose devices' health is not what was reported last.

        It compares states, so nothing is lost by a crash, a restart of the agent, or a manager that is away.
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
        pause_s = _AGAIN_FIRST_S
        while handle.started:
            begun = self._begun[handle.key] = asyncio.get_running_loop().time()
            try:
                async for change in plugin.watch_health():
                    self._note(handle.key, change)
                    await asyncio.sleep(0)  # a stream that never waits must not hold up the agent
                problem = "it ended"
            except Exception as e:
                log.exception("the health watch of the plugin %s failed", handle.key)
                problem = f"{type(e).__name__}: {e}"
            self._begun[handle.key] = math.inf
            handle.complain("watch_health", f"watch_health: {problem:.500}; again in {pause_s:g} s")
            self._look()
            await asyncio.sleep(pause_s)
            is_lasting = asyncio.get_running_loop().time() - begun > _AGAIN_MAX_S
            pause_s = _AGAIN_FIRST_S if is_lasting else min(2 * pause_s, _AGAIN_MAX_S)

    def _note(self, key: str, change: DeviceHealthChange) -> None:
        """Keep the first failure of each device and what came last. Raises TypeError for what is no change."""
        if not isinstance(change, DeviceHealthChange):
            raise TypeError(f"{change!r:.200} is not a DeviceHealthChange")
        kind = self._inventory.kinds.get(key)
        if kind is None or all(device.device_id != change.device_id for device in kind.answered):
            if (key, change.device_id) not in self._strangers and len(self._strangers) < _MAX_STRANGERS:
                self._strangers.add((key, change.device_id))
                log.warning("the plugin %s tells of a device %.100r that it has not listed", key, change.device_id)
                self._look()
            return
        of_device = self._news.setdefault(key, {})
        failures = [c for c in of_device.get(change.device_id, ()) if c.health is not DeviceHealth.HEALTHY]
        is_failure = change.health is not DeviceHealth.HEALTHY
        of_device[change.device_id] = failures if failures and is_failure else [*failures, change]
        self._wake.set()
