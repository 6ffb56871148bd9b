"""A disk that is full for a while costs time, and neither devices nor kernels."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ai.backend.agent.directory.directory import RecordTable
from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.agent import CreateKernels, DestroyKernel
from ai.backend.plugin.runtime import WorkloadExit
from tests.component.agent.conftest import Bench
from tests.support.agent_fakes import fake_plugin

S = KernelStatus


class Disk:
    """While it is full no record can be written."""

    is_full = was_full = False

    def fill_once(self, seconds: float) -> None:
        if self.was_full:
            return
        self.is_full = self.was_full = True
        asyncio.get_running_loop().call_later(seconds, self.empty)

    def empty(self) -> None:
        self.is_full = False


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    for method in (RecordTable.put, RecordTable.delete):

        def refuse(*arguments: Any, method: Callable[..., None] = method) -> None:
            if disk.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            method(*arguments)

        monkeypatch.setattr(RecordTable, method.__name__, refuse)
    yield disk
    disk.empty()


def _filling(disk: Disk, method: str) -> Any:
    class Filling(fake_plugin("cpu")):  # type: ignore[misc]  # made for this test
        def create_lifecycle_hook(self, workload: Any, device_alloc: Any, context: Any) -> Any:
            hook = super().create_lifecycle_hook(workload, device_alloc, context)
            original = getattr(hook, method)

            async def fill() -> Any:
                disk.fill_once(0.8)
                return await original()

            setattr(hook, method, fill)
            return hook

    return Filling


async def test_nothing_is_taken_on_that_cannot_be_written(bench: Bench, disk: Disk) -> None:
    agent = await bench.start()
    spec = bench.spec(slots={"cpu": "4"})
    disk.is_full = True
    with pytest.raises(Unavailable, match="No space left"):
        await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    disk.empty()
    await bench.run(agent, slots={"cpu": "4"})


async def test_an_end_that_cannot_be_written_can_be_asked_for_again(bench: Bench, disk: Disk) -> None:
    agent = await bench.start()
    spec = await bench.run(agent)
    disk.is_full = True
    with pytest.raises((OSError, BackendError)):
        await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    disk.empty()
    await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    await bench.until(spec, S.TERMINATED)


@pytest.mark.parametrize("method", ["pre_create", "post_create", "post_terminate"])
async def test_a_kernel_ends_once_there_is_room(bench: Bench, disk: Disk, method: str) -> None:
    bench.plugins = [_filling(disk, method)]
    agent = await bench.start()
    spec = bench.spec(slots={"cpu": "4"})
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    if method == "post_terminate":
        await bench.until(spec, S.RUNNING)
        await agent.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))
    async with asyncio.timeout(20):
        await bench.until(spec, S.TERMINATED if method == "post_terminate" else S.ERROR)


async def test_a_hook_that_is_repeated_on_a_full_disk_is_repeated_until_that_is_written(
    bench: Bench, disk: Disk
) -> None:
    plugin = _filling(disk, "post_create")
    plugin.hook_errors["post_create"] = RuntimeError("not yet")
    bench.plugins = [plugin]
    disk.was_full = True
    agent = await bench.start()
    await bench.run(agent)
    disk.was_full = False
    plugin.hook_errors.clear()
    await bench.manager.wait_for(lambda o: any(t.state == "done" for t in o.hook_troubles))
    assert disk.was_full
    await agent.stop()


async def test_an_exit_that_cannot_be_written_is_not_left_to_the_next_sync(bench: Bench, disk: Disk) -> None:
    bench.options["intervals"] = {"sync": 3600.0}
    agent = await bench.start()
    spec = await bench.run(agent)
    disk.fill_once(0.5)
    bench.runtime.die(next(iter(bench.runtime.specs)), WorkloadExit(code=-9, reason="disk-full"))
    async with asyncio.timeout(20):
        end = await bench.until(spec, S.TERMINATED)
    assert end.message == "disk-full"
    assert not disk.is_full
