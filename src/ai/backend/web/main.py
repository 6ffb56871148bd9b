"""Commands of the web server daemon."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from ai.backend.infra.process.daemon import config_option, level_reload, log_level_option, reported_errors, run_daemon
from ai.backend.infra.process.pid_file import PidFile
from ai.backend.infra.settings import load_settings, warn_of_keys_without_effect
from ai.backend.infra.settings.check import config as config_group
from ai.backend.infra.telemetry import configure_logging_by_settings, start_monitors, start_telemetry
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


def _load_settings(config: Path | None) -> WebSettings:
    return load_settings(WebSettings, name="webserver", path=config, env_prefix="BACKEND_WEB_")


@main.command("start-server")
@config_option("webserver")
@log_level_option
def start_server(config: Path | None, log_level: str | None) -> None:
    """Serve browsers, and clients in session mode."""
    with reported_errors():
        settings = _load_settings(config)
        configure_logging_by_settings("webserver", settings.logging, level=log_level or settings.debug.log_level)
        warn_of_keys_without_effect(settings)
        start_telemetry("webserver", settings.otel)
        start_monitors("webserver", settings.monitors, settings)

    async def run(stop: asyncio.Event) -> None:
        with PidFile(settings.service.pid_file):
            await serve(settings, stop)

    reload_level = level_reload(lambda: _load_settings(config).logging, level=log_level or settings.debug.log_level)
    run_daemon(run, debug=settings.debug.asyncio or None, reload=reload_level)


@main.command()
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def build(quiet: bool) -> None:
    """Build the console from the sources of this checkout, once for each state of them.

    Uses the Node.js of this computer if it is new enough, else installs one from the Python package index into
    the cache of this user. Web servers that run, those of `backend.ai up` included, serve the result at once.
    """
    from ai.backend.infra.console.build import build_bundle
    from ai.backend.infra.console.places import PACKAGED_FOLDER, cache_folder, is_bundle, source_folder
    from ai.backend.infra.console.programs import BuildFailed

    started_at = time.monotonic()

    def report(step: str) -> None:
        if not quiet:
            click.echo(f"{time.monotonic() - started_at:5.1f} s  {step}")

    sources = source_folder()
    if sources is None:
        if is_bundle(PACKAGED_FOLDER):
            click.echo("The console is in this installation already.")
            return
        click.echo("backend.ai: This installation has no sources of the console; install a wheel with it.", err=True)
        sys.exit(1)
    try:
        folder = build_bundle(sources, cache_folder(), report=report)
    except BuildFailed as e:
        click.echo(f"backend.ai: {e}", err=True)
        sys.exit(1)
    if not quiet:
        click.echo(f"The console is built: {folder}")
