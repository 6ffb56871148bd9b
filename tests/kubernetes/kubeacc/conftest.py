"""A control plane with the resources of kube-acc, devices in it, and a node that executes what a test says."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tools.kube.cluster import Cluster, ClusterOptions, running_cluster

from ai.backend.common.errors import NotFound, Unavailable
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.composition import connect
from ai.backend.kubeacc.controllers.manager import ControllerManager
from ai.backend.kubeacc.crd.definitions import crds_yaml
from ai.backend.kubeacc.crd.objects import ACCELERATORS, OPERATIONS, Accelerator, AcceleratorOperation
from ai.backend.kubeacc.crd.operations import Order, Report
from ai.backend.kubeacc.crd.vocabulary import GROUP, NODE_MANAGER, VERSION, Outcome
from ai.backend.kubeacc.policies.admission import access_yaml
from ai.backend.kubeacc.policies.roles import CONTROLLERS_ACCOUNT, NAMESPACE
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import ClusterAddress, Token
from ai.backend.node.kube_api.errors import ObjectConflict, RequestDenied
from ai.backend.node.kube_api.reflector import Reflector

NODE = "node1"
API = f"{GROUP}/{VERSION}"
VERBS = ("Attach", "Detach", "Program", "Power", "Reset", "Partition", "Diagnose")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def acc_cluster() -> Iterator[Cluster]:
    """A control plane that the tests of a worker share; none of them ends a daemon of it."""
    with control_plane() as cluster:
        yield cluster


@contextmanager
def control_plane() -> Iterator[Cluster]:
    """Runs a control plane with the resources of kube-acc and a ready node, without a kubelet, until the block ends."""
    with running_cluster(ClusterOptions(has_node=False)) as cluster:
        for text in (crds_yaml(), access_yaml()):
            cluster.kubectl("apply", "--server-side", "-f", "-", text=text)
        cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
        cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Test",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        path = f"/api/v1/nodes/{NODE}/status"
        cluster.request("PATCH", path, {"status": {"conditions": [ready]}}, "application/strategic-merge-patch+json")
        add(cluster, "AcceleratorClass", "fpga", {"selector": {"types": ["FPGA"]}})
        yield cluster


@asynccontextmanager
async def client_of(kubeconfig: Path) -> AsyncIterator[KubeApi]:
    client = connect(kubeconfig)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def api(acc_cluster: Cluster) -> AsyncIterator[KubeApi]:
    async with client_of(acc_cluster.kubeconfig) as client:
        yield client


@pytest.fixture
async def controllers_api(acc_cluster: Cluster) -> AsyncIterator[KubeApi]:
    """A client with the rights of the controllers, and no more."""
    async with controllers_client(acc_cluster) as client:
        yield client


@asynccontextmanager
async def controllers_client(cluster: Cluster) -> AsyncIterator[KubeApi]:
    token = cluster.kubectl("-n", NAMESPACE, "create", "token", CONTROLLERS_ACCOUNT).strip()
    authority = cluster.certificate_authority.read_text()
    address = ClusterAddress(server=cluster.url, authority=authority, token=Token(token))
    client = KubeApi(address, lambda: Backoff(0.2, 5.0))
    yield client
    await client.close()


@pytest.fixture
def namespace(acc_cluster: Cluster) -> str:
    return add_namespace(acc_cluster)


def add_namespace(cluster: Cluster) -> str:
    """Makes a namespace of its own for a test, in which everything is allowed, and returns its name."""
    name = f"lab{next(_numbers)}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    policy = {"namespaces": [name], "operations": list(VERBS), "drainModes": ["Refuse", "Wait", "Evict"]}
    add(cluster, "AcceleratorPolicy", name, policy)
    return name


@pytest.fixture
async def device(api: KubeApi) -> str:
    return await add_device(api)


async def add_device(api: KubeApi) -> str:
    """Makes a device of the node, of the class ``fpga``, and returns its name."""
    name = f"{NODE}-mock-{next(_numbers)}"
    spec = {"driver": "mock", "deviceID": name, "type": "FPGA", "nodeName": NODE}
    await api.create(ACCELERATORS, {"metadata": {"name": name}, "spec": spec})
    await show(api, name, {})
    return name


def add(cluster: Cluster, kind: str, name: str, spec: dict[str, Any], namespace: str = "") -> None:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    cluster.apply({"apiVersion": API, "kind": kind, "metadata": metadata, "spec": spec})


async def show(api: KubeApi, device: str, status: dict[str, Any]) -> None:
    """Writes the status of a device as the node plugin does."""
    description = {"operations": list(VERBS), "model": "Mock 7"}
    body = {"status": {"device": description, "health": {"state": "healthy"}, **status}}
    await api.apply(ACCELERATORS, device, body, manager=NODE_MANAGER, force=True, subresource="status")


@asynccontextmanager
async def running(*works: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Runs coroutines until the end of the block; one that fails ends the block."""
    tasks = [asyncio.ensure_future(work()) for work in works]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        await cancel_all(*tasks)


Script = Callable[[AcceleratorOperation, Order], Report | None]


def succeed(operation: AcceleratorOperation, order: Order) -> Report | None:
    return Report(sequence=order.sequence, outcome=Outcome.ABORTED if order.abort else Outcome.SUCCEEDED)


class ScriptedNode:
    """Executes orders as a node plugin does, with the answers of ``script``; None leaves an order begun.

    ``orders`` are those that were given: (operation, sequence, kind)."""

    def __init__(self, api: KubeApi, script: Script = succeed) -> None:
        self._api, self.script = api, script
        self.orders: list[tuple[str, int, str]] = []
        self.shown_program: dict[str, str] | None = None
        self._changes: asyncio.Queue[AcceleratorOperation] = asyncio.Queue()
        self._reflector = Reflector(
            api, OPERATIONS, field_selector=f"status.executor=node/{NODE}", on_change=self._on_change
        )

    def _on_change(self, before: Any, after: AcceleratorOperation | None) -> None:
        if after is not None:
            self._changes.put_nowait(after)

    def ask_again(self, operation: AcceleratorOperation) -> None:
        """Lets the script answer once more, as a node does when its work is done."""
        self._changes.put_nowait(operation)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            while True:
                operation = await self._changes.get()
                try:
                    await self._execute(operation)
                except Unavailable:
                    await asyncio.sleep(0.2)
                    self._changes.put_nowait(operation)

    async def _execute(self, operation: AcceleratorOperation) -> None:
        order, report = operation.status.order, operation.status.report
        if order is None or operation.status.phase.is_final:
            return
        if report is not None and report.sequence == order.sequence and report.outcome is not None:
            return
        kind = "abort" if order.abort else "undo" if order.rollback else "order"
        entry = (operation.metadata.name, order.sequence, kind)
        if entry not in self.orders:
            self.orders.append(entry)
        answer = self.script(operation, order) or Report(sequence=order.sequence)
        if answer == report:
            return
        if answer.outcome is Outcome.SUCCEEDED:
            await self._show_result(operation, order)
        body = {"status": {"report": msgspec.to_builtins(answer)}}
        metadata = operation.metadata
        try:
            await self._api.apply(
                OPERATIONS,
                metadata.name,
                body,
                metadata.namespace,
                manager=NODE_MANAGER,
                force=True,
                subresource="status",
            )
        except ObjectConflict:
            self._changes.put_nowait(operation)
        except NotFound:
            return

    async def _show_result(self, operation: AcceleratorOperation, order: Order) -> None:
        spec = operation.spec
        if self.shown_program is not None:
            await show(self._api, spec.accelerator, {"program": self.shown_program})
        if spec.power is not None and not order.rollback:
            await show(self._api, spec.accelerator, {"powerState": spec.power.state})


class Bench:
    """The controllers, a node, and what a test asks of them."""

    def __init__(self, api: KubeApi, cluster: Cluster, namespace: str, node: ScriptedNode) -> None:
        self.api, self.cluster, self.namespace, self.node = api, cluster, namespace, node

    async def ask(
        self, name: str, device: str, operation: str = "Power", *, dry_run: bool = False, **spec: Any
    ) -> None:
        if operation == "Power":
            spec.setdefault("power", {"state": "Off"})
        spec |= {"accelerator": device, "operation": operation, "requestedBy": "admin"}
        body = {"metadata": {"name": name, "namespace": self.namespace}, "spec": spec}
        await self.api.create(OPERATIONS, body, self.namespace, dry_run=dry_run)

    async def wait_until_admitted(self, operation: str = "Power") -> None:
        """Waits until the API server knows the policies: it refuses what none allows, and admits what one does."""
        async with asyncio.timeout(15):
            while True:
                body = {"accelerator": "none", "operation": operation, "requestedBy": "admin"}
                parameters = {"power": {"state": "Off"}} if operation == "Power" else {}
                probe = {"metadata": {"name": "probe"}, "spec": {**body, **parameters}}
                try:
                    await self.api.create(OPERATIONS, probe, "kube-system", dry_run=True)
                except RequestDenied:
                    break
                await asyncio.sleep(0.05)
            while True:
                try:
                    return await self.ask("probe", "none", operation, dry_run=True)
                except RequestDenied:
                    await asyncio.sleep(0.05)

    async def cancel(self, name: str) -> None:
        await self.api.patch(OPERATIONS, name, {"spec": {"cancel": True}}, self.namespace)

    async def show(self, name: str, **status: Any) -> None:
        await show(self.api, name, status)

    async def kubectl(self, *arguments: str) -> str:
        return await asyncio.to_thread(self.cluster.kubectl, *arguments)

    async def operation(self, name: str) -> AcceleratorOperation:
        return await self.api.get(OPERATIONS, name, self.namespace)

    async def device(self, name: str) -> Accelerator:
        return await self.api.get(ACCELERATORS, name)

    async def wait_for(
        self, name: str, condition: Callable[[AcceleratorOperation], bool], timeout_s: float = 15.0
    ) -> AcceleratorOperation:
        last: AcceleratorOperation | None = None
        delays = Backoff(0.02, 0.2)
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    last = await self.operation(name)
                    if condition(last):
                        return last
                    await delays.wait()
        except TimeoutError:
            raise AssertionError(f"{name} stays {json.dumps(msgspec.to_builtins(last and last.status))}") from None

    async def wait_until_gone(self, name: str) -> None:
        delays = Backoff(0.02, 0.2)
        async with asyncio.timeout(15):
            while await self.api.find(OPERATIONS, name, self.namespace) is not None:
                await delays.wait()

    async def wait_for_end(self, name: str, timeout_s: float = 15.0) -> AcceleratorOperation:
        return await self.wait_for(name, lambda op: op.status.phase.is_final and not op.metadata.finalizers, timeout_s)


@pytest.fixture
async def bench(api: KubeApi, controllers_api: KubeApi, acc_cluster: Cluster, namespace: str) -> AsyncIterator[Bench]:
    async with running_bench(Bench(api, acc_cluster, namespace, ScriptedNode(api)), controllers_api) as bench:
        yield bench


@asynccontextmanager
async def running_bench(bench: Bench, controllers_api: KubeApi) -> AsyncIterator[Bench]:
    """Runs controllers and the node, which does everything at once, until the end of the block."""
    async with running(ControllerManager(controllers_api).run, bench.node.run):
        await bench.wait_until_admitted()
        yield bench
