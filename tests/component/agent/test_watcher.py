"""The watcher does to the agent's unit what it is asked to, by whom it knows."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from ai.backend.agent.config.settings import WatcherSettings
from ai.backend.agent.watcher_daemon import api
from ai.backend.agent.watcher_daemon.api import TOKEN_HEADER, Watcher
from ai.backend.common.errors import InvalidInput, Unavailable
from ai.backend.infra.http.server import make_runner, serve_on

TOKEN = {TOKEN_HEADER: "t0ken"}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[TestClient[Any, Any]]:
    script = tmp_path / "unit.sh"
    script.write_text(
        f'echo "$1" >> {tmp_path}/done\ncase "$1" in is-active) echo active;; stop) echo broken; exit 3;; esac\n'
    )
    settings = WatcherSettings(token="t0ken", command=["sh", str(script)])
    async with TestClient(TestServer(Watcher(settings).application())) as client:
        yield client


async def test_who_is_known_may_restart_the_agent(client: TestClient[Any, Any], tmp_path: Path) -> None:
    async with client.get("/", headers=TOKEN) as reply:
        assert await reply.json() == {"agent-status": "active"}
    async with client.post("/agent/restart", headers=TOKEN) as reply:
        assert (reply.status, await reply.json()) == (200, {"result": "ok"})
    async with client.post("/agent/stop", headers=TOKEN) as reply:
        assert reply.status == 503
        assert "broken" in await reply.text()
    async with client.post("/agent/reboot", headers=TOKEN) as reply:
        assert reply.status == 400
    for headers in ({}, {TOKEN_HEADER: "other"}):
        async with client.post("/agent/restart", headers=headers) as reply:
            assert reply.status == 403
    assert (tmp_path / "done").read_text().split() == ["is-active", "restart", "stop"]


async def test_a_token_that_is_no_text_is_refused(client: TestClient[Any, Any]) -> None:
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + TOKEN_HEADER.encode() + b": \xff\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"403"
    writer.close()
    await writer.wait_closed()


def test_without_a_token_it_does_not_start() -> None:
    with pytest.raises(InvalidInput):
        Watcher(WatcherSettings())


@pytest.mark.parametrize("available", [True, False])
async def test_a_soft_reset_ends_sessions_while_the_agent_is_stopped(tmp_path: Path, *, available: bool) -> None:
    done = tmp_path / "done"

    async def end_sessions() -> int:
        done.write_text(done.read_text() + "ended ")
        if len(done.read_text()) > 50:
            raise Unavailable("the engine is away")
        return 3

    command = ["sh", "-c", f'printf "%s " "$0" >> {done}']
    settings = WatcherSettings(token="t0ken", command=command, soft_reset_available=available)
    async with TestClient(TestServer(Watcher(settings, end_sessions).application())) as client:
        async with client.post("/soft-reset", headers={TOKEN_HEADER: "other"}) as reply:
            assert reply.status == 403
        async with client.post("/soft-reset", headers=TOKEN) as reply:
            if not available:
                assert (reply.status, done.exists()) == (501, False)
                assert "soft-reset-available" in await reply.text()
                return
            assert (reply.status, await reply.json()) == (200, {"result": "ok", "ended": 3})
        assert done.read_text().split() == ["stop", "ended", "start"]
        done.write_text("x" * 50 + " ")
        async with client.post("/soft-reset", headers=TOKEN) as reply:
            assert reply.status == 503
        assert done.read_text().split()[1:] == ["stop", "ended", "start"]  # a failure leaves the agent running


async def test_a_reset_goes_on_where_its_caller_does_not_wait(tmp_path: Path) -> None:
    done, go = tmp_path / "done", tmp_path / "go"
    done.touch()
    script = tmp_path / "unit.sh"
    script.write_text(
        f'echo "$1" >> {done}\n[ "$1" = start ] || until [ -e {go} ]; do sleep 0.02; done\n',
    )

    async def end_sessions() -> int:
        return 0

    settings = WatcherSettings(token="t0ken", command=["sh", str(script)], soft_reset_available=True)
    runner = make_runner(Watcher(settings, end_sessions).application())
    host, port = await serve_on(runner, ("127.0.0.1", 0))
    url = f"http://{host}:{port}"
    try:
        async with aiohttp.ClientSession(headers=TOKEN) as http, asyncio.timeout(30):
            asking = asyncio.create_task(http.post(f"{url}/soft-reset"))
            while not done.read_text():  # noqa: ASYNC110  # a file has no event
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.wait([asking])
            async with http.post(f"{url}/agent/restart") as reply:
                assert reply.status == 409
    finally:
        go.touch()
        await runner.cleanup()
    assert done.read_text().split() == ["stop", "start"]


async def test_an_agent_that_does_not_stop_is_started_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_ACTION_TIMEOUT_S", 2.0)
    done = tmp_path / "done"
    script = tmp_path / "unit.sh"
    script.write_text(f'echo "$1 $$" >> {done}\n[ "$1" = start ] || exec sleep 600\n')

    async def end_sessions() -> int:
        raise AssertionError("the agent runs")

    settings = WatcherSettings(token="t0ken", command=["sh", str(script)], soft_reset_available=True)
    async with (
        TestClient(TestServer(Watcher(settings, end_sessions).application())) as client,
        client.post("/soft-reset", headers=TOKEN) as reply,
    ):
        assert reply.status == 503
    stopping, starting = (line.split() for line in done.read_text().splitlines())
    assert (stopping[0], starting[0]) == ("stop", "start")
    with pytest.raises(ProcessLookupError):
        os.kill(int(stopping[1]), 0)
