"""Programs in sessions over a WebSocket (`backend.ai exec`)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from tests.component.manager.api.conftest import Api

PATH = "/stream/session/runs/exec"


async def test_bytes_both_ways_and_the_exit_code(api: Api) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, PATH)
        await socket.send_json({"command": ["cat", "-n"], "env": {"A": "1"}, "cwd": "inner"})
        await socket.send_bytes(b"\0abc")
        assert await socket.receive_bytes(timeout=30) == b"\1abc"
        await socket.send_json({"type": "resize", "rows": 30, "cols": 100})
        await socket.send_json({"type": "signal", "signal": "INT"})
        await socket.send_json({"type": "eof"})
        await socket.send_bytes(b"\0exit")
        assert json.loads(await socket.receive_str(timeout=30)) == {"type": "exit", "code": 7}
        assert (await socket.receive(timeout=30)).type is WSMsgType.CLOSE
    (request,) = api.agent.pty_requests
    assert (request.command, request.tty, request.env, request.cwd) == (["cat", "-n"], False, {"A": "1"}, "inner")
    heard = [(frame.kind, frame.data) for frame in api.agent.ptys[0].heard]
    assert heard == [("stdin", b"abc"), ("resize", b""), ("signal", b"INT"), ("eof", b""), ("stdin", b"exit")]
    await asyncio.wait_for(api.agent.ptys[0].closed.wait(), 30)


async def test_a_client_that_goes_ends_the_program(api: Api) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, PATH)
        await socket.send_json({"tty": True})
        await socket.send_bytes(b"\0ls")
        await socket.receive_bytes(timeout=30)
        await socket.close()
    assert api.agent.pty_requests[0].command == [], "a shell, not a terminal that is started again"
    await asyncio.wait_for(api.agent.ptys[0].closed.wait(), 30)


@pytest.mark.parametrize(
    "first",
    [
        "nonsense",
        {"command": "ls"},
        {"command": ["ls"], "more": 1},
        {"rows": 0},
        {"kernel": "sub9"},
        {"env": {"A": 1}},
    ],
    ids=str,
)
async def test_a_wrong_first_message(api: Api, first: Any) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, PATH)
        await socket.send_str(first if isinstance(first, str) else json.dumps(first))
        told = json.loads(await socket.receive_str(timeout=30))
        assert (told["type"], told["error"]["status"]) == ("error", 400)
    assert api.agent.pty_requests == []


async def test_a_wrong_later_message_ends_it(api: Api) -> None:
    await api.create(name="runs")
    async with aiohttp.ClientSession() as http:
        socket = await api.socket(http, PATH)
        await socket.send_json({})
        await socket.send_json({"type": "signal", "signal": "STOP"})
        assert json.loads(await socket.receive_str(timeout=30))["type"] == "error"
    await asyncio.wait_for(api.agent.ptys[0].closed.wait(), 30)


async def test_sessions_of_others(api: Api) -> None:
    await api.create(name="runs")
    assert (await api.other.request("GET", PATH)).status == 404
    assert (await api.user.request("GET", "/stream/session/nobody/exec")).status == 404
