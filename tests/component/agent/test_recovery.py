"""An agent that goes and comes back, in the middle of anything."""

from __future__ import annotations

import asyncio

import pytest

from ai.backend.agent.composition import Agent
from ai.backend.agent.directory.directory import RecordDatabase
from ai.backend.common.errors import Conflict, RunError, Unavailable
from ai.backend.common.states import KernelEventReason, KernelStatus, RunMode, RunStatus, SessionType
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel, KernelSpec, RestartKernel
from ai.backend.common.wire.execution import Execute
from ai.backend.plugin.accelerator import TerminationDeferred
from ai.backend.plugin.runtime import WorkloadExit, WorkloadSpec
from tests.component.agent.conftest import Bench, read_records

S, R = KernelStatus, KernelEventReason


def step(spec: KernelSpec, mode: RunMode, *, code: str = "", run_id: str = "r", wait_s: float = 2.0) -> Execute:
    return Execute(kernel_id=spec.kernel_id, run_id=run_id, mode=mode, code=code, flush_timeout_s=wait_s)


async def test_running_kernels_are_adopted_with_their_runs(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    first = await agent.commands.execute(
        step(spec, RunMode.QUERY, code="out one\nwait\nout two\nout three", wait_s=0.1)
    )
    assert (first.status, first.console) == (RunStatus.CONTINUED, [["stdout", "one"]])
    queued = asyncio.create_task(agent.commands.execute(step(spec, RunMode.QUERY, run_id="q", code="out next")))
    await asyncio.sleep(0)
    await agent.stop()
    queued.cancel()
    (runner,) = bench.runtime.runners.values()
    runner.release.set()  # the program goes on while nobody listens

    agent = await bench.start()
    rest = await agent.commands.execute(step(spec, RunMode.CONTINUE))
    assert (rest.status, rest.console) == (RunStatus.FINISHED, [["stdout", "twothree"]])
    again = await bench.manager.wait_for(lambda o: o.reason is R.RESUMING_AGENT_OPERATION)
    assert (again.kernel_id, again.status, again.devices) == (spec.kernel_id, S.RUNNING, {"cpu": {"0": "1"}})
    following = await agent.commands.execute(step(spec, RunMode.CONTINUE, run_id="q"))
    assert (following.status, following.console) == (RunStatus.FINISHED, [["stdout", "next"]])
    with pytest.raises(RunError):
        await agent.commands.execute(step(spec, RunMode.CONTINUE))
    assert [call for call in bench.runtime.calls if call[0] != "create"] == []


async def test_a_program_that_waits_for_input_still_does(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    asked = await agent.commands.execute(step(spec, RunMode.QUERY, code="input"))
    assert (asked.status, asked.options) == (RunStatus.WAITING_INPUT, {"is_password": False})
    await agent.stop()
    agent = await bench.start()
    await bench.manager.wait_for(lambda o: o.reason is R.RESUMING_AGENT_OPERATION)
    assert (await agent.commands.execute(step(spec, RunMode.CONTINUE))).status is RunStatus.WAITING_INPUT
    done = await agent.commands.execute(step(spec, RunMode.INPUT, code="Ada"))
    assert (done.status, done.console) == (RunStatus.FINISHED, [["stdout", "Ada"]])


async def test_a_run_that_never_reached_the_runner_is_sent_again(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    (runner,) = bench.runtime.runners.values()
    runner.deaf = True
    await agent.commands.execute(step(spec, RunMode.QUERY, code="out late", wait_s=0.05))
    await agent.stop()
    runner.deaf = False
    agent = await bench.start()
    await bench.manager.wait_for(lambda o: o.reason is R.RESUMING_AGENT_OPERATION)
    assert (await agent.commands.execute(step(spec, RunMode.CONTINUE))).console == [["stdout", "late"]]


async def test_a_workload_that_died_meanwhile_is_reported(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    await agent.stop()
    (key,) = bench.runtime.specs
    bench.runtime.die(key, WorkloadExit(code=4), quietly=True)
    await bench.start()
    ended = await bench.until(spec, S.TERMINATED)
    assert (ended.reason, ended.exit_code) == (R.SELF_TERMINATED, 4)


async def test_a_workload_that_vanished_is_reported(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    await agent.stop()
    (key,) = bench.runtime.specs
    await bench.runtime.remove(key)
    await bench.start()
    assert (await bench.until(spec, S.TERMINATED)).reason is R.WORKLOAD_NOT_FOUND


async def test_a_creation_under_way_is_resumed(bench: Bench) -> None:
    bench.runtime.create_gate = asyncio.Event()
    agent = await bench.start()
    spec = bench.spec()
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    await bench.until(spec, S.CREATING)
    await agent.stop()
    assert S.RUNNING not in bench.statuses(spec)
    bench.runtime.create_gate = None
    agent = await bench.start()
    running = await bench.until(spec, S.RUNNING)
    assert running.devices == {"cpu": {"0": "1"}}
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    assert len(bench.runtime.specs) == 1


async def test_a_creation_that_keeps_ending_the_agent_is_given_up(bench: Bench) -> None:
    bench.runtime.create_gate = asyncio.Event()
    bench.options = {"kernel-lifecycles": {"max-resumes": 2}}
    agent = await bench.start()
    spec = bench.spec()
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    for _ in range(3):
        await agent.stop()
        agent = await bench.start()
    ended = await bench.until(spec, S.ERROR)
    assert ended.reason is R.FAILED_TO_CREATE
    assert bench.plugins[0].journal[-1] == "cpu.post_terminate"
    bench.runtime.create_gate = None
    await bench.run(agent, slots={"cpu": "4"})


async def test_a_destruction_under_way_is_finished(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    bench.plugins[0].hook_errors["pre_terminate"] = TerminationDeferred("saving", retry_after=60)
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.until(spec, S.TERMINATING)
    await agent.stop()
    assert len(bench.runtime.specs) == 1
    bench.plugins[0].hook_errors.clear()
    await bench.start()
    assert (await bench.until(spec, S.TERMINATED)).reason is R.USER_REQUESTED
    assert bench.runtime.specs == {}


async def test_a_restart_under_way_is_finished(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    bench.runtime.create_gate = asyncio.Event()
    await agent.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=2))
    await asyncio.sleep(0.05)
    await agent.stop()
    bench.runtime.create_gate = None
    await bench.start()
    new = bench.spec(kernel_id=spec.kernel_id, attempt=2)
    await bench.until(new, S.RUNNING)
    assert [key.attempt for key in bench.runtime.specs] == [2]


async def test_workloads_of_nobody_are_removed(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    await agent.stop()
    (key,) = bench.runtime.specs
    stranger = bench.spec()
    (known,) = bench.runtime.specs.values()
    strange_key = type(key)(kernel_id=stranger.kernel_id, attempt=1)  # type: ignore[arg-type]  # text does for a key
    await bench.runtime.create(WorkloadSpec(key=strange_key, session_id=known.session_id, image="python"))
    await bench.start()
    assert list(bench.runtime.specs) == [key]
    assert S.TERMINATED not in bench.statuses(spec)


async def test_batch_programs_are_followed_after_a_restart(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent, session_type=SessionType.BATCH, startup_command="wait\nexit 5")
    (runner,) = bench.runtime.runners.values()
    await asyncio.sleep(0.05)
    await agent.stop()
    runner.release.set()
    await bench.start()
    ended = await bench.until(spec, S.TERMINATED)
    assert (ended.reason, ended.exit_code) == (R.TASK_FAILED, 5)
    assert sum(frame["t"] == "run" for frame in runner.received) == 1


async def test_reports_wait_for_the_manager(bench: Bench) -> None:
    agent = await bench.start()
    bench.manager.deaf = True
    spec = bench.spec()
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    async with asyncio.timeout(30):
        outbox = bench.data_dir / "outbox.jsonl"
        while b'"RUNNING"' not in outbox.read_bytes():  # noqa: ASYNC110  # a file has no event
            await asyncio.sleep(0.01)
    await agent.stop()
    with (bench.data_dir / "outbox.jsonl").open("ab") as f:
        f.write(b'{"kernel_id": "cut sho')
    await bench.start()
    bench.manager.deaf = False
    await bench.until(spec, S.RUNNING)
    assert bench.statuses(spec)[:3] == [S.PREPARING, S.CREATING, S.RUNNING]
    assert [o.seq for o in bench.manager.observations] == sorted({o.seq for o in bench.manager.observations})


async def test_damaged_records_are_set_aside(bench: Bench) -> None:
    agent = await bench.start()
    await bench.run(agent)
    await agent.stop()
    path = bench.data_dir / "records.db"
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096))
    spoilt = path.read_bytes()
    await bench.start()
    assert bench.runtime.specs == {}
    assert (bench.data_dir / "records.db.damaged").read_bytes() == spoilt


async def test_a_record_that_cannot_be_read_is_left_out(bench: Bench) -> None:
    agent = await bench.start()
    lost, held = await bench.run(agent), await bench.run(agent)
    await agent.stop()
    database = RecordDatabase(bench.data_dir / "records.db")
    database.open()
    table = database.table("kernels")
    table.put(lost.kernel_id, table.items()[lost.kernel_id].replace(b'"spec"', b'"spek"'))
    database.close()
    await bench.start()
    assert {str(key.kernel_id) for key in bench.runtime.specs} == {held.kernel_id}


async def test_records_of_another_version_are_left_alone(bench: Bench) -> None:
    agent = await bench.start()
    await agent.stop()
    database = RecordDatabase(bench.data_dir / "records.db")
    database.open()
    database.table("kernels").put("future", b'{"version": 99}')
    database.close()
    agent = await bench.start()
    await bench.run(agent)
    assert read_records(bench.data_dir, "kernels")["future"] == b'{"version": 99}'


async def test_one_agent_at_a_time_uses_the_directory(bench: Bench) -> None:
    await bench.start()
    second = bench.agent()
    with pytest.raises(Conflict, match="another agent uses"):
        await second.start()


async def test_commands_before_the_start_are_unavailable(bench: Bench) -> None:
    agent = bench.agent()
    with pytest.raises(Unavailable):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec()]))
    await agent.start()
    await bench.run(agent)
    await agent.stop()
    with pytest.raises(Unavailable):
        await agent.commands.create_kernels(CreateKernels(kernels=[bench.spec()]))


async def test_epochs_grow(bench: Bench) -> None:
    agent: Agent = await bench.start()
    await bench.manager.next_heartbeat()
    first = bench.manager.heartbeats[-1]
    await agent.stop()
    await bench.start()
    await bench.manager.next_heartbeat()
    second = bench.manager.heartbeats[-1]
    assert second.epoch > first.epoch
    assert second.generation > first.generation


async def test_a_runner_that_is_slow_to_answer_is_not_given_up(bench: Bench) -> None:
    bench.options = {"runs": {"request-timeout": 0.1}}
    agent = await bench.start()
    spec = await bench.run(agent)
    (runner,) = bench.runtime.runners.values()
    runner.deaf = True
    await agent.commands.execute(step(spec, RunMode.QUERY, code="out late", wait_s=0.01))
    await agent.stop()
    await bench.start()
    await asyncio.sleep(0.3)
    runner.deaf = False
    await bench.manager.wait_for(lambda o: o.reason is R.RESUMING_AGENT_OPERATION)
    assert S.TERMINATING not in bench.statuses(spec)


async def test_a_kernel_that_starts_while_the_runtime_is_asked_is_not_taken_for_lost(bench: Bench) -> None:
    agent = await bench.start()
    bench.runtime.list_gate = asyncio.Event()  # the next answer is from before the creation, and comes after it
    await asyncio.sleep(0.15)
    spec = await bench.run(agent)
    bench.runtime.list_gate.set()
    await asyncio.sleep(0.15)
    assert bench.statuses(spec)[-1] is S.RUNNING
