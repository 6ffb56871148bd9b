"""What both adapters of the manager-agent link promise."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ai.backend.common.errors import (
    Conflict,
    CreationDeferred,
    DeadlineExceeded,
    Forbidden,
    InsufficientResource,
    InternalError,
    LimitExceeded,
    Unavailable,
)
from ai.backend.common.states import KernelEventReason, KernelStatus, RunMode
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import (
    CreateKernels,
    DestroyKernel,
    DeviceOptionsOf,
    ImageJob,
    OperateDevice,
    RegistryAccess,
)
from ai.backend.common.wire.execution import (
    CloseRoute,
    DownloadFiles,
    Execute,
    FileBlob,
    KernelRef,
    ListProcesses,
    OpenPty,
    OpenRoute,
    PtyFrame,
    ReadLogs,
    ReadSessionLog,
    StartService,
    StopService,
    UploadFiles,
)
from ai.backend.common.wire.reports import (
    AgentReport,
    KeptDevicesOf,
    KernelObservation,
    MetricFamily,
    MetricSample,
    ObservationReport,
    StatReport,
)
from tests.contract.rpc.conftest import Commands, Pair

EXECUTE = Execute(kernel_id="k", run_id="r", mode=RunMode.QUERY, code="1", flush_timeout_s=0.0)
DESTROY = DestroyKernel(kernel_id="k", attempt=1)


def report(agent_id: str = "i-1") -> AgentReport:
    return AgentReport(agent_id=agent_id, epoch=1, version="1", architecture="x86_64", resource_group="default")


def observation(seq: int) -> KernelObservation:
    return KernelObservation(
        kernel_id="k", attempt=1, status=KernelStatus.RUNNING, reason=KernelEventReason.UNKNOWN, at=1.5, seq=seq
    )


class TestLinkContract:
    async def test_commands_and_answers_arrive_as_they_are(self, pair: Pair) -> None:
        await pair.join()
        agent = pair.manager.agents["i-1"]
        result = await agent.execute(EXECUTE)
        assert result.console == [["stdout", "1"]]
        upload = UploadFiles(kernel_id="k", files=[FileBlob(path="a", data=bytes(range(256)))])
        await agent.upload_files(upload)
        assert await agent.read_logs(ReadLogs(kernel_id="k")) == b"log \xff\x00"
        started = await agent.start_service(StartService(kernel_id="k", name="sshd", arguments={"--bare": None}))
        assert (started.ports, started.status) == ([2200], "running")
        await agent.stop_service(StopService(kernel_id="k", name="sshd"))
        assert [(s.name, s.ports) for s in await agent.list_services(KernelRef(kernel_id="k"))] == [("sshd", [])]
        route = await agent.open_route(OpenRoute(kernel_id="k", port=8080, authority="PEM"))
        assert (route.name, route.port, route.certificate) == ("r0", 8080, "PEM")
        await agent.close_route(CloseRoute(name=route.name))
        (line,) = await agent.read_session_log(ReadSessionLog(ids=["s"]))
        assert line.message == "about s"
        (process,) = await agent.list_processes(ListProcesses(kernel_id="k"))
        assert (process.pid, process.metrics["mem"]["current"]) == (7, "1")
        operation = OperateDevice(device_name="mock", device_id="a", action="partition", argument="1g")
        assert (await agent.operate_device(operation)).device_id == "a/1g"
        options = await agent.device_options(DeviceOptionsOf(device_name="mock"))
        assert (options.actions, options.profiles["a"][0].available) == (["reset"], 2)
        access = RegistryAccess(registry="cr", username="u", password="p")
        job = ImageJob(job_id="1", action="pull", image="cr/a:1", access=access)
        assert (await agent.image_job(job)).message == "cr/a:1"
        assert pair.commands.calls[-1] == ("image_job", job)
        tars = await agent.download_files(DownloadFiles(kernel_id="k", paths=["a", "b"], max_bytes=9))
        assert [tar.name for tar in tars] == ["a", "b"]
        assert pair.commands.calls[:2] == [("execute", EXECUTE), ("upload_files", upload)]

    async def test_reports_and_answers_arrive_as_they_are(self, pair: Pair) -> None:
        end = await pair.join()
        assert (await end.reports.heartbeat(report())).interval_s == 7.0
        observed = ObservationReport(agent_id="i-1", epoch=3, observations=[observation(1), observation(2)])
        assert await end.reports.observe(observed) == 2
        sample = MetricSample(labels={"device_id": "0"}, value=1.5)
        stats = StatReport(
            agent_id="i-1",
            at=2.0,
            kernels={"k": msgspec.Raw(msgspec.msgpack.encode({"mem": {"current": "1"}}))},
            families=[MetricFamily(name="x_total", kind="counter", help="X.", samples=[sample])],
        )
        await end.reports.report_stats(stats)
        kept = await end.reports.kept_devices(KeptDevicesOf(agent_id="i-1"))
        assert kept.devices == {"claim": {"mock.device": {"of i-1": "1"}}}
        with pytest.raises(Forbidden):
            await end.reports.kept_devices(KeptDevicesOf(agent_id="i-2"))
        assert pair.reports.observed == [observed]
        (told,) = pair.reports.stats
        assert told.of_kernel("k") == {"mem": {"current": "1"}}
        assert (told.at, told.families) == (stats.at, stats.families)

    @pytest.mark.parametrize(
        "error",
        [
            InsufficientResource("no cpu left", data={"slot": "cpu"}),
            Conflict("older attempt", data={"attempt": 2}),
            CreationDeferred("wait", retry_after=2.5),
        ],
    )
    async def test_errors_come_out_as_themselves(self, pair: Pair, error: Exception) -> None:
        await pair.join()
        pair.commands.raising = error
        with pytest.raises(type(error)) as caught:
            await pair.manager.agent("i-1").destroy_kernel(DESTROY)
        assert str(caught.value) == str(error)
        assert caught.value.data == error.data  # type: ignore[attr-defined]  # BackendError

    async def test_a_bug_of_the_handler_is_an_internal_error_without_its_text(self, pair: Pair) -> None:
        await pair.join()
        pair.commands.raising = ValueError("secret")
        with pytest.raises(InternalError) as caught:
            await pair.manager.agent("i-1").destroy_kernel(DESTROY)
        assert "secret" not in str(caught.value)
        pair.commands.raising = None
        await pair.manager.agent("i-1").destroy_kernel(DESTROY)

    async def test_an_agent_that_is_not_there_is_unavailable(self, pair: Pair) -> None:
        assert "i-9" not in pair.manager.agents
        with pytest.raises(Unavailable):
            pair.manager.agents["i-9"]
        with pytest.raises(Unavailable):
            await pair.manager.agent("i-9").destroy_kernel(DESTROY)

    async def test_a_manager_that_is_not_there_is_unavailable(self, pair: Pair) -> None:
        await pair.manager.stop()
        end = pair.also(pair.link.agent("i-1"))
        await end.start(pair.commands)
        with pytest.raises(Unavailable):
            await end.reports.heartbeat(report())

    async def test_a_late_answer_is_deadline_exceeded(self, pair: Pair) -> None:
        await pair.join()
        pair.commands.gate = asyncio.Event()
        with pytest.raises(DeadlineExceeded):
            await pair.manager.agent("i-1").execute(EXECUTE)
        async with asyncio.timeout(30):
            await pair.commands.cancelled.wait()

    async def test_a_change_goes_on_when_nobody_waits_for_it(self, pair: Pair) -> None:
        await pair.join()
        pair.commands.gate = asyncio.Event()
        with pytest.raises(DeadlineExceeded):
            await pair.manager.agent("i-1").create_kernels(CreateKernels(kernels=[]))
        pair.commands.gate.set()
        async with asyncio.timeout(30):
            await pair.commands.finished.wait()
        assert not pair.commands.cancelled.is_set()

    async def test_an_agent_speaks_only_for_itself(self, pair: Pair) -> None:
        end = await pair.join()
        with pytest.raises(Forbidden):
            await end.reports.heartbeat(report("i-2"))
        with pytest.raises(Forbidden):
            await end.reports.observe(ObservationReport(agent_id="i-2", epoch=1, observations=[observation(1)]))
        assert pair.reports.heartbeats == []

    async def test_a_message_that_is_too_large_is_refused(self, pair: Pair) -> None:
        await pair.join()
        blob = FileBlob(path="a", data=bytes(65 * 1024 * 1024))
        with pytest.raises(LimitExceeded):
            await pair.manager.agent("i-1").upload_files(UploadFiles(kernel_id="k", files=[blob]))
        pair.commands.log = bytes(65 * 1024 * 1024)
        with pytest.raises(LimitExceeded):
            await pair.call_until_up(lambda: pair.manager.agent("i-1").read_logs(ReadLogs(kernel_id="k")))
        await pair.manager.agent("i-1").destroy_kernel(DESTROY)

    async def test_agents_are_kept_apart(self, pair: Pair) -> None:
        other = Commands()
        await pair.join("i-1")
        await pair.join("i-2", other)
        await pair.manager.agents["i-2"].destroy_kernel(DESTROY)
        assert pair.commands.calls == []
        assert other.calls == [("destroy_kernel", DESTROY)]
        assert sorted(pair.manager.agents) == ["i-1", "i-2"]

    async def test_many_calls_go_on_at_once(self, pair: Pair) -> None:
        await pair.join()
        patient = replace(EXECUTE, flush_timeout_s=30.0)  # two hundred take longer on a busy machine
        results = await asyncio.gather(*(pair.manager.agents["i-1"].execute(patient) for _ in range(200)))
        assert len(results) == 200

    async def test_an_agent_that_leaves_is_noticed_and_may_come_back(self, pair: Pair) -> None:
        end = await pair.join()
        pair.commands.gate = asyncio.Event()
        call = asyncio.create_task(pair.manager.agent("i-1").execute(EXECUTE))
        await asyncio.sleep(0.05)
        await end.stop()
        with pytest.raises(Unavailable):
            await call
        await pair.met("i-1", is_there=False)
        pair.commands.gate = None
        await end.start(pair.commands)
        await pair.met("i-1")
        await pair.manager.agents["i-1"].execute(EXECUTE)

    async def test_a_manager_that_is_started_anew_is_found(self, pair: Pair) -> None:
        end = await pair.join()
        await pair.manager.stop()
        await pair.manager.start(pair.reports)
        await pair.call_until_up(lambda: end.reports.heartbeat(report()))
        await pair.call_until_up(lambda: pair.manager.agent("i-1").destroy_kernel(DESTROY))

    async def test_ends_that_were_stopped_twice_leave_nothing_and_start_again(self, pair: Pair) -> None:
        end = await pair.join()
        pair.commands.gate = asyncio.Event()
        calls = [asyncio.create_task(pair.manager.agent("i-1").execute(EXECUTE)) for _ in range(2)]
        await asyncio.sleep(0)
        for _ in range(2):
            await end.stop()
            await pair.manager.stop()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [Unavailable, Unavailable]
        assert not pair.manager.agents
        with pytest.raises(Unavailable):
            await end.reports.heartbeat(report())
        with pytest.raises(Unavailable):
            await pair.manager.agent("i-1").destroy_kernel(DESTROY)
        pair.commands.gate = None
        await pair.manager.start(pair.reports)
        await end.start(pair.commands)
        await pair.met("i-1")
        await pair.manager.agent("i-1").destroy_kernel(DESTROY)
        await pair.call_until_up(lambda: end.reports.heartbeat(report()))


class TestStreamContract:
    async def test_frames_go_both_ways_and_closing_ends_it(self, pair: Pair) -> None:
        await pair.join()
        stream = await pair.manager.agent("i-1").open_pty(OpenPty(kernel_id="k"))
        await stream.send(PtyFrame(kind="stdin", data=b"hello \xff"))
        frames = aiter(stream)
        assert (await anext(frames)).data == b"hello \xff"
        await stream.send(PtyFrame(kind="stdin", data=b"exit"))
        assert [frame.kind async for frame in frames] == ["closed"]

    async def test_closing_here_closes_there(self, pair: Pair) -> None:
        await pair.join()
        stream = await pair.manager.agent("i-1").open_pty(OpenPty(kernel_id="k"))
        await stream.close()
        async with asyncio.timeout(30):
            await pair.commands.terminals[0].is_closed.wait()
        with pytest.raises(Unavailable):
            await stream.send(PtyFrame(kind="stdin", data=b"x"))

    async def test_a_lost_agent_ends_the_stream(self, pair: Pair) -> None:
        end = await pair.join()
        stream = await pair.manager.agent("i-1").open_pty(OpenPty(kernel_id="k"))
        frames = aiter(stream)
        await end.stop()
        async with asyncio.timeout(30):
            with pytest.raises(StopAsyncIteration):
                await anext(frames)
        async with asyncio.timeout(30):
            await pair.commands.terminals[0].is_closed.wait()

    async def test_nothing_of_a_flood_is_lost(self, pair: Pair) -> None:
        await pair.join()
        stream = await pair.manager.agent("i-1").open_pty(OpenPty(kernel_id="k"))
        await stream.send(PtyFrame(kind="stdin", data=b"flood"))
        seen = b""
        async with asyncio.timeout(30):
            async for frame in stream:
                seen += frame.data
                if seen.endswith(b"999 "):
                    break
        assert seen == b"".join(b"%d " % i for i in range(1000))
        await stream.close()

    async def test_an_error_on_opening_comes_out(self, pair: Pair) -> None:
        await pair.join()
        pair.commands.raising = Conflict("not running")
        with pytest.raises(Conflict):
            await pair.manager.agent("i-1").open_pty(OpenPty(kernel_id="k"))

    async def test_a_frame_that_is_larger_than_a_piece_arrives_in_parts(self, pair: Pair) -> None:
        await pair.join()
        stream = await pair.manager.agent("i-1").open_pty(OpenPty(kernel_id="k"))
        said, seen = bytes(range(256)) * 4096, b""
        writing = asyncio.create_task(stream.send(PtyFrame(kind="stdin", data=said)))
        async with asyncio.timeout(30):
            async for frame in stream:
                seen += frame.data
                if len(seen) >= len(said):
                    break
            await writing
        assert seen == said
        await stream.close()
