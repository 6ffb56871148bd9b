"""Controllers that are killed at each crash point, and two of them at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tools.kube.cluster import Cluster

from ai.backend.common.device_operations import OperationPhase as P
from ai.backend.kubeacc.composition import run_controllers
from ai.backend.kubeacc.controllers.manager import ControllerManager
from ai.backend.kubeacc.controllers.operations import CRASH_POINTS
from ai.backend.kubeacc.crd.objects import AcceleratorOperation
from ai.backend.kubeacc.crd.operations import Order, Report
from ai.backend.kubeacc.policies.roles import CONTROLLERS_ACCOUNT
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.plugin.crash_points import VARIABLE
from tests.kubernetes.kubeacc.accounts import account_kubeconfig
from tests.kubernetes.kubeacc.conftest import (
    Bench,
    ScriptedNode,
    add_device,
    add_namespace,
    client_of,
    control_plane,
    controllers_client,
    running,
    running_bench,
    succeed,
)

pytestmark = pytest.mark.needs("kubernetes")


@asynccontextmanager
async def controllers(kubeconfig: Path, *, crash_point: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
    """The controllers as a process that dies at a crash point. It has the name of the pod that starts again."""
    arguments = ["--kubeconfig", str(kubeconfig), "--identity", "controllers-0"]
    program = "import sys; from ai.backend.kubeacc.main import main; main(sys.argv[1:])"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "start-controllers", *arguments),
        env={**os.environ, VARIABLE: crash_point},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@pytest.fixture
def kubeconfig(acc_cluster: Cluster, tmp_path: Path) -> Path:
    """Of the account that the controllers have in a cluster."""
    return account_kubeconfig(acc_cluster, tmp_path, CONTROLLERS_ACCOUNT)


#: The status is written once for each step: admitted, acquired, ordered, completed, confirmed.
POINTS = [
    f"{point}:{n}" for point in CRASH_POINTS for n in (range(1, 6) if point.endswith("operation-status") else (1,))
]


@pytest.mark.timeout(240)
async def test_controllers_killed_anywhere_give_each_order_once(
    acc_cluster: Cluster, kubeconfig: Path, api: KubeApi, namespace: str, device: str
) -> None:
    node = ScriptedNode(api)
    bench = Bench(api, acc_cluster, namespace, node)
    async with running(node.run):
        async with controllers(kubeconfig):
            await bench.wait_until_admitted("Reset")
        for number, point in enumerate(POINTS):
            name = f"op{number}"
            await bench.ask(name, device, "Reset")
            async with controllers(kubeconfig, crash_point=point) as process:
                assert await asyncio.wait_for(process.wait(), 20) == -signal.SIGKILL, point
        async with controllers(kubeconfig):
            for number, point in enumerate(POINTS):
                ended = await bench.wait_for_end(f"op{number}", 20)
                assert (ended.status.phase, ended.status.attempts) == (P.SUCCEEDED, 1), point
    assert sorted(node.orders) == sorted((f"op{number}", 1, "order") for number in range(len(POINTS)))
    assert (await bench.device(device)).status.operation is None


async def test_of_two_controllers_one_leads_and_the_other_takes_over(
    acc_cluster: Cluster, kubeconfig: Path, api: KubeApi, namespace: str, device: str
) -> None:
    node = ScriptedNode(api)
    bench = Bench(api, acc_cluster, namespace, node)
    first, second = asyncio.Event(), asyncio.Event()

    async def lead(stop: asyncio.Event, name: str) -> None:
        await run_controllers(kubeconfig, stop, identity=name)

    async with running(node.run, lambda: lead(second, "b")):
        async with running(lambda: lead(first, "a")):
            await bench.wait_until_admitted("Reset")
            await bench.ask("one", device, "Reset")
            assert (await bench.wait_for_end("one")).status.phase is P.SUCCEEDED
        await bench.ask("two", device, "Reset")
        assert (await bench.wait_for_end("two", 30)).status.phase is P.SUCCEEDED
        second.set()
    assert node.orders == [("one", 1, "order"), ("two", 1, "order")]


async def test_two_controllers_that_both_believe_to_lead_give_each_order_once(
    bench: Bench, controllers_api: KubeApi, device: str
) -> None:
    """The Lease saves work only: what makes orders unique is that each step is a conditional write (decision 0394)."""
    active: set[str] = set()
    overlaps: list[set[str]] = []

    def script(operation: AcceleratorOperation, order: Order) -> Report | None:
        if operation.status.report is None:
            active.add(operation.metadata.name)
            overlaps.append(set(active))
            return None
        active.discard(operation.metadata.name)
        return succeed(operation, order)

    bench.node.script = script
    names = [f"op{number}" for number in range(8)]
    async with running(ControllerManager(controllers_api).run):  # beside the one of the bench
        for name in names:
            await bench.ask(name, device, "Reset")
        ended = [await bench.wait_for_end(name, 60) for name in names]
    assert [(one.status.phase, one.status.attempts) for one in ended] == [(P.SUCCEEDED, 1)] * len(names)
    assert sorted(bench.node.orders) == [(name, 1, "order") for name in names]
    assert all(len(one) == 1 for one in overlaps)
    assert (await bench.device(device)).status.operation is None


async def test_the_api_server_dies_while_an_operation_runs() -> None:
    with control_plane() as cluster:
        async with client_of(cluster.kubeconfig) as api, controllers_client(cluster) as controllers_api:
            device, node = await add_device(api), ScriptedNode(api)
            async with running_bench(Bench(api, cluster, add_namespace(cluster), node), controllers_api) as bench:
                await _kill_the_api_server(bench, device)


async def _kill_the_api_server(bench: Bench, device: str) -> None:
    go = asyncio.Event()
    bench.node.script = lambda operation, order: succeed(operation, order) if go.is_set() else None
    await bench.ask("op", device, "Reset")
    begun = await bench.wait_for("op", lambda op: op.status.report is not None)
    daemon = bench.cluster.daemons["kube-apiserver"]
    await asyncio.to_thread(daemon.kill)
    go.set()
    bench.node.ask_again(begun)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(daemon.start)
    ended = await bench.wait_for("op", lambda op: op.status.phase.is_final, 60)
    assert ended.status.phase is P.SUCCEEDED
    assert bench.node.orders == [("op", 1, "order")]
    await bench.wait_for_end("op", 30)
