"""The runs of one kernel, over a channel that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from ai.backend.agent.channel.channel import KernelChannel
from ai.backend.agent.channel.model import RunsRecord
from ai.backend.agent.channel.output_buffer import STREAM_LIMIT
from ai.backend.agent.channel.runs import INFRASTRUCTURE_FAILED, RunQueue
from ai.backend.agent.config.settings import RunSettings
from ai.backend.common.errors import LimitExceeded, RunError
from ai.backend.common.states import RunMode, RunStatus
from ai.backend.common.wire.execution import Execute, RunResult
from ai.backend.plugin.runtime import RunnerChannel


class Played(RunnerChannel):
    """A runner channel whose far side is the test."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.acked = 0
        self._frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._seq = 0

    def say(self, **frame: Any) -> None:
        self._seq += 1
        self._frames.put_nowait({**frame, "seq": self._seq})

    async def send(self, frame: Mapping[str, Any]) -> None:
        self.sent.append(frame)

    async def recv(self) -> AsyncIterator[dict[str, Any]]:
        while True:
            yield await self._frames.get()

    async def ack(self, seq: int) -> None:
        self.acked = seq

    async def close(self) -> None: ...


class Desk:
    """A run book with its played channel."""

    def __init__(self, **settings: Any) -> None:
        self.runner = Played()
        self.saved: list[RunsRecord] = []
        self.channel = KernelChannel(self._open, received=0, next_request=1)
        self.book = RunQueue(
            self.channel,
            attempt=1,
            settings=RunSettings.model_validate(settings),
            exec_timeout_s=settings.get("exec_timeout"),
            save=self.saved.append,
        )

    async def _open(self, last_seq: int) -> RunnerChannel:
        return self.runner

    async def step(
        self, mode: RunMode, *, run_id: str = "r", code: str = "", wait_s: float = 1.0, **kw: Any
    ) -> RunResult:
        step = Execute(kernel_id="k", run_id=run_id, mode=mode, code=code, flush_timeout_s=wait_s, **kw)
        return await self.book.execute(step)

    async def settle(self) -> None:
        """Let everything that can happen, happen."""
        for _ in range(20):
            await asyncio.sleep(0)

    def runs_sent(self) -> list[str]:
        return [frame["id"] for frame in self.runner.sent if frame["t"] == "run"]


@pytest_asyncio.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    await made.channel.connect()
    yield made
    made.book.close()
    await made.channel.close()


async def test_an_answer_comes_early_when_the_run_ends(desk: Desk) -> None:
    answer = asyncio.create_task(desk.step(RunMode.QUERY, code="1", wait_s=60))
    await desk.settle()
    assert desk.runner.sent == [{"t": "run", "id": "r", "mode": "query", "code": "1"}]
    desk.runner.say(t="started", id="r")
    desk.runner.say(t="console", id="r", items=[["stdout", "1"]])
    desk.runner.say(t="finished", id="r", exitCode=0, files=[{"name": "a", "size": 1}])
    result = await answer
    assert (result.status, result.exit_code, result.console) == (RunStatus.FINISHED, 0, [["stdout", "1"]])
    assert result.files == [{"name": "a", "size": 1}]
    await desk.settle()
    assert desk.runner.acked == 3
    assert desk.saved[-1].runs == []


async def test_a_busy_program_is_continued(desk: Desk) -> None:
    desk.runner.say(t="started", id="r")
    result = await desk.step(RunMode.QUERY, wait_s=0)
    assert (result.status, result.exit_code) == (RunStatus.CONTINUED, None)
    desk.runner.say(t="console", id="r", items=[["stdout", "x"]])
    desk.runner.say(t="finished", id="r", exitCode=0)
    assert (await desk.step(RunMode.CONTINUE)).console == [["stdout", "x"]]
    with pytest.raises(RunError, match="no run 'r'"):
        await desk.step(RunMode.CONTINUE)


async def test_the_last_answer_tells_what_was_lost(desk: Desk) -> None:
    desk.runner.say(t="console", id="r", items=[["stdout", "x" * (STREAM_LIMIT + 1)]])
    desk.runner.say(t="truncated", id="r", stream="stdout", dropped=2)
    desk.runner.say(t="truncated", id="r", stream="stderr", dropped=4)
    desk.runner.say(t="finished", id="r", exitCode=0, raised=True)
    result = await desk.step(RunMode.QUERY)
    assert result.options == {"raised": True, "dropped": {"stdout": 3, "stderr": 4}}


async def test_a_program_that_was_killed_is_told_the_memory_limit() -> None:
    desk = Desk()
    desk.book.memory_bytes = 64 << 20
    await desk.channel.connect()
    for frame in ({"exitCode": 137}, {"exitCode": 137, "reason": "interpreter-died", "signal": 9}, {"exitCode": 1}):
        answer = asyncio.create_task(desk.step(RunMode.BATCH))
        await desk.settle()
        desk.runner.say(t="finished", id="r", **frame)
        text = "".join(data for _, data in (await answer).console)
        assert ("limit is 64m" in text and "-r mem=128m" in text) == (frame["exitCode"] == 137)
    await desk.channel.close()


async def test_a_mode_that_the_image_lacks_is_refused(desk: Desk) -> None:
    desk.book.features = ["batch", "uid-match"]
    await desk.step(RunMode.BATCH, run_id="b", wait_s=0)
    with pytest.raises(RunError, match="no query mode"):
        await desk.step(RunMode.QUERY, wait_s=0)


async def test_runs_take_turns(desk: Desk) -> None:
    for run_id in ("a", "b", "c"):
        await desk.step(RunMode.QUERY, run_id=run_id, wait_s=0)
    assert desk.runs_sent() == ["a"]
    desk.runner.say(t="finished", id="a", exitCode=0)
    await desk.settle()
    assert desk.runs_sent() == ["a", "b"]
    assert (await desk.step(RunMode.CONTINUE, run_id="a")).status is RunStatus.FINISHED


async def test_too_many_runs_are_refused() -> None:
    desk = Desk(max_queued=2)
    await desk.channel.connect()
    for run_id in ("a", "b", "c"):
        await desk.step(RunMode.QUERY, run_id=run_id, wait_s=0)
    with pytest.raises(LimitExceeded):
        await desk.step(RunMode.QUERY, run_id="d", wait_s=0)
    await desk.channel.close()


async def test_batch_steps_answer_one_by_one(desk: Desk) -> None:
    options = {"clean": "*", "build": "make", "exec": "./a.out", "buildLog": True}
    answer = asyncio.create_task(desk.step(RunMode.BATCH, options=options))
    await desk.settle()
    assert desk.runner.sent[0]["options"] == options
    desk.runner.say(t="clean-finished", id="r", exitCode=0)
    desk.runner.say(t="console", id="r", items=[["stdout", "cc"]])
    desk.runner.say(t="build-finished", id="r", exitCode=2)
    desk.runner.say(t="finished", id="r", exitCode=127)
    seen = [await answer] + [await desk.step(RunMode.CONTINUE) for _ in range(2)]
    assert [(r.status, r.exit_code) for r in seen] == [
        (RunStatus.CLEAN_FINISHED, 0),
        (RunStatus.BUILD_FINISHED, 2),
        (RunStatus.FINISHED, 127),
    ]
    assert seen[1].console == [["stdout", "cc"]]


async def test_input_is_asked_and_given(desk: Desk) -> None:
    desk_waits = asyncio.create_task(desk.step(RunMode.QUERY))
    await desk.settle()
    desk.runner.say(t="started", id="r")
    desk.runner.say(t="waiting-input", id="r", is_password=True)
    result = await desk_waits
    assert (result.status, result.options) == (RunStatus.WAITING_INPUT, {"is_password": True})
    assert (await desk.step(RunMode.CONTINUE, wait_s=60)).status is RunStatus.WAITING_INPUT
    await desk.step(RunMode.INPUT, code="secret", wait_s=0)
    assert desk.runner.sent[-1] == {"t": "input", "id": "r", "text": "secret"}
    with pytest.raises(RunError, match="does not wait for input"):
        await desk.step(RunMode.INPUT, code="again")


async def test_one_question_is_open_at_a_time(desk: Desk) -> None:
    await desk.step(RunMode.QUERY, wait_s=0)
    desk.runner.say(t="started", id="r")
    await desk.settle()
    saves = len(desk.saved)
    for number in range(50):
        desk.runner.say(t="waiting-input", id="r", is_password=bool(number % 2))
    await desk.settle()
    assert len(desk.saved) == saves + 1
    assert (await desk.step(RunMode.CONTINUE)).options == {"is_password": False}
    await desk.step(RunMode.INPUT, code="x", wait_s=0)
    assert (await desk.step(RunMode.CONTINUE, wait_s=0)).status is RunStatus.CONTINUED


async def test_the_code_of_a_run_that_has_started_is_stored_no_more(desk: Desk) -> None:
    await desk.step(RunMode.QUERY, code="1 + 1", wait_s=0)
    assert desk.saved[-1].runs[0].frame["code"] == "1 + 1"
    desk.runner.say(t="started", id="r")
    desk.runner.say(t="waiting-input", id="r", is_password=False)
    await desk.settle()
    assert (desk.saved[-1].runs[0].started, desk.saved[-1].runs[0].frame) == (True, {})


async def test_only_what_was_given_out_is_acknowledged(desk: Desk) -> None:
    await desk.step(RunMode.QUERY, run_id="a", wait_s=0)
    await desk.step(RunMode.QUERY, run_id="b", wait_s=0)
    desk.runner.say(t="console", id="a", items=[["stdout", "1"]])
    desk.runner.say(t="finished", id="a", exitCode=0)
    desk.runner.say(t="console", id="b", items=[["stdout", "2"]])
    await desk.settle()
    assert (await desk.step(RunMode.CONTINUE, run_id="b", wait_s=0)).console == [["stdout", "2"]]
    await desk.settle()
    assert desk.runner.acked == 0
    await desk.step(RunMode.CONTINUE, run_id="a")
    await desk.settle()
    assert desk.runner.acked == 3


async def test_a_workload_that_ends_ends_its_runs(desk: Desk) -> None:
    answer = asyncio.create_task(desk.step(RunMode.QUERY))
    await desk.settle()
    desk.runner.say(t="started", id="r")
    desk.runner.say(t="exited", code=None, signal=9, reason="killed")
    result = await answer
    assert (result.status, result.exit_code) == (RunStatus.FINISHED, INFRASTRUCTURE_FAILED)
    assert "signal 9" in (result.reason or "")


async def test_a_run_beyond_its_time_is_cancelled() -> None:
    desk = Desk(exec_timeout=0.01)
    await desk.channel.connect()
    answer = asyncio.create_task(desk.step(RunMode.QUERY, wait_s=60))
    await desk.settle()
    desk.runner.say(t="started", id="r")
    async with asyncio.timeout(30):
        while desk.runner.sent[-1]["t"] != "cancel":  # noqa: ASYNC110  # a timer of 10 ms has no event
            await asyncio.sleep(0)
    assert desk.runner.sent[-1] == {"t": "cancel", "id": "r", "reason": "exec-timeout"}
    desk.runner.say(t="finished", id="r", exitCode=137, reason="cancelled:exec-timeout")
    result = await answer
    assert (result.status, result.exit_code, result.reason) == (RunStatus.EXEC_TIMEOUT, None, "exec-timeout")
    await desk.channel.close()


async def test_a_run_id_may_be_used_again_once_its_result_was_fetched(desk: Desk) -> None:
    for _ in range(2):
        answer = asyncio.create_task(desk.step(RunMode.QUERY))
        await desk.settle()
        desk.runner.say(t="finished", id="r", exitCode=0)
        assert (await answer).status is RunStatus.FINISHED
    assert desk.runs_sent() == ["r", "r"]


async def test_a_repeated_first_call_joins_the_run(desk: Desk) -> None:
    await desk.step(RunMode.QUERY, code="1", wait_s=0)
    await desk.step(RunMode.QUERY, code="1", wait_s=0)
    assert desk.runs_sent() == ["r"]


async def test_interrupt_without_a_run_does_nothing(desk: Desk) -> None:
    await desk.book.interrupt()
    assert desk.runner.sent == []
    await desk.step(RunMode.QUERY, wait_s=0)
    await desk.book.interrupt()
    assert desk.runner.sent[-1] == {"t": "interrupt"}
