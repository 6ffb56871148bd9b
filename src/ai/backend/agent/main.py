"""The commands of the agent: ``backend.ai ag start-server`` and ``backend.ai ag watcher``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from ai.backend.agent.composition import Agent as Agent  # noqa: PLC0414  # re-exported to embedding programs
from ai.backend.agent.composition import serve
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.devices.survey import PluginInspection as PluginInspection  # noqa: PLC0414  # re-exported to the CLI
from ai.backend.agent.devices.survey import survey
from ai.backend.agent.runtimes import CLUSTER_RUNTIME
from ai.backend.infra.process.daemon import (
    config_option,
    level_reload,
    log_level_option,
    quickest_loop,
    reported_errors,
    run_daemon,
)
from ai.backend.infra.settings.check import config as config_group


def _load_settings(path: Path | None) -> AgentSettings:
    from ai.backend.infra.settings import load_settings

    return load_settings(AgentSettings, name="agent", path=path, env_prefix="BACKEND_AGENT_")


def survey_node(config: Path | None, only: str | None = None, *, is_measured: bool = False) -> list[PluginInspection]:
    """Inspects the plugins of this node, and measures their devices. Raises InvalidInput for invalid settings."""
    from ai.backend.agent.metrics.devices import device_metrics

    return asyncio.run(survey(_load_settings(config), only, measure=device_metrics if is_measured else None))


@click.group
def main() -> None:
    """Runs the agent daemon's command line."""


main.add_command(config_group)


@main.command("start-server")
@config_option("agent")
@log_level_option
@click.option("--runtime", help="As `agent.runtime`, which it wins over; kubernetes serves the nodes of a cluster.")
def start_server(config: Path | None, log_level: str | None, runtime: str | None) -> None:
    """Serve the managers with the devices of this node, or of the nodes of a Kubernetes cluster."""
    from ai.backend.infra.process.memory import share_one_heap
    from ai.backend.infra.process.pid_file import PidFile
    from ai.backend.infra.settings import warn_of_keys_without_effect
    from ai.backend.infra.telemetry import configure_logging_by_settings, start_monitors, start_telemetry

    share_one_heap()

    with reported_errors():
        settings = _load_settings(config)
        if runtime is not None:
            settings = settings.model_copy(update={"agent": settings.agent.model_copy(update={"runtime": runtime})})
        configure_logging_by_settings("agent", settings.logging, level=log_level or settings.debug.log_level)
        warn_of_keys_without_effect(settings)
        start_telemetry("agent", settings.otel)
        start_monitors("agent", settings.monitors, settings)

    async def run_agent(stop: asyncio.Event) -> None:
        with PidFile(settings.agent.pid_file):
            if settings.agent.runtime == CLUSTER_RUNTIME:
                # Other agents load no client of Kubernetes.
                from ai.backend.agent.shard.composition import serve as serve_cluster

                await serve_cluster(settings, stop, load=lambda: _load_settings(config))
            else:
                await serve(settings, stop, load=lambda: _load_settings(config))

    reload = level_reload(lambda: _load_settings(config).logging, level=log_level or settings.debug.log_level)
    run_daemon(run_agent, loop_factory=quickest_loop(), debug=settings.debug.asyncio or None, reload=reload)


@main.command("watcher")
@config_option("agent")
@log_level_option
def watcher(config: Path | None, log_level: str | None) -> None:
    """Start, stop and restart the agent of this node on request."""
    # An agent does not load the HTTP server of the watcher.
    from ai.backend.agent.watcher_daemon.api import serve as serve_watcher
    from ai.backend.infra.telemetry import configure_logging_by_settings

    with reported_errors():
        settings = _load_settings(config)
        log_file = settings.logging.file.model_copy(update={"filename": "watcher.log"})
        configure_logging_by_settings(
            "watcher", settings.logging.model_copy(update={"file": log_file}), level=log_level
        )

    async def run_watcher(stop: asyncio.Event) -> None:
        await serve_watcher(settings, stop)

    run_daemon(run_watcher)
