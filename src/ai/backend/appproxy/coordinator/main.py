"""``backend.ai app-proxy-coordinator``: the commands of the coordinator daemon."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import click

from ai.backend.common.errors import BackendError
from ai.backend.infra.process.daemon import config_option, level_reload, log_level_option, run_daemon
from ai.backend.infra.settings.check import config as config_group

log = logging.getLogger(__name__)


@click.group()
def main() -> None:
    """The coordinator of the app proxy."""


main.add_command(config_group)


@main.command("start-server")
@config_option("proxy-coordinator")
@log_level_option
def start_server(config: Path | None, log_level: str | None) -> None:
    """Sign browsers in to apps of sessions, and tell workers what they serve."""
    from ai.backend.appproxy.coordinator.config.settings import CoordinatorSettings
    from ai.backend.infra.settings import load_settings, warn_of_keys_without_effect
    from ai.backend.infra.telemetry import configure_logging_by_settings, start_monitors, start_telemetry

    def load() -> CoordinatorSettings:
        return load_settings(
            CoordinatorSettings, name="proxy-coordinator", path=config, env_prefix="BACKEND_PROXY_COORDINATOR_"
        )

    try:
        settings = load()
        level = log_level or settings.debug.log_level
        configure_logging_by_settings("proxy-coordinator", settings.logging, level=level)
        warn_of_keys_without_effect(settings)
        start_telemetry("proxy-coordinator", settings.otel)
        start_monitors("proxy-coordinator", settings.monitors, settings)
    except BackendError as e:
        raise click.ClickException(str(e)) from e

    async def serve(stop: asyncio.Event) -> None:
        from ai.backend.appproxy.coordinator.composition import Coordinator
        from ai.backend.infra.process.pid_file import PidFile

        with PidFile(settings.proxy_coordinator.pid_file):
            coordinator = Coordinator(settings)
            try:
                await coordinator.start()
                log.info("the coordinator serves %s", coordinator.url)
                await stop.wait()
            finally:
                await coordinator.stop()

    reload = level_reload(lambda: load().logging, level=level)
    run_daemon(serve, debug=settings.debug.asyncio or None, reload=reload)
