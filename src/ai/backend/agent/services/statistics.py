"""Raw measurements made into the metrics that people see (peer facts 3.6): every number is text.

A metric is ``{current, capacity, pct, unit_hint}`` and those of ``stats.{min,max,sum,avg,diff,rate}`` that its
measurement names.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ai.backend.agent.services.inventory import Inventory
from ai.backend.agent.services.kernel import Kernel
from ai.backend.agent.services.plugins import PluginHandle, PluginSet
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import KernelId
from ai.backend.plugin.accelerator import Measurement, MetricKind, StatContext
from ai.backend.plugin.runtime import AbstractRuntime

log = logging.getLogger(__name__)
_FINAL_S = 1.0
Metric = dict[str, str | None]


def _text(value: float) -> str:
    """Plain decimals: whole numbers without a point, others with at most three decimals."""
    return f"{value:.0f}" if value == int(value) else f"{value:.3f}".rstrip("0").rstrip(".")


class Series:
    """One metric over time."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._min = self._max = 0.0
        self._last: tuple[float, float] | None = None
        self._diff = self._rate = 0.0

    def add(self, m: Measurement, at: float) -> Metric:
        """Take in one value; ``at`` in seconds."""
        if self._last is not None:
            last_value, last_at = self._last
            self._diff = m.value - last_value
            self._rate = self._diff / (at - last_at) if at > last_at else 0.0
        self._last = (m.value, at)
        self._min = m.value if self._count == 0 else min(self._min, m.value)
        self._max = m.value if self._count == 0 else max(self._max, m.value)
        self._count += 1
        self._sum += m.value
        numbers = {
            "min": self._min,
            "max": self._max,
            "sum": self._sum,
            "avg": self._sum / self._count,
            "diff": self._diff,
            "rate": self._rate,
        }
        metric: Metric = {
            "current": _text(m.value),
            "capacity": None if m.capacity is None else _text(m.capacity),
            "pct": f"{m.value / m.capacity * 100:.2f}" if m.capacity else "0.00",
            "unit_hint": m.unit_hint,
        }
        wanted = m.stats | {"rate"} if m.kind is MetricKind.ACCUMULATED else m.stats
        metric.update({f"stats.{name}": _text(numbers[name]) for name in numbers if name in wanted})
        return metric


class Statistics:
    """Gathers from runtime and plugins. A source that fails is left out of that round."""

    def __init__(self, runtime: AbstractRuntime, plugins: PluginSet, inventory: Inventory) -> None:
        self._runtime = runtime
        self._plugins = plugins
        self._inventory = inventory
        self._series: dict[tuple[str, str, str], Series] = {}
        self.node: dict[str, Metric] = {}
        self.devices: dict[str, dict[str, Metric]] = {}
        self.kernels: dict[str, dict[str, Metric]] = {}

    async def final(self, kernel: Kernel) -> dict[str, Any] | None:
        """The last metrics of a kernel, measured once more if that can be done at once."""
        last = self.kernels.get(kernel.id, {})
        try:
            async with asyncio.timeout(_FINAL_S):
                measured = await self._runtime.measure([kernel.key])
        except (BackendError, TimeoutError):
            return dict(last) or None
        now = self._metrics(kernel.id, measured.get(kernel.key, ()), time.time())
        return {**last, **now} or None

    async def gather(self, kernels: Sequence[Kernel]) -> None:
        """One round over the node and these kernels."""
        at = time.time()
        by_key = {kernel.key: kernel for kernel in kernels}
        found: dict[str, dict[str, Metric]] = {kernel.id: {} for kernel in kernels}
        try:
            measured = await self._runtime.measure(list(by_key)) if by_key else {}
        except BackendError as e:
            log.warning("the runtime cannot measure: %s", e)
            measured = {}
        for key, measurements in measured.items():
            if key in by_key:
                found[by_key[key].id].update(self._metrics(by_key[key].id, measurements, at))
        context = StatContext(
            at=at,
            allocations={k.record.kernel_id: self._inventory.holding(k.id) for k in kernels},
            pids={k.record.kernel_id: await self._runtime.pids(k.key) for k in kernels} if self._want_pids() else {},
        )
        node: dict[str, Metric] = {}
        devices: dict[str, dict[str, Metric]] = {}
        for handle in self._plugins.started():
            await self._ask_plugin(handle, context, found, node, devices)
        self.node, self.devices, self.kernels = node, devices, found
        alive = {"", *found}
        self._series = {key: series for key, series in self._series.items() if key[0] in alive}

    def _want_pids(self) -> bool:
        return any(handle.plugin.capabilities.process_metrics for handle in self._plugins.started())

    async def _ask_plugin(
        self,
        handle: PluginHandle,
        context: StatContext,
        found: Mapping[str, dict[str, Metric]],
        node: dict[str, Metric],
        devices: dict[str, dict[str, Metric]],
    ) -> None:
        kernels = [
            KernelId(k) for k, a in context.allocations.items() if self._inventory.holding_of(str(k), handle.key).slots
        ]
        try:
            of_node = await handle.call("gather_node_metrics", lambda p: p.gather_node_metrics(context))
            of_kernels = await handle.call(
                "gather_workload_metrics", lambda p: p.gather_workload_metrics(context, kernels)
            )
        except BackendError as e:
            log.warning("no statistics of %s: %s", handle.key, e)
            return
        for m in of_node:
            metric = self._add("", m, context.at)
            if m.device_id is None:
                node[m.key] = metric
            else:
                devices.setdefault(m.key, {})[str(m.device_id)] = metric
        for kernel_id, measurements in of_kernels.items():
            if str(kernel_id) in found:
                found[str(kernel_id)].update(self._metrics(str(kernel_id), measurements, context.at))

    def _metrics(self, owner: str, measurements: Iterable[Measurement], at: float) -> dict[str, Metric]:
        return {m.key: self._add(owner, m, at) for m in measurements}

    def _add(self, owner: str, m: Measurement, at: float) -> Metric:
        return self._series.setdefault((owner, m.key, str(m.device_id or "")), Series()).add(m, at)
