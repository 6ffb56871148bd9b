"""Reports errors and figures of a daemon to its monitors, in one thread, without secrets."""

from __future__ import annotations

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any, TypeAlias

from prometheus_client.core import Metric
from pydantic import BaseModel

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.redaction import Cleaner, secrets_in
from ai.backend.infra.settings.tables import MonitorSettings
from ai.backend.infra.telemetry.recent import escape_unencodable, message_of
from ai.backend.plugin.entries import load_class, settings_for
from ai.backend.plugin.monitors import (
    ERROR_MONITOR_GROUP,
    STATS_MONITOR_GROUP,
    AbstractErrorMonitor,
    AbstractStatsMonitor,
    ErrorReport,
    Failure,
    Frame,
    Statistic,
)

log = logging.getLogger(__name__)
_MAX_WAITING = 256
_MAX_FRAMES = 64
_MAX_FAILURES = 8
_CLOSE_S = 2.0
"""Seconds for which the end of a daemon waits for its monitors."""
_COMPLAINT_INTERVAL_S = 60.0
_Series: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]


class Increases:
    """Translates Prometheus metric families to statistics, with counters as increases since the last report.

    Counters, and the sums and counts of histograms, become what they have grown by since the last call; others gauges.
    """

    def __init__(self, clean: Callable[[str], str]) -> None:
        self._clean = clean
        self._last: dict[_Series, float] = {}

    def statistics_of(self, families: Iterable[Metric]) -> list[Statistic]:
        """Returns the statistics of metric families: values of gauges, and growth of counters since the last call.

        A counter that is new or began anew has grown by its whole value. Counters that have not grown, buckets of
        histograms and times of creation are left out.
        """
        statistics = []
        for family in families:
            for sample in family.samples:
                if sample.name.endswith(("_created", "_bucket")):
                    continue
                labels = {name: self._clean(escape_unencodable(value)) for name, value in sample.labels.items()}
                if family.type not in ("counter", "histogram", "summary"):
                    statistics.append(Statistic(sample.name, "gauge", sample.value, labels))
                    continue
                series_key = (sample.name, tuple(sorted(sample.labels.items())))
                increase = sample.value - self._last.get(series_key, 0.0)
                self._last[series_key] = sample.value
                if increase:  # a process that began anew counts from zero
                    statistics.append(
                        Statistic(sample.name, "counter", increase if increase > 0 else sample.value, labels)
                    )
        return statistics


@dataclass(eq=False)
class Monitors:
    """Runs the monitors of this process. Only :meth:`close` waits for a monitor, and no method raises its errors."""

    daemon: str
    errors: Mapping[str, AbstractErrorMonitor]
    statistics: Mapping[str, AbstractStatsMonitor]
    interval_s: float
    clean: Callable[[str], str]
    handler: logging.Handler = field(init=False)
    _waiting: queue.Queue[Callable[[], None] | None] = field(init=False)
    _thread: threading.Thread = field(init=False)
    _increases: Increases = field(init=False)
    _complained_at: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self._waiting = queue.Queue(_MAX_WAITING)
        self._increases = Increases(self.clean)
        self._thread = threading.Thread(target=self._work, name="monitors", daemon=True)
        self.handler = _ErrorHandler(self)
        self._thread.start()

    def report_error(self, record: logging.LogRecord) -> None:
        """Queues an error for the monitors.

        Drops an error that a monitor itself has logged, or if the queue is full.
        """
        if self.errors and threading.current_thread() is not self._thread:
            report = self._report_of(record)
            for name, monitor in self.errors.items():
                self._put(partial(self._guard, name, partial(monitor.report, report)))

    def report_statistics(self, families: Sequence[Metric]) -> None:
        """Queues the present values for the monitors. Drops the values if the queue is full."""
        self._put(partial(self._report_statistics, families))

    def close(self) -> None:
        """Sends the queued reports for at most two seconds, and drops the remaining reports."""
        ends_at = time.monotonic() + _CLOSE_S
        self._put(None)
        self._thread.join(_CLOSE_S / 2)
        for name, monitor in {**self.errors, **self.statistics}.items():
            left_s = max(0.1, ends_at - time.monotonic())
            closing_thread = threading.Thread(
                target=self._guard, args=(name, partial(monitor.close, left_s)), daemon=True
            )
            closing_thread.start()
            closing_thread.join(left_s)

    def _put(self, report: Callable[[], None] | None) -> None:
        try:
            self._waiting.put_nowait(report)
        except queue.Full:
            return

    def _work(self) -> None:
        while (report := self._waiting.get()) is not None:
            report()

    def _guard(self, name: str, call_monitor: Callable[[], object]) -> None:
        try:
            call_monitor()
        except Exception:  # monitors are others' code, and must not end the thread
            if time.monotonic() - self._complained_at >= _COMPLAINT_INTERVAL_S:
                self._complained_at = time.monotonic()
                log.warning("the monitor %s failed", name, exc_info=True)

    def _report_statistics(self, families: Sequence[Metric]) -> None:
        statistics = self._increases.statistics_of(families)
        for name, monitor in self.statistics.items():
            self._guard(name, partial(monitor.report, statistics))

    def _report_of(self, record: logging.LogRecord) -> ErrorReport:
        error = record.exc_info[1] if record.exc_info else None
        return ErrorReport(
            at=record.created,
            daemon=self.daemon,
            level="critical" if record.levelno >= logging.CRITICAL else "error",
            logger=record.name,
            message=self.clean(message_of(record)),
            template=self.clean(escape_unencodable(str(record.msg))),
            failures=list(self._failures_of(error)) if error is not None else [],
            ids={name: escape_unencodable(value) for name, value in getattr(record, "ids", {}).items()},
        )

    def _failures_of(self, error: BaseException) -> Iterator[Failure]:
        """Yields an exception after its causes."""
        causes = [error]
        while len(causes) < _MAX_FAILURES:
            last_cause = causes[-1]
            earlier_cause = last_cause.__cause__ or (
                None if last_cause.__suppress_context__ else last_cause.__context__
            )
            if earlier_cause is None or earlier_cause in causes:
                break
            causes.append(earlier_cause)
        for cause in reversed(causes):
            frames = traceback.walk_tb(cause.__traceback__)
            yield Failure(
                type(cause).__name__,
                type(cause).__module__,
                self.clean(escape_unencodable(str(cause))),
                [_frame_of(frame.f_globals, frame.f_code, line) for frame, line in frames][-_MAX_FRAMES:],
            )


def _frame_of(module_globals: Mapping[str, Any], code: Any, line: int) -> Frame:
    return Frame(str(module_globals.get("__name__", "")), code.co_name, code.co_filename, line)


class _ErrorHandler(logging.Handler):
    """Reports log records of errors to the monitors."""

    def __init__(self, monitors: Monitors) -> None:
        super().__init__(logging.ERROR)
        self._monitors = monitors

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._monitors.report_error(record)
        except Exception:  # noqa: BLE001  # as every handler does: what is logged must not fail
            self.handleError(record)


def load_monitors(
    daemon: str, settings: MonitorSettings, all_settings: BaseModel, *, with_statistics: bool
) -> Monitors | None:
    """Returns the monitors that the settings name. Returns None if the settings name no monitor. No secret of
    ``all_settings`` is ever sent.

    Raises InvalidInput: one is not installed, or has wrong settings; PluginError.
    """
    names = {*settings.errors, *settings.statistics}
    if unknown_names := settings.options.keys() - names:
        raise InvalidInput(f"monitors.options has {', '.join(sorted(unknown_names))}, which no list of monitors names.")
    monitors_by_group: dict[str, dict[str, Any]] = {}
    secrets = list(secrets_in(all_settings))
    for group, base_class, monitor_names in (
        (ERROR_MONITOR_GROUP, AbstractErrorMonitor, settings.errors),
        (STATS_MONITOR_GROUP, AbstractStatsMonitor, settings.statistics if with_statistics else ()),
    ):
        monitors_by_group[group] = {}
        for name in monitor_names:
            monitor_class = load_class(group, name, base_class)
            monitor_settings = settings_for(
                monitor_class, settings.options.get(name, {}), settings_path=f"monitors.options.{name}"
            )
            secrets += secrets_in(monitor_settings)
            try:
                monitors_by_group[group][name] = monitor_class(
                    monitor_settings, daemon=daemon, version=version("backendai")
                )
            except ValueError as e:
                raise InvalidInput(f"monitors.options.{name}: {Cleaner(secrets).clean(str(e))}") from None
    errors, statistics = monitors_by_group[ERROR_MONITOR_GROUP], monitors_by_group[STATS_MONITOR_GROUP]
    if not errors and not statistics:
        return None
    return Monitors(daemon, errors, statistics, settings.interval_s, Cleaner(secrets).clean)
