"""``backend.ai ag watcher``: a daemon beside the agent, which does to it what it is asked to."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import click

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.directory.directory import DataDirectory
from ai.backend.agent.runtimes import end_workloads, load_runtime
from ai.backend.agent.watcher_daemon.api import Watcher
from ai.backend.infra.http.server import make_runner, serve_on
from ai.backend.infra.http.tls import tls_of
from ai.backend.infra.process.daemon import config_option, log_level_option, run_daemon

log = logging.getLogger(__name__)


async def serve(settings: AgentSettings, stop: asyncio.Event) -> None:
    """Listen until ``stop`` is set.

    Raises:
        InvalidInput: there is no token, or the certificate cannot be used. OSError: the address cannot be bound.
    """
    own = settings.watcher
    tls = tls_of(own.ssl_cert, own.ssl_privkey) if own.ssl_enabled and own.ssl_cert and own.ssl_privkey else None

    async def end_sessions() -> int:
        directory = DataDirectory(settings.data_dir)
        directory.open()
        try:
            return await end_workloads(load_runtime(settings), grace_s=settings.kernel_lifecycles.stop_grace)
        finally:
            directory.close()

    runner = make_runner(Watcher(own, end_sessions).application())
    try:
        host, port = await serve_on(runner, (own.service_addr.host, own.service_addr.port), tls=tls)
        scheme = "https" if tls else "http"
        log.info("the watcher of %s listens on %s://%s:%d", own.target_service, scheme, host, port)
        await stop.wait()
    finally:
        await runner.cleanup()


@click.command("watcher")
@config_option("agent")
@log_level_option
def watcher(config: Path | None, log_level: str | None) -> None:
    """Start, stop and restart the agent of this node on request."""
    from ai.backend.infra.settings import load_settings
    from ai.backend.infra.telemetry import log_as_configured

    async def work(stop: asyncio.Event) -> None:
        settings = load_settings(AgentSettings, name="agent", path=config, env_prefix="BACKEND_AGENT_")
        own_file = settings.logging.file.model_copy(update={"filename": "watcher.log"})
        logs = settings.logging.model_copy(update={"file": own_file})
        log_as_configured("watcher", logs, level=log_level)
        await serve(settings, stop)

    run_daemon(work)
