"""Two nodes of one worker, each with HAProxy: one is killed under load, the other has the circuits already."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from ai.backend.appproxy.worker.composition import STATE_FILE
from ai.backend.appproxy.worker.link.state_file import StateFile
from tests.component.appproxy.worker.test_flow import open_app, running_coordinator
from tests.support.proxy_apps import SECRET, free_ports, running_app

pytestmark = pytest.mark.needs("haproxy")
CONNECTIONS, REQUESTS_BEFORE, REQUESTS_AFTER = 8, 100, 300
_SETTINGS = """
[proxy_worker]
coordinator_endpoint = "http://127.0.0.1:{coordinator}"
authority = "pair"
data_plane = "haproxy"
data_dir = "{place}"
api_bind_addr = {{ host = "127.0.0.1", port = {api} }}
[proxy_worker.port_proxy]
bind_host = "{host}"
advertised_host = "127.0.0.1"
bind_port_range = [{port}, {port}]
[secrets]
api_secret = "{secret}"
"""


@contextmanager
def running_node(place: Path, host: str, port: int, api: int, coordinator: int) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a worker as a process of its own; the nodes of a pair differ by the address that they listen on."""
    place.mkdir(exist_ok=True)
    (place / "proxy-worker.toml").write_text(
        _SETTINGS.format(coordinator=coordinator, place=place, api=api, host=host, port=port, secret=SECRET)
    )
    program = "from ai.backend.appproxy.worker.main import main; main()"
    command = [sys.executable, "-c", program, "start-server", "-f", str(place / "proxy-worker.toml")]
    with (place / "log").open("ab") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()


async def until_linked(*api_ports: int) -> None:
    """Waits until nodes are linked with the coordinator. Raises TimeoutError."""
    async with asyncio.timeout(30), aiohttp.ClientSession() as http:
        for port in api_ports:
            while True:
                with suppress(aiohttp.ClientError):
                    async with http.get(f"http://127.0.0.1:{port}/metrics") as response:
                        if "backendai_appproxy_linked 1.0" in await response.text():
                            break
                await asyncio.sleep(0.05)


async def until_served(host: str, port: int) -> None:
    async with asyncio.timeout(30), aiohttp.ClientSession() as http:
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get(f"http://{host}:{port}/") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.05)


async def until_stored(place: Path) -> None:
    """Waits until a node has stored its circuit, which it does with the next report of what was used."""
    async with asyncio.timeout(30):
        while not StateFile(place / STATE_FILE).load().circuits:  # noqa: ASYNC110  # another process writes the file
            await asyncio.sleep(0.05)


async def test_the_other_node_of_a_pair_takes_over(tmp_path: Path) -> None:
    """A client that loses its connection asks the other node, as a balancer has it do."""
    hosts, (port, coordinator_port, *api_ports) = ["127.0.0.1", "127.0.0.2"], free_ports(4)
    lost: list[int] = []
    async with (
        running_coordinator(tmp_path, coordinator_port) as coordinator,
        running_app() as app,
        aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as browser,
    ):
        with (
            running_node(tmp_path / "a", hosts[0], port, api_ports[0], coordinator_port) as first,
            running_node(tmp_path / "b", hosts[1], port, api_ports[1], coordinator_port),
        ):
            await until_linked(*api_ports)
            await open_app(browser, coordinator, app, open_to_public="true")
            for host in hosts:
                await until_served(host, port)
            await until_stored(tmp_path / "a")
            killed = asyncio.Event()

            async def request(client: int) -> None:
                """Sends POST requests, which nobody may repeat for the client, and counts those without a response."""
                hosts_left, done = list(hosts), 0
                async with aiohttp.ClientSession() as http:
                    while done < REQUESTS_BEFORE + REQUESTS_AFTER:
                        try:
                            async with http.post(f"http://{hosts_left[0]}:{port}/") as response:
                                assert (response.status, await response.text()) == (200, "app")
                        except aiohttp.ClientError:
                            lost.append(client)
                            hosts_left.pop(0)
                        done += 1
                        if client == 0 and done == REQUESTS_BEFORE:
                            first.send_signal(signal.SIGKILL)
                            killed.set()

            await asyncio.gather(*(request(client) for client in range(CONNECTIONS)))
            assert killed.is_set()
            total = CONNECTIONS * (REQUESTS_BEFORE + REQUESTS_AFTER)
            print(f"a node of a pair killed under load: {len(lost)} of {total} requests lost")
            assert len(lost) <= CONNECTIONS  # each client at most the one that was on its way
            # Its HAProxy has gone with it: nobody would tell it of revocations.
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((hosts[0], port)).close()
            await coordinator.stop()
            with running_node(
                tmp_path / "a", hosts[0], port, api_ports[0], coordinator_port
            ):  # alone, from what it has stored
                await until_served(hosts[0], port)
