"""Executables as accelerator plugins: the one in Go of the documentation, and hostile ones."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from ai.backend.agent.composition import Agent
from ai.backend.common.errors import BackendError, InvalidInput, PluginError
from ai.backend.common.states import RunStatus
from ai.backend.common.wire.reports import PluginReport
from ai.backend.plugin.accelerator.shapes import InvalidResponse
from ai.backend.plugin.discovery import find_plugins
from ai.backend.pluginhost import launch
from ai.backend.pluginhost.process import HostedCallFailed
from tests.component.agent.conftest import Bench
from tests.component.agent.test_plugin_host import is_alive
from tests.component.agent.test_process_runtime import MIB, RealBench

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
GO_EXAMPLE, C_EXAMPLE = EXAMPLES / "go-plugin", EXAMPLES / "c-plugin"
PRELUDE = """
import socket, struct, time
agent = socket.socket(fileno=3)
def send(body): agent.sendall(struct.pack(">I", len(body)) + body)
"""
HOSTILE = {
    "garbage": (r"agent.recv(1 << 16); send(b'\xc1 no MessagePack')", "it sent what is no frame"),
    "huge": (r"agent.sendall(b'\xff' * 4); time.sleep(60)", "a frame of 4294967295 bytes"),
    "deep": (r"agent.recv(1 << 16); send(b'\x91' * 100_000)", "it sent what is no frame"),
    "silent": ("time.sleep(60)", "init took longer than 4 s"),
    "exits": ("raise SystemExit(7)", "it exited with status 7"),
    "kills-itself": ("import os; os.kill(os.getpid(), 11)", "it was killed by SIGSEGV"),
    "closes": ("agent.close(); time.sleep(60)", "it closed its socket"),
    "tells-nothing": (r"agent.recv(1 << 16); send(b'\x93\xa6Answer\x01\xc4\x01\x80')", "missing required field"),
}
"""What a program does instead of its work, and what the agent says of it."""


def write_program(folder: Path, name: str, body: str, prelude: str = f"#!{sys.executable} -IS\n{PRELUDE}") -> str:
    path = folder / name
    path.write_text(f"{prelude}{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture(scope="session")
def go_plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("go") / "acme-plugin"
    environment = {**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    command = ["go", "build", "-o", str(path), "."]
    done = subprocess.run(command, cwd=GO_EXAMPLE, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(path)


@pytest.fixture(scope="session")
def c_plugin(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("c") / "acme-plugin"
    sources = [str(C_EXAMPLE / name) for name in ("main.c", "msgpack.c")]
    # An address that is read or written and is not the program's own ends it, which the checks then tell.
    strict = [
        "-std=c11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]
    done = subprocess.run(["gcc", *strict, "-o", str(path), *sources], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(path)


LANGUAGES = [
    pytest.param("go_plugin", marks=pytest.mark.needs("go"), id="go"),
    pytest.param("c_plugin", marks=pytest.mark.needs("gcc"), id="c"),
]


@pytest.fixture
def example(request: pytest.FixtureRequest) -> str:
    """The built example of the documentation in the language of the test's parameter."""
    return str(request.getfixturevalue(request.param))


async def first_reasons(bench: Bench, names: set[str]) -> dict[str, str]:
    """Waits until the agent has named a reason for each of these plugins; it starts them again meanwhile."""
    reasons: dict[str, str] = {}
    async with asyncio.timeout(40):
        while not names <= reasons.keys():
            await bench.manager.next_heartbeat()
            for report in bench.manager.heartbeats[-1].plugins:
                if report.reason is not None and not _is_starting(report):
                    reasons.setdefault(report.name, report.reason)
    return reasons


def _is_starting(report: PluginReport) -> bool:
    return report.reason in ("not started", "it is being started")


async def test_hostile_programs_are_named_and_the_agent_goes_on(bench: Bench, tmp_path: Path) -> None:
    programs = {write_program(tmp_path, name, body): reason for name, (body, reason) in HOSTILE.items()}
    no_program = write_program(tmp_path, "no-program", "", prelude="\x7fELF of another machine")
    programs |= {str(tmp_path / "nowhere"): "No such file", no_program: "it cannot be executed"}
    sources = find_plugins(["ai.backend.accelerator.mock", *programs], (), ())
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 4.0}}
    agent = Agent(bench.settings(), bench.runtime, bench.manager, plugins=sources)
    await agent.start()
    try:
        reasons = await first_reasons(bench, set(programs))
        for path, reason in programs.items():
            assert reason in reasons[path], path
        assert "mock" not in reasons
        started_at = time.monotonic()
        await bench.run(agent, slots={"mock.device": "1"})
        assert time.monotonic() - started_at < 5.0
    finally:
        await agent.stop()


async def test_what_others_may_replace_is_not_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    program = Path(write_program(tmp_path, "open", f"open({str(ran)!r}, 'w')"))
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(program)

    async def refusal(path: str) -> str:
        with pytest.raises(PluginError) as refused:
            await launch(path, lambda _: {}, deadline_s=5.0, on_ended=lambda _: None)
        return refused.value.message

    os.chmod(program, 0o757)
    assert "can be written by other users" in await refusal(str(program))
    assert "can be written by other users" in await refusal(str(link))
    os.chmod(program, 0o644)
    assert "is not an executable file" in await refusal(str(program))
    assert "is not an executable file" in await refusal(str(tmp_path / "folder"))
    assert "not a plain absolute path" in await refusal(f"{tmp_path}/folder/../open")
    os.chmod(program, 0o755)
    os.chmod(tmp_path, 0o777)
    assert f"{tmp_path} can be written" in await refusal(str(program))
    assert not ran.exists()


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        ({"protocol": 99}, "version 99 of the host protocol; this agent speaks 1"),
        ({"key": "a.b"}, "has a dot in it"),
        ({"key": "../etc"}, "not a name of a resource slot"),
        ({"version": "1" * 65}, "too long"),
        ({"powers": ["partitionable"]}, "'partitionable', which its capabilities do not declare"),
        ({"powers": ["omnipotent"]}, "'omnipotent', which its capabilities do not declare"),
        ({"key": 5}, "Expected `str`, got `int`"),
    ],
)
async def test_a_description_of_no_use_is_refused(tmp_path: Path, hello: dict[str, object], reason: str) -> None:
    description = {
        "protocol": 1,
        "key": "x",
        "version": "1",
        "verified_on": None,
        "key_is_slot_prefix": True,
        "capabilities": {},
        "powers": [],
        **hello,
    }
    frame = msgspec.msgpack.encode(["Answer", 1, msgspec.msgpack.encode(description)])
    program = write_program(tmp_path, "described", f"agent.recv(1 << 16)\nsend({frame!r})\nagent.recv(1)")
    with pytest.raises(InvalidResponse, match=reason):
        await launch(program, lambda _: {}, deadline_s=10.0, on_ended=lambda _: None)


async def test_a_program_gets_one_descriptor_no_privileges_and_the_environment_of_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_AGENT", "s")
    told = tmp_path / "told.json"
    body = f"""
import json, os
fds = [fd for fd in range(64) if os.path.exists(f'/proc/self/fd/{{fd}}')]
status = dict(line.split(':\\t', 1) for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
json.dump([fds, status['NoNewPrivs'], dict(os.environ), os.getsid(0) == os.getpid()], open({str(told)!r}, 'w'))
"""
    with pytest.raises(PluginError, match="it exited with status 0"):
        await launch(write_program(tmp_path, "teller", body), lambda _: {}, deadline_s=10.0, on_ended=lambda _: None)
    descriptors, no_new_privileges, environment, leads_session = json.loads(told.read_text())
    assert (descriptors, no_new_privileges, leads_session) == ([0, 1, 2, 3], "1", True)
    assert environment["BACKENDAI_PLUGIN_PROTOCOL"] == "1"
    assert "SECRET_OF_THE_AGENT" not in environment


async def wait_for_end(pid: int) -> None:
    async with asyncio.timeout(10):
        while is_alive(pid):  # noqa: ASYNC110  # a process that is no child sends no event
            await asyncio.sleep(0.02)


async def test_what_a_program_leaves_running_ends_with_it(tmp_path: Path) -> None:
    left = tmp_path / "left"
    body = f"""
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open({str(left)!r}, "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not os.path.exists({str(left)!r}) or not os.path.getsize({str(left)!r}): time.sleep(0.01)
"""
    with pytest.raises(PluginError, match="it exited with status 0"):
        await launch(write_program(tmp_path, "forker", body), lambda _: {}, deadline_s=10.0, on_ended=lambda _: None)
    pid = int(left.read_text())  # a short local file
    await wait_for_end(pid)


async def test_what_a_program_leaves_without_an_environment_ends_with_it(tmp_path: Path) -> None:
    """A process that executes a program has none for a moment and is waited for; it must not be waited for always."""
    left = tmp_path / "left"
    body = f"""
import subprocess
orphan = subprocess.Popen(["/bin/sleep", "600"], env={{}}, start_new_session=True)
open({str(left)!r}, "w").write(str(orphan.pid))
"""
    with pytest.raises(PluginError, match="it exited with status 0"):
        await launch(write_program(tmp_path, "forker", body), lambda _: {}, deadline_s=10.0, on_ended=lambda _: None)
    pid = int(left.read_text())  # a short local file
    await wait_for_end(pid)


async def test_what_a_program_starts_for_workloads_outlives_it(tmp_path: Path) -> None:
    left = tmp_path / "left"
    body = f"""
import os, subprocess
environment = {{**os.environ, "BACKENDAI_OUTLIVES_HOST": "1"}}
daemon = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)
open({str(left)!r}, "w").write(str(daemon.pid))
"""
    with pytest.raises(PluginError, match="it exited with status 0"):
        await launch(write_program(tmp_path, "starter", body), lambda _: {}, deadline_s=10.0, on_ended=lambda _: None)
    pid = int(left.read_text())  # a short local file
    try:
        (tmp_path / "other").mkdir()
        await test_what_a_program_leaves_running_ends_with_it(
            tmp_path / "other"
        )  # the orphans have been looked at since
        assert is_alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_a_program_that_floods_saves_is_killed(tmp_path: Path) -> None:
    """States are stored one after another; nobody has a file written a million times by it."""
    save = msgspec.msgpack.encode(["Save", 1, [b"{}", 1]])
    program = write_program(tmp_path, "saver", f"while True: send({save!r})")
    with pytest.raises(BackendError, match="states to store at once"):
        await launch(program, lambda _: {}, deadline_s=10.0, on_ended=lambda _: None)


async def test_a_program_that_reads_nothing_is_killed_before_the_agent_has_no_memory(tmp_path: Path) -> None:
    hello = {"protocol": 1, "key": "x", "version": "1", "verified_on": None, "key_is_slot_prefix": True}
    answer = msgspec.msgpack.encode(["Answer", 1, msgspec.msgpack.encode({**hello, "capabilities": {}, "powers": []})])
    program = write_program(tmp_path, "deaf", f"send({answer!r})\ntime.sleep(60)")
    plugin = await launch(program, lambda _: {"text": "x" * (6 << 20)}, deadline_s=5.0, on_ended=lambda _: None)
    try:
        calls = await asyncio.gather(*(plugin.make() for _ in range(5)), return_exceptions=True)
        assert {type(outcome) for outcome in calls} == {PluginError}
        assert plugin.host.reason == "it does not read what it is sent"
    finally:
        await plugin.close()


# ---- the examples in Go and C


@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
def test_an_example_passes_all_checks(example: str, tmp_path: Path) -> None:
    command = ["ai.backend.cli.main", "accelerator", "check", "--program", example, "--output", "json"]
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=tmp_path,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    report = json.loads(done.stdout)
    broken = [check for check in report["checks"] if check["result"] not in ("passed", "skipped")]
    assert (done.returncode, report["key"], report["passed"], broken) == (0, "acme", True, [])
    assert sum(check["result"] == "passed" for check in report["checks"]) >= 40


@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
async def test_an_example_refuses_wrong_settings(example: str) -> None:
    plugin = await launch(example, lambda _: {"devices": -1}, deadline_s=10.0, on_ended=lambda _: None)
    try:
        with pytest.raises(InvalidInput, match=r"plugins\.acme\.devices: expected a number"):
            await plugin.init()
        with pytest.raises(PluginError, match="no settings yet"):
            await plugin.list_devices()
        with pytest.raises((HostedCallFailed, InvalidInput), match=r"panic|is no table"):
            await plugin.host.call("make", (), 5.0)
    finally:
        await plugin.close()


class ProgramBench(RealBench):
    """A node whose agent.toml names the executable, and one of whose two devices is broken."""

    def __init__(self, place: Path, program: str) -> None:
        super().__init__(place / "agent")
        self.options = {
            "agent": {"allow-compute-plugins": [program]},
            "plugins": {"acme": {"devices": 3, "broken": ["acme-0"]}},
        }


@pytest_asyncio.fixture
async def node(tmp_path: Path, example: str) -> AsyncIterator[ProgramBench]:
    made = ProgramBench(tmp_path, example)
    yield made
    await made.close()


@pytest.mark.parametrize("example", LANGUAGES, indirect=True)
async def test_a_session_gets_a_device_of_an_example(node: ProgramBench) -> None:
    agent = await node.start()
    async with asyncio.timeout(30):
        while True:
            await node.manager.next_heartbeat()
            slots = {slot.slot_name: str(slot.amount) for slot in node.manager.heartbeats[-1].slots}
            if slots.get("acme.device") == "2":
                break
    (report,) = [plugin for plugin in node.manager.heartbeats[-1].plugins if plugin.name == "acme"]
    options = {"acme": {"mode": "fast"}} if report.options_schema is not None else {}
    slots = {"cpu": "1", "mem": str(256 * MIB), "acme.device": "1"}
    spec = await node.run(agent, slots=slots, plugin_options=options)
    code = "import os; print(os.environ['ACME_VISIBLE_DEVICES'], os.environ.get('ACME_MODE'))"
    result = await node.say(agent, spec, code)
    assert result.status is RunStatus.FINISHED
    device, mode = result.console[0][1].split()
    assert device in ("acme-1", "acme-2")
    assert mode == ("fast" if options else "None")
    await node.destroy(agent, spec)
