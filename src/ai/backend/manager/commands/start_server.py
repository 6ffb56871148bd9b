"""`backend.ai mgr start-server`: the daemon."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

import click

from ai.backend.infra.heap import share_one_heap
from ai.backend.manager.adapters.backing import Backing, advertised, agent_keys_folder, link_key_file, sealer_of
from ai.backend.manager.commands.running import run
from ai.backend.manager.composition import Manager
from ai.backend.manager.config.settings import ManagerSettings

log = logging.getLogger(__name__)


async def serve(settings: ManagerSettings, stop: asyncio.Event, *, ready: Callable[[str], None] = log.info) -> None:
    """Run a manager that agents reach by ZeroMQ and clients by HTTP until ``stop`` is set. Sessions run on.

    Raises:
        OSError: an address cannot be bound. BackendError: the database cannot be used.
    """
    from ai.backend.infra.http.server import make_runner, serve_on
    from ai.backend.infra.rpc.data_server import DataServer
    from ai.backend.infra.rpc.keys import AgentKeyDirectory, load_or_generate_keypair
    from ai.backend.infra.rpc.zmq_manager import ZmqManagerEndpoint
    from ai.backend.manager.api.app import build_app

    backing = Backing.of(settings)
    keypair = load_or_generate_keypair(link_key_file(settings))
    endpoint = ZmqManagerEndpoint(
        bind=settings.agent_link.bind,
        keypair=keypair,
        agent_keys=AgentKeyDirectory(agent_keys_folder(settings)),
        data=DataServer(
            settings.agent_link.data_port,
            settings.data_dir.expanduser().absolute() / "link" / "data.sock",
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
        host, port = await serve_on(runner, (settings.listen.host, settings.listen.port))
        address = advertised(settings, endpoint.address)
        backing.tell_agents(address.rpartition("://")[2].replace("/", "_"), address, keypair.public)
        ready(f"the manager listens on http://{host}:{port} and for agents on {endpoint.address}")
        await stop.wait()
    finally:
        await runner.cleanup()
        await endpoint.stop()
        await manager.stop()
        await backing.stop()


@click.command("start-server")
@click.pass_obj
def start_server(settings: ManagerSettings) -> None:
    """Serve the API and the agents."""

    async def work() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(settings, stop)

    share_one_heap()
    run(work)
