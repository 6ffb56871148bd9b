"""The bad neighbours and the scripted runner that tests of the agent rely on."""

from __future__ import annotations

import asyncio
import base64
import io
import tarfile
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from ai.backend.common.errors import WorkloadError
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.runtime import WorkloadExit, WorkloadKey, WorkloadSpec, WorkloadState
from ai.backend.plugin.testing.runtime.fake_runtime import FAKE_IMAGE, FakeBehaviour, FakeRuntime
from ai.backend.plugin.testing.runtime.suite import Talk

KEY = WorkloadKey(kernel_id=KernelId(UUID(int=1)), attempt=1)
SPEC = WorkloadSpec(key=KEY, session_id=SessionId(UUID(int=2)), image=FAKE_IMAGE)


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    runtime = FakeRuntime()
    await runtime.create(SPEC)
    talk = Talk(await runtime.open_channel(KEY, epoch=1), 2.0)
    await talk.kind("ready")
    yield talk
    await talk.close()


async def test_one_that_refuses_leaves_nothing() -> None:
    runtime = FakeRuntime(behave=FakeBehaviour(create_error=WorkloadError("no")))
    with pytest.raises(WorkloadError):
        await runtime.create(SPEC)
    assert await runtime.list_workloads() == []


async def test_one_that_is_slow_can_be_waited_for_by_others() -> None:
    runtime = FakeRuntime(behave=FakeBehaviour(create_delay_s=0.05))
    first, second = await asyncio.gather(runtime.create(SPEC), runtime.create(SPEC))
    assert first == second


async def test_one_that_never_starts_says_nothing() -> None:
    runtime = FakeRuntime(behave=lambda _: FakeBehaviour(is_ready=False))
    await runtime.create(SPEC)
    talk = Talk(await runtime.open_channel(KEY, epoch=1), 1.0)
    await asyncio.sleep(0.02)
    assert talk.frames == []
    await talk.close()


async def test_one_that_dies_after_the_start() -> None:
    how = WorkloadExit(signal=9, oom=True, reason="out of memory")
    runtime = FakeRuntime(behave=FakeBehaviour(dies_after_s=0.01, dies_with=how))
    await runtime.create(SPEC)
    talk = Talk(await runtime.open_channel(KEY, epoch=1), 1.0)
    assert (await talk.kind("exited"))["signal"] == 9
    view = await runtime.inspect(KEY)
    assert view is not None
    assert (view.state, view.exit) == (WorkloadState.EXITED, how)
    await talk.close()


async def test_one_that_ignores_the_polite_signal_is_killed_after_the_grace() -> None:
    runtime = FakeRuntime(behave=FakeBehaviour(stubborn=True))
    await runtime.create(SPEC)
    assert await runtime.stop(KEY, grace_s=0.01) == WorkloadExit(signal=9, reason="killed")


async def send(talk: Talk, **frame: Any) -> None:
    await talk.channel.send({"t": frame.pop("kind"), **frame})


async def test_input_is_asked_for_and_globals_stay(talk: Talk) -> None:
    await send(talk, kind="run", id="r1", mode="query", code="name = input('who? ')")
    assert (await talk.kind("waiting-input"))["is_password"] is False
    await send(talk, kind="input", id="r1", text="Ada")
    await talk.kind("finished")
    await talk.run("print(f'hello {name}')", "r2")
    assert (talk.text("r1"), talk.text("r2")) == ("who? ", "hello Ada\n")


@pytest.mark.parametrize(
    ("code", "stderr", "reason"),
    [
        ("1/0", "ZeroDivisionError", None),
        ("nonsense", "NameError", None),
        ("def", "SyntaxError", None),
        ("import os\nos._exit(3)", "", "interpreter-died"),
    ],
)
async def test_programs_fail_as_real_ones_do(talk: Talk, code: str, stderr: str, reason: str | None) -> None:
    finished = await talk.run(code)
    assert finished["reason"] == reason
    assert stderr in talk.text(stream="stderr")
    assert (await talk.run("print(1)", "r2"))["reason"] is None, "the next run works"


@pytest.mark.parametrize(("kind", "reason"), [("interrupt", None), ("cancel", "cancelled:exec-timeout")])
async def test_a_run_can_be_stopped(talk: Talk, kind: str, reason: str | None) -> None:
    await send(talk, kind="run", id="r1", mode="query", code="while True: pass")
    await talk.kind("started")
    await send(talk, kind=kind, id="r1", reason="exec-timeout") if kind == "cancel" else await send(talk, kind=kind)
    assert (await talk.kind("finished"))["reason"] == reason


@pytest.mark.parametrize(
    ("options", "code", "kinds"),
    [
        ({"exec": "echo hi"}, 0, ["started", "console", "finished"]),
        ({"clean": "*", "build": "echo b", "exec": "exit 3"}, 3, ["clean-finished", "build-finished", "finished"]),
        ({"build": "exit 1", "exec": "echo never"}, 127, ["build-finished", "finished"]),
    ],
)
async def test_batch_mode(talk: Talk, options: dict[str, str], code: int, kinds: list[str]) -> None:
    await send(talk, kind="run", id="b", mode="batch", options=options)
    assert (await talk.kind("finished"))["exitCode"] == code
    assert [k for k in (f["t"] for f in talk.frames) if k in kinds] == kinds
    assert "never" not in talk.text("b")


async def test_files_are_written_listed_and_read(talk: Talk) -> None:
    data = base64.b64encode(b"content").decode()
    await send(talk, kind="file-write", req=1, path="a/b.txt", data=data, offset=0, last=True)
    await send(talk, kind="file-list", req=2, path="a")
    await send(talk, kind="file-read", req=3, paths=["a/b.txt"], max_bytes=100)
    await send(talk, kind="file-read", req=4, paths=["../../etc/passwd"], max_bytes=100)
    await send(talk, kind="file-read", req=5, paths=["none"], max_bytes=100)
    last = await talk.until(lambda f: f["t"] == "reply" and f["req"] == 5)
    replies = {f["req"]: f for f in talk.frames if f["t"] == "reply"}
    assert [e["filename"] for e in replies[2]["data"]["entries"]] == ["b.txt"]
    assert [r["ok"] for r in replies.values()] == [True, True, True, False, False]
    assert (replies[4]["error"]["type"], last["error"]["type"]) == ("denied", "not-found")
    chunk = await talk.kind("chunk")
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(chunk["data"]))) as tar:
        extracted = tar.extractfile("b.txt")
        assert extracted is not None
        assert extracted.read() == b"content"


async def test_what_a_run_writes_to_its_output_is_listed(talk: Talk) -> None:
    finished = await talk.run("open('.output/plot.txt', 'w').write('xyz')")
    assert finished["files"] == [{"name": "plot.txt", "size": 3}]


async def test_a_terminal_echoes_until_exit(talk: Talk) -> None:
    await send(talk, kind="pty-open", req=1, pty="p", rows=1, cols=1)
    await send(talk, kind="pty-input", pty="p", data=base64.b64encode(b"exit\n").decode())
    assert (await talk.kind("pty-closed"))["exitCode"] == 0


async def test_completion_ping_and_restart_are_answered(talk: Talk) -> None:
    await send(talk, kind="complete", req=1, code="pri", options={})
    await send(talk, kind="ping", req=2)
    await talk.until(lambda f: f["t"] == "reply" and f["req"] == 2)
    assert (await talk.kind("reply"))["data"] == {"matches": ["print"]}
    await send(talk, kind="restart")
    await asyncio.sleep(0)
    assert sum(f["t"] == "ready" for f in talk.frames) >= 1
