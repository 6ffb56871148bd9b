"""Secret variables of kernels: the workload has them, and no file of the agent."""

from __future__ import annotations

import asyncio

from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.common.wire.agent import CreateKernels, RestartKernel
from tests.component.agent.conftest import Bench

S, R = KernelStatus, KernelEventReason
SECRETS = {"NGC_API_KEY": "nvapi-never-on-a-disk"}
VALUE = SECRETS["NGC_API_KEY"].encode()


def leaks(bench: Bench) -> list[str]:
    """Returns the agent's files that hold the secret."""
    files = [path for path in bench.data_dir.rglob("*") if path.is_file()]
    assert any(path.name == "records.db" for path in files)
    return [str(path) for path in files if VALUE in path.read_bytes()]


async def test_the_workload_has_them_and_no_file_of_the_agent(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent, secret_environ=SECRETS)
    (workload,) = bench.runtime.specs.values()
    assert workload.environ["NGC_API_KEY"] == SECRETS["NGC_API_KEY"]
    assert workload.secret_names == {"NGC_API_KEY"}
    assert not [path for path, content in workload.files.items() if VALUE in content]
    await agent.commands.restart_kernel(
        RestartKernel(kernel_id=spec.kernel_id, attempt=2, secret_environ={"NGC_API_KEY": "nvapi-never-on-a-disk"})
    )
    await bench.until(bench.spec(kernel_id=spec.kernel_id, attempt=2), S.RUNNING)
    (workload,) = bench.runtime.specs.values()
    assert (workload.key.attempt, workload.environ["NGC_API_KEY"]) == (2, SECRETS["NGC_API_KEY"])
    assert leaks(bench) == []
    assert SECRETS["NGC_API_KEY"] not in repr(spec)


async def test_a_creation_that_has_lost_them_goes_back_to_the_scheduler(bench: Bench) -> None:
    bench.runtime.create_gate = asyncio.Event()
    agent = await bench.start()
    spec = bench.spec(secret_environ=SECRETS)
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    await bench.until(spec, S.CREATING)
    assert leaks(bench) == []
    await agent.stop()
    bench.runtime.create_gate = None
    await bench.start()
    assert (await bench.until(spec, S.PENDING)).reason is R.CREATION_DEFERRED
    assert bench.runtime.specs == {}


async def test_a_running_one_is_adopted_without_them(bench: Bench) -> None:
    agent = await bench.start()
    spec = await bench.run(agent, secret_environ=SECRETS)
    await agent.stop()
    agent = await bench.start()
    await agent.commands.create_kernels(CreateKernels(kernels=[spec]))
    await asyncio.sleep(0.1)  # that nothing is created has no event
    assert len(bench.runtime.specs) == 1
    assert S.PENDING not in bench.statuses(spec)
