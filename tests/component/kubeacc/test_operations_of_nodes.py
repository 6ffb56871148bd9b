"""Operations that a node executes while its plugin dies or hangs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from ai.backend.common.device_operations import OperationVerb as V
from ai.backend.common.ids import DeviceId
from ai.backend.common.structs import replace
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.crd.accelerators import AcceleratorSpec
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorOperation
from ai.backend.kubeacc.crd.operations import (
    AcceleratorOperationSpec,
    AcceleratorOperationStatus,
    Artifact,
    Order,
    PowerParameters,
    ProgramParameters,
    Report,
)
from ai.backend.kubeacc.crd.vocabulary import AcceleratorType, Outcome, PowerState
from ai.backend.kubeacc.drivers.artifact_settings import ArtifactSettings
from ai.backend.kubeacc.drivers.artifact_sources import file_source
from ai.backend.kubeacc.drivers.artifact_store import ArtifactStore
from ai.backend.kubeacc.node_plugin.accelerators import AcceleratorReports
from ai.backend.kubeacc.node_plugin.facts import FactStore
from ai.backend.kubeacc.node_plugin.operations import OperationExecutor
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import ObjectMeta
from tests.component.kubeacc.test_node_plugin import ISOLATED, Node, short_folder

__all__ = ["short_folder"]
SPEC = AcceleratorOperationSpec(
    accelerator="a", operation=V.POWER, requested_by="alice", power=PowerParameters(state=PowerState.OFF)
)


class Executor:
    """The executor of a node whose orders a test gives. Its plugin has a host process."""

    def __init__(self, node: Node) -> None:
        self.node, self.last, self.spec, self.uid = node, Report(sequence=0), SPEC, "1"
        self.facts = FactStore(node.folder / "facts.json")
        images = {"file": file_source(node.folder / "images")}
        server = SimpleNamespace(delays=lambda: Backoff(1.0, 1.0), apply=self._apply, get=self._get)
        reports = SimpleNamespace(key_of=lambda name: ("mock", "GPU-0"), once=self._nothing)
        self.executor = OperationExecutor(
            cast("KubeApi", server),
            node.tracker,
            cast("AcceleratorReports", reports),
            self.facts,
            "node",
            store=ArtifactStore(node.folder / "store", ArtifactSettings(), images),
        )

    async def _get(self, _resource: Any, name: str) -> Accelerator:
        spec = AcceleratorSpec(driver="mock", device_id="GPU-0", type=AcceleratorType.GPU, node_name="node")
        return Accelerator(metadata=ObjectMeta(name=name), spec=spec)

    async def _nothing(self) -> None: ...

    async def ask(self, spec: AcceleratorOperationSpec) -> Report:
        """Executes the first order of another operation."""
        self.spec, self.uid, self.last = spec, f"{self.uid}1", Report(sequence=0)
        return await self.execute(Order(sequence=1))

    async def _apply(self, _resource: Any, _name: str, body: Any, _namespace: str, **_: Any) -> None:
        self.last = msgspec.convert(body["status"]["report"], Report)

    def order(self, order: Order) -> None:
        status = AcceleratorOperationStatus(
            order=order, report=self.last if self.last.sequence else None, executor="node/node"
        )
        metadata = ObjectMeta(
            name="op", namespace="lab", uid=self.uid, resource_version=f"{order.sequence}{order.abort}"
        )
        operation = AcceleratorOperation(metadata=metadata, spec=self.spec, status=status)
        self.executor.reflector.replace([operation], "1")

    async def result(self, sequence: int) -> Report:
        async with asyncio.timeout(30):
            while self.last.sequence != sequence or self.last.outcome is None:
                await self.node.tracker.once()
                await self.executor.once()
                await asyncio.sleep(0.05)
        return self.last

    async def execute(self, order: Order) -> Report:
        self.order(order)
        return await self.result(order.sequence)


@pytest.fixture
async def executor(short_folder: Path) -> AsyncIterator[Executor]:
    node = Node(short_folder)
    node.settings = node.settings.model_copy(update={"compute_plugins": ISOLATED})
    await node.start()
    one = Executor(node)
    yield one
    await one.executor.close()
    await node.stop()


async def test_a_plugin_that_dies_in_an_operation_serves_the_next_attempt(executor: Executor) -> None:
    executor.node.control.write_text('[[faults]]\ncall = "power_off"\nbehaviour = "exit"\n')
    await executor.node.tracker.once()
    failed = await executor.execute(Order(sequence=1, previous_power=PowerState.ON))
    assert (failed.outcome, failed.retryable) == (Outcome.FAILED, True), failed
    executor.node.control.write_text("")
    async with asyncio.timeout(30):
        while executor.node.tracker.plugin_handle("mock") is None:
            await asyncio.sleep(0.05)
            await executor.node.tracker.once()
    done = await executor.execute(Order(sequence=2, previous_power=PowerState.ON))
    assert done.outcome is Outcome.SUCCEEDED, done


async def test_a_plugin_that_dies_in_a_rollback_finishes_it(executor: Executor) -> None:
    executor.node.control.write_text('[[faults]]\ncall = "power_on"\nbehaviour = "exit"\n')
    await executor.node.tracker.once()
    executor.order(Order(sequence=1, rollback=True, previous_power=PowerState.ON))
    await executor.executor.once()
    async with asyncio.timeout(30):
        while executor.node.tracker.plugin_handle("mock") is not None:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.05)
    executor.node.control.write_text("")
    undone = await executor.result(1)
    assert undone.outcome is Outcome.SUCCEEDED, undone


async def test_a_rollback_waits_for_a_plugin_that_does_not_run_yet(executor: Executor) -> None:
    """As after a restart of the node plugin, before its accelerator plugins are there."""
    handle = executor.node.tracker.handles[0]
    await handle.stop()
    executor.order(Order(sequence=1, rollback=True, previous_power=PowerState.ON))
    await executor.executor.once()
    assert executor.last.sequence == 0
    assert (await executor.result(1)).outcome is Outcome.SUCCEEDED


async def test_a_reset_that_removes_the_image_says_so(executor: Executor) -> None:
    folder = executor.node.folder / "images"
    folder.mkdir()
    (folder / "a.bit").write_bytes(b"bits")
    digest = hashlib.sha256(b"bits").hexdigest()
    artifact = Artifact(uri=f"file://{folder}/a.bit", sha256=digest)
    plain = replace(SPEC, power=None)
    program = replace(plain, operation=V.PROGRAM, program=ProgramParameters(artifact=artifact))
    key = ("mock", DeviceId("GPU-0"))
    assert (await executor.ask(program)).outcome is Outcome.SUCCEEDED
    loaded = executor.facts.get(key).program
    assert loaded is not None
    assert loaded.sha256 == digest
    await executor.ask(replace(plain, operation=V.DIAGNOSE))
    await executor.ask(SPEC)
    assert executor.facts.get(key).program == loaded  # power does nothing to it here
    reset = await executor.ask(replace(plain, operation=V.RESET))
    assert reset.outcome is Outcome.SUCCEEDED
    assert executor.facts.get(key).program is None
