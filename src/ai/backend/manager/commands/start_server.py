"""Implements `backend.ai mgr start-server`, which runs the manager daemon."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.process.daemon import level_reload, on_hang_up, reported_errors, run_daemon
from ai.backend.infra.process.memory import collect_rarely, share_one_heap, trim_while_running
from ai.backend.infra.process.pid_file import PidFile
from ai.backend.infra.process.user import change_user
from ai.backend.infra.process.workers import ProcessSupervisor, wait_for_first_process
from ai.backend.infra.settings import load_settings, warn_of_keys_without_effect
from ai.backend.infra.telemetry import (
    Metrics,
    configure_logging_by_settings,
    count_together,
    start_monitors,
    start_telemetry,
)
from ai.backend.manager.composition import backing_services
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings

log = logging.getLogger(__name__)
_WORKER_CODE = "from ai.backend.manager.main import main; main()"


async def serve(
    settings: ManagerSettings, stop: asyncio.Event, *, ready: Callable[[str], None] = log.info, number: int = 0
) -> None:
    """Runs a manager until ``stop`` is set. Agents reach the manager by ZeroMQ, and clients by HTTP.

    Sessions continue after the end. ``number`` is that of this process if several serve. Raises OSError if an address
    cannot be bound, BackendError if the database cannot be used.
    """
    from ai.backend.infra.http.server import make_runner, serve_on, tls_of
    from ai.backend.infra.rpc.data.server import DataServer
    from ai.backend.infra.rpc.zmq.key_files import ReplacedFile
    from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, load_keypair, load_or_generate_keypair
    from ai.backend.infra.rpc.zmq.manager import ZmqManagerEndpoint
    from ai.backend.manager.composition.app import build_app

    manager_settings = settings.manager
    metrics = Metrics("manager")
    tls = None
    if manager_settings.ssl_enabled and manager_settings.ssl_cert and manager_settings.ssl_privkey:
        tls = tls_of(manager_settings.ssl_cert, manager_settings.ssl_privkey, metrics=metrics)
    settings = backing_services.settings_of_process(settings, number)
    external_services = backing_services.BackingServices.of(settings)
    key_file = backing_services.link_key_file(settings)
    load_or_generate_keypair(key_file)
    link_key = ReplacedFile(key_file, load_keypair)
    endpoint = ZmqManagerEndpoint(
        bind=settings.agent_link.bind,
        keypair=link_key.newest(),
        newest_keypair=link_key.newest,
        agent_keys=AgentKeyDirectory(backing_services.agent_keys_folder(settings)),
        data=DataServer(
            settings.agent_link.data_port,
            settings.data_dir.expanduser().absolute() / f"link{number or ''}" / "data.sock",
        ),
    )
    sealer = backing_services.sealer_of(settings)
    manager = Manager(
        settings,
        external_services.database,
        external_services.bus,
        endpoint,
        sealer=sealer,
        config=external_services.config,
        metrics=metrics,
    )
    external_services.measure(manager.metrics)
    runner = make_runner(build_app(manager, readiness=external_services.readiness, limiter=external_services.limiter))
    try:
        await external_services.start()
        await manager.start()
        await endpoint.start(manager.reports)
        listen_address = settings.listen.host, settings.listen.port
        host, port = await serve_on(runner, listen_address, tls=tls, shares_port=manager_settings.num_proc > 1)
        address = backing_services.advertised_address(settings, endpoint.address)
        announce_key = partial(external_services.announce, address.rpartition("://")[2].replace("/", "_"), address)
        announce_key(endpoint.keypair.public)
        endpoint.on_new_key = announce_key
        ready(f"the manager listens on http{'s' if tls else ''}://{host}:{port} and for agents on {endpoint.address}")
        async with trim_while_running(external_services.database.close_idle):
            await stop.wait()
    finally:
        await runner.cleanup()
        await endpoint.stop()
        await manager.stop()
        await external_services.stop()


async def _serve_first_process(
    settings: ManagerSettings, stop: asyncio.Event, worker_command: Callable[[int], Sequence[str]]
) -> None:
    """Serves in the first process and starts the others once the database is up to date."""
    workers = ProcessSupervisor(
        {f"worker {number}": worker_command(number) for number in range(1, settings.manager.num_proc)}
    )

    async def end_workers() -> None:
        await stop.wait()
        await workers.stop()

    def ready(message: str) -> None:
        log.info(message)
        workers.start()
        on_hang_up.append(workers.hang_up)

    with PidFile(settings.manager.pid_file):
        if settings.manager.num_proc > 1:
            _check_shareable(settings)
            count_together(_metrics_folder(settings), 0)
        ending_task = asyncio.create_task(end_workers())
        try:
            await serve(settings, stop, ready=ready)
        finally:
            stop.set()
            await ending_task


def _check_shareable(settings: ManagerSettings) -> None:
    """Refuses settings that several processes cannot share. Raises InvalidInput."""
    if settings.database_url is None or not settings.database_url.startswith("postgresql"):
        message = "manager.num-proc above 1 needs PostgreSQL, named in the table db: SQLite serves one process."
        raise InvalidInput(message, data={"manager.num-proc": "not with SQLite"})
    if settings.redis is None:
        log.warning("without a table redis, each process counts rate limits alone and hears late of the others' work")


async def _serve_further_process(settings: ManagerSettings, number: int) -> None:
    """Serves in a further process until the first one ends."""
    count_together(_metrics_folder(settings), number)
    stop = asyncio.Event()
    serving_task = asyncio.create_task(serve(settings, stop, number=number))
    first_ended_task = asyncio.create_task(wait_for_first_process())
    await asyncio.wait([serving_task, first_ended_task], return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    first_ended_task.cancel()
    await serving_task


def _metrics_folder(settings: ManagerSettings) -> Path:
    return settings.data_dir.expanduser().absolute() / "metrics"


def _reload_settings(config: Path | None) -> ManagerSettings:
    return load_settings(ManagerSettings, name="manager", path=config, env_prefix="BACKEND_MANAGER_")


@click.command("start-server")
@click.option("--worker", type=int, default=0, hidden=True, help="The number of a process that the first one starts.")
@click.pass_context
def start_server(context: click.Context, worker: int) -> None:
    """Serve the API and the agents."""
    settings: ManagerSettings = context.obj
    options = context.parent.params if context.parent is not None else {}
    config, level = options.get("config"), options.get("log_level")
    with reported_errors():
        change_user(settings.manager.user, settings.manager.group)
        configured_level = level or settings.debug.log_level
        configure_logging_by_settings("manager", settings.logging, level=configured_level, process_number=worker)
        warn_of_keys_without_effect(settings)
        start_telemetry("manager", settings.otel)
        start_monitors("manager", settings.monitors, settings, process_number=worker)
    share_one_heap()
    collect_rarely()
    arguments = [*(("--config", str(config)) if config else ()), *(("--log-level", level) if level else ())]
    command = [sys.executable, "-c", _WORKER_CODE, *arguments, "start-server", "--worker"]
    run_daemon(
        lambda stop: (
            _serve_further_process(settings, worker)
            if worker
            else _serve_first_process(settings, stop, lambda number: [*command, str(number)])
        ),
        debug=settings.debug.asyncio or None,
        reload=level_reload(lambda: _reload_settings(config).logging, level=configured_level),
    )
