"""What the processes of a workload use now, for whoever asks (decision 0067)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.metrics.series import Metric, Series, totals
from ai.backend.agent.metrics.statistics import PATIENCE_S
from ai.backend.common.errors import BackendError
from ai.backend.common.wire.execution import ProcessInfo
from ai.backend.plugin.accelerator import Measurement, StatContext
from ai.backend.plugin.accelerator.responses import MeasurementFilter
from ai.backend.plugin.runtime import AbstractRuntime, ProcessView

log = logging.getLogger(__name__)
_BETWEEN_S = 0.25
_LIMIT = 100


class Processes:
    """Keeps nothing between two requests."""

    def __init__(
        self,
        runtime: AbstractRuntime,
        plugins: PluginSet,
        inventory: Inventory,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._runtime = runtime
        self._plugins = plugins
        self._inventory = inventory
        self._clock = clock
        self._wall_clock = wall_clock

    async def busiest(self, kernel: Kernel, *, limit: int) -> list[ProcessInfo]:
        """The busiest processes of a kernel, by their use between two looks a quarter of a second apart.

        Only on request, because it costs some file reads a process; the plugins that can tell of processes are asked
        for those that are shown.
        """
        before = {(v.pid, v.started): v for v in await self._runtime.measure_processes(kernel.key)}
        at = self._clock()
        await asyncio.sleep(_BETWEEN_S)
        now, now_at = await self._runtime.measure_processes(kernel.key), self._clock()
        found: list[tuple[float, float, ProcessView, dict[str, Metric]]] = []
        for view in now:
            metrics, busy, memory = _process_metrics(before.get((view.pid, view.started)), view, at, now_at)
            found.append((busy, memory, view, metrics))
        found.sort(key=lambda item: item[:2], reverse=True)
        found = found[: min(max(0, limit), _LIMIT)]
        told = await self._told_of_processes(kernel, [view.pid for _, _, view, _ in found])
        return [
            ProcessInfo(pid=view.shown_pid, command=view.command, metrics={**told.get(view.pid, {}), **metrics})
            for _, _, view, metrics in found
        ]

    async def _told_of_processes(self, kernel: Kernel, pids: Sequence[int]) -> dict[int, dict[str, Metric]]:
        """What the plugins of the kernel's devices know of its processes."""
        kernel_id = kernel.record.kernel_id
        context = StatContext(
            at=self._wall_clock(),
            allocations={kernel_id: self._inventory.holding(kernel.id)},
            pids={kernel_id: tuple(pids)},
        )
        of = dict.fromkeys(pids, kernel_id)
        metrics: dict[int, dict[str, Metric]] = {}
        for handle in self._plugins.started():
            if (
                not handle.plugin.capabilities.process_metrics
                or not self._inventory.holding_of(kernel.id, handle.key).slots
            ):
                continue
            sieve = MeasurementFilter()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answer = await handle.call(
                        "gather_process_metrics", lambda p: p.gather_process_metrics(context, of)
                    )
                for pid in of:
                    found = totals(sieve.passed(answer.get(pid, ()))).values()
                    metrics.setdefault(pid, {}).update({m.key: Series().add(m, 0.0) for m in found})
            except TimeoutError:
                sieve.complain(f"it took longer than {PATIENCE_S:g} s")
            except BackendError as e:
                log.warning("no processes of %s: %s", handle.key, e)
            except Exception as e:  # noqa: BLE001  # a plugin's nonsense raises anything; it is told as the reason
                sieve.complain(f"{type(e).__name__}: {e}")
            handle.complain("process statistics", sieve.reason and f"statistics of processes: {sieve.reason}")
        return metrics


def _process_metrics(
    before: ProcessView | None, now: ProcessView, at: float, now_at: float
) -> tuple[dict[str, Metric], float, float]:
    """The metrics of one process, how much of a core it uses in percent, and its memory.

    ``before`` is the same process, not one that has its number now; None for one that is new.
    """
    earlier = {m.key: m for m in before.measurements} if before is not None else {}
    metrics: dict[str, Metric] = {}
    busy = memory = 0.0
    for m in now.measurements:
        series = Series()
        if m.key in earlier:
            series.add(earlier[m.key], at)
        metrics[m.key] = series.add(m, now_at)
        if m.key == "cpu_used":
            busy = series.rate / 10
        elif m.key == "mem":
            memory = m.value
    util = Measurement(key="cpu_util", value=busy, unit_hint="percent", capacity=100.0)
    return {"cpu_util": Series().add(util, now_at), **metrics}, busy, memory
