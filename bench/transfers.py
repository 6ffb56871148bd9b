"""Transfers of the storage proxy, against the floor of the same disk and the same sockets.

`BENCH_MIB` is the size of the large file, 1024 unless set: a dozen of them are written in two minutes at 100 MiB/s.
Everything lies below `BENCH_DIR`, the working directory unless set.
"""

# ruff: noqa: ASYNC220  # one thing at a time is measured, so nothing else is held up

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures import Figure, benchmark
from bench.processes import resident_mib
from bench.storage import room, running
from tests.support.cluster import free_port
from tests.support.storage_proxy import CHUNK

LARGE_MIB = int(os.environ.get("BENCH_MIB", "1024"))
MIB = 1 << 20
CHUNK_MIB = 16  # what the published client sends at a time
SMALL_FILES, SMALL_BYTES, SMALL_AT_ONCE = 400, 4096, 8
UPLOADS_AT_ONCE = 32


def large_file(place: Path) -> Path:
    path = place / "large"
    block = os.urandom(MIB)
    with path.open("wb") as file:
        for _ in range(LARGE_MIB):
            file.write(block)
        os.fsync(file.fileno())
    return path


def await_idle() -> None:
    """Let the disk write out what it has, so that nothing pays for what came before."""
    os.sync()


_PUSH = """
import socket, sys, time
began = time.monotonic()
host, port, target, chunk = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[5])
with socket.create_connection((host, port)) as s, open(sys.argv[4], "rb") as file:
    size, offset = file.seek(0, 2), 0
    while offset < size:
        count = min(chunk, size - offset)
        s.sendall((f"PATCH {target} HTTP/1.1\\r\\nHost: x\\r\\nTus-Resumable: 1.0.0\\r\\nUpload-Offset: {offset}\\r\\n"
                   "Content-Type: application/offset+octet-stream\\r\\n"
                   f"Content-Length: {count}\\r\\n\\r\\n").encode())
        s.sendfile(file, offset, count)
        offset += count
        answer = b""
        while b"\\r\\n\\r\\n" not in answer:
            answer += s.recv(65536) or sys.exit("the server has closed the connection")
        if not answer.startswith(b"HTTP/1.1 204"):
            sys.exit(answer.decode())
print(time.monotonic() - began)
"""
_BARE_SINK = """
import asyncio, os, socket, sys
from aiohttp import web
async def handle(request):
    offset = int(request.headers["Upload-Offset"])
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
    os.lseek(fd, offset, 0)
    async for part in request.content.iter_any():
        os.write(fd, part)
        offset += len(part)
    if offset == int(sys.argv[3]):
        await asyncio.to_thread(os.fsync, fd)
    os.close(fd)
    return web.Response(status=204)
app = web.Application()
app.router.add_route("PATCH", "/", handle)
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
print("ready", flush=True)
web.run_app(app, sock=listener, print=None)
"""
_RAW_SINK = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
print("ready", flush=True)
connection, _ = listener.accept()
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
buffer, left = memoryview(bytearray(1 << 18)), int(sys.argv[3])
while left:
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        head += connection.recv(1)
    count = int(head.rpartition(b"Content-Length: ")[2])
    left -= count
    while count:
        got = connection.recv_into(buffer[:count])
        os.write(fd, buffer[:got])
        count -= got
    if not left:
        os.fsync(fd)
    connection.sendall(b"HTTP/1.1 204 No Content\\r\\n\\r\\n")
"""


def push(port: int, target: str, path: Path) -> float:
    """Seconds to send a file as the published client does, one PATCH after the other, in a process that only sends; its
    interpreter's start does not count."""
    script = [sys.executable, "-c", _PUSH, "127.0.0.1", str(port), target, str(path), str(CHUNK_MIB * MIB)]
    return float(subprocess.run(script, check=True, capture_output=True, text=True).stdout)


@contextmanager
def sink(script: str, target: Path, size: int) -> Iterator[int]:
    """A server that does nothing but write what comes to a file, and fsync it; its port."""
    port = free_port()
    command = [sys.executable, "-c", script, str(target), str(port), str(size)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        yield port
    finally:
        server.kill()
        server.wait()
        target.unlink(missing_ok=True)


def copy(path: Path, target: Path) -> float:
    """Seconds of `cp --reflink=never` and fsync."""
    began = time.monotonic()
    subprocess.run(["cp", "--reflink=never", path, target], check=True)
    fd = os.open(target, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    took = time.monotonic() - began
    target.unlink()
    return took


@benchmark("storage-upload", "one large upload, against cp and fsync on the same disk")
def upload() -> Sequence[Figure]:
    async def measure() -> dict[str, list[float]]:
        took: dict[str, list[float]] = {"ours": [], "cp": [], "bare_aiohttp": [], "raw_socket": []}
        with room() as place:
            path = large_file(place)
            size = path.stat().st_size
            async with running(place) as (proxy, caller):
                vfid = await caller.folder()
                for n in range(3):
                    await_idle()
                    took["cp"].append(copy(path, place / "copy"))
                    for name, script in (("bare_aiohttp", _BARE_SINK), ("raw_socket", _RAW_SINK)):
                        with sink(script, place / "sunk", size) as port:
                            await_idle()
                            took[name].append(push(port, "/", path))
                    await_idle()
                    url = await caller.upload_url(vfid, f"f{n}", size)
                    took["ours"].append(push(proxy.client_port, url[url.index("/upload") :], path))
                    await caller.ask("POST", "/folder/file/delete", vfid=vfid, relpaths=[f"f{n}"])
        return took

    took = asyncio.run(measure())
    figure = _rate("storage-upload", LARGE_MIB, took["ours"], took["cp"], "cp --reflink=never and fsync", 0.8)
    figure.detail.update({name: LARGE_MIB / min(took[name]) for name in ("bare_aiohttp", "raw_socket")})
    return [figure]


def _rate(name: str, mib: float, ours: list[float], floor: list[float], what: str, target: float) -> Figure:
    value, reference = mib / min(ours), mib / min(floor)
    return Figure(
        name=name,
        value=value,
        unit="MiB/s",
        reference=reference,
        reference_is=what,
        target=f">= {target} of it",
        holds=value >= target * reference,
        detail={"worst": mib / max(ours), "worst_reference": mib / max(floor)},
    )


class SendfileServer:
    """The floor of downloads: one thread per connection, sendfile and nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            with connection, self._path.open("rb") as file:
                connection.recv(65536)
                size = self._path.stat().st_size
                connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode())
                connection.sendfile(file)


_DRAIN = """
import socket, sys
host, port, target = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with socket.create_connection((host, port)) as s:
    s.sendall(f"GET {target} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n".encode())
    buffer, total = bytearray(1 << 20), 0
    while count := s.recv_into(buffer):
        total += count
    print(total)
"""


def drain(port: int, target: str, size: int) -> float:
    """Seconds to receive a file in a process of its own."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _DRAIN, "127.0.0.1", str(port), target], capture_output=True, text=True, check=True
    )
    took = time.monotonic() - began
    if int(done.stdout) < size:
        raise RuntimeError(f"{done.stdout} bytes of {size} came")
    return took


@benchmark("storage-download", "one large download, against a bare sendfile server")
def download() -> Sequence[Figure]:
    async def measure() -> tuple[list[float], list[float]]:
        ours: list[float] = []
        floor: list[float] = []
        with room() as place:
            path = large_file(place)
            async with running(place) as (proxy, caller):
                vfid = await caller.folder()
                target = await caller.inside(vfid) / "large"
                path.rename(target)
                size = target.stat().st_size
                url = await caller.download_url(vfid, "large")
                bare = SendfileServer(target)
                for _ in range(5):
                    floor.append(await asyncio.to_thread(drain, bare.port, "/", size))
                    request_path = url[url.index("/download") :]
                    ours.append(await asyncio.to_thread(drain, proxy.client_port, request_path, size))
        return ours, floor

    ours, floor = asyncio.run(measure())
    return [_rate("storage-download", LARGE_MIB, ours, floor, "a thread with sendfile", 0.8)]


_BARE_PUT = """
import asyncio, os, socket, sys, uuid
from aiohttp import web
place = sys.argv[1]
def put(name, body):
    path = os.path.join(place, uuid.uuid4().hex)
    with open(path, "wb") as f:
        f.write(body); f.flush(); os.fsync(f.fileno())
    os.rename(path, os.path.join(place, name))
async def handle(request):
    await asyncio.to_thread(put, request.match_info["name"], await request.read())
    return web.Response(status=204)
app = web.Application()
app.router.add_route("PATCH", "/{name}", handle)
listener = socket.create_server(("127.0.0.1", int(sys.argv[2])))
print("ready", flush=True)
web.run_app(app, sock=listener, print=None)
"""


async def _listening(port: int, *, timeout_s: float = 30.0) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


@benchmark("storage-small", "many small uploads, against a bare aiohttp handler that writes, fsyncs and renames")
def small() -> Sequence[Figure]:
    async def at_once(work: Sequence[Callable[[], Awaitable[Any]]]) -> float:
        remaining = iter(work)

        async def worker() -> None:
            for each in remaining:
                await each()

        began = time.monotonic()
        await asyncio.gather(*(worker() for _ in range(SMALL_AT_ONCE)))
        return time.monotonic() - began

    async def measure() -> tuple[list[float], list[float]]:
        ours: list[float] = []
        floor: list[float] = []
        data = os.urandom(SMALL_BYTES)
        with room() as place:
            async with running(place) as (proxy, caller):
                (place / "bare").mkdir()
                port = proxy.manager_port + 1 if proxy.manager_port < 60_000 else proxy.manager_port - 7
                bare = subprocess.Popen([sys.executable, "-c", _BARE_PUT, str(place / "bare"), str(port)])
                try:
                    await _listening(port)
                    vfid = await caller.folder()
                    for run in range(3):
                        urls = [await caller.upload_url(vfid, f"{run}/{n}", SMALL_BYTES) for n in range(SMALL_FILES)]
                        await_idle()
                        names = [f"http://127.0.0.1:{port}/{n}" for n in range(SMALL_FILES)]
                        put = partial(caller.send, "PATCH", data=data, headers=CHUNK)
                        floor.append(await at_once([partial(put, url) for url in names]))
                        await_idle()
                        ours.append(await at_once([partial(caller.patch, url, 0, data) for url in urls]))
                finally:
                    bare.terminate()
                    bare.wait()
        return ours, floor

    ours, floor = asyncio.run(measure())
    value, reference = SMALL_FILES / min(ours), SMALL_FILES / min(floor)
    return [
        Figure(
            name="storage-small",
            value=value,
            unit="files/s",
            reference=reference,
            reference_is="a bare handler: write, fsync, rename",
            target=">= 0.5 of it",
            holds=value >= 0.5 * reference,
        )
    ]


@benchmark("storage-memory", "memory of the proxy at 32 uploads at once")
def memory() -> Sequence[Figure]:
    async def measure() -> tuple[float, float]:
        with room() as place:
            path = place / "file"
            path.write_bytes(os.urandom(64 * MIB))
            async with running(place) as (proxy, caller):
                assert proxy.process is not None
                vfid = await caller.folder()

                def send(url: str) -> float:
                    return push(proxy.client_port, url[url.index("/upload") :], path)

                await asyncio.to_thread(send, await caller.upload_url(vfid, "first", path.stat().st_size))
                before = most = resident_mib(proxy.process.pid)
                urls = [await caller.upload_url(vfid, f"f{n}", path.stat().st_size) for n in range(UPLOADS_AT_ONCE)]
                asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(UPLOADS_AT_ONCE))
                work = asyncio.gather(*(asyncio.to_thread(send, url) for url in urls))
                while not work.done():
                    most = max(most, resident_mib(proxy.process.pid))
                    await asyncio.sleep(0.05)
                await work
        return before, most

    before, most = asyncio.run(measure())
    return [
        Figure(
            name="storage-memory",
            value=most - before,
            unit="MiB",
            reference=before,
            reference_is="resident after one upload",
            target="< 30 MiB more",
            holds=most - before < 30,
        )
    ]
