"""What the hooks of plugins do to a kernel, and what is told of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from ai.backend.agent.kernels.model import KernelRecord
from ai.backend.agent.lifecycle import hook_retries
from ai.backend.common.errors import CreationDeferred, CreationDenied
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel, KernelSpec, RestartKernel
from ai.backend.common.wire.reports import HookTrouble, KernelObservation
from ai.backend.plugin.accelerator import (
    AbstractComputePlugin,
    AbstractLifecycleHook,
    HookContext,
    Mount,
    TerminationDeferred,
    WorkloadConfig,
)
from tests.component.agent.conftest import Bench, read_records
from tests.support.agent_fakes import FakePlugin, fake_plugin

S, R = KernelStatus, KernelEventReason
Act = Callable[[AbstractLifecycleHook], Awaitable[Any]]


def acting(key: str, **acts: Act) -> tuple[type[FakePlugin], list[tuple[str, HookContext]]]:
    """A plugin whose hook does ``acts`` by method, and the contexts of its calls."""
    calls: list[tuple[str, HookContext]] = []

    class Hook(AbstractLifecycleHook):
        async def _do(self, method: str) -> Any:
            calls.append((method, self.context))
            return await acts[method](self) if method in acts else None

        async def pre_create(self) -> WorkloadConfig:
            given: WorkloadConfig | None = await self._do("pre_create")
            return WorkloadConfig() if given is None else given

        async def post_create(self) -> None:
            await self._do("post_create")

        async def pre_terminate(self) -> None:
            await self._do("pre_terminate")

        async def post_terminate(self) -> None:
            await self._do("post_terminate")

    def create(self: Any, workload: Any, device_alloc: Any, context: Any) -> AbstractLifecycleHook:
        return Hook(workload, device_alloc, context)

    return fake_plugin(key, create_lifecycle_hook=create), calls


def names(calls: list[tuple[str, HookContext]]) -> list[str]:
    return [method for method, _ in calls]


def raising(*errors: BaseException | None) -> Act:
    """One error for each call; afterwards, and for None, none."""
    left = list(errors)

    async def act(_: AbstractLifecycleHook) -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return act


async def hang(_: AbstractLifecycleHook) -> None:
    await asyncio.Event().wait()


def troubles(bench: Bench) -> list[HookTrouble]:
    return [t for o in bench.manager.observations for t in o.hook_troubles]


async def told(bench: Bench, state: str) -> HookTrouble:
    seen: KernelObservation = await bench.manager.wait_for(lambda o: any(t.state == state for t in o.hook_troubles))
    return next(t for t in seen.hook_troubles if t.state == state)


async def create(bench: Bench, agent: Any, **changes: Any) -> KernelSpec:
    spec = bench.spec(slots={"cpu": "1", "mem": "1"}, **changes)
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    return spec


async def running(bench: Bench, **changes: Any) -> tuple[Any, KernelSpec]:
    """An agent, and a kernel that runs on it."""
    agent = await bench.start()
    spec = await create(bench, agent, **changes)
    await bench.until(spec, S.RUNNING)
    return agent, spec


async def destroy(bench: Bench, agent: Any, spec: KernelSpec, *, forced: bool = False) -> KernelObservation:
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=spec.attempt, forced=forced))
    return await bench.until(spec, S.TERMINATED)


# ---- creation


@pytest.mark.parametrize(
    ("act", "status", "message"),
    [
        (raising(CreationDenied("no licence")), S.ERROR, "no licence"),
        (raising(CreationDeferred("busy", retry_after=7.0)), S.PENDING, "busy"),
        (raising(RuntimeError("a bug")), S.ERROR, "a bug"),
        (raising(TerminationDeferred("what?")), S.ERROR, "cannot defer a termination"),
        (raising(asyncio.CancelledError()), S.ERROR, "cancelled itself"),
        (raising(SystemExit(3)), S.ERROR, "rocm"),
        (hang, S.ERROR, "pre_create took longer than 0.2 s"),
    ],
)
async def test_those_that_had_begun_are_undone_in_reverse(
    bench: Bench, act: Act, status: KernelStatus, message: str
) -> None:
    order: list[str] = []

    def noting(key: str) -> Act:
        async def note(_: AbstractLifecycleHook) -> None:
            order.append(key)

        return note

    cuda, of_cuda = acting("cuda", post_terminate=noting("cuda"))
    rocm, of_rocm = acting("rocm", pre_create=act, post_terminate=noting("rocm"))
    last, of_last = acting("zzz")
    bench.plugins = [last, rocm, cuda]
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 0.2}, "resource": {"allocation-order": ["cuda", "rocm"]}}
    agent = await bench.start()
    spec = bench.spec(slots={"cuda": "1", "rocm": "1", "zzz": "1"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    ended = await bench.until(spec, status)
    assert message in (ended.message or "")
    assert ended.retry_after_s == (7.0 if status is S.PENDING else None)
    assert names(of_cuda) == names(of_rocm) == ["pre_create", "post_terminate"]
    assert order == ["rocm", "cuda"]
    assert of_last == []
    assert bench.runtime.specs == {}
    assert troubles(bench) == []


async def test_a_bad_config_marks_its_plugin_and_leaves_nothing(bench: Bench) -> None:
    bad = WorkloadConfig(mounts=(Mount(source="/a", target="/home/config"),))
    mem, calls = acting("mem", pre_create=lambda _: asyncio.sleep(0, bad))
    bench.plugins = [fake_plugin("cpu"), mem]
    agent = await bench.start()
    spec = await create(bench, agent)
    ended = await bench.until(spec, S.ERROR)
    assert "the plugin mem: pre_create: bad WorkloadConfig: mounts: nothing can be mounted at" in (ended.message or "")
    assert names(calls) == ["pre_create", "post_terminate"]
    await bench.manager.next_heartbeat()
    reports = {plugin.name: plugin for plugin in bench.manager.heartbeats[-1].plugins}
    assert not reports["mem"].healthy
    assert reports["cpu"].healthy
    await bench.run(agent, slots={"cpu": "4"})


async def test_a_restart_that_is_deferred_is_an_error(bench: Bench) -> None:
    mem, _ = acting("mem", pre_create=raising(None, CreationDeferred("busy")))
    bench.plugins = [fake_plugin("cpu"), mem]
    agent, spec = await running(bench)
    await agent.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=2))
    ended = await bench.until(bench.spec(kernel_id=spec.kernel_id, attempt=2), S.ERROR)
    assert (ended.reason, ended.message) == (R.CREATION_DEFERRED, "busy")


# ---- causes


async def test_a_plugin_with_the_default_hook_is_called_before_the_creation_alone(bench: Bench) -> None:
    configured: list[str] = []

    async def configure(self: Any, workload: Any, device_alloc: Any) -> WorkloadConfig:
        configured.append(str(workload.kernel_id))
        return WorkloadConfig()

    make_hook = AbstractComputePlugin.create_lifecycle_hook
    bench.plugins = [fake_plugin("cuda", create_lifecycle_hook=make_hook, configure=configure)]
    agent = await bench.start()
    spec = bench.spec(slots={"cuda": "1"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    await bench.until(spec, S.RUNNING)
    record = msgspec.json.decode(read_records(bench.data_dir, "kernels")[spec.kernel_id], type=KernelRecord)
    assert (record.hooked, record.begun, record.hook_slots) == ([], {}, {})  # there is nothing to undo
    assert record.attached_devices.keys() == {"cuda"}
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.until(spec, S.TERMINATED)
    assert configured == [spec.kernel_id]
    assert troubles(bench) == []


async def test_causes_attempts_and_allocations(bench: Bench) -> None:
    mem, calls = acting("mem")
    bench.plugins = [fake_plugin("cpu"), mem]
    agent, spec = await running(bench, attempt=2, relocated_from="i-other")
    await agent.commands.restart_kernel(RestartKernel(kernel_id=spec.kernel_id, attempt=3))
    third = bench.spec(kernel_id=spec.kernel_id, attempt=3)
    await bench.until(third, S.RUNNING)
    await destroy(bench, agent, third)
    seen = [(m, c.cause.value, c.attempt, c.previous_allocation is not None) for m, c in calls]
    assert seen == [
        ("pre_create", "relocate", 2, False),
        ("post_create", "relocate", 2, False),
        ("pre_terminate", "restart-in-place", 2, True),
        ("post_terminate", "restart-in-place", 2, True),
        ("pre_create", "restart-in-place", 3, True),
        ("post_create", "restart-in-place", 3, True),
        ("pre_terminate", "create", 3, False),
        ("post_terminate", "create", 3, False),
    ]


async def test_hooks_are_told_of_image_cluster_and_end(bench: Bench) -> None:
    mem, calls = acting("mem")
    bench.plugins = [fake_plugin("cpu"), mem]
    agent, first = await running(bench, cluster_role="sub", local_rank=3)
    await agent.commands.restart_kernel(RestartKernel(kernel_id=first.kernel_id, attempt=2))
    second = bench.spec(kernel_id=first.kernel_id, attempt=2)
    await bench.until(second, S.RUNNING)
    idle = DestroyKernel(kernel_id=second.kernel_id, attempt=2, reason=R.IDLE_TIMEOUT, forced=True)
    await agent.commands.destroy_kernel(idle)
    await bench.until(second, S.TERMINATED)
    seen = [(method, c.end_reason, c.is_forced) for method, c in calls]
    assert seen == [
        ("pre_create", "", False),
        ("post_create", "", False),
        ("pre_terminate", "restarting", False),
        ("post_terminate", "restarting", False),
        ("pre_create", "", False),
        ("post_create", "", False),
        ("pre_terminate", "idle-timeout", True),
        ("post_terminate", "idle-timeout", True),
    ]
    assert {(c.image.name, c.cluster_role, c.cluster_rank) for _, c in calls if c.image} == {("python", "sub", 3)}


# ---- managed state


async def test_states_are_apart_durable_and_gone_at_the_end(bench: Bench) -> None:
    def keeping(value: str) -> Act:
        async def act(hook: AbstractLifecycleHook) -> None:
            hook.context.state.data["mine"] = value

        return act

    async def version_only(hook: AbstractLifecycleHook) -> None:
        hook.context.state.version = 7

    mem, of_mem = acting("mem", pre_create=keeping("m"), post_create=version_only)
    cpu, of_cpu = acting("cpu", pre_create=keeping("c"))
    bench.plugins = [cpu, mem]
    agent, spec = await running(bench)
    await agent.stop()
    agent = await bench.start()
    await bench.manager.wait_for(lambda o: o.reason is R.RESUMING_AGENT_OPERATION)
    await destroy(bench, agent, spec)
    last = {key: calls[-1][1].state for key, calls in (("cpu", of_cpu), ("mem", of_mem))}
    assert (last["cpu"].data, last["cpu"].version) == ({"mine": "c"}, 1)
    assert (last["mem"].data, last["mem"].version) == ({"mine": "m"}, 7)
    await agent.stop()
    assert b'"mine"' not in b"".join(read_records(bench.data_dir, "kernels").values())


async def test_a_state_is_kept_also_of_a_hook_that_raises_or_hangs(bench: Bench) -> None:
    async def save_and_hang(hook: AbstractLifecycleHook) -> None:
        hook.context.state.data["saved"] = True
        await hook.context.state.save()
        (record,) = read_records(bench.data_dir, "kernels").values()
        assert b'"saved":true' in record
        hook.context.state.data["late"] = True
        await hang(hook)

    mem, calls = acting("mem", pre_create=save_and_hang)
    bench.plugins = [fake_plugin("cpu"), mem]
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 0.2}}
    agent = await bench.start()
    spec = await create(bench, agent)
    await bench.until(spec, S.ERROR)
    assert calls[-1][0] == "post_terminate"
    assert calls[-1][1].state.data == {"saved": True, "late": True}


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ({"x": "y" * 70_000}, "65536 are allowed"),
        ({"x": object()}, "no JSON object"),
        (["x"], "no JSON object"),
    ],
)
async def test_a_state_that_cannot_be_kept_fails_the_call(bench: Bench, state: Any, problem: str) -> None:
    async def keep(hook: AbstractLifecycleHook) -> None:
        hook.context.state.data = state

    mem, calls = acting("mem", pre_create=keep)
    bench.plugins = [fake_plugin("cpu"), mem]
    agent = await bench.start()
    spec = await create(bench, agent)
    assert problem in ((await bench.until(spec, S.ERROR)).message or "")
    assert calls[-1][1].state.data == {}


# ---- what is owed


async def test_a_post_create_that_fails_is_made_up_for_while_the_kernel_runs(bench: Bench) -> None:
    mem, calls = acting("mem", post_create=raising(RuntimeError("not yet"), RuntimeError("nor now")))
    bench.plugins = [fake_plugin("cpu"), mem]
    agent, spec = await running(bench)
    first = await told(bench, "retrying")
    assert (first.plugin, first.method) == ("mem", "post_create")
    assert "not yet" in first.message
    done = await told(bench, "done")
    assert done.since == first.since
    assert names(calls).count("post_create") == 3
    await destroy(bench, agent, spec)


async def test_a_wall_clock_that_is_set_gives_up_nothing(bench: Bench) -> None:
    mem, _ = acting("mem", post_create=raising(RuntimeError("not yet"), RuntimeError("not yet")))
    bench.plugins = [fake_plugin("cpu"), mem]
    agent, spec = await running(bench)
    tomorrow = time.time() + 2 * 86_400
    bench.wall_clock = lambda: tomorrow
    seen = await bench.manager.wait_for(lambda o: any(t.state in ("done", "given-up") for t in o.hook_troubles))
    assert "done" in {t.state for t in seen.hook_troubles}
    await destroy(bench, agent, spec)


async def test_what_is_owed_ends_with_the_kernel(bench: Bench) -> None:
    mem, calls = acting("mem", post_create=raising(*[RuntimeError("never")] * 50))
    bench.plugins = [fake_plugin("cpu"), mem]
    agent, spec = await running(bench)
    await destroy(bench, agent, spec)
    assert names(calls)[-2:] == ["pre_terminate", "post_terminate"]
    count = len(calls)
    await asyncio.sleep(0.8)
    assert len(calls) == count


async def test_a_post_terminate_that_fails_gives_the_slots_back_at_its_deadline(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hook_retries, "_RETRY_FIRST_S", 0.3)
    mem, _ = acting("mem", post_terminate=raising(*[RuntimeError("in use")] * 4))
    bench.plugins = [fake_plugin("cpu"), mem]
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 0.5}}
    agent, spec = await running(bench)
    begin = time.monotonic()
    await destroy(bench, agent, spec)
    assert time.monotonic() - begin < 1.0
    assert (await told(bench, "retrying")).method == "post_terminate"
    again = bench.spec(slots={"cpu": "4", "mem": "4"})
    await agent.commands.create_kernels(CreateKernels(kernels=[again]))
    await bench.until(again, S.RUNNING)
    assert (await told(bench, "done")).method == "post_terminate"
    await agent.stop()
    assert read_records(bench.data_dir, "leftovers") == {}


async def test_what_never_succeeds_is_given_up_and_told(bench: Bench) -> None:
    mem, _ = acting("mem", post_terminate=raising(*[RuntimeError("for ever")] * 99))
    bench.plugins = [fake_plugin("cpu"), mem]
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 0.1, "hook-retry-limit": 0.2}}
    agent, spec = await running(bench)
    await destroy(bench, agent, spec)
    assert "for ever" in (await told(bench, "given-up")).message


async def test_a_newer_attempt_waits_for_what_the_older_one_left(bench: Bench) -> None:
    mem, calls = acting("mem", post_terminate=raising(*[RuntimeError("in use")] * 3))
    bench.plugins = [fake_plugin("cpu"), mem]
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 0.1}}
    agent, spec = await running(bench)
    await destroy(bench, agent, spec)
    statuses = []
    for attempt in range(2, 9):
        newer = bench.spec(slots=spec.slots, kernel_id=spec.kernel_id, attempt=attempt)
        await agent.commands.create_kernels(CreateKernels(kernels=[newer]))
        seen: KernelObservation = await bench.manager.wait_for(
            lambda o, n=newer: o.attempt == n.attempt and o.status in (S.RUNNING, S.PENDING)
        )
        statuses.append(seen.status)
        if seen.status is S.RUNNING:
            break
        assert "has not finished with attempt 1" in (seen.message or "")
    assert statuses[0] is S.PENDING
    assert statuses[-1] is S.RUNNING
    ends = [i for i, (m, c) in enumerate(calls) if m == "post_terminate" and c.attempt == 1]
    begins = [i for i, (m, c) in enumerate(calls) if m == "pre_create" and c.attempt > 1]
    assert max(ends) < min(begins)


# ---- the end


async def test_an_overrun_is_told_and_does_not_cancel(bench: Bench) -> None:
    mem, calls = acting("mem", pre_terminate=raising(*[TerminationDeferred("saving", retry_after=0.05)] * 99))
    bench.plugins = [fake_plugin("cpu"), mem]
    bench.options = {"kernel-lifecycles": {"termination-deferral": 0.3}}
    agent, spec = await running(bench)
    await destroy(bench, agent, spec)
    overrun = await told(bench, "overrun")
    assert (overrun.plugin, overrun.method, overrun.message) == ("mem", "pre_terminate", "saving")
    assert names(calls)[-1] == "post_terminate"


async def test_a_restarted_agent_does_not_begin_the_deadline_anew(bench: Bench) -> None:
    mem, _ = acting("mem", pre_terminate=raising(*[TerminationDeferred("saving", retry_after=0.05)] * 999))
    bench.plugins = [fake_plugin("cpu"), mem]
    bench.options = {"kernel-lifecycles": {"termination-deferral": 1.2}}
    agent, spec = await running(bench)
    begin = time.monotonic()
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    for _ in range(3):
        await asyncio.sleep(0.3)
        await agent.stop()
        agent = await bench.start()
    await bench.until(spec, S.TERMINATED)
    assert 1.1 < time.monotonic() - begin < 2.2


@pytest.mark.parametrize("retry_after", [float("nan"), -5.0, 1e12])
async def test_a_nonsensical_pause_is_still_bounded(bench: Bench, retry_after: float) -> None:
    mem, calls = acting("mem", pre_terminate=raising(*[TerminationDeferred("x", retry_after=retry_after)] * 999))
    bench.plugins = [fake_plugin("cpu"), mem]
    bench.options = {"kernel-lifecycles": {"termination-deferral": 0.3}}
    agent, spec = await running(bench)
    await destroy(bench, agent, spec)
    assert 2 <= names(calls).count("pre_terminate") < 60


async def test_a_plugin_that_is_gone_does_not_hold_its_kernels(bench: Bench) -> None:
    mem, calls = acting("mem")
    bench.plugins = [fake_plugin("cpu"), mem]
    bench.options = {"kernel-lifecycles": {"plugin-timeout": 0.2}}
    agent, spec = await running(bench)
    await agent.stop()
    bench.plugins = [bench.plugins[0]]
    agent = await bench.start()
    await bench.manager.wait_for(lambda o: o.reason is R.RESUMING_AGENT_OPERATION)
    await destroy(bench, agent, spec)
    assert names(calls) == ["pre_create", "post_create"]
    await agent.stop()
    bench.plugins = [bench.plugins[0], mem]
    await bench.start()
    await told(bench, "done")
    method, context = calls[-1]
    assert (method, context.cause.value) == ("post_terminate", "recover")
