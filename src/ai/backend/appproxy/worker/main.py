"""Commands of the worker of the app proxy."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import click

from ai.backend.appproxy.worker.composition import Worker
from ai.backend.appproxy.worker.config.settings import WorkerSettings
from ai.backend.infra.process.daemon import (
    config_option,
    level_reload,
    log_level_option,
    quickest_loop,
    reported_errors,
    run_daemon,
)
from ai.backend.infra.process.pid_file import PidFile
from ai.backend.infra.settings import load_settings, warn_of_keys_without_effect
from ai.backend.infra.settings.check import config as config_group
from ai.backend.infra.telemetry import configure_logging_by_settings, start_monitors, start_telemetry

log = logging.getLogger(__name__)


@click.group()
def main() -> None:
    """The worker of the app proxy."""


main.add_command(config_group)


def _load_settings(config: Path | None) -> WorkerSettings:
    return load_settings(WorkerSettings, name="proxy-worker", path=config, env_prefix="BACKEND_PROXY_WORKER_")


@main.command("start-server")
@config_option("proxy-worker")
@log_level_option
def start_server(config: Path | None, log_level: str | None) -> None:
    """Serve circuits to browsers and clients."""
    with reported_errors():
        settings = _load_settings(config)
        level = log_level or settings.debug.log_level
        configure_logging_by_settings("proxy-worker", settings.logging, level=level)
        warn_of_keys_without_effect(settings)
        start_telemetry("proxy-worker", settings.otel)
        start_monitors("proxy-worker", settings.monitors, settings)
    reload = level_reload(lambda: _load_settings(config).logging, level=level)
    run_daemon(
        lambda stop: serve(settings, stop),
        loop_factory=quickest_loop(),
        debug=settings.debug.asyncio or None,
        reload=reload,
    )


async def serve(settings: WorkerSettings, stop: asyncio.Event) -> None:
    """Runs a worker until ``stop`` is set. Raises InvalidInput if an address or a certificate cannot be used."""
    with PidFile(settings.proxy_worker.pid_file):
        worker = Worker(settings)
        try:
            await worker.start()
            log.info("the worker %s serves", settings.proxy_worker.authority)
            await stop.wait()
        finally:
            await worker.stop()
