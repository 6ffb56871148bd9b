"""Loads for proxies: requests as fast as they are answered, by `h2load` of Debian's nghttp2-client, and requests at
given times. Both are light: on two cores a client in Python that is as busy as the proxy takes its processor and adds
to each latency that it measures."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import subprocess
import time
from collections import deque
from typing import cast

CONNECTIONS = 32
SECONDS = 2.0
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nCookie: theme=dark; lang=en\r\nUser-Agent: bench\r\n\r\n"
)
_CONTENT_LENGTH = b"content-length: "
_PATIENCE_S = 60.0


def closed_loop(port: int) -> int:
    """Returns how many requests were answered with 200 while each connection sends its next one after the answer.

    Raises RuntimeError: h2load is missing, or a request failed.
    """
    if shutil.which("h2load") is None:
        raise RuntimeError("this benchmark needs h2load: apt-get install nghttp2-client")
    command = ["h2load", "--h1", "-t1", f"-c{CONNECTIONS}", f"-D{SECONDS:g}", "-H", "Cookie: theme=dark; lang=en"]
    report = subprocess.run([*command, f"http://127.0.0.1:{port}/"], check=True, capture_output=True, text=True).stdout
    answered = re.search(r"^status codes: (\d+) 2xx, 0 3xx, 0 4xx, 0 5xx$", report, re.MULTILINE)
    if answered is None or not re.search(r" 0 failed, 0 errored, 0 timeout$", report, re.MULTILINE):
        raise RuntimeError(f"requests failed:\n{report}")
    return int(answered[1])


class _Connection(asyncio.Protocol):
    """Sends a request, takes the time until its whole answer, and takes the next request that waits."""

    def __init__(self, load: PacedLoad) -> None:
        self._load = load
        self._received = b""
        self._due_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, due_at: float) -> None:
        self._due_at = due_at
        self._transport.write(self._load.request)

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.lower().partition(_CONTENT_LENGTH)[2].partition(b"\r\n")[0]):
            return
        self._received = b""
        if not head.startswith(b"HTTP/1.1 200"):
            self._load.fail(RuntimeError(f"the proxy answers {head[:40]!r}"))
            return
        self._load.answered(self, 1000 * (time.perf_counter() - self._due_at))

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.fail(exc or ConnectionResetError("the proxy has closed a connection"))


class PacedLoad:
    """Requests that come at times of a Poisson process, whatever became of the ones before.

    A request for which no connection is free waits for one, which counts as a part of its latency.
    """

    def __init__(self, port: int, rate: float, request: bytes) -> None:
        self.request = request
        self._port, self._rate = port, rate
        self._idle: list[_Connection] = []
        self._waiting: deque[float] = deque()
        self._latencies_ms: list[float] = []
        self._sent: int | None = None  # until all are sent
        self._end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def answered(self, connection: _Connection, latency_ms: float) -> None:
        self._latencies_ms.append(latency_ms)
        if self._waiting:
            connection.send(self._waiting.popleft())
        else:
            self._idle.append(connection)
        if len(self._latencies_ms) == self._sent and not self._end.done():
            self._end.set_result(None)

    def fail(self, error: Exception) -> None:
        if not self._end.done():
            self._end.set_exception(error)

    async def run(self) -> list[float]:
        """Returns the latencies, in ms. Raises RuntimeError, OSError or TimeoutError: a request failed."""
        loop = asyncio.get_running_loop()
        connections = [
            (await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._port))[1]
            for _ in range(2 * CONNECTIONS)
        ]
        self._idle.extend(connections)
        gaps, due_at, sent = random.Random(1), time.perf_counter(), 0
        until = due_at + SECONDS
        while (due_at := due_at + gaps.expovariate(self._rate)) < until and not self._end.done():
            await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
            sent += 1
            if self._idle:
                self._idle.pop().send(due_at)
            else:
                self._waiting.append(due_at)
        self._sent = sent
        if len(self._latencies_ms) < sent:
            async with asyncio.timeout(_PATIENCE_S):
                await self._end
        for connection in connections:
            connection.close()
        return self._latencies_ms


async def latencies_ms(port: int, rate: float, request: bytes = REQUEST) -> list[float]:
    """Returns the latencies of requests at ``rate`` a second, from the time at which each is due."""
    return await PacedLoad(port, rate, request).run()
