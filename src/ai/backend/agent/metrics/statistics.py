"""Gathers the metrics of the node, its devices and its workloads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.plugins import PluginHandle, PluginSet
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.metrics.exposition import Exposition, WorkloadTotal
from ai.backend.agent.metrics.gateway import NodeMeter
from ai.backend.agent.metrics.series import Metric, Series, SeriesOfWorkload, totals
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import KernelId
from ai.backend.common.wire.reports import MetricFamily
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.plugin.accelerator import Measurement, MetricKind, StatContext
from ai.backend.plugin.accelerator.responses import MeasurementFilter
from ai.backend.plugin.runtime import AbstractRuntime, WorkloadKey

log = logging.getLogger(__name__)
_FINAL_S = 1.0
PATIENCE_S = 2.0
"""For one plugin in one round: the others' statistics do not wait longer for one that hangs."""
_OWN_PATIENCE_S = 30.0
_FORGET_S = 600.0
"""Series of a device that was not measured for so long are dropped."""
_MOST_KEYS = 512
"""Of workloads' metrics. With more, as of a plugin that goes on inventing keys, all series begin anew."""
_encode = msgspec.msgpack.encode
_RUNTIME, _HOST = "runtime", "host"
_WHAT = "statistics"


@dataclass(slots=True)
class _Answer:
    """What one source said in one round, checked."""

    source: str
    node: list[Measurement] = field(default_factory=list)
    workloads: dict[WorkloadKey, list[Measurement]] = field(default_factory=dict)
    places: Mapping[str, int] = field(default_factory=dict)


class Statistics:
    """The newest metrics. A source that fails is left out of that round; what of its answer is nonsense likewise.

    Args:
        runtime, plugins, inventory: whom it asks, and about what.
        host: what the agent measures itself.
        clock: monotonic seconds, for rates; a test may replace it.
        wall_clock: seconds since the epoch.
    """

    def __init__(
        self,
        runtime: AbstractRuntime,
        plugins: PluginSet,
        inventory: Inventory,
        host: NodeMeter,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._runtime = runtime
        self._plugins = plugins
        self._inventory = inventory
        self._host = host
        self._clock = clock
        self._wall_clock = wall_clock
        self._since = wall_clock()
        self._of_node: dict[str | tuple[str, str], Series] = {}
        """By the key of a metric, or by that and the device it is of."""
        self._of_workloads: dict[WorkloadKey, SeriesOfWorkload] = {}
        self._places: dict[str, int] = {}
        self._sieves: dict[str, MeasurementFilter] = {}
        self._complaints: dict[str, str | None] = {}
        self._counted: dict[str, WorkloadTotal] = {}
        self.node: dict[str, Metric] = {}
        self.devices: dict[str, dict[str, Metric]] = {}
        self.kernels: dict[str, msgspec.Raw] = {}
        """As in a report."""
        self.families: list[MetricFamily] = []

    async def final(self, kernel: Kernel) -> dict[str, Any] | None:
        """The last metrics of a kernel, measured once more if that can be done at once."""
        last = self.of_kernel(kernel.id)
        try:
            async with asyncio.timeout(_FINAL_S):
                measured = await self._runtime.measure([kernel.key])
        except (BackendError, TimeoutError):
            measured = {}
        good = self._sieves.setdefault(_RUNTIME, MeasurementFilter()).passed(measured.get(kernel.key, ()))
        key = kernel.key
        now = self._workload(key, kernel, totals(good).values(), self._clock())
        self._of_workloads.pop(key, None)
        return {**last, **now} or None

    def of_kernel(self, kernel_id: str) -> dict[str, Metric]:
        """The newest metrics of a kernel, empty where there are none."""
        raw = self.kernels.get(kernel_id)
        return {} if raw is None else msgspec.msgpack.decode(raw, type=dict[str, Metric])

    async def gather(self, kernels: Sequence[Kernel]) -> None:
        """One round over the node and these kernels."""
        by_key = {kernel.key: kernel for kernel in kernels}
        held = {kernel.key.kernel_id: self._inventory.holding(kernel.id) for kernel in kernels}
        asked = [
            self._ask_runtime(list(by_key)),
            self._ask_host(),
            *(self._ask_plugin(handle, by_key, held) for handle in self._plugins.started()),
        ]
        answers = await asyncio.gather(*asked)
        self._take_in(answers, by_key, self._clock())

    # ---- asking

    async def _ask_runtime(self, keys: list[WorkloadKey]) -> _Answer:
        async def ask(sieve: MeasurementFilter) -> _Answer:
            measured = await self._runtime.measure(keys) if keys else {}
            return _Answer(_RUNTIME, workloads={key: sieve.passed(found) for key, found in measured.items()})

        return await self._ask(_RUNTIME, ask, _OWN_PATIENCE_S, partial(self._note, _RUNTIME))

    async def _ask_host(self) -> _Answer:
        async def ask(sieve: MeasurementFilter) -> _Answer:
            return _Answer(_HOST, node=sieve.passed(await asyncio.to_thread(self._host.measure)))

        return await self._ask(_HOST, ask, _OWN_PATIENCE_S, partial(self._note, _HOST))

    async def _ask_plugin(
        self, handle: PluginHandle, by_key: Mapping[WorkloadKey, Kernel], held: Mapping[KernelId, DeviceAllocation]
    ) -> _Answer:
        kind = self._inventory.kinds.get(handle.key)
        names = kind.slot_names if kind is not None else frozenset()
        places = {str(d.device_id): i for i, d in enumerate(kind.devices)} if kind is not None else {}
        keys = {key.kernel_id: key for key in by_key if not names.isdisjoint(held[key.kernel_id].slots)}

        async def ask(sieve: MeasurementFilter) -> _Answer:
            context = StatContext(
                at=self._wall_clock(),
                allocations={kernel_id: held[kernel_id] for kernel_id in keys},
                pids={k: await self._runtime.pids(key) for k, key in keys.items()}
                if handle.plugin.capabilities.process_metrics
                else {},
            )
            of_node = await handle.call("gather_node_metrics", lambda p: p.gather_node_metrics(context))
            of_workloads: Mapping[KernelId, Sequence[Measurement]] = {}
            if keys:
                of_workloads = await handle.call(
                    "gather_workload_metrics", lambda p: p.gather_workload_metrics(context, list(keys))
                )
            return _Answer(
                handle.key,
                node=sieve.passed(of_node, places.keys()),
                workloads={keys[k]: sieve.passed(found) for k, found in of_workloads.items() if k in keys},
                places=places,
            )

        return await self._ask(handle.key, ask, PATIENCE_S, partial(handle.complain, _WHAT))

    async def _ask(
        self,
        source: str,
        ask: Callable[[MeasurementFilter], Awaitable[_Answer]],
        patience_s: float,
        tell: Callable[[str | None], None],
    ) -> _Answer:
        """Whatever goes wrong is a complaint about the source; None is told if there is none."""
        sieve = self._sieves.setdefault(source, MeasurementFilter())
        sieve.begin()
        answer = _Answer(source)
        try:
            async with asyncio.timeout(patience_s):
                answer = await ask(sieve)
        except TimeoutError:
            sieve.complain(f"it took longer than {patience_s:g} s")
        except BackendError as e:
            sieve.complain(str(e))
        except Exception as e:  # noqa: BLE001  # a plugin's nonsense raises anything; it is told as the reason
            sieve.complain(f"{type(e).__name__}: {e}")
        tell(None if sieve.reason is None else f"statistics: {sieve.reason}")
        return answer

    def _note(self, source: str, reason: str | None) -> None:
        """A complaint about what is no plugin goes to the log, once until it changes."""
        if reason is not None and self._complaints.get(source) != reason:
            log.warning("of the %s something is left out: %s", source, reason)
        self._complaints[source] = reason

    # ---- taking in

    def _take_in(self, answers: Iterable[_Answer], by_key: Mapping[WorkloadKey, Kernel], at: float) -> None:
        node: dict[str, Metric] = {}
        devices: dict[str, dict[str, Metric]] = {}
        by_key = {key: k for key, k in by_key.items() if k.attempt == key.attempt and k.phase is Phase.RUNNING}
        found: dict[WorkloadKey, dict[str, Measurement]] = {key: {} for key in by_key}
        exposition = Exposition()
        for answer in answers:
            exposition.devices(answer.source, answer.places, [m for m in answer.node if m.device_id is not None])
            sums = {key: m for key, m in totals(answer.node).items() if key not in node}
            exposition.node(sums.values())
            node.update({key: self._add(m, at) for key, m in sums.items()})
            for m in answer.node:
                if m.device_id is not None:
                    devices.setdefault(m.key, {})[str(m.device_id)] = self._add(m, at, str(m.device_id))
            for key, measurements in answer.workloads.items():
                if key in found:
                    found[key] = {**totals(measurements), **found[key]}
        metrics = {
            kernel.id: msgspec.Raw(_encode(self._workload(key, kernel, found[key].values(), at)))
            for key, kernel in by_key.items()
        }
        exposition.workloads([*_sums(found.values()), *self._counted.values()])
        self.node, self.devices, self.kernels, self.families = node, devices, metrics, exposition.families()
        self._of_node = {k: s for k, s in self._of_node.items() if at - s.last_at < _FORGET_S}
        if len(self._places) > _MOST_KEYS:
            self._places, self._of_workloads = {}, {}
        self._of_workloads = {key: s for key in by_key if (s := self._of_workloads.get(key)) is not None}

    def _workload(
        self, key: WorkloadKey, kernel: Kernel, measurements: Iterable[Measurement], at: float
    ) -> dict[str, Metric]:
        """Its metrics; what accumulated since the last time is added to the sums over all workloads.

        The first value of a workload that began under this agent counts whole; of an adopted one nothing is known.
        """
        series = self._of_workloads.setdefault(key, SeriesOfWorkload(self._places))
        is_ours = kernel.created_at >= self._since
        metrics: dict[str, Metric] = {}
        for m in measurements:
            is_new = is_ours and m.key not in series
            metrics[m.key] = series[m.key].add(m, at)
            if m.kind is not MetricKind.GAUGE:
                grown = m.value if is_new else series[m.key].diff
                total = self._counted.get(m.key)
                if total is None:
                    total = self._counted[m.key] = WorkloadTotal(m, 0.0, None)
                total.value += grown
        return metrics

    def _add(self, m: Measurement, at: float, device_id: str = "") -> Metric:
        """One value of the node or of a device of it."""
        name = (m.key, device_id) if device_id else m.key
        series = self._of_node.get(name)
        if series is None:
            series = self._of_node[name] = Series()
        return series.add(m, at)


def _sums(workloads: Iterable[Mapping[str, Measurement]]) -> Iterable[WorkloadTotal]:
    """Of each gauge, over all workloads."""
    sums: dict[str, WorkloadTotal] = {}
    for found in workloads:
        for key, m in found.items():
            if m.kind is not MetricKind.GAUGE:
                continue
            total = sums.get(key)
            if total is None:
                sums[key] = WorkloadTotal(m, m.value, m.capacity)
                continue
            total.value += m.value
            known = total.capacity
            total.capacity = None if known is None or m.capacity is None else known + m.capacity
    return sums.values()
