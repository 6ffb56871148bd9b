"""A kernel from its creation to its end."""

from __future__ import annotations

import asyncio
import itertools
import time

import msgspec
import pytest

from ai.backend.common.errors import (
    Conflict,
    CreationDeferred,
    CreationDenied,
    InsufficientResource,
    InvalidAllocation,
    NotFound,
    UnsupportedResource,
    WorkloadError,
)
from ai.backend.common.states import KernelEventReason, KernelStatus, RunMode, RunStatus, SessionType
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel, RestartKernel
from ai.backend.common.wire.execution import Execute
from ai.backend.common.wire.reports import AgentReport, ObservationReport
from ai.backend.plugin.accelerator import Mount, TerminationDeferred, WorkloadConfig
from ai.backend.plugin.runtime import RuntimeInfo, WorkloadExit
from tests.component.agent.conftest import Bench
from tests.support.agent_fakes import FakeRuntime, fake_plugin

S, R = KernelStatus, KernelEventReason


async def test_create_execute_destroy(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent, environ={"MINE": "yes", "BACKENDAI_KERNEL_ID": "forged"})
    running = await bench.until(spec, S.RUNNING)
    assert running.devices == {"cpu": {"0": "1"}}
    assert running.attached_devices == {"cpu": [{"device_id": "0", "model_name": "Fake", "data": {}}]}
    (workload,) = bench.runtime.specs.values()
    assert workload.environ["MINE"] == "yes"
    assert workload.environ["FAKE"] == "1"
    assert workload.environ["BACKENDAI_KERNEL_ID"] == spec.kernel_id
    assert b"CPU_SHARES=0:1\nFAKE_DATA=x\n" in workload.files["/home/config/resource.txt"]

    step = Execute(kernel_id=spec.kernel_id, run_id="r", mode=RunMode.QUERY, code="out hello\nerr oops\nout bye")
    result = await agent.commands.execute(step)
    assert result.status is RunStatus.FINISHED
    assert result.console == [["stdout", "hello"], ["stderr", "oops"], ["stdout", "bye"]]

    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    ended = await bench.until(spec, S.TERMINATED)
    assert ended.reason is R.USER_REQUESTED
    assert bench.statuses(spec) == [S.PREPARING, S.CREATING, S.RUNNING, S.TERMINATING, S.TERMINATED]
    assert bench.runtime.specs == {}
    assert bench.plugins[0].journal == ["cpu.pre_create", "cpu.post_create", "cpu.pre_terminate", "cpu.post_terminate"]
    with pytest.raises(NotFound):
        await agent.commands.execute(step)


async def test_repeated_commands_do_nothing_twice(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    destroy = DestroyKernel(kernel_id=spec.kernel_id, attempt=1)
    await asyncio.gather(*(agent.commands.destroy_kernel(destroy) for _ in range(3)))
    await bench.until(spec, S.TERMINATED)
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    creations = [call for call in bench.runtime.calls if call[0] == "create"]
    assert len(creations) == 1


async def test_older_attempts_are_refused(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent, attempt=3)
    old = bench.spec(kernel_id=spec.kernel_id, attempt=2)
    with pytest.raises(Conflict):
        await agent.commands.create_kernels(CreateKernels(kernels=[old]))
    with pytest.raises(Conflict):
        await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=2))
    assert S.TERMINATING not in bench.statuses(spec)


async def test_destroying_an_unknown_kernel_reports_it_gone(bench: Bench) -> None:
    agent = await bench.start()
    spec = bench.spec()
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.until(spec, S.TERMINATED)


async def test_all_kernels_are_accepted_or_none(bench: Bench) -> None:
    agent = await bench.start()
    specs = [bench.spec(slots={"cpu": "2"}) for _ in range(3)]
    with pytest.raises(InsufficientResource):
        await agent.commands.create_kernels(CreateKernels(kernels=specs))
    assert bench.runtime.calls == []
    await agent.commands.create_kernels(CreateKernels(kernels=specs[:2]))
    for spec in specs[:2]:
        await bench.until(spec, S.RUNNING)


async def test_unknown_slots_must_be_zero(bench: Bench) -> None:
    agent = await bench.start()
    with pytest.raises(UnsupportedResource, match=r"i-test has no resource slot xpu\.device"):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec(slots={"cpu": "1", "xpu.device": "1"})]))
    await bench.run(agent, slots={"cpu": "1", "xpu.device": "0"})


async def test_a_plan_is_bound_or_refused(bench: Bench) -> None:
    agent = await bench.start()
    bench.options = {}
    await bench.run(agent, slots={"cpu": "2"}, devices={"cpu": {"1": "2"}})
    generation = (await _heartbeat(bench)).generation
    clash = bench.spec(slots={"cpu": "1"}, devices={"cpu": {"1": "1"}}, generation=generation)
    with pytest.raises(InvalidAllocation):
        await agent.commands.create_kernels(CreateKernels(kernels=[clash]))
    stale = bench.spec(slots={"cpu": "1"}, devices={"cpu": {"1": "1"}}, generation=generation - 1)
    await agent.commands.create_kernels(CreateKernels(kernels=[stale]))
    assert (await bench.until(stale, S.RUNNING)).devices == {"cpu": {"0": "1"}}


async def _heartbeat(bench: Bench) -> AgentReport:
    await bench.manager.next_heartbeat()
    return bench.manager.heartbeats[-1]


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (CreationDenied("no licence"), S.ERROR, R.CREATION_DENIED),
        (CreationDeferred("busy"), S.PENDING, R.CREATION_DEFERRED),
        (RuntimeError("bug"), S.ERROR, R.FAILED_TO_CREATE),
    ],
)
async def test_a_failing_hook_leaves_nothing(
    bench: Bench, error: Exception, status: KernelStatus, reason: KernelEventReason
) -> None:
    good, bad = fake_plugin("cpu"), fake_plugin("mem", hook_errors={"pre_create": error})
    bench.plugins = [good, bad]
    agent = await bench.start()
    spec = bench.spec(slots={"cpu": "1", "mem": "1"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    ended = await bench.until(spec, status)
    assert ended.reason is reason
    assert str(error) in (ended.message or "")
    assert good.journal == ["cpu.pre_create", "cpu.post_terminate"]
    assert bench.runtime.specs == {}
    await bench.run(agent, slots={"cpu": "4"})


async def test_contradicting_plugins_are_both_named(bench: Bench) -> None:
    bench.plugins = [
        fake_plugin("cpu", config=WorkloadConfig(mounts=(Mount(source="/a", target="/x"),))),
        fake_plugin("mem", config=WorkloadConfig(mounts=(Mount(source="/b", target="/x"),))),
    ]
    agent = await bench.start()
    spec = bench.spec(slots={"cpu": "1", "mem": "1"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    ended = await bench.until(spec, S.ERROR)
    assert ended.reason is R.CREATION_DENIED
    assert "cpu and mem" in (ended.message or "")


async def test_a_runner_that_never_becomes_ready_is_cleaned(bench: Bench) -> None:
    bench.runtime.ready = False
    bench.options = {"kernel-lifecycles": {"ready-timeout": 0.1}}
    agent = await bench.start()
    spec = bench.spec()
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    ended = await bench.until(spec, S.ERROR)
    assert ended.reason is R.FAILED_TO_START
    assert bench.runtime.specs == {}


async def test_a_runtime_failure_is_reported(bench: Bench) -> None:
    bench.runtime.create_error = WorkloadError("disk full")
    agent = await bench.start()
    spec = bench.spec()
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    ended = await bench.until(spec, S.ERROR)
    assert (ended.reason, ended.message) == (R.FAILED_TO_CREATE, "disk full")


@pytest.mark.parametrize("own_timeout_s", [None, 60.0])
async def test_a_creation_may_last_as_long_as_its_runtime_says(bench: Bench, own_timeout_s: float | None) -> None:
    class Slow(FakeRuntime):
        def info(self) -> RuntimeInfo:
            return replace(super().info(), create_timeout_s=own_timeout_s)

    bench.options["kernel-lifecycles"] = {"create-timeout": 0.1}
    bench.runtime = Slow()
    bench.runtime.create_gate = gate = asyncio.Event()
    agent = await bench.start()
    spec = bench.spec()
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    if own_timeout_s is None:
        assert "0.1 s" in ((await bench.until(spec, S.ERROR)).message or "")
        return
    await bench.until(spec, S.CREATING)
    await asyncio.sleep(0.3)  # that a limit of 0.1 s does not act has no event: three times as long is waited
    gate.set()
    await bench.until(spec, S.RUNNING)


async def test_destroy_ends_a_creation_under_way(bench: Bench) -> None:
    bench.runtime.create_gate = asyncio.Event()
    agent = await bench.start()
    spec = bench.spec()
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    await bench.until(spec, S.CREATING)
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.until(spec, S.TERMINATED)
    assert S.RUNNING not in bench.statuses(spec)
    assert bench.plugins[0].journal[-1] == "cpu.post_terminate"


@pytest.mark.parametrize(
    ("ended", "reason", "code"),
    [
        (WorkloadExit(code=3), R.SELF_TERMINATED, 3),
        (WorkloadExit(signal=9, oom=True), R.OUT_OF_MEMORY, 137),
    ],
)
@pytest.mark.parametrize("quietly", [False, True])
async def test_a_workload_that_ends_by_itself(
    bench: Bench, ended: WorkloadExit, reason: KernelEventReason, code: int, quietly: bool
) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    (key,) = bench.runtime.specs
    bench.runtime.die(key, ended, quietly=quietly)
    seen = await bench.until(spec, S.TERMINATED)
    assert (seen.reason, seen.exit_code) == (reason, code)
    assert bench.runtime.specs == {}


async def test_restart_in_place_keeps_devices_and_home(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    (old,) = bench.runtime.specs
    await agent.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=2))
    new = bench.spec(kernel_id=spec.kernel_id, attempt=2)
    running = await bench.until(new, S.RUNNING)
    assert running.devices == {"cpu": {"0": "1"}}
    assert old in bench.runtime.removed_keeping_home
    assert [key.attempt for key in bench.runtime.specs] == [2]
    assert S.RESTARTING in bench.statuses(spec)


async def test_a_restart_loses_nothing_of_what_was_used(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    for attempt in (2, 3):
        await agent.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=attempt))
        await bench.until(bench.spec(kernel_id=spec.kernel_id, attempt=attempt), S.RUNNING)
    assert agent.supervisor is not None
    kernel = agent.supervisor.get(spec.kernel_id)
    assert (kernel.carried["cpu_used"], kernel.record.carried_until) == (2.0, 2)
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=3))
    ended = await bench.until(bench.spec(kernel_id=spec.kernel_id, attempt=3), S.TERMINATED)
    assert ended.last_stat is not None
    assert ended.last_stat["cpu_used"]["current"] == "3"


async def test_a_termination_is_deferred_until_its_deadline(bench: Bench) -> None:
    plugin = fake_plugin("cpu", hook_errors={"pre_terminate": TerminationDeferred("saving", retry_after=0.05)})
    bench.plugins = [plugin]
    bench.options = {"kernel-lifecycles": {"termination-deferral": 0.2}}
    agent = await bench.start()
    spec = await bench.run(agent)
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.until(spec, S.TERMINATED)
    assert plugin.journal.count("cpu.pre_terminate") >= 3


async def test_a_clock_that_is_set_moves_no_deadline(bench: Bench) -> None:
    """Back by a day at each look."""
    plugin = fake_plugin("cpu", hook_errors={"pre_terminate": TerminationDeferred("saving", retry_after=0.05)})
    bench.plugins = [plugin]
    bench.options = {"kernel-lifecycles": {"termination-deferral": 0.3}}
    agent = await bench.start()
    spec = await bench.run(agent)
    days = itertools.count()
    bench.wall_clock = lambda: time.time() - next(days) * 86400.0
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    async with asyncio.timeout(30):
        await bench.until(spec, S.TERMINATED)
    assert plugin.journal.count("cpu.pre_terminate") >= 3


async def test_a_forced_destruction_does_not_wait(bench: Bench) -> None:
    plugin = fake_plugin("cpu", hook_errors={"pre_terminate": TerminationDeferred("saving", retry_after=60)})
    bench.plugins = [plugin]
    agent = await bench.start()
    spec = await bench.run(agent)
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.until(spec, S.TERMINATING)
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1, forced=True))
    await bench.until(spec, S.TERMINATED)


@pytest.mark.parametrize(
    ("command", "reason", "code"),
    [("out done", R.TASK_FINISHED, 0), ("exit 7", R.TASK_FAILED, 7)],
)
async def test_batch_sessions_end_with_their_program(
    bench: Bench, command: str, reason: KernelEventReason, code: int
) -> None:
    agent = await bench.start()
    spec = await bench.run(agent, session_type=SessionType.BATCH, startup_command=command)
    ended = await bench.until(spec, S.TERMINATED)
    assert (ended.reason, ended.exit_code) == (reason, code)


async def test_batch_sessions_have_a_time_limit(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent, session_type=SessionType.BATCH, startup_command="wait", batch_timeout_s=0.1)
    assert (await bench.until(spec, S.TERMINATED)).reason is R.TASK_TIMEOUT


async def test_a_failing_bootstrap_script_is_told(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent, bootstrap_script="#!/bin/sh\nfalse\n")
    (workload,) = bench.runtime.specs.values()
    assert workload.files["/home/config/bootstrap.sh"] == b"#!/bin/sh\nfalse\n"
    (runner,) = bench.runtime.runners.values()
    assert runner.received[0]["options"]["exec"] == "sh /home/config/bootstrap.sh"
    assert (await bench.until(spec, S.RUNNING)).message is None


async def test_a_start_script_of_the_image_that_fails_is_told(bench: Bench) -> None:
    agent = await bench.start()
    bench.runtime.ready = False
    spec = bench.spec()
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    async with asyncio.timeout(30):
        while not bench.runtime.runners:  # noqa: ASYNC110  # the fake has no event for it
            await asyncio.sleep(0.01)
    (runner,) = bench.runtime.runners.values()
    runner.emit(t="ready", problem="the image's /opt/container/bootstrap.sh ended with code 127")
    assert "ended with code 127" in ((await bench.until(spec, S.RUNNING)).message or "")


async def test_the_manager_may_disown_a_kernel(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    bench.manager.unknown = list((await _heartbeat(bench)).kernels)
    assert [p.kernel_id for p in bench.manager.unknown] == [spec.kernel_id]
    assert (await bench.until(spec, S.TERMINATED)).reason is R.NOT_FOUND_IN_MANAGER


async def test_the_manager_may_have_lost_the_report_of_a_start(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    bench.manager.observations.clear()
    bench.manager.unobserved = list((await _heartbeat(bench)).kernels)
    told_again = await bench.until(spec, S.RUNNING)
    assert (told_again.reason, told_again.attempt) == (R.RESUMING_AGENT_OPERATION, spec.attempt)
    assert told_again.devices is not None


async def test_statistics_reach_the_manager(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    async with asyncio.timeout(30):
        while not any(report.of_kernel(spec.kernel_id) for report in bench.manager.stats):
            bench.manager.news.clear()
            await bench.manager.news.wait()
    metrics = bench.manager.stats[-1].of_kernel(spec.kernel_id)
    assert metrics is not None
    assert metrics["mem"] == {
        "current": "50",
        "capacity": "200",
        "pct": "25.00",
        "unit_hint": "bytes",
        "stats.max": "50",
    }
    assert metrics["fake_util"]["current"] == "5"
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    assert (await bench.until(spec, S.TERMINATED)).last_stat == metrics


async def test_little_is_kept_of_a_kernel_that_has_ended(bench: Bench) -> None:
    """Enough to answer late commands alike, also after a restart of the agent."""
    agent = await bench.start()
    spec = await bench.run(agent, environ={"A": "x" * 1000})
    bench.runtime.die(next(iter(bench.runtime.specs)), WorkloadExit(code=7))
    first = await bench.until(spec, S.TERMINATED)
    destroy = DestroyKernel(kernel_id=spec.kernel_id, attempt=1)
    for life in range(2):
        assert agent.supervisor is not None
        assert spec.kernel_id not in agent.supervisor.kernels
        record = agent.supervisor.context.records.get(spec.kernel_id)
        assert len(msgspec.json.encode(record)) < 2000
        await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
        told = len(bench.manager.observations)
        await agent.commands.destroy_kernel(destroy)
        async with asyncio.timeout(30):
            while len(bench.manager.observations) == told:
                await bench.manager.next_heartbeat()
        again = bench.manager.observations[-1]
        assert (again.status, again.reason, again.exit_code) == (first.status, first.reason, 7), life
        await agent.stop()
        agent = await bench.start()


async def test_a_new_image_is_told_at_once(bench: Bench) -> None:
    """Not only with the next look at the devices."""
    bench.options = {"intervals": {"inventory": 3600.0, "images": 0.05}}
    await bench.start()
    assert [i.name for i in (await _heartbeat(bench)).images] == ["python"]
    bench.runtime.images.append("debian:12")
    async with asyncio.timeout(30):
        while (told := [i.name for i in bench.manager.heartbeats[-1].images]) == ["python"]:
            await bench.manager.next_heartbeat()
    assert told == ["python", "debian:12"]


async def test_a_kernel_is_listed_until_its_end_was_acknowledged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    observe, heard = bench.manager.observe, asyncio.Event()

    async def deaf(report: ObservationReport) -> int:
        await heard.wait()
        return await observe(report)

    monkeypatch.setattr(bench.manager, "observe", deaf)
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))

    async def until(statuses: list[KernelStatus]) -> None:
        async with asyncio.timeout(30):
            while [k.status for k in bench.manager.heartbeats[-1].kernels] != statuses:
                await bench.manager.next_heartbeat()

    await until([S.TERMINATED])
    heard.set()
    await until([])
