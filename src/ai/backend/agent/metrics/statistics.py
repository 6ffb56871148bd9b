"""Gathers the metrics of the node, its devices and its workloads."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.plugins import PluginHandle, PluginSet
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.metrics.exposition import Exposition, WorkloadTotal
from ai.backend.agent.metrics.series import Metric, Series, SeriesOfWorkload, totals
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import KernelId
from ai.backend.common.wire.execution import ProcessInfo
from ai.backend.common.wire.reports import MetricFamily
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.plugin.accelerator import Measurement, MetricKind, StatContext
from ai.backend.plugin.accelerator.responses import MeasurementFilter
from ai.backend.plugin.runtime import AbstractRuntime, ProcessView, WorkloadKey

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
_BETWEEN_S = 0.25
_MOST_PROCESSES = 100
T = TypeVar("T")


class NodeMeter(Protocol):
    """Measures disks and networks, which no accelerator plugin counts."""

    def measure(self) -> Sequence[Measurement]:
        """Returns ``disk`` of each file system, ``net_rx`` and ``net_tx`` of each interface. Blocks for a few reads."""
        ...


@dataclass(slots=True)
class _Answer:
    """The checked measurements of one source in one round."""

    source: str
    node: list[Measurement] = field(default_factory=list)
    workloads: dict[WorkloadKey, list[Measurement]] = field(default_factory=dict)
    indexes: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Statistics:
    """Stores the newest metrics. A source that fails is left out of that round, and invalid parts of its answer too.

    ``host`` measures the node's own resources, ``clock`` returns monotonic seconds for rates.
    """

    runtime: AbstractRuntime
    plugins: PluginSet
    inventory: Inventory
    host: NodeMeter
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    node: dict[str, Metric] = field(default_factory=dict, init=False)
    devices: dict[str, dict[str, Metric]] = field(default_factory=dict, init=False)
    kernels: dict[str, msgspec.Raw] = field(default_factory=dict, init=False)
    """The encoded metrics of each kernel."""
    families: list[MetricFamily] = field(default_factory=list, init=False)
    _since: float = field(init=False)
    _of_node: dict[str | tuple[str, str], Series] = field(default_factory=dict, init=False)
    """By the key of a metric, or by the key and the device."""
    _of_workloads: dict[WorkloadKey, SeriesOfWorkload] = field(default_factory=dict, init=False)
    _indexes: dict[str, int] = field(default_factory=dict, init=False)
    _filters: dict[str, MeasurementFilter] = field(default_factory=dict, init=False)
    _complaints: dict[str, str | None] = field(default_factory=dict, init=False)
    _counted: dict[str, WorkloadTotal] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._since = self.wall_clock()

    async def final(self, kernel: Kernel) -> dict[str, Any] | None:
        """Returns the last metrics of a kernel, measured once more if that is possible at once."""
        last = self.of_kernel(kernel.id)
        try:
            async with asyncio.timeout(_FINAL_S):
                measured = await self.runtime.measure([kernel.key])
        except (BackendError, TimeoutError):
            measured = {}
        usable = self._filters.setdefault(_RUNTIME, MeasurementFilter()).passed(measured.get(kernel.key, ()))
        key = kernel.key
        now = self._workload(key, kernel, totals(usable).values(), self.clock())
        self._of_workloads.pop(key, None)
        return {**last, **now} or None

    def of_kernel(self, kernel_id: str) -> dict[str, Metric]:
        """Returns the newest metrics of a kernel, empty if there are none."""
        raw = self.kernels.get(kernel_id)
        return {} if raw is None else msgspec.msgpack.decode(raw, type=dict[str, Metric])

    async def gather(self, kernels: Sequence[Kernel]) -> None:
        """Measures the node and these kernels once."""
        by_key = {kernel.key: kernel for kernel in kernels}
        held = {kernel.key.kernel_id: self.inventory.holding(kernel.id) for kernel in kernels}
        answers = await asyncio.gather(
            self._query_runtime(list(by_key)),
            self._query_host(),
            *(self._query_plugin(handle, by_key, held) for handle in self.plugins.started()),
        )
        self._take_in(answers, by_key, self.clock())

    async def _query_runtime(self, keys: list[WorkloadKey]) -> _Answer:
        async def query(checks: MeasurementFilter) -> _Answer:
            measured = await self.runtime.measure(keys) if keys else {}
            return _Answer(_RUNTIME, workloads={key: checks.passed(values) for key, values in measured.items()})

        return await self._query(_RUNTIME, query, _Answer(_RUNTIME), _OWN_PATIENCE_S)

    async def _query_host(self) -> _Answer:
        async def query(checks: MeasurementFilter) -> _Answer:
            return _Answer(_HOST, node=checks.passed(await asyncio.to_thread(self.host.measure)))

        return await self._query(_HOST, query, _Answer(_HOST), _OWN_PATIENCE_S)

    async def _query_plugin(
        self, handle: PluginHandle, by_key: Mapping[WorkloadKey, Kernel], held: Mapping[KernelId, DeviceAllocation]
    ) -> _Answer:
        kind = self.inventory.kinds.get(handle.key)
        names = kind.slot_names if kind is not None else frozenset()
        indexes = {str(d.device_id): i for i, d in enumerate(kind.devices)} if kind is not None else {}
        keys = {key.kernel_id: key for key in by_key if not names.isdisjoint(held[key.kernel_id].slots)}

        async def query(checks: MeasurementFilter) -> _Answer:
            has_processes = handle.plugin.capabilities.process_metrics
            context = StatContext(
                at=self.wall_clock(),
                allocations={kernel_id: held[kernel_id] for kernel_id in keys},
                pids={k: await self.runtime.pids(key) for k, key in keys.items()} if has_processes else {},
            )
            of_node = await handle.call("gather_node_metrics", lambda p: p.gather_node_metrics(context))
            of_workloads: Mapping[KernelId, Sequence[Measurement]] = {}
            if keys:
                of_workloads = await handle.call(
                    "gather_workload_metrics", lambda p: p.gather_workload_metrics(context, list(keys))
                )
            return _Answer(
                handle.key,
                node=checks.passed(of_node, indexes.keys()),
                workloads={keys[k]: checks.passed(values) for k, values in of_workloads.items() if k in keys},
                indexes=indexes,
            )

        return await self._query("statistics", query, _Answer(handle.key), PATIENCE_S, handle)

    async def _query(
        self,
        subject: str,
        query: Callable[[MeasurementFilter], Awaitable[T]],
        default: T,
        patience_s: float,
        handle: PluginHandle | None = None,
    ) -> T:
        """Runs the query of one source. Every failure becomes a complaint about the plugin, or a line in the log."""
        name = f"{subject} of {handle.key}" if handle is not None else subject
        checks = self._filters.setdefault(name, MeasurementFilter())
        checks.begin()
        answer = default
        try:
            async with asyncio.timeout(patience_s):
                answer = await query(checks)
        except TimeoutError:
            checks.complain(f"it took longer than {patience_s:g} s")
        except BackendError as e:
            checks.complain(str(e))
        except Exception as e:  # noqa: BLE001  # an invalid answer of a plugin raises anything; it becomes the reason
            checks.complain(f"{type(e).__name__}: {e}")
        if handle is not None:
            handle.complain(subject, checks.reason and f"{subject}: {checks.reason}")
            return answer
        if checks.reason is not None and self._complaints.get(subject) != checks.reason:
            log.warning("of the %s something is left out: %s", subject, checks.reason)
        self._complaints[subject] = checks.reason
        return answer

    async def busiest(self, kernel: Kernel, *, limit: int) -> list[ProcessInfo]:
        """Returns the busiest processes of a kernel (decision 0067), measured twice within a quarter of a second."""
        before = {(v.pid, v.started): v for v in await self.runtime.measure_processes(kernel.key)}
        at = self.clock()
        await asyncio.sleep(_BETWEEN_S)
        views, now_at = await self.runtime.measure_processes(kernel.key), self.clock()
        measured = [_process_metrics(before.get((view.pid, view.started)), view, at, now_at) for view in views]
        ranked = sorted(zip(measured, views, strict=True), key=lambda item: item[0][1:], reverse=True)
        shown = ranked[: min(max(0, limit), _MOST_PROCESSES)]
        of_plugins = await self._of_processes(kernel, [view.pid for _, view in shown])
        return [
            ProcessInfo(pid=view.shown_pid, command=view.command, metrics={**of_plugins.get(view.pid, {}), **metrics})
            for (metrics, _, _), view in shown
        ]

    async def _of_processes(self, kernel: Kernel, pids: Sequence[int]) -> dict[int, dict[str, Metric]]:
        kernel_id = kernel.record.kernel_id
        context = StatContext(
            at=self.wall_clock(),
            allocations={kernel_id: self.inventory.holding(kernel.id)},
            pids={kernel_id: tuple(pids)},
        )
        metrics: dict[int, dict[str, Metric]] = {pid: {} for pid in pids}
        for handle in self.plugins.started():
            if not handle.plugin.capabilities.process_metrics:
                continue
            if not self.inventory.holding_of(kernel.id, handle.key).slots:
                continue

            async def query(checks: MeasurementFilter, handle: PluginHandle = handle) -> None:
                of = dict.fromkeys(pids, kernel_id)
                answer = await handle.call("gather_process_metrics", lambda p: p.gather_process_metrics(context, of))
                for pid in pids:
                    values = totals(checks.passed(answer.get(pid, ()))).values()
                    metrics[pid].update({m.key: Series().add(m, 0.0) for m in values})

            await self._query("statistics of processes", query, None, PATIENCE_S, handle)
        return metrics

    def _take_in(self, answers: Iterable[_Answer], by_key: Mapping[WorkloadKey, Kernel], at: float) -> None:
        node: dict[str, Metric] = {}
        devices: dict[str, dict[str, Metric]] = {}
        by_key = {key: k for key, k in by_key.items() if k.attempt == key.attempt and k.phase is Phase.RUNNING}
        of_workloads: dict[WorkloadKey, dict[str, Measurement]] = {key: {} for key in by_key}
        exposition = Exposition()
        for answer in answers:
            exposition.devices(answer.source, answer.indexes, [m for m in answer.node if m.device_id is not None])
            sums = {key: m for key, m in totals(answer.node).items() if key not in node}
            exposition.node(sums.values())
            node.update({key: self._add(m, at) for key, m in sums.items()})
            for m in answer.node:
                if m.device_id is not None:
                    devices.setdefault(m.key, {})[str(m.device_id)] = self._add(m, at, str(m.device_id))
            for key, measurements in answer.workloads.items():
                if key in of_workloads:
                    of_workloads[key] = {**totals(measurements), **of_workloads[key]}
        metrics = {
            kernel.id: msgspec.Raw(_encode(self._workload(key, kernel, of_workloads[key].values(), at)))
            for key, kernel in by_key.items()
        }
        exposition.workloads([*_sums(of_workloads.values()), *self._counted.values()])
        self.node, self.devices, self.kernels, self.families = node, devices, metrics, exposition.families()
        self._of_node = {k: s for k, s in self._of_node.items() if at - s.last_at < _FORGET_S}
        if len(self._indexes) > _MOST_KEYS:
            self._indexes, self._of_workloads = {}, {}
        self._of_workloads = {key: s for key in by_key if (s := self._of_workloads.get(key)) is not None}

    def _workload(
        self, key: WorkloadKey, kernel: Kernel, measurements: Iterable[Measurement], at: float
    ) -> dict[str, Metric]:
        """Returns the metrics of a workload, and adds the growth of its counters to the node's sums.

        The first value of a workload that began under this agent counts as growth; that of an adopted one does not.
        """
        series = self._of_workloads.setdefault(key, SeriesOfWorkload(self._indexes))
        began_here = kernel.created_at >= self._since
        metrics: dict[str, Metric] = {}
        for m in measurements:
            is_new = began_here and m.key not in series
            metrics[m.key] = series[m.key].add(m, at)
            if m.kind is not MetricKind.GAUGE:
                grown = m.value if is_new else series[m.key].diff
                self._counted.setdefault(m.key, WorkloadTotal(m, 0.0, None)).value += grown
        return metrics

    def _add(self, m: Measurement, at: float, device_id: str = "") -> Metric:
        name = (m.key, device_id) if device_id else m.key
        if name not in self._of_node:
            self._of_node[name] = Series()
        return self._of_node[name].add(m, at)


def _sums(workloads: Iterable[Mapping[str, Measurement]]) -> Iterable[WorkloadTotal]:
    sums: dict[str, WorkloadTotal] = {}
    for measurements in workloads:
        for key, m in measurements.items():
            if m.kind is not MetricKind.GAUGE:
                continue
            total = sums.setdefault(key, WorkloadTotal(m, 0.0, 0.0))
            total.value += m.value
            total.capacity = None if total.capacity is None or m.capacity is None else total.capacity + m.capacity
    return sums.values()


def _process_metrics(
    before: ProcessView | None, now: ProcessView, at: float, now_at: float
) -> tuple[dict[str, Metric], float, float]:
    """Returns the metrics of one process, its percentage of a core, and its memory.

    ``before`` is the earlier measurement of the same process, None for a new one.
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
