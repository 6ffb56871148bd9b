"""A coordinator that is killed at any moment loses no slot and gives none twice."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from tests.support.cluster import free_port
from tests.support.coordinator import SECRET, Caller, FakeWorker, registration
from tests.support.forked import ForkedPopen


def configuration(folder: Path, port: int) -> Path:
    lines = [
        "[proxy_coordinator]",
        f'bind_addr = {{ host = "127.0.0.1", port = {port} }}',
        f"data_dir = {json.dumps(str(folder))}",
        "delivery_timeout = 5.0",
        "[secrets]",
        f'api_secret = "{SECRET}"',
    ]
    path = folder / "proxy-coordinator.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def start(path: Path) -> subprocess.Popen[Any]:
    command = ["-m", "ai.backend.cli.main", "app-proxy-coordinator", "start-server", "-f", str(path)]
    return ForkedPopen([sys.executable, *command], stdin=subprocess.DEVNULL)


async def until_it_serves(call: Caller) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                if (await call("GET", "/health", headers={})).status == 200:
                    return
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)


async def visits(call: Caller, apps: list[str]) -> None:
    """Browsers that come while the coordinator is killed: any of them may get an error."""

    async def visit(app: str) -> None:
        session = uuid4()
        token = await call.conf(session, uuid4())
        await call.browse(token, session, f"app={app}")

    await asyncio.gather(*(visit(app) for app in apps), return_exceptions=True)


async def test_slots_are_neither_lost_nor_given_twice(tmp_path: Path) -> None:
    port = free_port()
    path = configuration(tmp_path, port)
    rng = random.Random(7)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        call = Caller(http, f"http://127.0.0.1:{port}")
        for _ in range(4):
            process = start(path)
            try:
                await until_it_serves(call)
                worker = FakeWorker(call, registration(port_range=[7000, 7039]))
                await worker.register()
                await worker.link()
                coming = asyncio.create_task(visits(call, [f"app{n}" for n in range(6)]))
                await asyncio.sleep(rng.uniform(0.0, 0.4))
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait(30)
            await coming
            await worker.unlink()
        process = start(path)
        try:
            await until_it_serves(call)
            again = FakeWorker(call, registration(port_range=[7000, 7039]))
            await again.register()
            await again.link()
            await again.until(lambda: again.version >= 0)
            slots = (await call("GET", "/api/slots")).body["slots"]
            assert {slot["circuit_id"] for slot in slots} == {str(circuit_id) for circuit_id in again.circuits}
            assert len({slot["port"] for slot in slots}) == len(slots)
            await visits(call, ["later"])
            assert "later" in {circuit.app for circuit in again.circuits.values()}
            await again.unlink()
        finally:
            process.terminate()
            assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[proxy_coordinator]\n", "secrets"),
        ('[secrets]\napi_secret = "short"\n', "secrets.api_secret"),
        (f'[secrets]\napi_secret = "{SECRET}"\n[proxy_coordinator]\ncolour = 1\n', "colour"),
        (f'[secrets]\napi_secret = "{SECRET}"\n[proxy_coordinator]\nssl_enabled = true\n', "ssl-cert"),
    ],
)
def test_a_setting_that_cannot_be_had_is_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "proxy-coordinator.toml"
    path.write_text(text)
    command = [sys.executable, "-m", "ai.backend.cli.main", "coordinator", "start-server", "-f", str(path)]
    process = ForkedPopen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert named in stderr
    assert stderr.count("\n") == 1
