"""Runs one daemon of an embedded cluster whose daemons are separate processes.

Usage: python -m ai.backend.standalone.daemon DATA_DIR (storage | manager | app-proxy | web | agent ID).
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from ai.backend.common.errors import BackendError, InvalidInput
from ai.backend.infra.bus import Signal
from ai.backend.infra.process.memory import reuse_receive_buffers, share_one_heap, trim_while_running
from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, load_keypair, load_or_generate_keypair
from ai.backend.infra.telemetry import configure_logging, settings_of_environment, start_telemetry, telemetry_sending
from ai.backend.standalone.instance import ClusterFile, InstanceLock, listen, read_cluster_file
from ai.backend.standalone.layout import Layout

log = logging.getLogger(__name__)
_ORPHAN_CHECK_S = 1.0
_ORPHAN_STOP_S = 2.0
_PREDECESSOR_TIMEOUT_S = 30.0
"""The seconds that a daemon of an earlier supervisor may take to end."""


class Daemon(Protocol):
    """Starts and stops one of the daemons that the embedded cluster runs in this process."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


@runtime_checkable
class Reloadable(Protocol):
    """Represents a daemon that applies changed settings while it runs."""

    async def reload(self) -> None: ...


def make_keys(layout: Layout, agents: Sequence[str]) -> None:
    """Creates, once, the CURVE keys of manager and agents and the storage proxy's secrets.

    Only these agents may connect.
    """
    from ai.backend.standalone.storage_daemon import secret

    for name in ("storage-manager", "storage-tokens", "app-proxy"):
        secret(layout, name)
    load_or_generate_keypair(layout.keys / "manager")
    directory = AgentKeyDirectory(layout.keys / "agents")
    for stale_files in (layout.keys / "agents").glob("*.pub"):
        if stale_files.stem not in agents:
            directory.revoke(stale_files.stem)
    for agent_id in agents:
        directory.allow(agent_id, load_or_generate_keypair(layout.keys / f"agent-{agent_id}").public)


def make_manager(layout: Layout, cluster: ClusterFile) -> Daemon:
    from ai.backend.infra.rpc.data.server import DataServer
    from ai.backend.infra.rpc.zmq.manager import ZmqManagerEndpoint
    from ai.backend.standalone.manager_daemon import ManagerDaemon

    endpoint = ZmqManagerEndpoint(
        bind=f"tcp://127.0.0.1:{cluster.rpc_port}",
        keypair=load_keypair(layout.keys / "manager"),
        agent_keys=AgentKeyDirectory(layout.keys / "agents"),
        data=DataServer(path=layout.data_socket),
    )
    return ManagerDaemon(layout, endpoint, listen(cluster.host, cluster.port), cluster=cluster)


def make_agent(layout: Layout, cluster: ClusterFile, agent_id: str) -> Daemon:
    from ai.backend.infra.rpc.zmq.agent import ZmqAgentEndpoint
    from ai.backend.standalone.agent_daemon import AgentDaemon

    endpoint = ZmqAgentEndpoint(
        connect=f"tcp://127.0.0.1:{cluster.rpc_port}",
        agent_id=agent_id,
        keypair=load_keypair(layout.keys / f"agent-{agent_id}"),
        manager_key=load_keypair(layout.keys / "manager").public,
    )
    return AgentDaemon(layout, agent_id, endpoint, cluster)


async def run(daemon: Daemon) -> None:
    """Runs a daemon until SIGINT, SIGTERM, or the death of the supervisor that is named in the environment.

    SIGHUP reloads it, where it can be.

    After that death the next supervisor waits for its port and files: the daemon ends at once if it cannot stop soon,
    as it may at any instruction.
    """
    stop = Signal()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    reload_tasks: set[asyncio.Task[None]] = set()

    def reload() -> None:
        if isinstance(daemon, Reloadable):
            task = asyncio.create_task(daemon.reload(), name="reload")
            reload_tasks.add(task)
            task.add_done_callback(reload_tasks.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    supervisor_pid = int(os.environ.get("BACKENDAI_SUPERVISOR", "0"))
    is_orphan = False
    try:
        await daemon.start()
        async with telemetry_sending(), trim_while_running():
            while not await stop.wait(_ORPHAN_CHECK_S if supervisor_pid else None):
                if is_orphan := os.getppid() != supervisor_pid:
                    break
    finally:
        try:
            async with asyncio.timeout(_ORPHAN_STOP_S if is_orphan else None):
                await daemon.stop()
        except TimeoutError:
            if not is_orphan:
                raise
            log.warning("the supervisor has died, and this daemon does not stop in time: it ends")
            os._exit(1)


def main(arguments: Sequence[str]) -> int:
    make_daemon: Callable[[Layout, ClusterFile], Daemon]
    match arguments:
        case [data_dir, "manager"]:
            name, make_daemon = "manager", make_manager
        case [data_dir, "storage"]:
            from ai.backend.standalone.storage_daemon import StorageDaemon

            name, make_daemon = "storage", StorageDaemon
        case [data_dir, "app-proxy"]:
            from ai.backend.standalone.app_proxy_daemon import AppProxyDaemon

            name, make_daemon = "app-proxy", AppProxyDaemon
        case [data_dir, "web"]:
            from ai.backend.standalone.web_daemon import WebDaemon

            name, make_daemon = "web", WebDaemon
        case [data_dir, "agent", agent_id]:
            name, make_daemon = f"agent-{agent_id}", partial(make_agent, agent_id=agent_id)
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    layout = Layout(Path(data_dir))
    share_one_heap()
    reuse_receive_buffers()
    configure_logging(name, file=layout.logs / f"{name}.log")
    try:
        cluster = read_cluster_file(layout.cluster)
        if cluster is None:
            raise InvalidInput(f"There is no cluster on {layout.root}.")
        with InstanceLock(layout.root / f"{name}.lock", wait_s=_PREDECESSOR_TIMEOUT_S):
            start_telemetry(arguments[1], settings_of_environment())
            asyncio.run(run(make_daemon(layout, cluster)))
    except BackendError as e:
        sys.stderr.write(f"{name}: {e.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
