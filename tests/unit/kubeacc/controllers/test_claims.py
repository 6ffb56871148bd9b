"""Claims of devices that are attached first: every end of the attachment is told to the scheduler."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from ai.backend.common.device_operations import OperationPhase as P
from ai.backend.common.structs import replace
from ai.backend.kubeacc.controllers.claims import ClaimController, operation_name, waiting_devices
from ai.backend.kubeacc.controllers.cluster_view import ClusterView
from ai.backend.kubeacc.crd.accelerators import OperationRef
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorOperation
from ai.backend.kubeacc.crd.vocabulary import ATTACH_FAILED_CONDITION, ATTACHED_CONDITION, AttachState
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectExists, RequestDenied
from ai.backend.node.kube_api.objects import (
    AllocatedDevice,
    ClaimAllocation,
    ClaimDevices,
    ClaimDeviceStatus,
    ClaimStatus,
    Condition,
    ObjectMeta,
    ResourceClaim,
)
from tests.unit.kubeacc.controllers.test_operations import Server, device, operation

KEY = ("lab", "claim")
DETACHED = {"attach_state": AttachState.DETACHED}


def result(name: str, *, is_waiting: bool = True) -> AllocatedDevice:
    conditions = (ATTACHED_CONDITION,) if is_waiting else ()
    return AllocatedDevice(request="r", driver="d", pool="n", device=name, binding_conditions=conditions)


def claim(*results: AllocatedDevice, at: str = "2026-11-23T12:00:00Z") -> ResourceClaim:
    allocation = ClaimAllocation(devices=ClaimDevices(results=results), allocation_timestamp=at)
    metadata = ObjectMeta(name="claim", namespace="lab", uid="c", resource_version="1")
    return ResourceClaim(metadata=metadata, status=ClaimStatus(allocation=allocation))


class ClaimServer(Server):
    def __init__(self, refusal: Exception | None = None) -> None:
        super().__init__()
        self.created: list[dict[str, Any]] = []
        self._refusal = refusal

    async def create(self, _resource: Any, body: dict[str, Any], namespace: str) -> None:
        if self._refusal is not None:
            raise self._refusal
        self.created.append({"namespace": namespace, **body})


def controller(server: ClaimServer, one: ResourceClaim, *objects: Any) -> ClaimController:
    view = ClusterView(cast("KubeApi", server))
    server.objects = {"claim": one}
    accelerators = [obj for obj in objects if isinstance(obj, Accelerator)]
    operations = [obj for obj in objects if isinstance(obj, AcceleratorOperation)]
    for mirror, kinds in ((view.claims, [one]), (view.accelerators, accelerators), (view.operations, operations)):
        mirror.reflector.replace(cast("Any", kinds), "1")
    return ClaimController(cast("KubeApi", server), view, now=lambda: datetime(2026, 11, 23, 12, 0, tzinfo=UTC))


def conditions_of(server: ClaimServer) -> dict[str, str]:
    """Returns device and condition of the last write."""
    entries = server.asked[-1][1]["status"]["devices"] if server.asked else []
    return {entry["device"]: entry["conditions"][0]["type"] for entry in entries}


async def test_a_detached_device_gets_one_operation_in_the_namespace_of_its_claim() -> None:
    server, one = ClaimServer(), claim(result("far"), result("near", is_waiting=False))
    assert [waiting.device for waiting in waiting_devices(one)] == ["far"]
    again_s = await controller(server, one, device("n-far", **DETACHED)).reconcile(KEY)
    (created,) = server.created
    assert (created["namespace"], created["spec"]["attach"], created["spec"]["operation"]) == (
        "lab",
        {"nodeName": "n"},
        "Attach",
    )
    assert created["metadata"]["ownerReferences"][0]["uid"] == "c"
    assert again_s is not None
    assert conditions_of(server) == {}


@pytest.mark.parametrize(
    ("phase", "condition"),
    [
        (P.SUCCEEDED, ATTACHED_CONDITION),
        (P.FAILED, ATTACH_FAILED_CONDITION),
        (P.REFUSED, ATTACH_FAILED_CONDITION),
        (P.CANCELLED, ATTACH_FAILED_CONDITION),
        (P.RUNNING, None),
    ],
)
async def test_the_end_of_the_operation_is_the_condition_of_the_device(phase: P, condition: str | None) -> None:
    server, one = ClaimServer(), claim(result("far"))
    attach = operation(operation_name(one, result("far")), "n-far", phase)
    await controller(server, one, device("n-far", **DETACHED), attach).reconcile(KEY)
    assert conditions_of(server) == ({"far": condition} if condition is not None else {})


async def test_a_device_that_is_still_locked_is_not_there_yet() -> None:
    """The node plugin gives a locked device to nobody, and the kubelet would wait more than a minute."""
    server, one = ClaimServer(), claim(result("far"))
    attach = operation(operation_name(one, result("far")), "n-far", P.SUCCEEDED)
    locked = device("n-far", operation=OperationRef(namespace="lab", name=attach.metadata.name, uid="1"))
    assert await controller(server, one, locked, attach).reconcile(KEY) is not None
    assert conditions_of(server) == {}


async def test_a_refused_operation_frees_the_scheduler() -> None:
    server, one = ClaimServer(RequestDenied("no AcceleratorPolicy lets you")), claim(result("far"))
    await controller(server, one, device("n-far", **DETACHED)).reconcile(KEY)
    assert conditions_of(server) == {"far": ATTACH_FAILED_CONDITION}


async def test_an_allocation_that_has_failed_is_not_tried_again() -> None:
    """A policy that comes later would attach a device for an allocation that the scheduler ends."""
    far = result("far")
    server, one = ClaimServer(), claim(far, result("other"))
    failed = Condition(type=ATTACH_FAILED_CONDITION, status="True", reason="Refused", message="no")
    entry = ClaimDeviceStatus(driver=far.driver, pool=far.pool, device=far.device, conditions=(failed,))
    one = replace(one, status=replace(one.status, devices=(entry,)))
    attached = device("n-other", attach_state=AttachState.ATTACHED)
    await controller(server, one, device("n-far", **DETACHED), attached).reconcile(KEY)
    assert server.created == []
    assert conditions_of(server) == {"far": ATTACH_FAILED_CONDITION, "other": ATTACHED_CONDITION}


async def test_two_controllers_make_one_operation() -> None:
    server, one = ClaimServer(ObjectExists("there")), claim(result("far"))
    assert await controller(server, one, device("n-far", **DETACHED)).reconcile(KEY) is not None
    assert conditions_of(server) == {}


async def test_a_device_that_somebody_has_attached_needs_no_operation() -> None:
    server, one = ClaimServer(), claim(result("far"), result("other"))
    attached = device("n-far", attach_state=AttachState.ATTACHED)
    await controller(server, one, attached, device("n-other", **DETACHED)).reconcile(KEY)
    assert conditions_of(server) == {"far": ATTACHED_CONDITION}
    assert [created["spec"]["accelerator"] for created in server.created] == ["n-other"]


def test_a_new_allocation_of_a_claim_is_a_new_attempt() -> None:
    far = result("far")
    assert operation_name(claim(far), far) != operation_name(claim(far, at="2026-11-23T12:05:00Z"), far)
