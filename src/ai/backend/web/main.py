"""Commands of the web server daemon."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import click

from ai.backend.infra.process.daemon import config_option, log_level_option, reported_errors, run_daemon
from ai.backend.infra.process.pid_file import PidFile
from ai.backend.infra.settings import load_settings, warn_of_keys_without_effect
from ai.backend.infra.settings.check import config as config_group
from ai.backend.infra.telemetry import log_as_configured
from ai.backend.web.composition import WebServer
from ai.backend.web.config.settings import WebSettings

log = logging.getLogger(__name__)


async def serve(settings: WebSettings, stop: asyncio.Event, *, ready: Callable[[str], None] = log.info) -> None:
    """Runs a web server until ``stop`` is set. Raises InvalidInput: an address or a certificate cannot be used."""
    server = WebServer(settings)
    try:
        await server.start()
        ready(f"the web server serves {server.url} for {', '.join(settings.api.endpoint)}")
        await stop.wait()
    finally:
        await server.stop()


@click.group()
def main() -> None:
    """The web server daemon."""


main.add_command(config_group)


@main.command("start-server")
@config_option("webserver")
@log_level_option
def start_server(config: Path | None, log_level: str | None) -> None:
    """Serve browsers, and clients in session mode."""
    with reported_errors():
        settings = load_settings(WebSettings, name="webserver", path=config, env_prefix="BACKEND_WEB_")
        log_as_configured("webserver", settings.logging, level=log_level or settings.debug.log_level)
        warn_of_keys_without_effect(settings)

    async def run(stop: asyncio.Event) -> None:
        with PidFile(settings.service.pid_file):
            await serve(settings, stop)

    run_daemon(run, debug=settings.debug.asyncio or None)
