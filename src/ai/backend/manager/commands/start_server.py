"""`backend.ai mgr start-server`: the daemon."""

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
from ai.backend.infra.telemetry import Metrics, count_together, log_as_configured, start_monitors, start_telemetry
from ai.backend.manager.composition import backing_services
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings

log = logging.getLogger(__name__)
_WORKER_CODE = "from ai.backend.manager.main import main; main()"


async def serve(
    settings: ManagerSettings, stop: asyncio.Event, *, ready: Callable[[str], None] = log.info, number: int = 0
) -> None:
    """Runs a manager that agents reach by ZeroMQ and clients by HTTP until ``stop`` is set. Sessions continue.
    ``number`` is that of this process if several serve. Raises OSError if an address cannot be bound, BackendError if
    the database cannot be used."""
    from ai.backend.infra.http.server import make_runner, serve_on, tls_of
    from ai.backend.infra.rpc.data.server import DataServer
    from ai.backend.infra.rpc.zmq.key_files import ReplacedFile
    from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, load_keypair, load_or_generate_keypair
    from ai.backend.infra.rpc.zmq.manager import ZmqManagerEndpoint
    from ai.backend.manager.composition.app import build_app

    own = settings.manager
    metrics = Metrics("manager")
    tls = None
    if own.ssl_enabled and own.ssl_cert and own.ssl_privkey:
        tls = tls_of(own.ssl_cert, own.ssl_privkey, metrics=metrics)
    settings = backing_services.of_process(settings, number)
    backing = backing_services.BackingServices.of(settings)
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
        settings, backing.database, backing.bus, endpoint, sealer=sealer, config=backing.config, metrics=metrics
    )
    backing.measure(manager.metrics)
    runner = make_runner(build_app(manager, limiter=backing.limiter))
    try:
        await backing.start()
        await manager.start()
        await endpoint.start(manager.reports)
        listen_address = settings.listen.host, settings.listen.port
        host, port = await serve_on(runner, listen_address, tls=tls, shares_port=own.num_proc > 1)
        address = backing_services.advertised(settings, endpoint.address)
        announce = partial(backing.announce, address.rpartition("://")[2].replace("/", "_"), address)
        announce(endpoint.keypair.public)
        endpoint.on_new_key = announce
        ready(f"the manager listens on http{'s' if tls else ''}://{host}:{port} and for agents on {endpoint.address}")
        async with trim_while_running(backing.database.close_idle):
            await stop.wait()
    finally:
        await runner.cleanup()
        await endpoint.stop()
        await manager.stop()
        await backing.stop()


async def _serve_first_process(
    settings: ManagerSettings, stop: asyncio.Event, worker: Callable[[int], Sequence[str]]
) -> None:
    """Serves in the first process and starts the others once the database is up to date."""
    workers = ProcessSupervisor({f"worker {number}": worker(number) for number in range(1, settings.manager.num_proc)})

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


def _read_again(config: Path | None) -> ManagerSettings:
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
        log_as_configured("manager", settings.logging, level=configured_level, process_number=worker)
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
        reload=level_reload(lambda: _read_again(config).logging, level=configured_level),
    )
