"""Several processes of one proxy, and TLS."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ai.backend.common.errors import InvalidInput
from ai.backend.storage.config.settings import StorageSettings
from ai.backend.storage.main import StorageProxy
from tests.support.certificates import self_signed
from tests.support.cluster import wait_until
from tests.support.storage_proxy import Caller, ProxyProcess, settings

DATA = os.urandom(3 << 20)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ProxyProcess]:
    process = ProxyProcess(tmp_path, num_proc=2)
    yield process
    process.stop(kill=True)


def both_serve(process: ProxyProcess) -> bool:
    """A listener for each."""
    port = f":{process.client_port:04X} "
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return sum(port in line.split("rem")[0][:30] and " 0A " in line for line in lines) == 2


async def test_two_processes_share_the_work_and_the_lease(process: ProxyProcess, http: aiohttp.ClientSession) -> None:
    process.start()
    await asyncio.to_thread(wait_until, lambda: both_serve(process), what="both processes serving")
    caller = Caller(http, process.manager_url)
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    await asyncio.gather(*(caller.put(vfid, f"f{n}", DATA[: n * 100_000]) for n in range(16)))
    assert {p.name: p.stat().st_size for p in inside.iterdir()} == {f"f{n}": n * 100_000 for n in range(16)}

    url = await caller.upload_url(vfid, "leased", 6)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"abc"
        begun.set()
        await go_on.wait()
        yield b"def"

    first = asyncio.create_task(caller.patch(url, 0, slow()))
    await begun.wait()
    await asyncio.sleep(0.3)
    others = [await caller.patch(url, 0, b"xxxxxx") for _ in range(12)]  # each connection may be the other process's
    assert {answer.status for answer in others} == {423}
    go_on.set()
    assert (await first).status == 204
    assert (inside / "leased").read_bytes() == b"abcdef"


@pytest.mark.parametrize("victim", ["worker", "first"])
async def test_a_process_that_dies_is_replaced_and_loses_nothing(
    process: ProxyProcess, http: aiohttp.ClientSession, victim: str
) -> None:
    process.start()
    await asyncio.to_thread(wait_until, lambda: both_serve(process), what="both processes serving")
    caller = Caller(http, process.manager_url)
    vfid = await caller.folder()
    inside = await caller.inside(vfid)
    urls = {n: await caller.upload_url(vfid, f"f{n}", len(DATA)) for n in range(8)}

    async def push(n: int) -> None:
        offset = int((await caller.head(urls[n])).headers["Upload-Offset"])
        while offset < len(DATA):
            answer = await caller.patch(urls[n], offset, DATA[offset : offset + 300_000])
            if answer.status == 423:  # a process that ends still has it
                await asyncio.sleep(0.1)
                continue
            assert answer.status == 204
            offset = int(answer.headers["Upload-Offset"])

    work = [asyncio.create_task(push(n)) for n in range(8)]
    await asyncio.sleep(0.05)
    (worker,) = process.workers()
    if victim == "worker":
        os.kill(worker, signal.SIGKILL)
    else:
        process.stop(kill=True)
    await asyncio.gather(*work, return_exceptions=True)
    assert all((inside / name).read_bytes() == DATA for name in os.listdir(inside))
    if victim == "first":
        process.start()
    await asyncio.to_thread(wait_until, lambda: process.workers() not in ([], [worker]), what="another one")
    await asyncio.to_thread(wait_until, lambda: both_serve(process), what="both processes serving")
    await asyncio.gather(*(push(n) for n in range(8)))
    assert sorted(p.name for p in inside.iterdir()) == sorted(f"f{n}" for n in range(8))
    assert all(p.read_bytes() == DATA for p in inside.iterdir())


def test_no_process_outlives_the_first(process: ProxyProcess) -> None:
    process.start()
    wait_until(lambda: both_serve(process), what="both processes serving")
    (worker,) = process.workers()
    process.stop(kill=True)
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), what="the other process ending")
    process.start()
    wait_until(lambda: both_serve(process), what="both processes serving")
    (worker,) = process.workers()
    process.stop()
    assert not Path(f"/proc/{worker}").exists()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("certificate"))


def with_tls(root: Path, cert: Path, key: Path) -> StorageSettings:
    data: dict[str, Any] = settings(root)
    for api in data["api"].values():
        api.update({"ssl-enabled": True, "ssl-cert": str(cert), "ssl-privkey": str(key)})
    return StorageSettings.model_validate(data)


async def test_both_apis_speak_tls(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    proxy = StorageProxy(with_tls(tmp_path, *certificate))
    await proxy.start()
    try:
        trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=certificate[0]))
        async with aiohttp.ClientSession(connector=trusting) as http:
            caller = Caller(http, proxy.manager_url)
            vfid = await caller.folder()
            await caller.put(vfid, "file", DATA)
            url = await caller.download_url(vfid, "file")
            assert url.startswith("https://")
            assert (await caller.send("GET", url)).body == DATA
        async with aiohttp.ClientSession() as http:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await http.get(proxy.client_url)
            with pytest.raises(aiohttp.ClientError):
                await http.get(proxy.client_url.replace("https", "http"))
    finally:
        await proxy.stop()


async def test_a_certificate_that_cannot_be_used_is_named(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    (tmp_path / "junk").write_text("junk")
    for wrong in ((tmp_path / "none", key), (cert, tmp_path / "none"), (cert, cert), (tmp_path / "junk", key)):
        proxy = StorageProxy(with_tls(tmp_path, *wrong))
        with pytest.raises(InvalidInput, match="certificate"):
            await proxy.start()
        await proxy.stop()
