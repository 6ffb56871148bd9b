"""The agent's end of programs: windows, and runners that do not keep to them."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from ai.backend.agent.channel.programs import WINDOW_BYTES, Program, Programs
from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.execution import OpenPty, PtyFrame


class FakeChannel:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def add_sink(self, sink: object) -> None:
        pass

    async def request(self, frame: dict[str, Any], timeout_s: float) -> tuple[dict[str, Any], list[Any]]:
        self.sent.append(frame)
        return {}, []

    async def send(self, frame: dict[str, Any]) -> None:
        self.sent.append(frame)


def output(name: str, data: bytes = b"x") -> dict[str, Any]:
    return {"t": "program-output", "id": name, "stream": "stdout", "data": base64.b64encode(data).decode()}


async def started(channel: FakeChannel) -> tuple[Programs, Program]:
    programs = Programs(channel, prefix="e1")  # type: ignore[arg-type]  # the three methods that it calls
    return programs, await programs.start(OpenPty(kernel_id="k", command=["ls"]), 5.0)


async def test_output_is_reported_as_taken_when_it_is_read() -> None:
    channel = FakeChannel()
    programs, program = await started(channel)
    programs.on_frame(output("e1-1", b"abc"), 1)
    programs.on_frame({"t": "program-ended", "id": "e1-1", "exitCode": 3}, 2)
    frames = [frame async for frame in program]
    assert [(frame.kind, frame.data, frame.exit_code) for frame in frames] == [
        ("out", b"abc", None),
        ("closed", b"", 3),
    ]
    assert channel.sent[-1] == {"t": "program-taken", "id": "e1-1", "bytes": 3 + 256}
    with pytest.raises(Unavailable):
        await program.send(PtyFrame(kind="stdin", data=b"late"))


async def others_run() -> None:
    for _ in range(100):
        await asyncio.sleep(0)  # yields to the other tasks, without time


async def test_a_runner_that_ignores_the_window_is_cut_off() -> None:
    channel = FakeChannel()
    programs, program = await started(channel)
    for number in range(10_000):
        programs.on_frame(output("e1-1", b""), number)
    assert len(programs) == 0
    frames = [frame async for frame in program]
    assert (frames[-1].kind, frames[-1].exit_code) == ("closed", None)
    assert sum(256 + len(frame.data) for frame in frames) < 3 * WINDOW_BYTES


async def test_input_waits_for_the_program() -> None:
    channel = FakeChannel()
    programs, program = await started(channel)
    feeding = asyncio.create_task(program.send(PtyFrame(kind="stdin", data=b"x" * (WINDOW_BYTES + 1))))
    await others_run()
    assert not feeding.done()
    programs.on_frame({"t": "program-taken", "id": "e1-1", "bytes": 1000}, 1)
    await asyncio.wait_for(feeding, 5)
    sent = [base64.b64decode(frame["data"]) for frame in channel.sent if frame["t"] == "program-input"]
    assert sum(map(len, sent)) == WINDOW_BYTES + 1


async def test_programs_of_an_earlier_agent_are_ended_a_bounded_number() -> None:
    channel = FakeChannel()
    programs, _ = await started(channel)
    for number in range(5_000):
        programs.on_frame(output(f"e0-{number}"), number)
    await others_run()
    ended = [frame for frame in channel.sent if frame["t"] == "program-end"]
    assert 1 <= len(ended) <= 64
