"""`backend.ai mgr start-server`: the daemon."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.infra.process.daemon import run_daemon
from ai.backend.infra.process.memory import collect_rarely, share_one_heap, trimmed
from ai.backend.infra.process.pid_file import PidFile
from ai.backend.infra.process.workers import ProcessSupervisor, first_has_ended
from ai.backend.infra.telemetry import count_together, log_as_configured
from ai.backend.manager.composition.backing_services import (
    BackingServices,
    advertised,
    agent_keys_folder,
    link_key_file,
    of_process,
    sealer_of,
)
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings

log = logging.getLogger(__name__)
_COMMAND = "from ai.backend.manager.main import main; main()"


async def serve(
    settings: ManagerSettings, stop: asyncio.Event, *, ready: Callable[[str], None] = log.info, number: int = 0
) -> None:
    """Run a manager that agents reach by ZeroMQ and clients by HTTP until ``stop`` is set. Sessions run on.

    Args:
        number: of this process, where several serve on these settings; 0 is the first.

    Raises:
        OSError: an address cannot be bound. BackendError: the database cannot be used.
    """
    from ai.backend.infra.http.server import make_runner, serve_on, tls_of
    from ai.backend.infra.rpc.data.server import DataServer
    from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, load_or_generate_keypair
    from ai.backend.infra.rpc.zmq.manager import ZmqManagerEndpoint
    from ai.backend.manager.composition.app import build_app

    own = settings.manager
    tls = tls_of(own.ssl_cert, own.ssl_privkey) if own.ssl_enabled and own.ssl_cert and own.ssl_privkey else None
    settings = of_process(settings, number)
    backing = BackingServices.of(settings)
    keypair = load_or_generate_keypair(link_key_file(settings))
    endpoint = ZmqManagerEndpoint(
        bind=settings.agent_link.bind,
        keypair=keypair,
        agent_keys=AgentKeyDirectory(agent_keys_folder(settings)),
        data=DataServer(
            settings.agent_link.data_port,
            settings.data_dir.expanduser().absolute() / f"link{number or ''}" / "data.sock",
        ),
    )
    sealer = sealer_of(settings)
    manager = Manager(settings, backing.database, backing.bus, endpoint, sealer=sealer, config=backing.config)
    backing.measure(manager.metrics)
    runner = make_runner(build_app(manager, limiter=backing.limiter))
    try:
        await backing.start()
        await manager.start()
        await endpoint.start(manager.reports)
        where = settings.listen.host, settings.listen.port
        host, port = await serve_on(runner, where, tls=tls, shares=own.num_proc > 1)
        address = advertised(settings, endpoint.address)
        backing.tell_agents(address.rpartition("://")[2].replace("/", "_"), address, keypair.public)
        ready(f"the manager listens on http{'s' if tls else ''}://{host}:{port} and for agents on {endpoint.address}")
        async with trimmed(backing.database.rest):
            await stop.wait()
    finally:
        await runner.cleanup()
        await endpoint.stop()
        await manager.stop()
        await backing.stop()


async def _lead(settings: ManagerSettings, stop: asyncio.Event, worker: Callable[[int], Sequence[str]]) -> None:
    """The first process: serves, and looks after the others, which begin once the database is up to date."""
    workers = ProcessSupervisor({f"worker {n}": worker(n) for n in range(1, settings.manager.num_proc)})

    async def end_workers() -> None:
        await stop.wait()
        await workers.stop()

    def ready(told: str) -> None:
        log.info(told)
        workers.start()

    with PidFile(settings.manager.pid_file):
        if settings.manager.num_proc > 1:
            _check_several(settings)
            count_together(_metrics_folder(settings), 0)
        ending = asyncio.create_task(end_workers())
        try:
            await serve(settings, stop, ready=ready)
        finally:
            stop.set()
            await ending


def _check_several(settings: ManagerSettings) -> None:
    """Refuse what several processes cannot share. Raises InvalidInput."""
    if settings.database_url is None or not settings.database_url.startswith("postgresql"):
        raise InvalidInput(
            "manager.num-proc above 1 needs PostgreSQL, named in the table db: SQLite serves one process.",
            data={"manager.num-proc": "not with SQLite"},
        )
    if settings.redis is None:
        log.warning("without a table redis, each process counts rate limits alone and hears late of the others' work")


async def _follow(settings: ManagerSettings, number: int) -> None:
    """A further process. Signals are those of a terminal: the first one says when to end."""
    count_together(_metrics_folder(settings), number)
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(settings, stop, number=number))
    ended = asyncio.create_task(first_has_ended())
    await asyncio.wait([serving, ended], return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    ended.cancel()
    await serving


def _metrics_folder(settings: ManagerSettings) -> Path:
    return settings.data_dir.expanduser().absolute() / "metrics"


@click.command("start-server")
@click.option("--worker", type=int, default=0, hidden=True, help="The number of a process that the first one starts.")
@click.pass_context
def start_server(context: click.Context, worker: int) -> None:
    """Serve the API and the agents."""
    settings: ManagerSettings = context.obj
    given = context.parent.params if context.parent is not None else {}
    config, level = given.get("config"), given.get("log_level")
    try:
        log_as_configured("manager", settings.logging, level=level, number=worker)
    except BackendError as e:
        raise click.ClickException(str(e)) from e
    share_one_heap()
    collect_rarely()
    options = [*(("--config", str(config)) if config else ()), *(("--log-level", level) if level else ())]
    command = [sys.executable, "-c", _COMMAND, *options, "start-server", "--worker"]
    run_daemon(
        lambda stop: _follow(settings, worker) if worker else _lead(settings, stop, lambda n: [*command, str(n)])
    )
