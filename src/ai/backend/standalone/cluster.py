"""Runs the embedded cluster until a signal stops it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple

from ai.backend.common.errors import Conflict, InvalidInput, Unavailable
from ai.backend.infra.loop import all_or_none, cancel_all
from ai.backend.infra.telemetry import configure_logging, settings_of_environment, start_telemetry, telemetry_sending
from ai.backend.standalone.agent_daemon import AgentDaemon
from ai.backend.standalone.agent_files import check_agent_files
from ai.backend.standalone.app_proxy_daemon import AppProxyDaemon
from ai.backend.standalone.instance import ClusterFile, listen, read_cluster_file, write_cluster_file
from ai.backend.standalone.layout import Layout
from ai.backend.standalone.manager_daemon import ManagerDaemon, keys_of
from ai.backend.standalone.manager_file import manager_settings
from ai.backend.standalone.options import (
    DEFAULT_COORDINATOR_PORT,
    DEFAULT_PORT,
    DEFAULT_WEB_PORT,
    SESSIONS_GO_ON_MESSAGE,
    UpOptions,
    agent_ids,
)
from ai.backend.standalone.passwords import stored_password
from ai.backend.standalone.reloading import has_terminal
from ai.backend.standalone.storage_daemon import StorageDaemon
from ai.backend.standalone.web_daemon import WebDaemon

log = logging.getLogger(__name__)
_READY_TIMEOUT_S = 30.0


async def run_cluster(layout: Layout, options: UpOptions, *, ready_fd: int | None, started_at_s: float) -> None:
    """Starts all daemons, prints how to use them, and waits for SIGINT or SIGTERM.

    The caller holds the lock of the directory.

    ``ready_fd`` replaces standard output for a detached cluster.
    """
    configure_logging("up", file=layout.logs / "up.log")
    stop = asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signal_number, stop.set)
    start_telemetry("up", settings_of_environment())
    async with telemetry_sending(), AsyncExitStack() as stack:
        cluster, sockets = prepare(layout, options)
        for sock in sockets:
            stack.callback(sock.close)
        start_daemons = _start_separate if options.separate else _start_embedded
        _reload_at_hang_up(await start_daemons(stack, layout, cluster, sockets), stop)
        await _wait_ready(layout, cluster, stop)
        announcement = _announcement(layout, cluster, time.monotonic() - started_at_s)
        if ready_fd is None:
            sys.stdout.write(announcement)
            sys.stdout.flush()
        else:
            os.write(ready_fd, f"ready\n{announcement}".encode())
            os.close(ready_fd)
        await stop.wait()
        log.info("stopping")
    if ready_fd is None:
        sys.stdout.write(f"\nStopped. {SESSIONS_GO_ON_MESSAGE}\n")


def _reload_at_hang_up(reload: Callable[[], None], stop: asyncio.Event) -> None:
    """Installs a SIGHUP handler that reloads, or that stops the cluster if the terminal of this process has closed."""
    had_terminal = has_terminal()

    def on_hang_up() -> None:
        if had_terminal and not has_terminal():
            stop.set()
        else:
            reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, on_hang_up)


_MAX_APP_RANGES = 100


class Sockets(NamedTuple):
    """Holds the listening sockets of the API, storage proxy (clients, managers), coordinator and web server.

    Also holds the socket that claims the ports of apps.
    """

    api: socket.socket
    storage: socket.socket
    storage_manager: socket.socket
    coordinator: socket.socket
    web: socket.socket
    app_ports: socket.socket


def prepare(layout: Layout, options: UpOptions) -> tuple[ClusterFile, Sockets]:
    """Chooses and opens the ports of the cluster, and writes the cluster file.

    A requested port must be free (0: any); else another is chosen.
    """
    previous_cluster = read_cluster_file(layout.cluster) or ClusterFile()
    stored_port = previous_cluster.port or DEFAULT_PORT
    try:
        sock = listen(options.host, stored_port if options.port is None else options.port)
    except Conflict:
        if options.port is not None:
            raise
        sock = listen(options.host, 0)
    app_ports, claim_socket = options.app_ports or previous_cluster.app_ports, socket.socket(socket.AF_UNIX)
    if options.app_ports is None:
        try:
            app_ports = _claim_ports(claim_socket, options.host, previous_cluster.app_ports)
        except Conflict:
            sock.close()
            claim_socket.close()
            raise
    try:
        web_socket = _listen_again(
            "127.0.0.1", previous_cluster.web_port or DEFAULT_WEB_PORT, required_port=options.web_port
        )
    except Conflict:
        sock.close()
        claim_socket.close()
        raise Conflict(
            f"Port {options.web_port} is in use: name another one for the console with --web-port.",
            data={"web_port": "in use"},
        ) from None
    sockets = Sockets(
        sock,
        _listen_again(options.host, previous_cluster.storage_port),
        _listen_again("127.0.0.1", previous_cluster.storage_manager_port),
        # Daemons of their own bind it later: another cluster that starts now would take the usual one between.
        _listen_again(
            options.host, previous_cluster.coordinator_port or (0 if options.separate else DEFAULT_COORDINATOR_PORT)
        ),
        web_socket,
        claim_socket,
    )
    cluster = ClusterFile(
        host=options.host,
        port=_bound_port(sockets.api),
        storage_port=_bound_port(sockets.storage),
        storage_manager_port=_bound_port(sockets.storage_manager),
        coordinator_port=_bound_port(sockets.coordinator),
        web_port=_bound_port(sockets.web),
        app_ports=app_ports,
        rpc_port=_rpc_port(previous_cluster) if options.separate else 0,
        agents=options.agents or previous_cluster.agents,
        runtime=options.runtime or previous_cluster.runtime,
        separate=options.separate,
        mock=options.mock_devices(previous_cluster.mock),
        agent_config=options.agent_files(previous_cluster.agent_config),
        manager_config=options.manager_file(previous_cluster.manager_config),
    )
    try:
        manager_settings(cluster.manager_config, layout.database.parent)
        check_agent_files(cluster.agent_config, agent_ids(cluster.agents), is_new=options.agent_config is not None)
    except InvalidInput:
        for opened_socket in sockets:
            opened_socket.close()
        raise
    write_cluster_file(layout.cluster, cluster)
    return cluster, sockets


def _claim_ports(claim_socket: socket.socket, host: str, first_choice: tuple[int, int]) -> tuple[int, int]:
    """Reserves and returns a range of ports for apps, most of which are free.

    The first choice is tried first, then later ranges.

    ``claim_socket`` is bound to a name that stands for the range, in Linux' abstract namespace, which vanishes with the
    process: clusters that start at the same moment choose different ranges.

    Raises:
        Conflict: no range is left.
    """
    port_count = first_choice[1] - first_choice[0] + 1
    for first_port in range(
        first_choice[0], min(first_choice[0] + _MAX_APP_RANGES * port_count, 65_536 - port_count), port_count
    ):
        app_ports = first_port, first_port + port_count - 1
        if sum(_is_free(host, port) for port in range(first_port, first_port + port_count)) * 2 > port_count:
            try:
                claim_socket.bind(f"\0backendai-app-ports-{first_port}")
            except OSError:
                continue
            return app_ports
    raise Conflict("The ports of apps are in use: name others with --app-ports.", data={"app_ports": "in use"})


def _is_free(host: str, port: int) -> bool:
    try:
        listen(host, port).close()
    except Conflict:
        return False
    return True


def _bound_port(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


def _listen_again(host: str, port: int, *, required_port: int | None = None) -> socket.socket:
    """Returns a socket that listens on the previous port if that is free, and otherwise on any free port.

    Clients of an earlier daemon thus reach the next one. ``required_port`` is a port that was asked for. Raises
    Conflict if that one is taken.
    """
    if required_port is not None:
        return listen(host, required_port)
    try:
        return listen(host, port)
    except Conflict:
        return listen(host, 0)


def _rpc_port(previous_cluster: ClusterFile) -> int:
    with _listen_again("127.0.0.1", previous_cluster.rpc_port) as sock:
        return _bound_port(sock)


async def _start_embedded(
    stack: AsyncExitStack, layout: Layout, cluster: ClusterFile, sockets: Sockets
) -> Callable[[], None]:
    """Starts all daemons in this process. Returns the function that reloads the agents' plugins."""
    from ai.backend.infra.process.memory import collect_rarely, trim_while_running
    from ai.backend.infra.rpc.memory import MemoryLink

    collect_rarely()

    storage = StorageDaemon(layout, cluster, sockets.storage, sockets.storage_manager)
    stack.push_async_callback(storage.stop)
    await storage.start()
    app_proxy = AppProxyDaemon(layout, cluster, sockets.coordinator)
    stack.push_async_callback(app_proxy.stop)
    await app_proxy.start()  # alone: its data plane closes its ports only after a whole start
    link = MemoryLink()
    manager = ManagerDaemon(layout, link.manager, sockets.api, cluster=cluster)
    stack.push_async_callback(manager.stop)
    await manager.migrate()  # agents read their settings from the database
    agents = [
        AgentDaemon(layout, agent_id, link.agent_endpoint(agent_id), cluster) for agent_id in agent_ids(cluster.agents)
    ]
    for agent in agents:
        stack.push_async_callback(agent.stop)
        await agent.prepare()
    # Agents mostly wait for processes that try what this host can enforce.
    await all_or_none(manager.start(), *(agent.start() for agent in agents))
    web_daemon = WebDaemon(layout, cluster, sockets.web)
    stack.push_async_callback(web_daemon.stop)
    await web_daemon.start()
    await stack.enter_async_context(trim_while_running(manager.database.close_idle))
    reload_tasks: set[asyncio.Task[None]] = set()
    stack.push_async_callback(lambda: cancel_all(*reload_tasks))

    def reload() -> None:
        for agent in agents:
            task = asyncio.create_task(agent.reload(), name=f"reload {agent.agent_id}")
            reload_tasks.add(task)
            task.add_done_callback(reload_tasks.discard)

    return reload


async def _start_separate(
    stack: AsyncExitStack, layout: Layout, cluster: ClusterFile, sockets: Sockets
) -> Callable[[], None]:
    """Starts each daemon in a process of its own. Returns the function that makes the daemons reload."""
    from ai.backend.infra.process.workers import ProcessSupervisor
    from ai.backend.standalone.daemon import make_keys

    for sock in sockets[:-1]:  # the daemons listen themselves; the claim on the ports of apps stays with this process
        sock.close()
    make_keys(layout, agent_ids(cluster.agents))
    command_by_daemon = {name: layout.daemon_command(name) for name in ("storage", "manager", "app-proxy", "web")}
    for agent_id in agent_ids(cluster.agents):
        command_by_daemon[f"agent-{agent_id}"] = layout.daemon_command("agent", agent_id)
    supervisor = ProcessSupervisor(command_by_daemon, logs=layout.logs, first_delay_s=0.2)
    stack.push_async_callback(supervisor.stop)
    supervisor.start()
    return supervisor.hang_up


async def _wait_ready(layout: Layout, cluster: ClusterFile, stop: asyncio.Event) -> None:
    """Waits until every agent is registered and the storage proxy serves. Raises Unavailable after 30 seconds."""
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not stop.is_set():
        if await _is_ready(cluster):
            return
        if time.monotonic() > deadline:
            raise Unavailable(f"The cluster does not become ready; its logs are in {layout.logs}.")
        await asyncio.sleep(0.02)


async def _is_ready(cluster: ClusterFile) -> bool:
    endpoints = (
        (cluster.host, cluster.port),
        ("127.0.0.1", cluster.storage_manager_port),
        (cluster.host, cluster.coordinator_port),
    )
    return all([await _answers_http(host, port) for host, port in endpoints])


async def _answers_http(host: str, port: int) -> bool:
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        status = await reader.readline()
        return b" 200 " in status
    except OSError:
        return False
    finally:
        writer.close()


def _announcement(layout: Layout, cluster: ClusterFile, ready_after_s: float) -> str:
    user_keys, admin_keys = keys_of(layout)
    process_layout = "one process" if not cluster.separate else "a process for each daemon"
    agents = ", ".join(agent_ids(cluster.agents))
    logins = "   ".join(
        f"{email}, {f'password {password}' if (password := stored_password(layout, email)) else 'your password'}"
        for email in ("user@local", "admin@local")
    )
    return (
        f"The cluster serves {cluster.endpoint} ({process_layout}, agents: {agents}; ready in {ready_after_s:.1f} s).\n"
        f"\n"
        f"  user   access key {user_keys.access_key}   secret key {user_keys.secret_key}\n"
        f"  admin  access key {admin_keys.access_key}   secret key {admin_keys.secret_key}\n"
        f"\n"
        f"In a browser: {cluster.web_url}\n"
        f"  log in as {logins}\n"
        f"\n"
        f"Use it from another shell:\n"
        f"\n"
        f"  source {layout.user_env}\n"
        f"  backend.ai run --rm -c 'print(\"hello world\")' python\n"
        f"\n"
        f"The administrator's keys: source {layout.admin_env}. Logs: {layout.logs}\n"
    )
