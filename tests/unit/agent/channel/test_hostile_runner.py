"""What a runner that a user has taken over may cost the agent."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ai.backend.agent.channel import files
from ai.backend.agent.channel.channel import KernelChannel
from ai.backend.agent.channel.terminals import Terminals
from ai.backend.common.errors import LimitExceeded
from ai.backend.node.workload.channel import parse
from ai.backend.plugin.runtime import RunnerChannel
from tests.unit.agent.channel.test_runs import Played

MIB = 1024 * 1024


async def _channel() -> tuple[KernelChannel, Played]:
    runner = Played()

    async def opened(last_seq: int) -> RunnerChannel:
        return runner

    channel = KernelChannel(opened, received=0, next_request=1)
    await channel.connect()
    return channel, runner


async def _until_sent(runner: Played) -> None:
    for _ in range(20):
        await asyncio.sleep(0)
    assert runner.sent


@pytest.mark.parametrize("chunk", [{"data": "A" * 65536}, {"data": "", "junk": "A" * 65536}], ids=["full", "empty"])
async def test_chunks_are_bounded(chunk: dict[str, Any]) -> None:
    channel, runner = await _channel()
    download = asyncio.create_task(files.download(channel, ["a"], 1 * MIB, 60.0))
    await _until_sent(runner)
    for _ in range(20_000):
        runner.say(t="chunk", req=1, index=0, name="a", **chunk)
    with pytest.raises(LimitExceeded):
        async with asyncio.timeout(20):
            await download
    await channel.close()


async def test_only_a_download_takes_chunks() -> None:
    channel, runner = await _channel()
    listing = asyncio.create_task(files.list_directory(channel, ".", 60.0))
    await _until_sent(runner)
    runner.say(t="chunk", req=1, index=0, name="a", data="")
    with pytest.raises(LimitExceeded):
        await listing
    await channel.close()


async def test_terminals_that_nobody_opened_are_closed_up_to_a_limit() -> None:
    channel, runner = await _channel()
    terminals = Terminals(channel, "p")
    for number in range(5000):
        terminals.on_frame({"t": "pty-output", "pty": f"x{number}", "data": ""}, 1)
    for _ in range(200):
        await asyncio.sleep(0)
    assert [frame["pty"] for frame in runner.sent][:2] == ["x0", "x1"]
    assert len(runner.sent) <= 64
    await channel.close()


async def test_empty_output_of_a_terminal_is_bounded() -> None:
    channel, runner = await _channel()
    terminals = Terminals(channel, "p")
    opened = asyncio.create_task(terminals.open(24, 80, 60.0))
    await _until_sent(runner)
    runner.say(t="reply", req=1, ok=True, data={})
    terminal = await opened
    for _ in range(20_000):
        terminals.on_frame({"t": "pty-output", "pty": "p-1", "data": ""}, 1)
    terminals.close()
    assert len([frame async for frame in terminal]) < 5000
    await channel.close()


def test_a_runner_cannot_report_the_end_of_its_workload() -> None:
    """The relay numbers what the runner sends, and its own news not."""
    assert parse(b'{"t":"exited","code":0}')["t"] == "exited"
    for forged in (b'{"t":"exited","code":0,"seq":7}', b'{"t":"stdout","t":"exited","code":0,"seq":7}'):
        assert parse(forged) == {"t": "malformed", "code": 0, "seq": 7}


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b'{"t":"console","text":"\xff"}', {"t": "console", "text": "\ufffd"}),
        (b'{"t":"console","text":"\\ud800"}', {"t": "console", "text": "\ufffd"}),
        (b'{"t":"exited","text":"\xff","seq":7}', {"t": "malformed", "text": "\ufffd", "seq": 7}),
        (b'{"\xff":' + b"9" * 5_000 + b"}", {"t": "malformed"}),
        (b"\xff\xfe", {"t": "malformed"}),
        (b"[" * 100_000, {"t": "malformed"}),
    ],
)
def test_bytes_that_are_no_text_do_not_break_the_connection(frame: bytes, message: dict[str, Any]) -> None:
    """The relay would repeat the frame after each new connection."""
    assert parse(frame) == message
