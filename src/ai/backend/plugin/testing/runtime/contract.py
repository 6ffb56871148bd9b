"""Tests what every runtime promises.

A test file of a runtime is::

    class TestMine(RuntimeContract):
        image = "host/python:3"

        @pytest.fixture async def runtime(self, tmp_path):
            runtime = MyRuntime(state=tmp_path) await runtime.setup() yield runtime await runtime.shutdown()

        async def reopen(self, runtime):  # what the next agent process would make, on the same state
            again = MyRuntime(state=runtime.state) await again.setup() return again

Tests are skipped, naming it, where ``info().capabilities`` lacks ``keep-home`` (a home outlives its workload),
``session-networks``, ``multi-node-networks``, ``ports`` (what listens inside can be connected to), ``exec`` (programs
of tests use networks and ports) or ``host-pids`` (``pids`` are process ids of this machine). Every workload is removed
after its test.
"""

from __future__ import annotations

import asyncio
import os
from uuid import uuid4

import pytest

from ai.backend.common.errors import Conflict, CreationDenied, Unavailable
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.runtime import AbstractRuntime, WorkloadKey, WorkloadSpec, WorkloadState
from ai.backend.plugin.testing.runtime.connections import RuntimeConnectionContract


class RuntimeContract(RuntimeConnectionContract):
    """Tests a runtime. Covers version 1 of the runtime SPI."""

    async def test_it_describes_itself(self, runtime: AbstractRuntime) -> None:
        info = runtime.info()
        assert info.name == runtime.name
        assert info.tier
        assert info.workload_type in ("container", "process_tree")

    async def test_it_lists_the_image_of_the_suite(self, runtime: AbstractRuntime) -> None:
        images = await runtime.list_images()
        assert self.image in {name for image in images for name in (image.name, *image.aliases)}

    async def test_a_workload_runs_and_is_found(self, runtime: AbstractRuntime) -> None:
        spec = self.spec(labels={"who": "me"})
        view = await runtime.create(spec)
        assert (view.key, view.session_id, view.state) == (spec.key, spec.session_id, WorkloadState.RUNNING)
        assert view.workload_id
        assert view.labels["who"] == "me"
        assert await runtime.inspect(spec.key) == view
        assert [listed_view.key for listed_view in await runtime.list_workloads()] == [spec.key]

    async def test_create_is_idempotent(self, runtime: AbstractRuntime) -> None:
        spec = self.spec()
        first_view = await runtime.create(spec)
        assert (await runtime.create(spec)).workload_id == first_view.workload_id
        later_views = await asyncio.gather(runtime.create(spec), runtime.create(spec))
        assert {later_view.workload_id for later_view in later_views} == {first_view.workload_id}
        assert len(await runtime.list_workloads()) == 1

    async def test_workloads_are_created_side_by_side(self, runtime: AbstractRuntime) -> None:
        specs = [self.spec() for _ in range(3)]
        views = await asyncio.gather(*(runtime.create(spec) for spec in specs))
        assert len({view.workload_id for view in views}) == 3
        assert {view.key for view in await runtime.list_workloads()} == {spec.key for spec in specs}

    async def test_an_unknown_image_is_denied_and_leaves_nothing(self, runtime: AbstractRuntime) -> None:
        key = WorkloadKey(kernel_id=KernelId(uuid4()), attempt=1)
        with pytest.raises(CreationDenied):
            await runtime.create(WorkloadSpec(key=key, session_id=SessionId(uuid4()), image="no/such-image:0"))
        assert await runtime.inspect(key) is None
        assert list(await runtime.list_workloads()) == []

    async def test_environment_and_files_reach_the_program(self, runtime: AbstractRuntime) -> None:
        spec = self.spec(environ={"FLAVOUR": "vanilla"}, files={"/home/work/note.txt": b"remember"})
        dialogue = await self.start(runtime, spec)
        await dialogue.run("import os\nprint(os.environ['FLAVOUR'])\nprint(open('/home/work/note.txt').read())")
        await dialogue.close()
        assert dialogue.text() == "vanilla\nremember\n"

    async def test_a_program_runs_over_the_channel(self, runtime: AbstractRuntime) -> None:
        dialogue = await self.start(runtime, self.spec())
        finished_frame = await dialogue.run("print('hello')")
        assert finished_frame["exitCode"] == 0
        assert dialogue.text() == "hello\n"
        seqs = [frame["seq"] for frame in dialogue.frames]
        assert seqs == sorted(set(seqs)), "sequence numbers grow"

    async def test_output_is_replayed_until_it_is_acknowledged(self, runtime: AbstractRuntime) -> None:
        dialogue = await self.start(runtime)
        await dialogue.run("print('one')")
        await dialogue.close()
        second_dialogue = await self.talk(runtime, dialogue.key, epoch=1)
        await second_dialogue.until(lambda frame: frame["t"] == "finished")
        assert [frame["seq"] for frame in second_dialogue.frames] == [frame["seq"] for frame in dialogue.frames]
        assert second_dialogue.text() == "one\n"
        last_seq = second_dialogue.frames[-1]["seq"]
        await second_dialogue.channel.ack(last_seq)
        await second_dialogue.run("print('two')", "r2")
        await second_dialogue.close()
        third_dialogue = await self.talk(runtime, dialogue.key, epoch=1, last_seq=last_seq)
        await third_dialogue.until(lambda frame: frame["t"] == "finished" and frame["id"] == "r2")
        assert min(frame["seq"] for frame in third_dialogue.frames) == last_seq + 1

    async def test_nothing_is_lost_while_nobody_listens(self, runtime: AbstractRuntime) -> None:
        dialogue = await self.start(runtime)
        code = "import time\ntime.sleep(0.3)\nprint(7)"
        await dialogue.channel.send({"t": "run", "id": "r1", "mode": "query", "code": code})
        await dialogue.kind("started")
        await dialogue.close()
        await asyncio.sleep(0.6)
        second_dialogue = await self.talk(runtime, dialogue.key)
        await second_dialogue.kind("finished")
        assert second_dialogue.text() == "7\n"

    async def test_a_newer_epoch_takes_over(self, runtime: AbstractRuntime) -> None:
        spec = self.spec()
        old_dialogue = await self.start(runtime, spec)
        new_dialogue = await self.talk(runtime, spec.key, epoch=5)
        await old_dialogue.over()
        with pytest.raises(Unavailable):
            await old_dialogue.channel.send({"t": "ping", "req": 1})
        await new_dialogue.run("print('mine')")
        assert new_dialogue.text() == "mine\n"
        with pytest.raises(Conflict):
            await runtime.open_channel(spec.key, epoch=4)
        await new_dialogue.run("print('still mine')", "r2")

    async def test_there_is_no_channel_to_nothing(self, runtime: AbstractRuntime) -> None:
        with pytest.raises(Unavailable):
            await runtime.open_channel(self.spec().key, epoch=1)

    async def test_stop_ends_it_and_the_channel_says_so(self, runtime: AbstractRuntime) -> None:
        dialogue = await self.start(runtime)
        workload_exit = await runtime.stop(dialogue.key, grace_s=self.grace_s)
        assert workload_exit is not None
        assert (workload_exit.code is None) != (workload_exit.signal is None), "a code or a signal, never both"
        exit_frame = await dialogue.kind("exited")
        assert (exit_frame["code"], exit_frame["signal"]) == (workload_exit.code, workload_exit.signal)
        await dialogue.over()
        assert dialogue.frames[-1]["t"] == "exited"
        view = await runtime.inspect(dialogue.key)
        assert view is None or (view.state is not WorkloadState.RUNNING and view.exit == workload_exit)

    async def test_stop_may_be_repeated(self, runtime: AbstractRuntime) -> None:
        spec = self.spec()
        await runtime.create(spec)
        first_exit = await runtime.stop(spec.key, grace_s=self.grace_s)
        assert await runtime.stop(spec.key, grace_s=self.grace_s) in (first_exit, None)
        assert await runtime.stop(self.spec().key, grace_s=0.0) is None

    async def test_a_runner_that_shuts_down_leaves_its_exit_code(self, runtime: AbstractRuntime) -> None:
        dialogue = await self.start(runtime)
        await dialogue.channel.send({"t": "shutdown"})
        assert (await dialogue.kind("exited"))["code"] == 0
        await dialogue.close()
        view = await runtime.inspect(dialogue.key)
        assert view is not None
        assert view.state is WorkloadState.EXITED
        assert view.exit is not None
        assert (view.exit.code, view.exit.signal) == (0, None)

    async def test_an_exit_is_told_to_those_who_watch(self, runtime: AbstractRuntime) -> None:
        spec = self.spec()

        async def wait_for_exit() -> WorkloadKey:
            async for event in runtime.events():
                if event.key == spec.key:
                    return event.key
            raise AssertionError("the events ended")

        exit_task = asyncio.create_task(wait_for_exit())
        await self.start(runtime, spec)
        await runtime.stop(spec.key, grace_s=self.grace_s)
        async with asyncio.timeout(self.patience_s):
            assert await exit_task == spec.key

    async def test_a_program_that_does_not_end_is_ended(self, runtime: AbstractRuntime) -> None:
        dialogue = await self.start(runtime)
        await dialogue.channel.send({"t": "run", "id": "r1", "mode": "query", "code": "while True: pass"})
        await dialogue.kind("started")
        async with asyncio.timeout(self.patience_s):
            assert await runtime.stop(dialogue.key, grace_s=0.2) is not None

    async def test_no_process_outlives_its_workload(self, runtime: AbstractRuntime) -> None:
        self.need(runtime, "host-pids")
        dialogue = await self.start(runtime)
        await dialogue.run(
            "import subprocess\n"
            "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
            "subprocess.Popen(['sh', '-c', 'trap \"\" TERM INT HUP; sleep 1000'], start_new_session=True)\n"
        )
        pids = await runtime.pids(dialogue.key)
        assert len(pids) >= 3
        await runtime.stop(dialogue.key, grace_s=0.2)
        await runtime.remove(dialogue.key)
        await dialogue.close()
        assert await self.eventually(lambda: not any(map(_is_alive, pids)))

    async def test_remove_leaves_nothing_and_may_be_repeated(self, runtime: AbstractRuntime) -> None:
        spec = self.spec()
        await runtime.create(spec)
        await runtime.stop(spec.key, grace_s=0.0)
        for _ in range(2):
            await runtime.remove(spec.key)
            assert await runtime.inspect(spec.key) is None
        assert list(await runtime.list_workloads()) == []
        assert await runtime.pids(spec.key) == ()
        with pytest.raises(Unavailable):
            await runtime.open_channel(spec.key, epoch=9)

    async def test_remove_ends_what_still_runs(self, runtime: AbstractRuntime) -> None:
        spec = self.spec()
        await runtime.create(spec)
        await runtime.remove(spec.key)
        assert await runtime.inspect(spec.key) is None

    async def test_a_restarted_agent_finds_its_workloads(self, runtime: AbstractRuntime) -> None:
        spec = self.spec(labels={"who": "me"})
        dialogue = await self.start(runtime, spec)
        await dialogue.run("x = 41")
        last_seq = dialogue.frames[-1]["seq"]
        await dialogue.channel.ack(last_seq)
        await dialogue.close()
        view_before = await runtime.inspect(spec.key)
        await runtime.shutdown()
        second_runtime = await self.reopen(runtime)
        try:
            assert list(await second_runtime.list_workloads()) == [view_before]
            dialogue = await self.talk(second_runtime, spec.key, epoch=2, last_seq=last_seq)
            await dialogue.run("print(x + 1)", "r2")
            assert dialogue.text("r2") == "42\n"
            await dialogue.close()
            assert (await second_runtime.create(spec)) == view_before, "create after a restart is still idempotent"
        finally:
            await self.remove_all(second_runtime)
            await second_runtime.shutdown()

    async def test_an_exit_that_nobody_saw_is_found(self, runtime: AbstractRuntime) -> None:
        dialogue = await self.start(runtime)
        code = "import time\ntime.sleep(0.3)"
        await dialogue.channel.send({"t": "run", "id": "r1", "mode": "query", "code": code})
        await dialogue.channel.send({"t": "shutdown"})
        await dialogue.close()
        await runtime.shutdown()
        second_runtime = await self.reopen(runtime)
        try:

            async def has_exited() -> bool:
                view = await second_runtime.inspect(dialogue.key)
                return view is not None and view.state is WorkloadState.EXITED and view.exit is not None

            assert await self.eventually(has_exited)
        finally:
            await self.remove_all(second_runtime)
            await second_runtime.shutdown()

    async def test_a_home_outlives_a_restart_in_place(self, runtime: AbstractRuntime) -> None:
        self.need(runtime, "keep-home")
        kernel = uuid4()
        dialogue = await self.start(runtime, self.spec(kernel, 1))
        await dialogue.run("open('/home/work/kept.txt', 'w').write('kept')")
        await dialogue.close()
        first_key = WorkloadKey(kernel_id=KernelId(kernel), attempt=1)
        await runtime.stop(first_key, grace_s=self.grace_s)
        await runtime.remove(first_key, keep_home=True)
        dialogue = await self.start(runtime, self.spec(kernel, 2, keep_home=True))
        await dialogue.run("print(open('/home/work/kept.txt').read())")
        assert dialogue.text() == "kept\n"

    async def test_a_home_does_not_outlive_its_kernel(self, runtime: AbstractRuntime) -> None:
        kernel = uuid4()
        dialogue = await self.start(runtime, self.spec(kernel, 1))
        await dialogue.run("open('/home/work/gone.txt', 'w').write('gone')")
        await dialogue.close()
        await runtime.remove(WorkloadKey(kernel_id=KernelId(kernel), attempt=1))
        dialogue = await self.start(runtime, self.spec(kernel, 2))
        await dialogue.run("print(open('/home/work/gone.txt').read())")
        assert "FileNotFoundError" in dialogue.text(stream="stderr")

    async def test_the_log_has_the_output(self, runtime: AbstractRuntime) -> None:
        dialogue = await self.start(runtime)
        await dialogue.run("print('for the record')")
        await dialogue.close()

        async def is_logged() -> bool:
            return b"for the record" in await runtime.read_logs(dialogue.key, max_bytes=10_000)

        assert await self.eventually(is_logged)
        assert len(await runtime.read_logs(dialogue.key, max_bytes=5)) <= 5
        assert await runtime.read_logs(self.spec().key, max_bytes=10) == b""

    async def test_measurements_are_of_live_workloads(self, runtime: AbstractRuntime) -> None:
        dialogue = await self.start(runtime)
        unknown_key = self.spec().key
        measurements = await runtime.measure([dialogue.key, unknown_key])
        assert unknown_key not in measurements
        measurement_by_key = {measurement.key: measurement for measurement in measurements[dialogue.key]}
        assert {"cpu_used", "mem"} <= measurement_by_key.keys()
        assert all(measurement.value >= 0 for measurement in measurement_by_key.values())
        assert await runtime.pids(dialogue.key)
        await dialogue.close()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as e:
        return isinstance(e, PermissionError)
    return True
