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
from ai.backend.agent.devices.metric_rules import MetricRules, Reading
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.metrics.overuse import OveruseWatch
from ai.backend.agent.metrics.series import Metric, Series, SeriesOfWorkload, totals
from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import BackendError
from ai.backend.common.ids import DeviceId, KernelId
from ai.backend.common.wire.execution import ProcessInfo
from ai.backend.common.wire.reports import MetricFamily
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.infra.telemetry.exposition import Exposition, WorkloadTotal
from ai.backend.plugin.accelerator import AbstractComputePlugin, Measurement, MetricKind, StatContext
from ai.backend.plugin.accelerator.responses import MeasurementFilter
from ai.backend.plugin.runtime import AbstractRuntime, ProcessView, WorkloadKey
from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)
_FINAL_TIMEOUT_S = 1.0
PATIENCE_S = 2.0
"""The seconds that one round waits for one plugin, so that a plugin that hangs does not delay the statistics of others.
"""
_OWN_PATIENCE_S = 30.0
_FORGET_SERIES_S = 600.0
"""Series of a device that was not measured for so long are dropped."""
_MAX_METRIC_KEYS = 512
"""The largest number of metric keys of workloads. All series begin anew if a plugin that invents keys exceeds it."""
_encode = msgspec.msgpack.encode
_RUNTIME_SOURCE, _HOST_SOURCE = "runtime", "host"
_BETWEEN_SAMPLES_S = 0.25
_MAX_SHOWN_PROCESSES = 100
T = TypeVar("T")


class NodeMeter(Protocol):
    """Measures disks and networks, which no accelerator plugin counts."""

    def measure(self) -> Sequence[Measurement]:
        """Returns ``disk`` of each file system, ``net_rx`` and ``net_tx`` of each interface. Blocks for a few reads."""
        ...


@dataclass(slots=True)
class _SourceAnswer:
    """Holds the valid measurements that one source has returned in one round.

    A source is a plugin, the runtime or the node itself.
    """

    source: str
    node: list[Measurement] = field(default_factory=list)
    workloads: dict[WorkloadKey, list[Measurement]] = field(default_factory=dict)
    indexes: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Statistics:
    """Stores the newest metrics of the node, its devices and its kernels. A source that fails is left out of that
    round, and so are invalid parts of its answer.

    ``host`` measures the node's own resources, if the agent runs on it; ``clock`` returns monotonic seconds for rates.
    """

    runtime: AbstractRuntime
    plugins: PluginSet
    inventory: Inventory
    host: NodeMeter | None
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic
    wall_clock: Callable[[], float] = time.time
    overuse: OveruseWatch | None = None
    metric_rules: MetricRules | None = None
    node: dict[str, Metric] = field(default_factory=dict, init=False)
    devices: dict[str, dict[str, Metric]] = field(default_factory=dict, init=False)
    kernels: dict[str, msgspec.Raw] = field(default_factory=dict, init=False)
    """The encoded metrics of each kernel."""
    families: list[MetricFamily] = field(default_factory=list, init=False)
    _started_at: float = field(init=False)
    _series_of_node: dict[str | tuple[str, str], Series] = field(default_factory=dict, init=False)
    """The series of the node's metrics by key, and the series of devices' metrics by key and device."""
    _of_workloads: dict[WorkloadKey, SeriesOfWorkload] = field(default_factory=dict, init=False)
    _indexes: dict[str, int] = field(default_factory=dict, init=False)
    _filters: dict[str, MeasurementFilter] = field(default_factory=dict, init=False)
    _complaints: dict[str, str | None] = field(default_factory=dict, init=False)
    _counter_totals: dict[str, WorkloadTotal] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._started_at = self.wall_clock()

    async def final_metrics(self, kernel: Kernel) -> dict[str, Any] | None:
        """Returns the last metrics of an ending kernel, measured once more if the runtime answers at once."""
        last_metrics = self.of_kernel(kernel.id)
        try:
            async with asyncio.timeout(_FINAL_TIMEOUT_S):
                measured_workloads = await self.runtime.measure([kernel.key])
        except (BackendError, TimeoutError):
            measured_workloads = {}
        usable_measurements = self._filters.setdefault(_RUNTIME_SOURCE, MeasurementFilter()).filter_measurements(
            measured_workloads.get(kernel.key, ())
        )
        key = kernel.key
        new_metrics = self._workload_metrics(key, kernel, totals(usable_measurements).values(), self.clock())
        self._of_workloads.pop(key, None)
        return {**last_metrics, **new_metrics} or None

    async def measure_carried_counters(self, kernel: Kernel, attempt: int) -> dict[str, float]:
        """Measures a kernel's use up to now, and returns it as the field ``carried`` of its next record.

        The workload of ``attempt`` still runs. A counter that the runtime does not return in time keeps its last
        measured value.
        """
        key = WorkloadKey(kernel_id=kernel.key.kernel_id, attempt=attempt)
        try:
            async with asyncio.timeout(_FINAL_TIMEOUT_S):
                measured_workloads = await self.runtime.measure([key])
        except (BackendError, TimeoutError):
            measured_workloads = {}
        checks = self._filters.setdefault(_RUNTIME_SOURCE, MeasurementFilter())
        measurements = totals(checks.filter_measurements(measured_workloads.get(key, ())))
        self._workload_metrics(key, kernel, measurements.values(), self.clock())
        series = self._of_workloads.pop(key)
        carried_counters = dict(kernel.carried)
        for name in self._counter_totals:
            if name in series:
                carried_counters[name] = max(carried_counters.get(name, 0.0), series[name].last)
        for name, measurement in measurements.items():
            if measurement.kind is MetricKind.GAUGE and "max" in measurement.stats:
                carried_counters[name] = max(carried_counters.get(name, 0.0), series[name].largest)
        return carried_counters

    def of_kernel(self, kernel_id: str) -> dict[str, Metric]:
        """Returns the newest metrics of a kernel, empty if there are none."""
        encoded_metrics = self.kernels.get(kernel_id)
        return {} if encoded_metrics is None else msgspec.msgpack.decode(encoded_metrics, type=dict[str, Metric])

    async def gather(self, kernels: Sequence[Kernel]) -> None:
        """Measures the node and these kernels once."""
        kernel_of_key = {kernel.key: kernel for kernel in kernels}
        allocation_of_kernel = {kernel.key.kernel_id: self.inventory.holding(kernel.id) for kernel in kernels}
        answers = await asyncio.gather(
            *((self._query_runtime(list(kernel_of_key)),) if kernel_of_key else ()),
            *(() if self.host is None else (self._query_host(self.host),)),
            *(
                self._query_plugin(handle, kernel_of_key, allocation_of_kernel)
                for handle in self.plugins.started()
                if _measures(handle.plugin)
            ),
        )
        self._store_answers(answers, kernel_of_key, self.clock())

    async def _query_runtime(self, keys: list[WorkloadKey]) -> _SourceAnswer:
        async def query(checks: MeasurementFilter) -> _SourceAnswer:
            measured = await self.runtime.measure(keys)
            return _SourceAnswer(
                _RUNTIME_SOURCE, workloads={key: checks.filter_measurements(values) for key, values in measured.items()}
            )

        return await self._query(_RUNTIME_SOURCE, query, _SourceAnswer(_RUNTIME_SOURCE), _OWN_PATIENCE_S)

    async def _query_host(self, host: NodeMeter) -> _SourceAnswer:
        async def query(checks: MeasurementFilter) -> _SourceAnswer:
            return _SourceAnswer(_HOST_SOURCE, node=checks.filter_measurements(await asyncio.to_thread(host.measure)))

        return await self._query(_HOST_SOURCE, query, _SourceAnswer(_HOST_SOURCE), _OWN_PATIENCE_S)

    async def _query_plugin(
        self,
        handle: PluginHandle,
        kernel_of_key: Mapping[WorkloadKey, Kernel],
        allocation_of_kernel: Mapping[KernelId, DeviceAllocation],
    ) -> _SourceAnswer:
        device_kind = self.inventory.kinds.get(handle.key)
        slot_names = device_kind.slot_names if device_kind is not None else frozenset()
        indexes = (
            {str(device.device_id): index for index, device in enumerate(device_kind.listed_devices)}
            if device_kind is not None
            else {}
        )
        key_of_kernel = {
            key.kernel_id: key
            for key in kernel_of_key
            if not slot_names.isdisjoint(allocation_of_kernel[key.kernel_id].slots)
        }

        async def query(checks: MeasurementFilter) -> _SourceAnswer:
            has_processes = handle.plugin.capabilities.process_metrics
            context = StatContext(
                at=self.wall_clock(),
                allocations={kernel_id: allocation_of_kernel[kernel_id] for kernel_id in key_of_kernel},
                pids={kernel_id: await self.runtime.pids(key) for kernel_id, key in key_of_kernel.items()}
                if has_processes
                else {},
            )
            node_measurements = await handle.call(
                "gather_node_metrics", lambda plugin: plugin.gather_node_metrics(context)
            )
            measurements_of_workload: Mapping[KernelId, Sequence[Measurement]] = {}
            if key_of_kernel:
                measurements_of_workload = await handle.call(
                    "gather_workload_metrics",
                    lambda plugin: plugin.gather_workload_metrics(context, list(key_of_kernel)),
                )
            return _SourceAnswer(
                handle.key,
                node=checks.filter_measurements(node_measurements, indexes.keys()),
                workloads={
                    key_of_kernel[kernel_id]: checks.filter_measurements(values)
                    for kernel_id, values in measurements_of_workload.items()
                    if kernel_id in key_of_kernel
                },
                indexes=indexes,
            )

        return await self._query("statistics", query, _SourceAnswer(handle.key), PATIENCE_S, handle)

    async def _query(
        self,
        subject: str,
        query: Callable[[MeasurementFilter], Awaitable[T]],
        default: T,
        patience_s: float,
        handle: PluginHandle | None = None,
    ) -> T:
        """Runs the query of one source with a timeout, and returns its answer, or ``default`` after a failure. A
        failure becomes a complaint about the plugin, or a line in the log.
        """
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

    async def busiest_processes(self, kernel: Kernel, *, limit: int) -> list[ProcessInfo]:
        """Returns the busiest processes of a kernel (decision 0067), measured twice within a quarter of a second."""
        earlier_views = {(view.pid, view.started): view for view in await self.runtime.measure_processes(kernel.key)}
        earlier_at = self.clock()
        await asyncio.sleep(_BETWEEN_SAMPLES_S)
        process_views, later_at = await self.runtime.measure_processes(kernel.key), self.clock()
        metrics_and_ranks = [
            _process_metrics(earlier_views.get((view.pid, view.started)), view, earlier_at, later_at)
            for view in process_views
        ]
        ranked_processes = sorted(
            zip(metrics_and_ranks, process_views, strict=True), key=lambda ranked_pair: ranked_pair[0][1:], reverse=True
        )
        shown_processes = ranked_processes[: min(max(0, limit), _MAX_SHOWN_PROCESSES)]
        plugin_metrics_of_process = await self._plugin_metrics(kernel, [view.pid for _, view in shown_processes])
        return [
            ProcessInfo(
                pid=view.shown_pid,
                command=view.command,
                metrics={**plugin_metrics_of_process.get(view.pid, {}), **metrics},
            )
            for (metrics, _, _), view in shown_processes
        ]

    async def _plugin_metrics(self, kernel: Kernel, pids: Sequence[int]) -> dict[int, dict[str, Metric]]:
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
                kernel_of_process = dict.fromkeys(pids, kernel_id)
                measurements_of_process = await handle.call(
                    "gather_process_metrics", lambda plugin: plugin.gather_process_metrics(context, kernel_of_process)
                )
                for pid in pids:
                    values = totals(checks.filter_measurements(measurements_of_process.get(pid, ()))).values()
                    metrics[pid].update({measurement.key: Series().add(measurement, 0.0) for measurement in values})

            await self._query("statistics of processes", query, None, PATIENCE_S, handle)
        return metrics

    def _store_answers(
        self, answers: Iterable[_SourceAnswer], by_key: Mapping[WorkloadKey, Kernel], measured_at: float
    ) -> None:
        node_metrics: dict[str, Metric] = {}
        metrics_of_devices: dict[str, dict[str, Metric]] = {}
        by_key = {
            key: kernel
            for key, kernel in by_key.items()
            if kernel.attempt == key.attempt and kernel.phase is Phase.RUNNING
        }
        measurements_of_workload: dict[WorkloadKey, dict[str, Measurement]] = {key: {} for key in by_key}
        exposition = Exposition()
        plain_measurements: dict[WorkloadKey, list[Measurement]] = {}
        for answer in answers:
            readings: dict[DeviceId, dict[str, Reading]] = {}
            exposition.add_devices(
                answer.source,
                answer.indexes,
                [measurement for measurement in answer.node if measurement.device_id is not None],
            )
            node_totals = {
                key: measurement for key, measurement in totals(answer.node).items() if key not in node_metrics
            }
            exposition.add_node(node_totals.values())
            node_metrics.update({key: self._add(measurement, measured_at) for key, measurement in node_totals.items()})
            for measurement in answer.node:
                if measurement.device_id is not None:
                    metrics_of_devices.setdefault(measurement.key, {})[str(measurement.device_id)] = self._add(
                        measurement, measured_at, str(measurement.device_id)
                    )
                    rate_per_s = self._series_of_node[measurement.key, str(measurement.device_id)].rate
                    readings_of_device = readings.setdefault(measurement.device_id, {})
                    readings_of_device[measurement.key] = Reading(measurement.value, rate_per_s)
            if self.metric_rules is not None and readings:
                self.metric_rules.observe(answer.source, readings)
            for key, measurements in answer.workloads.items():
                if key in measurements_of_workload:
                    plain_measurements.setdefault(key, []).extend(measurements)
                    measurements_of_workload[key] = {**totals(measurements), **measurements_of_workload[key]}
        metrics = {
            kernel.id: msgspec.Raw(
                _encode(self._workload_metrics(key, kernel, measurements_of_workload[key].values(), measured_at))
            )
            for key, kernel in by_key.items()
        }
        if self.overuse is not None:
            self.overuse.check(plain_measurements, by_key, measured_at)
        exposition.add_workloads([*_gauge_sums(measurements_of_workload.values()), *self._counter_totals.values()])
        self.node, self.devices, self.kernels = node_metrics, metrics_of_devices, metrics
        self.families = [*exposition.families(), *(() if self.overuse is None else (self.overuse.family(),))]
        self._series_of_node = {
            name: series
            for name, series in self._series_of_node.items()
            if measured_at - series.last_at < _FORGET_SERIES_S
        }
        if len(self._indexes) > _MAX_METRIC_KEYS:
            self._indexes, self._of_workloads = {}, {}
        # A workload that is ended or restarted now is not among these, and its last values are still to be taken.
        self._of_workloads = {
            key: series_of_workload
            for key, series_of_workload in self._of_workloads.items()
            if key in by_key or measured_at - series_of_workload.last_at < _FORGET_SERIES_S
        }

    def _workload_metrics(
        self, key: WorkloadKey, kernel: Kernel, measurements: Iterable[Measurement], measured_at: float
    ) -> dict[str, Metric]:
        """Returns the metrics of a workload, and adds the growth of its counters to the node's sums.

        The first value of a workload that began under this agent counts as growth; that of an adopted one does not.
        """
        series = self._of_workloads.setdefault(key, SeriesOfWorkload(self._indexes))
        began_here = kernel.created_at >= self._started_at
        metrics: dict[str, Metric] = {}
        for measurement in measurements:
            is_new = began_here and measurement.key not in series
            carried_value = kernel.carried.get(measurement.key, 0.0)
            metrics[measurement.key] = series[measurement.key].add(measurement, measured_at, carried_value)
            if measurement.kind is not MetricKind.GAUGE:
                growth = measurement.value if is_new else series[measurement.key].diff
                self._counter_totals.setdefault(measurement.key, WorkloadTotal(measurement, 0.0, None)).value += growth
        return metrics

    def _add(self, measurement: Measurement, measured_at: float, device_id: str = "") -> Metric:
        series_key = (measurement.key, device_id) if device_id else measurement.key
        if series_key not in self._series_of_node:
            self._series_of_node[series_key] = Series()
        return self._series_of_node[series_key].add(measurement, measured_at)


def _measures(plugin: AbstractComputePlugin) -> bool:
    """Returns True if a plugin measures its devices or workloads: if it overrides at least one of the two methods.

    The inherited methods measure nothing.
    """
    plugin_class, base_class = type(plugin), AbstractComputePlugin
    return (
        plugin_class.gather_node_metrics is not base_class.gather_node_metrics
        or plugin_class.gather_workload_metrics is not base_class.gather_workload_metrics
    )


def _gauge_sums(workloads: Iterable[Mapping[str, Measurement]]) -> Iterable[WorkloadTotal]:
    total_of_key: dict[str, WorkloadTotal] = {}
    for measurements in workloads:
        for key, measurement in measurements.items():
            if measurement.kind is not MetricKind.GAUGE:
                continue
            total = total_of_key.setdefault(key, WorkloadTotal(measurement, 0.0, 0.0))
            total.value += measurement.value
            total.capacity = (
                None
                if total.capacity is None or measurement.capacity is None
                else total.capacity + measurement.capacity
            )
    return total_of_key.values()


def _process_metrics(
    earlier_view: ProcessView | None, later_view: ProcessView, earlier_at: float, later_at: float
) -> tuple[dict[str, Metric], float, float]:
    """Returns the metrics of one process, its use of the CPU in percent of a core, and its bytes of memory.

    ``earlier_view`` is the earlier measurement of the same process, None for a new one.
    """
    earlier_measurements = (
        {measurement.key: measurement for measurement in earlier_view.measurements} if earlier_view is not None else {}
    )
    metrics: dict[str, Metric] = {}
    cpu_percent = memory_bytes = 0.0
    for measurement in later_view.measurements:
        series = Series()
        if measurement.key in earlier_measurements:
            series.add(earlier_measurements[measurement.key], earlier_at)
        metrics[measurement.key] = series.add(measurement, later_at)
        if measurement.key == "cpu_used":
            cpu_percent = series.rate / 10
        elif measurement.key == "mem":
            memory_bytes = measurement.value
    utilisation = Measurement(key="cpu_util", value=cpu_percent, unit_hint="percent", capacity=100.0)
    return {"cpu_util": Series().add(utilisation, later_at), **metrics}, cpu_percent, memory_bytes
