"""Objects of a real API server that our types cannot decode hide no other one and free nothing; and who writes what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tools.kube.cluster import Cluster

from ai.backend.common.device_operations import OperationPhase as P
from ai.backend.kubeacc.controllers.manager import ControllerManager
from ai.backend.kubeacc.crd.vocabulary import (
    CONTROLLER_MANAGER,
    GROUP,
    NODE_MANAGER,
    OPERATION_MANAGER,
    VERSION,
)
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.reflector import Reflector
from ai.backend.node.kube_api.resources import RESOURCE_CLAIMS
from tests.kubernetes.kubeacc.conftest import Bench, ScriptedNode, add, running

pytestmark = pytest.mark.needs("kubernetes")
DEPTH = 4500
FIELD = "ttlSecondsAfterFinished"
"""A field of an operation that may change while it runs; it has a limit."""


async def test_a_claim_with_deep_parameters_hides_no_other_one(
    acc_cluster: Cluster, api: KubeApi, namespace: str
) -> None:
    def claim(name: str, parameters: str) -> None:
        config = [{"opaque": {"driver": "a.test", "parameters": "PARAMETERS"}}]
        requests = [{"name": "one", "exactly": {"deviceClassName": "any"}}]
        body = {
            "apiVersion": RESOURCE_CLAIMS.api_version,
            "kind": RESOURCE_CLAIMS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"devices": {"requests": requests, "config": config}},
        }
        acc_cluster.kubectl("create", "-f", "-", text=json.dumps(body).replace('"PARAMETERS"', parameters))

    async with watched(api, namespace) as before:
        await asyncio.to_thread(claim, "deep", '{"a":' + "[" * DEPTH + "]" * DEPTH + "}")
        await asyncio.to_thread(claim, "next", "{}")
        await until_listed(before, "deep", "next")
    async with watched(api, namespace) as after:  # by a list anew
        await until_listed(after, "deep", "next")


@asynccontextmanager
async def watched(api: KubeApi, namespace: str) -> AsyncIterator[Reflector[Any]]:
    reflector: Reflector[Any] = Reflector(api, RESOURCE_CLAIMS, namespace)
    async with running(reflector.run):
        yield reflector


async def until_listed(reflector: Reflector[Any], *names: str) -> None:
    async with asyncio.timeout(15):
        while {name for _, name in reflector.objects} != set(names):  # noqa: ASYNC110  # its events are of single objects
            await asyncio.sleep(0.05)
    assert reflector.undecodable == {}


@asynccontextmanager
async def permissive(cluster: Cluster) -> AsyncIterator[None]:
    """Lets the server take any time to live of operations until the end of the block."""
    name = f"crds/acceleratoroperations.{GROUP}"
    present = json.loads(await asyncio.to_thread(cluster.kubectl, "get", name, "-o", "json"))
    part = f"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/{FIELD}"
    spec = present["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]

    async def set_schema(value: Any) -> None:
        patch = json.dumps([{"op": "replace", "path": part, "value": value}])
        await asyncio.to_thread(cluster.kubectl, "patch", name, "--type=json", "-p", patch)

    await set_schema({"type": "integer"})
    try:
        yield
    finally:
        await set_schema(spec["properties"][FIELD])


@pytest.mark.timeout(240)
async def test_an_operation_that_cannot_be_read_keeps_its_device_and_stops_no_other_one(
    acc_cluster: Cluster, api: KubeApi, controllers_api: KubeApi, namespace: str, device: str
) -> None:
    node = ScriptedNode(api, lambda operation, order: None)
    bench = Bench(api, acc_cluster, namespace, node)
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/acceleratoroperations/odd"

    def write(value: int) -> None:
        """Writes it as soon as the server has taken the other schema."""

        def is_written() -> bool:
            acc_cluster.request("PATCH", path, {"spec": {FIELD: value}}, "application/merge-patch+json")
            return True

        acc_cluster.wait_for(is_written, "the other schema", 30)

    async with running(ControllerManager(controllers_api).run, node.run):
        await bench.wait_until_admitted("Reset")
        await bench.ask("odd", device, "Reset")
        await bench.wait_for("odd", lambda op: op.status.report is not None)
        async with permissive(acc_cluster):
            await asyncio.to_thread(write, 10**9)
            try:
                await is_held_while_others_end(bench, device)  # by controllers that have seen it as it was
                async with running(ControllerManager(controllers_api).run):  # by some that have not
                    await is_held_while_others_end(bench, device)
            finally:
                await asyncio.to_thread(write, 100)
        node.script = ScriptedNode(api).script
        node.ask_again(await bench.operation("odd"))
        ended = await bench.wait_for_end("odd", 60)
        assert (ended.status.phase, ended.status.attempts) == (P.SUCCEEDED, 1)


_serial = iter(range(100))


async def is_held_while_others_end(bench: Bench, device: str) -> None:
    name = f"other{next(_serial)}"
    await bench.ask(name, "none-of-this-name", "Reset")
    ended = await bench.wait_for_end(name)
    assert ended.status.reason == "NoSuchAccelerator"
    holder = (await bench.device(device)).status.operation
    assert holder is not None
    assert holder.name == "odd"


async def test_the_quota_of_an_hour_outlives_operations_and_controllers(
    acc_cluster: Cluster, api: KubeApi, controllers_api: KubeApi, namespace: str, device: str
) -> None:
    add(
        acc_cluster,
        "AcceleratorPolicy",
        namespace,
        {"namespaces": [namespace], "operations": ["Reset"], "quota": {"operationsPerHour": 1}},
    )
    node = ScriptedNode(api)
    bench = Bench(api, acc_cluster, namespace, node)
    async with running(ControllerManager(controllers_api).run, node.run):
        await bench.wait_until_admitted("Reset")
        await bench.ask("first", device, "Reset")
        assert (await bench.wait_for_end("first")).status.phase is P.SUCCEEDED
    await bench.kubectl("-n", namespace, "delete", "accop", "first")
    async with running(ControllerManager(controllers_api).run, node.run):
        await bench.ask("second", device, "Reset")
        waiting = await bench.wait_for("second", lambda op: op.status.reason == "QuotaExceeded")
        assert waiting.status.attempts == 0
        await bench.cancel("second")
        await bench.wait_for_end("second")
    assert node.orders == [("first", 1, "order")]


async def test_each_field_has_one_writer(bench: Bench, device: str) -> None:
    bench.node.script = lambda operation, order: None
    await bench.ask("off", device)
    await bench.wait_for("off", lambda op: op.status.report is not None)
    paths = {
        f"/apis/{GROUP}/{VERSION}/accelerators/{device}": {NODE_MANAGER, CONTROLLER_MANAGER, OPERATION_MANAGER},
        f"/apis/{GROUP}/{VERSION}/namespaces/{bench.namespace}/acceleratoroperations/off": {
            NODE_MANAGER,
            OPERATION_MANAGER,
        },
    }
    for path, managers in paths.items():
        metadata = msgspec.json.decode(await bench.api.request("GET", path))["metadata"]
        writers: dict[str, set[str]] = {}
        for entry in metadata["managedFields"]:
            for field in leaves(entry["fieldsV1"]):
                if field.startswith("f:status/"):
                    writers.setdefault(field, set()).add(entry["manager"])
        assert set().union(*writers.values()) == managers
        assert {field: names for field, names in writers.items() if len(names) > 1} == {}


def leaves(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yields the paths of owned fields, without the mere presence of what holds them."""
    for key, inner in fields.items():
        if key != "." and inner:
            yield from leaves(inner, f"{prefix}{key}/")
        elif key != ".":
            yield f"{prefix}{key}"
