"""Starts and ends the sending of a process's traces, metrics and logs, if its settings enable it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings.tables import MonitorSettings, OtelSettings
from ai.backend.infra.telemetry.logs import ContextFilter
from ai.backend.infra.telemetry.metrics import metrics_of_process
from ai.backend.infra.telemetry.tracing import install_tracer, span

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from pydantic import BaseModel

    from ai.backend.infra.telemetry.monitors import Monitors
    from ai.backend.infra.telemetry.otlp import Telemetry

log = logging.getLogger(__name__)
_COMMAND_S = 2.0
"""Seconds for which the end of a command waits for the collector."""
_telemetry: Telemetry | None = None
_monitors: Monitors | None = None


def start_telemetry(daemon: str, settings: OtelSettings) -> None:
    """Starts to send traces, metrics and logs to the collector that the settings name, if the settings enable it. Call
    it after logging is set up, and have :func:`telemetry_sending` around the daemon's work.

    Raises InvalidInput if the SDK is not installed, or a certificate cannot be read.
    """
    global _telemetry  # noqa: PLW0603  # of the process, as its loggers are
    if not settings.enabled:
        return
    try:
        from ai.backend.infra.telemetry import otlp
    except ImportError as e:
        problem = f"otel.enabled needs the extra `otel` ({e.name} is missing): pip install 'backendai[otel]'"
        raise InvalidInput(problem, data={"otel.enabled": "the extra otel is not installed"}) from None
    try:
        exporters = otlp.exporters_of(settings)
    except OSError as e:
        problem = f"otel.ca-file {settings.ca_file} cannot be read: {e.strerror}"
        raise InvalidInput(problem, data={"otel.ca-file": str(e.strerror)}) from None
    _telemetry = otlp.Telemetry(settings, exporters, otlp.resource_of(daemon))
    root_logger = logging.getLogger()
    _telemetry.limit_warnings(root_logger.handlers)
    for handler in _telemetry.handlers():
        handler.addFilter(ContextFilter())
        root_logger.addHandler(handler)
    install_tracer(_telemetry.tracer)
    log.info("%s go to %s", " and ".join(settings.signals), settings.endpoint)


def start_monitors(daemon: str, settings: MonitorSettings, all_settings: BaseModel, *, process_number: int = 0) -> None:
    """Starts to report logged errors and statistics to the monitors that the settings name.

    Call it after logging is set up, and have :func:`telemetry_sending` around the daemon's work.

    Of several processes of a daemon the first, 0, reports the figures of all. No secret in ``all_settings`` is ever
    sent. Raises InvalidInput: a monitor is not installed, or has wrong settings; PluginError.
    """
    global _monitors  # noqa: PLW0603  # of the process, as its loggers are
    if not (settings.errors or settings.statistics or settings.options):
        return
    from ai.backend.infra.telemetry.monitors import load_monitors

    _monitors = load_monitors(daemon, settings, all_settings, with_statistics=process_number == 0)
    if _monitors is not None:
        _monitors.handler.addFilter(ContextFilter())
        logging.getLogger().addHandler(_monitors.handler)


def settings_of_environment() -> OtelSettings:
    """Returns settings from the SDK's own variables, for commands and `backend.ai up`, which have no settings file.

    Raises InvalidInput for a bad value.
    """
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return OtelSettings()
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "")
    try:
        return OtelSettings.model_validate(
            {
                "enabled": True,
                "endpoint": endpoint.rstrip("/"),
                "protocol": "http" if protocol.startswith("http") else protocol,
                "sample-ratio": os.environ.get("OTEL_TRACES_SAMPLER_ARG") or 1.0,
                "metrics-interval-s": float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or 60_000) / 1000,
            }
        )
    except ValueError as e:
        raise InvalidInput(f"The variables OTEL_* cannot be used: {e}") from None


@contextmanager
def traced_command(name: str) -> Iterator[None]:
    """Runs a block inside a span that is sent to the environment's collector. ``TRACEPARENT`` names the parent span.

    Raises InvalidInput as :func:`start_telemetry` and :func:`settings_of_environment` do.
    """
    settings = settings_of_environment().model_copy(update={"signals": ["traces"], "timeout_s": _COMMAND_S})
    start_telemetry("client", settings)
    try:
        with span(name, kind="client", parent=os.environ.get("TRACEPARENT")):
            yield
    finally:
        telemetry = _detach_telemetry()
        if telemetry is not None:
            telemetry.close()


def _detach_telemetry() -> Telemetry | None:
    """Ends tracing and returns the objects that must still be closed."""
    global _telemetry  # of the process, as its loggers are
    telemetry, _telemetry = _telemetry, None
    install_tracer(None)
    for handler in telemetry.handlers() if telemetry is not None else ():
        logging.getLogger().removeHandler(handler)
    return telemetry


@asynccontextmanager
async def telemetry_sending() -> AsyncIterator[None]:
    """Sends metrics at each interval while the block runs, and then the rest for at most two seconds."""
    async with _reporting_monitors(), _sending_telemetry():
        yield


@asynccontextmanager
async def _sending_telemetry() -> AsyncIterator[None]:
    telemetry = _telemetry
    if telemetry is None:
        yield
        return
    try:
        async with _background_task(_report_metrics(telemetry), name="otlp-metrics"):
            yield
    finally:
        _detach_telemetry()
        await _run_in_new_thread(telemetry.close)


@asynccontextmanager
async def _reporting_monitors() -> AsyncIterator[None]:
    global _monitors  # noqa: PLW0603  # of the process, as its loggers are
    monitors = _monitors
    if monitors is None:
        yield
        return
    try:
        async with _background_task(_report_statistics(monitors), name="monitors"):
            yield
    finally:
        _monitors = None
        logging.getLogger().removeHandler(monitors.handler)
        await _run_in_new_thread(monitors.close)


@asynccontextmanager
async def _background_task(work: Coroutine[None, None, None], *, name: str) -> AsyncIterator[None]:
    """Runs ``work`` while the block lasts."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _report_statistics(monitors: Monitors) -> None:
    while monitors.statistics:
        await asyncio.sleep(monitors.interval_s)
        try:
            monitors.report_statistics(await _families_of_process())
        except Exception:  # figures must not end a daemon
            log.warning("figures could not be reported", exc_info=True)


async def _families_of_process() -> list[Metric]:
    families: list[Metric] = []
    for metrics in metrics_of_process():
        await metrics.update()
        families += list(metrics.families())
    return families


async def _run_in_new_thread(work: Callable[[], object]) -> None:
    """Runs ``work`` in a new thread. Unlike the event loop's threads, the end of the process does not wait for it."""
    loop = asyncio.get_running_loop()
    completion: asyncio.Future[None] = loop.create_future()

    def complete(error: Exception | None) -> None:
        if not completion.done():
            completion.set_result(None) if error is None else completion.set_exception(error)

    def run() -> None:
        failure: Exception | None = None
        try:
            work()
        except Exception as e:  # noqa: BLE001  # raised again where it is awaited
            failure = e
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(complete, failure)

    threading.Thread(target=run, name="otlp", daemon=True).start()
    await completion


async def _report_metrics(telemetry: Telemetry) -> None:
    if telemetry.exporters.metrics is None:
        return
    from ai.backend.infra.telemetry.otlp_metrics import metrics_data

    while True:
        await asyncio.sleep(telemetry.settings.metrics_interval_s)
        try:
            data = metrics_data(await _families_of_process(), telemetry.resource)
            await _run_in_new_thread(partial(telemetry.exporters.metrics.export, data))
        except Exception:  # metrics must not end a daemon
            log.warning("metrics could not be sent", exc_info=True)
