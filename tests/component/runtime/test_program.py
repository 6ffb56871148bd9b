"""A batch session's program as the workload's own, in place of a runner (decision 0265)."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from ai.backend.plugin.runtime import WorkloadKey
from ai.backend.plugin.testing.runtime.suite import Frame, Talk
from tests.component.runtime.conftest import Bench

pytestmark = pytest.mark.needs("isolation", "cgroups", "root")
ODD_VALUE = 'it\'s $HOME `id` "quoted" \\ and\na second line'


async def begin(bench: Bench, command: str, **changes: Any) -> tuple[WorkloadKey, Talk]:
    key, talk = await bench.start(program=command, **changes)
    run = {"t": "run", "id": "startup", "mode": "batch", "options": {"exec": command, "input": False}}
    await talk.channel.send(run)
    assert (await talk.kind("started"))["id"] == "startup"
    return key, talk


async def commands_of(bench: Bench, key: WorkloadKey) -> list[str]:
    return list(map(command_of, await bench.runtime.pids(key)))


def command_of(pid: int) -> str:
    """Returns the command of a process; empty if it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):  # the latter where it ends between the opening and the reading
        return ""


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def answer(talk: Talk, message: Frame) -> Frame:
    await talk.channel.send(message)
    return await talk.until(lambda frame: frame.get("req") == message["req"], f"reply to {message['t']}")


async def test_its_end_is_the_end_of_the_workload(bench: Bench) -> None:
    key, talk = await begin(bench, 'echo "$ODD"; pwd; echo oops > /dev/stderr; exit 7', environ={"ODD": ODD_VALUE})
    ended = await talk.kind("exited")
    assert (ended["code"], ended["signal"], ended["reason"], ended["program"]) == (7, None, "", True)
    log = await bench.runtime.read_logs(key, max_bytes=4096)
    assert log.decode() == f"{ODD_VALUE}\n/home/work\noops\n"
    stopped = await bench.runtime.stop(key, grace_s=1.0)
    assert stopped is not None
    assert (stopped.code, stopped.program) == (7, True)
    await bench.end(key, talk)


async def test_the_programs_environment_is_that_of_a_runner(bench: Bench) -> None:
    key, talk = await bench.start(environ={"A": "1", "PATH": "/usr/bin:/bin"})
    run = {"t": "run", "id": "r", "mode": "batch", "options": {"exec": "env -0 | sort -z", "input": False}}
    await talk.channel.send(run)
    await talk.kind("finished")
    by_runner = set(talk.text("r").split("\0"))
    await bench.end(key, talk)
    key, talk = await begin(bench, "env -0 | sort -z", environ={"A": "1", "PATH": "/usr/bin:/bin"})
    await talk.kind("exited")
    in_place = set((await bench.runtime.read_logs(key, max_bytes=65536)).decode().split("\0"))
    names = ("BACKENDAI_KERNEL_ID", "BACKENDAI_SESSION_ID", "BACKENDAI_WORKLOAD_COOKIE")
    differing = {pair for pair in by_runner ^ in_place if not pair.startswith((*names, "PWD=", "OLDPWD="))}
    assert differing == set()
    await bench.end(key, talk)


async def test_no_runner_starts_unless_one_is_needed(bench: Bench) -> None:
    key, talk = await begin(bench, "echo here > made; sleep 60")
    assert not any("runner_main" in command for command in await commands_of(bench, key))
    reply = await answer(talk, {"t": "ping", "req": 1})
    assert reply["data"] == {"busy": True}
    listing = await answer(talk, {"t": "file-list", "req": 2, "path": "."})
    assert "made" in str(listing["data"])
    assert any("runner_main" in command for command in await commands_of(bench, key))
    program = {"t": "program-start", "req": 3, "id": "p", "argv": ["cat", "made"], "tty": False, "env": {}}
    assert (await answer(talk, program))["ok"]
    output = await talk.kind("program-output")
    assert base64.b64decode(output["data"]) == b"here\n"
    assert (await answer(talk, {"t": "ping", "req": 4}))["data"] == {"busy": True}
    await talk.channel.send({"t": "cancel", "id": "startup", "reason": "exec-timeout"})
    ended = await talk.kind("exited")
    assert (ended["signal"], ended["reason"], ended["program"]) == (signal.SIGKILL, "exec-timeout", True)
    await bench.end(key, talk)


async def test_what_comes_before_the_program_starts_the_runner_instead(bench: Bench) -> None:
    key, talk = await bench.start(program="exit 3")
    assert (await answer(talk, {"t": "file-list", "req": 1, "path": "."}))["ok"]
    await talk.channel.send({"t": "run", "id": "startup", "mode": "batch", "options": {"exec": "exit 3"}})
    finished = await talk.kind("finished")
    assert (finished["id"], finished["exitCode"]) == ("startup", 3)
    assert not talk.is_over
    await bench.end(key, talk)


async def test_it_is_interrupted_and_stopped_politely(bench: Bench) -> None:
    for how in ("interrupt", "stop"):
        key, talk = await begin(bench, "trap 'echo int; exit 5' INT; trap 'echo term; exit 6' TERM; sleep 60 & wait")
        await asyncio.sleep(0.3)  # until the traps are set
        if how == "interrupt":
            await talk.channel.send({"t": "interrupt"})
            ended = await talk.kind("exited")
            assert (ended["code"], ended["program"]) == (5, True)
        else:
            stopped = await bench.runtime.stop(key, grace_s=5.0)
            assert stopped is not None
            assert (stopped.code, stopped.reason, stopped.program) == (6, "stopped", False)
        await bench.end(key, talk)


async def test_it_may_kill_what_waits_for_a_runner_and_forge_nothing(bench: Bench) -> None:
    key, talk = await begin(bench, "kill -9 $(pgrep -x sh); sleep 0.5; exit 4")
    ended = await talk.kind("exited")
    assert (ended["code"], ended["program"]) == (4, True)
    assert [frame["t"] for frame in talk.frames] == ["ready", "started", "exited"]
    await bench.end(key, talk)


async def test_a_repeated_request_starts_it_once(bench: Bench) -> None:
    command = "echo once >> count; sleep 0.5; cat count; exit $(wc -l < count)"
    key, talk = await begin(bench, command)
    await talk.close()
    again = Talk(await bench.runtime.open_channel(key, epoch=2), 30.0)
    assert (await again.kind("started"))["id"] == "startup"
    await again.channel.send({"t": "run", "id": "startup", "mode": "batch", "options": {"exec": command}})
    assert (await again.kind("exited"))["code"] == 1
    await bench.end(key, again)


@pytest.mark.parametrize("name", ["OPTIND", "A.B", "UID", "BASH_ENV"])
async def test_variables_that_a_shell_cannot_set_leave_it_to_the_runner(bench: Bench, name: str) -> None:
    key, talk = await bench.start(program="printenv " + name, environ={name: "value"})
    await talk.channel.send({"t": "run", "id": "s", "mode": "batch", "options": {"exec": "env", "input": False}})
    assert (await talk.kind("finished"))["exitCode"] == 0
    assert name in talk.text("s")
    await bench.end(key, talk)


async def test_keys_in_the_home_leave_it_to_the_runner(bench: Bench) -> None:
    key, talk = await bench.start(program="stat -c %a .ssh/id", files={"/home/work/.ssh/id": b"x"})
    await talk.channel.send({"t": "run", "id": "s", "mode": "batch", "options": {"exec": "stat -c %a .ssh/id"}})
    await talk.kind("finished")
    assert talk.text("s") == "600\n"
    await bench.end(key, talk)


async def test_a_killed_shim_takes_the_program_with_it(bench: Bench) -> None:
    key, talk = await begin(bench, "sleep 60")
    pids = await bench.runtime.pids(key)
    os.kill(parent_of(min(pids)), signal.SIGKILL)
    stopped = await bench.runtime.stop(key, grace_s=1.0)
    assert stopped is not None
    assert (stopped.reason, stopped.program) == ("shim-died", False)
    await bench.end(key, talk)


async def test_the_plan_keeps_no_secret(bench: Bench) -> None:
    changes = {"environ": {"ODD": ODD_VALUE, "KEY": "nvapi-never-on-a-disk"}, "secret_names": frozenset({"KEY"})}
    key, talk = await begin(bench, 'echo "$ODD $KEY"', **changes)
    assert (await talk.kind("exited"))["code"] == 0
    assert await bench.runtime.read_logs(key, max_bytes=4096) == f"{ODD_VALUE} nvapi-never-on-a-disk\n".encode()
    plans = [path.read_text() for path in bench.state.rglob("plan.json")]
    assert [("ODD" in plan, "nvapi-never" in plan) for plan in plans] == [(True, False)]
    await bench.end(key, talk)
