"""The watcher does to the agent's unit what it is asked to, by whom it knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from ai.backend.agent.api.watcher import TOKEN_HEADER, Watcher
from ai.backend.agent.config.published import WatcherSettings
from ai.backend.common.errors import InvalidInput, Unavailable

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
