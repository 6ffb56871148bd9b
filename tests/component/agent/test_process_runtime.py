"""The agent on the process runtime: real processes, real files."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ai.backend.agent.composition import Agent
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.runtimes import end_workloads, load_runtime
from ai.backend.common.errors import Forbidden, LimitExceeded, NotFound
from ai.backend.common.states import KernelEventReason, KernelStatus, RunMode, RunStatus, SessionType
from ai.backend.common.wire.agent import DestroyKernel, KernelSpec, RestartKernel
from ai.backend.common.wire.execution import (
    Complete,
    DownloadFiles,
    Execute,
    FileBlob,
    KernelRef,
    ListFiles,
    OpenPty,
    PtyFrame,
    ReadLogs,
    RunResult,
    UploadFiles,
)
from tests.component.agent.conftest import Bench

S, R = KernelStatus, KernelEventReason
MIB = 1024 * 1024


class RealBench(Bench):
    """The same bench with the process runtime and the intrinsic plugins."""

    def settings(self) -> AgentSettings:
        raw: dict[str, Any] = {
            "agent": {"id": "i-test", "data-dir": str(self.data_dir)},
            "intervals": {"sync": 0.5, "statistics": 0.5, "heartbeat": 0.1},
            "kernel-lifecycles": {"stop-grace": 1.0},
            "gateway": {"plane": self.gateway_plane},
        }
        for table, values in self.options.items():
            raw[table] = {**raw.get(table, {}), **values}
        return AgentSettings.model_validate(raw)

    def agent(self) -> Agent:
        settings = self.settings()
        agent = Agent(settings, load_runtime(settings), self.manager)
        self.agents.append(agent)
        return agent

    @staticmethod
    def spec(**changes: Any) -> KernelSpec:
        return Bench.spec(**{"slots": {"cpu": "1", "mem": str(256 * MIB)}, **changes})

    async def run(self, agent: Agent, **changes: Any) -> KernelSpec:
        await self.manager.next_heartbeat()
        image = next(i.name for i in self.manager.heartbeats[-1].images if "python" in i.name)
        return await super().run(agent, **{"image": image, "slots": self.spec().slots, **changes})

    async def say(self, agent: Agent, spec: KernelSpec, code: str, run_id: str = "r") -> RunResult:
        """Run code to its end or to a question."""
        step = Execute(kernel_id=spec.kernel_id, run_id=run_id, mode=RunMode.QUERY, code=code)
        return await self.finish(agent, step)

    async def finish(self, agent: Agent, step: Execute) -> RunResult:
        console: list[list[Any]] = []
        async with asyncio.timeout(30):
            while True:
                result = await agent.commands.execute(step)
                console += result.console
                if result.status is not RunStatus.CONTINUED:
                    return RunResult(
                        **{**{f: getattr(result, f) for f in result.__struct_fields__}, "console": console}
                    )
                step = Execute(kernel_id=step.kernel_id, run_id=step.run_id, mode=RunMode.CONTINUE)

    async def destroy(self, agent: Agent, spec: KernelSpec) -> None:
        await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=spec.attempt, forced=True))
        await self.until(spec, S.TERMINATED)


@pytest_asyncio.fixture
async def real(tmp_path: Path) -> AsyncIterator[RealBench]:
    made = RealBench(tmp_path / "agent")
    yield made
    agent = made.agents[-1]
    if agent.supervisor is not None:
        for kernel in agent.supervisor.live_kernels():
            await agent.commands.destroy_kernel(DestroyKernel(kernel_id=kernel.id, attempt=kernel.attempt, forced=True))
            async with asyncio.timeout(30):
                while kernel.is_live:
                    kernel.changed.clear()
                    await kernel.changed.wait()
    await made.close()


async def test_a_session_from_creation_to_end(real: RealBench) -> None:
    agent = await real.start()
    spec = await real.run(agent, environ={"GREETING": "hello"})
    result = await real.say(agent, spec, "import os; x = 6; print(os.environ['GREETING'], os.getcwd())")
    assert (result.status, result.console) == (RunStatus.FINISHED, [["stdout", "hello /home/work\n"]])
    assert (await real.say(agent, spec, "print(x * 7)", "r2")).console == [["stdout", "42\n"]]
    environ = await real.say(agent, spec, "print(open('/home/config/resource.txt').read())", "r3")
    assert "CPU_SHARES=" in environ.console[0][1]
    assert await agent.commands.complete(Complete(kernel_id=spec.kernel_id, code="pri")) == ["print"]
    assert b"42" in await agent.commands.read_logs(ReadLogs(kernel_id=spec.kernel_id))
    await real.destroy(agent, spec)
    assert list((real.data_dir / "process").glob(f"**/*{spec.kernel_id}*")) == []


async def test_input_interrupt_and_time_limit(real: RealBench) -> None:
    agent = await real.start()
    spec = await real.run(agent, exec_timeout_s=1.5)
    asked = await real.say(agent, spec, "name = input('who? '); print('hi', name)")
    assert (asked.status, asked.console) == (RunStatus.WAITING_INPUT, [["stdout", "who? "]])
    answer = Execute(kernel_id=spec.kernel_id, run_id="r", mode=RunMode.INPUT, code="Ada")
    assert (await real.finish(agent, answer)).console == [["stdout", "hi Ada\n"]]

    step = Execute(
        kernel_id=spec.kernel_id,
        run_id="i",
        mode=RunMode.QUERY,
        code="import time; time.sleep(60)",
        flush_timeout_s=0.2,
    )
    assert (await agent.commands.execute(step)).status is RunStatus.CONTINUED
    await agent.commands.interrupt(KernelRef(kernel_id=spec.kernel_id))
    stopped = await real.finish(agent, Execute(kernel_id=spec.kernel_id, run_id="i", mode=RunMode.CONTINUE))
    assert stopped.status is RunStatus.FINISHED
    assert "KeyboardInterrupt" in stopped.console[0][1]

    limited = await real.say(agent, spec, "while True: pass", "t")
    assert limited.status is RunStatus.EXEC_TIMEOUT
    assert (await real.say(agent, spec, "print('alive')", "a")).console == [["stdout", "alive\n"]]


async def test_files_go_in_and_out_and_nowhere_else(real: RealBench) -> None:
    agent = await real.start()
    spec = await real.run(agent)
    data = bytes(range(256)) * 12_000
    blobs = [FileBlob(path="a.bin", data=data), FileBlob(path="sub/empty", data=b"")]
    await agent.commands.upload_files(UploadFiles(kernel_id=spec.kernel_id, files=blobs))
    (archive,) = await agent.commands.download_files(
        DownloadFiles(kernel_id=spec.kernel_id, paths=["a.bin"], max_bytes=8 * MIB)
    )
    with tarfile.open(fileobj=io.BytesIO(archive.tar)) as tar:
        member = tar.extractfile(tar.getmembers()[0])
        assert member is not None
        assert member.read() == data
    listing = await agent.commands.list_files(ListFiles(kernel_id=spec.kernel_id, path="."))
    assert {(e.filename, e.kind) for e in listing.entries} >= {("a.bin", "file"), ("sub", "directory")}
    for path in ("../../etc/passwd", "/etc/passwd"):
        with pytest.raises((Forbidden, NotFound)):
            await agent.commands.download_files(
                DownloadFiles(kernel_id=spec.kernel_id, paths=[path], max_bytes=8 * MIB)
            )
    with pytest.raises(LimitExceeded):
        await agent.commands.download_files(DownloadFiles(kernel_id=spec.kernel_id, paths=["a.bin"], max_bytes=1000))


async def test_a_terminal(real: RealBench) -> None:
    agent = await real.start()
    spec = await real.run(agent)
    stream = await agent.commands.open_pty(OpenPty(kernel_id=spec.kernel_id, rows=30, cols=100))
    await stream.send(PtyFrame(kind="stdin", data=b"stty size; echo $((6*7))\n"))
    seen = b""
    async with asyncio.timeout(30):
        async for frame in stream:
            seen += frame.data
            if b"30 100" in seen and b"\n42" in seen:
                break
    await stream.close()


async def test_runs_survive_the_agent(real: RealBench) -> None:
    agent = await real.start()
    spec = await real.run(agent)
    code = (
        "import os, time\nprint('before', flush=True)\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"
        "print('after')"
    )
    step = Execute(kernel_id=spec.kernel_id, run_id="r", mode=RunMode.QUERY, code=code, flush_timeout_s=0.7)
    console: list[list[Any]] = []
    async with asyncio.timeout(30):
        while not console:
            first = await agent.commands.execute(step)
            assert first.status is RunStatus.CONTINUED
            console += first.console
            step = Execute(kernel_id=spec.kernel_id, run_id="r", mode=RunMode.CONTINUE, flush_timeout_s=0.7)
    assert console == [["stdout", "before\n"]]
    await agent.stop()
    await asyncio.sleep(1.0)
    agent = await real.start()
    await real.manager.wait_for(lambda o: o.reason is R.RESUMING_AGENT_OPERATION)
    await agent.commands.upload_files(UploadFiles(kernel_id=spec.kernel_id, files=[FileBlob(path="go", data=b"")]))
    rest = await real.finish(agent, Execute(kernel_id=spec.kernel_id, run_id="r", mode=RunMode.CONTINUE))
    assert (rest.status, rest.console) == (RunStatus.FINISHED, [["stdout", "after\n"]])
    await agent.stop()
    assert await end_workloads(load_runtime(real.settings()), grace_s=1.0) == 1
    await real.start()
    await real.until(spec, S.TERMINATED)


async def test_restart_keeps_files_and_forgets_names(real: RealBench) -> None:
    agent = await real.start()
    spec = await real.run(agent)
    await real.say(agent, spec, "x = 1; open('kept', 'w').write('kept')")
    await agent.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=2))
    await real.until(Bench.spec(kernel_id=spec.kernel_id, attempt=2), S.RUNNING)
    result = await real.say(agent, spec, "print(open('kept').read(), 'x' in globals())")
    assert result.console == [["stdout", "kept False\n"]]


@pytest.mark.parametrize(
    ("command", "reason", "code"),
    [("echo done", R.TASK_FINISHED, 0), ("exit 3", R.TASK_FAILED, 3), ("kill -9 $$", R.TASK_FAILED, 137)],
)
async def test_batch_sessions(real: RealBench, command: str, reason: KernelEventReason, code: int) -> None:
    agent = await real.start()
    spec = await real.run(agent, session_type=SessionType.BATCH, startup_command=command)
    ended = await real.until(spec, S.TERMINATED)
    assert (ended.reason, ended.exit_code) == (reason, code)
    assert (ended.log_tail or b"") == (b"done\n" if code == 0 else b"")
    assert ("memory" in (ended.message or "")) is (code == 137)


async def test_a_batch_program_that_ends_while_the_agent_is_away(real: RealBench) -> None:
    agent = await real.start()
    command = "while [ ! -e go ]; do sleep 0.05; done; echo late; exit 6"
    spec = await real.run(agent, session_type=SessionType.BATCH, startup_command=command)
    await agent.commands.upload_files(UploadFiles(kernel_id=spec.kernel_id, files=[FileBlob(path="other", data=b"x")]))
    (home,) = (real.data_dir / "process" / "homes").iterdir()
    await agent.stop()
    (home / "go").touch()
    await asyncio.sleep(0.5)
    await real.start()
    ended = await real.until(spec, S.TERMINATED)
    assert (ended.reason, ended.exit_code, ended.log_tail) == (R.TASK_FAILED, 6, b"late\n")


async def test_a_batch_program_over_its_time(real: RealBench) -> None:
    agent = await real.start()
    spec = await real.run(agent, session_type=SessionType.BATCH, startup_command="sleep 60", exec_timeout_s=0.5)
    ended = await real.until(spec, S.TERMINATED)
    assert (ended.reason, ended.message) == (R.TASK_FAILED, "exec-timeout")
    spec = await real.run(agent, session_type=SessionType.BATCH, startup_command="sleep 60", batch_timeout_s=0.5)
    assert (await real.until(spec, S.TERMINATED)).reason is R.TASK_TIMEOUT


async def test_a_shell_beside_a_batch_program(real: RealBench) -> None:
    agent = await real.start()
    look = "until cat note 2>/dev/null; do sleep 0.05; done"
    command = "echo secret > note; while [ ! -e go ]; do sleep 0.05; done"
    spec = await real.run(agent, session_type=SessionType.BATCH, startup_command=command)
    program = await agent.commands.open_pty(OpenPty(kernel_id=spec.kernel_id, command=["sh", "-c", look], tty=False))
    frames = [frame async for frame in program]
    assert b"".join(frame.data for frame in frames if frame.kind == "out") == b"secret\n"
    await agent.commands.upload_files(UploadFiles(kernel_id=spec.kernel_id, files=[FileBlob(path="go", data=b"")]))
    assert (await real.until(spec, S.TERMINATED)).reason is R.TASK_FINISHED


async def test_the_bootstrap_script_runs_first(real: RealBench) -> None:
    agent = await real.start()
    dotfiles = [
        FileBlob(path=".config/tool/settings", data=b"chosen", mode=0o640),
        FileBlob(path=".tool", data=b"#!/bin/sh\necho run by $(cat .config/tool/settings)\n", mode=0o755),
        FileBlob(path="../../etc/passwd", data=b"x", mode=0o644),
    ]
    script = "#!/bin/sh\n./.tool > /home/work/made\n"
    spec = await real.run(agent, bootstrap_script=script, dotfiles=dotfiles)
    code = "import os; print(open('made').read(), oct(os.stat('.config/tool/settings').st_mode & 0o777))"
    assert (await real.say(agent, spec, code)).console[0][1] == "run by chosen\n 0o640\n"
    told = await real.until(spec, S.RUNNING)
    assert told.message is not None
    assert "could not be written: ../../etc/passwd" in told.message


async def test_statistics_are_measured(real: RealBench) -> None:
    agent = await real.start()
    spec = await real.run(agent)
    async with asyncio.timeout(30):
        while not any((r.of_kernel(spec.kernel_id) or {}).get("mem") for r in real.manager.stats):
            real.manager.news.clear()
            await real.manager.news.wait()
    metrics = real.manager.stats[-1].of_kernel(spec.kernel_id)
    assert metrics is not None
    assert float(metrics["mem"]["current"]) > 0
    assert {"cpu_used", "cpu_util"} <= metrics.keys()
