"""How long a key takes to its echo on the screen of a web terminal, along the whole way that a user's browser has.

The page's WebSocket goes into the local port of `backend.ai app NAME ttyd`, through the tunnel of the manager and the
agent into the session, to a shell on a pseudo-terminal, and back. Beside it the terminal of the API, without a tunnel.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import aiohttp

from bench.cluster import Api, running_cluster, temporary_folder
from bench.figures import Figure, benchmark
from bench.processes import BACKENDAI

KEYS = 200
WARM_UP = 10
TARGET_MS = 10.0
PATIENCE_S = 60.0
OWN_NETWORK = '[runtime]\nnetwork = "none"\n'
QUIET = "PS1=; PROMPT_COMMAND=; bind 'set enable-bracketed-paste off'; echo ready-$((1+1))\n"

Press = Callable[[bytes], Awaitable[None]]
See = Callable[[], Awaitable[bytes]]


async def echo_times(press: Press, see: See) -> list[float]:
    """Milliseconds from a key to its echo, one after the other."""
    await press(QUIET.encode())
    seen = b""
    while b"ready-2" not in seen:
        seen += await see()
    times: list[float] = []
    for index in range(WARM_UP + KEYS):
        key = b"abcdefghij"[index % 10 : index % 10 + 1]
        began = time.perf_counter()
        await press(key)
        while key not in await see():
            pass
        if index >= WARM_UP:
            times.append(1000 * (time.perf_counter() - began))
        if index % 50 == 49:
            await press(b"\x15")  # an empty line again
            await asyncio.sleep(0.1)
            await see()
    return times


async def through_the_page(port: int) -> list[float]:
    url = f"http://127.0.0.1:{port}/ws?key={'b' * 32}"
    async with aiohttp.ClientSession() as http, http.ws_connect(url) as page:
        return await echo_times(lambda data: page.send_bytes(b"0" + data), page.receive_bytes)


async def through_the_api(api: Api, name: str) -> list[float]:
    target = f"/stream/session/{name}/pty"
    headers = api.headers("GET", target, "application/octet-stream")
    async with aiohttp.ClientSession() as http, http.ws_connect(api.endpoint + target, headers=headers) as terminal:

        async def press(data: bytes) -> None:
            await terminal.send_str(json.dumps({"type": "stdin", "chars": base64.b64encode(data).decode()}))

        async def see() -> bytes:
            while True:
                message = json.loads(await terminal.receive_str())
                if message.get("type") == "out":
                    return base64.b64decode(message["data"])

        return await echo_times(press, see)


@contextmanager
def app_of(name: str, env: Mapping[str, str]) -> Iterator[int]:
    """The local port of `backend.ai app NAME ttyd`."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    command = [BACKENDAI, "app", name, "ttyd", "-b", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.DEVNULL) as app:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                with socket.socket() as one:
                    if one.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if app.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("`backend.ai app` does not listen")
                time.sleep(0.1)
            yield port
        finally:
            app.terminate()


@benchmark("terminal", "a key typed into the web terminal of a session until its echo is seen")
def terminal() -> Sequence[Figure]:
    with temporary_folder() as folder:
        (folder / "agent.toml").write_text(OWN_NETWORK)
        with running_cluster("--agent-config", str(folder / "agent.toml")) as cluster:
            name = cluster.user.create(mem="256m")
            began = time.perf_counter()
            cluster.user.call("POST", f"/session/{name}/start-service", {"app": "ttyd"})
            start_s = time.perf_counter() - began
            direct = asyncio.run(through_the_api(cluster.user, name))
            with app_of(name, cluster.user_env) as port:
                page = asyncio.run(through_the_page(port))
    value = statistics.median(page)
    return [
        Figure(
            name="terminal-echo",
            value=value,
            unit="ms",
            target=f"p50 <= {TARGET_MS:g} ms",
            holds=value <= TARGET_MS,
            detail={
                "p90-ms": statistics.quantiles(page, n=10)[8],
                "api-terminal-p50-ms": statistics.median(direct),
                "first-start-s": start_s,
            },
        )
    ]
