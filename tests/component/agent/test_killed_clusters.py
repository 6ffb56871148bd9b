"""An agent with a real runtime, killed while the kernels of a session join and leave their network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio

from ai.backend.common.states import KernelStatus
from ai.backend.common.wire.agent import ClusterInfo, CreateKernels, DestroyKernel, KernelSpec
from tests.component.agent.conftest import Bench
from tests.support.agent_node import Node
from tests.support.audit import leftovers

S = KernelStatus
HOSTS = ["main1", "sub1"]
pytestmark = [pytest.mark.slow, pytest.mark.needs("isolation", "root")]


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path)
    await made.open()
    yield made
    await made.close()


async def specs(node: Node) -> list[KernelSpec]:
    await node.manager.next_heartbeat()
    image = next(i.name for i in node.manager.heartbeats[-1].images if "python" in i.name)
    session, cluster = str(uuid4()), ClusterInfo(size=2, replicas={"main": 1, "sub": 1}, hosts=HOSTS)
    common = {"image": image, "session_id": session, "cluster": cluster, "slots": {"mem": str(128 << 20)}}
    return [Bench.spec(**common, cluster_hostname=host) for host in HOSTS]


def networks(node: Node) -> list[str]:
    return [path.name for path in node.data_dir.glob("process/networks/*")]


async def destroy(node: Node, spec: KernelSpec) -> None:
    await node.commands.destroy_kernel(DestroyKernel(kernel_id=spec.kernel_id, attempt=1))


def is_anything_left(node: Node, kernels: list[KernelSpec]) -> bool:
    return bool(networks(node)) or any(list(leftovers(node.data_dir, k.kernel_id)) for k in kernels)


async def end(node: Node, kernels: list[KernelSpec]) -> None:
    for spec in kernels:
        await node.insist(partial(destroy, node, spec))
    for spec in kernels:
        await node.until(spec.kernel_id, 1, S.TERMINATED)
    async with asyncio.timeout(20):
        while is_anything_left(node, kernels):  # noqa: ASYNC110  # the machine has no event
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("point", ["create.network.before", "create.network.after"])
async def test_killed_while_joining(node: Node, point: str) -> None:
    await node.start(crash_at=point)
    kernels = await specs(node)
    create = CreateKernels(kernels=kernels)
    await node.give_one(lambda: node.commands.create_kernels(create))
    await node.has_died()
    await node.start()
    await node.insist(lambda: node.commands.create_kernels(create))
    for spec in kernels:
        await node.until(spec.kernel_id, 1, S.RUNNING)
    assert networks(node) == [f"{kernels[0].session_id}.json"]
    await end(node, kernels)


@pytest.mark.parametrize("point", ["destroy.network.before", "destroy.network.after"])
async def test_killed_while_leaving(node: Node, point: str) -> None:
    await node.start(crash_at=point)
    kernels = await specs(node)
    await node.insist(lambda: node.commands.create_kernels(CreateKernels(kernels=kernels)))
    for spec in kernels:
        await node.until(spec.kernel_id, 1, S.RUNNING)
    await node.give_one(partial(destroy, node, kernels[1]))
    await node.has_died()
    await node.start()
    await node.until(kernels[1].kernel_id, 1, S.TERMINATED)
    assert networks(node), "the other kernel is still in it"
    await end(node, kernels)
