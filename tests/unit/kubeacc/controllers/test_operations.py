"""Operations against a server that refuses, answers late, or knows more than the copies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest

from ai.backend.common.device_operations import OperationPhase as P
from ai.backend.common.device_operations import OperationVerb as V
from ai.backend.common.structs import replace
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.controllers import operations
from ai.backend.kubeacc.controllers.cluster_view import ClusterView
from ai.backend.kubeacc.controllers.devices import DeviceController
from ai.backend.kubeacc.controllers.manager import ControllerManager
from ai.backend.kubeacc.controllers.operations import OperationController
from ai.backend.kubeacc.crd.accelerators import (
    AcceleratorSpec,
    AcceleratorStatus,
    DeviceDescription,
    Holder,
    OperationRef,
)
from ai.backend.kubeacc.crd.classes import AcceleratorClassSpec, AcceleratorClassStatus
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorClass, AcceleratorOperation, AcceleratorPolicy
from ai.backend.kubeacc.crd.operations import (
    AcceleratorOperationSpec,
    AcceleratorOperationStatus,
    AttachParameters,
    PodReference,
)
from ai.backend.kubeacc.crd.policies import AcceleratorPolicySpec, Quota
from ai.backend.kubeacc.crd.vocabulary import OPERATION_FINALIZER, AcceleratorType, DrainMode, LifecycleOwner
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.decoding import Undecodable
from ai.backend.node.kube_api.errors import ObjectConflict, ObjectInvalid, RequestDenied, ServerFailed
from ai.backend.node.kube_api.objects import ObjectMeta
from ai.backend.node.kube_api.resources import Resource

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


class Server:
    """Answers each apply with the object as it was read, one version later, and records what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.objects: dict[str, Any] = {}
        self.on_request: Callable[[str, str, Any], bytes] = lambda method, path, body: b"{}"
        self.on_patch: Callable[[str], None] = lambda name: None
        self._version = 100

    def delays(self) -> Backoff:
        return Backoff(1.0, 1.0)

    async def apply(self, resource: Resource[Any], name: str, body: Any, namespace: str = "", **_: Any) -> Any:
        self.asked.append((f"apply {resource.plural}/{name}", body))
        await asyncio.sleep(0)
        present = self.objects[name]
        if body["metadata"].get("resourceVersion", "") not in ("", present.metadata.resource_version):
            raise ObjectConflict(name)
        self._version += 1
        status = {**msgspec.to_builtins(present.status), **body.get("status", {})}
        metadata = replace(present.metadata, resource_version=str(self._version))
        self.objects[name] = replace(present, metadata=metadata, status=msgspec.convert(status, type(present.status)))
        return self.objects[name]

    async def patch(self, resource: Resource[Any], name: str, body: Any, namespace: str = "", **_: Any) -> Any:
        self.asked.append((f"patch {resource.plural}/{name}", body))
        self.on_patch(name)
        return self.objects.get(name)

    async def find(self, _resource: Resource[Any], name: str, _namespace: str = "") -> Any:
        if isinstance(present := self.objects.get(name), Exception):
            raise present
        return present

    async def request(self, method: str, path: str, *, body: Any = None, **_: Any) -> bytes:
        self.asked.append((f"{method} {path}", body))
        return self.on_request(method, path, body)


def device(name: str, **status: Any) -> Accelerator:
    spec = AcceleratorSpec(driver="mock", device_id=name, type=AcceleratorType.GPU, node_name="n")
    values = {
        "device": DeviceDescription(operations=tuple(V)),
        "class_name": "gpu",
        "managed_by": LifecycleOwner.KUBE_ACC,
        **status,
    }
    return Accelerator(
        metadata=ObjectMeta(name=name, uid=name, resource_version="1"), spec=spec, status=AcceleratorStatus(**values)
    )


def operation(name: str, accelerator: str, phase: P, *, spec: Any = None, **status: Any) -> AcceleratorOperation:
    metadata = ObjectMeta(
        name=name,
        namespace="lab",
        uid=name,
        resource_version="1",
        generation=1,
        finalizers=(OPERATION_FINALIZER,),
        creation_timestamp="2026-11-23T12:00:00Z",
    )
    wanted = spec or AcceleratorOperationSpec(accelerator=accelerator, operation=V.RESET, requested_by="alice")
    values = {"phase": phase, "executor": "node/n", "policy": "p", "deadline": "2026-11-23T13:00:00Z", **status}
    return AcceleratorOperation(metadata=metadata, spec=wanted, status=AcceleratorOperationStatus(**values))


class Room:
    """The controller of operations with the objects that a test gives it."""

    def __init__(self, *objects: Any, policy: AcceleratorPolicySpec | None = None) -> None:
        self.server = Server()
        self.now = NOW
        api = cast("KubeApi", self.server)
        self.view = ClusterView(api)
        gpu = AcceleratorClass(metadata=ObjectMeta(name="gpu"), spec=AcceleratorClassSpec())
        default = AcceleratorPolicySpec(operations=tuple(V), drain_modes=tuple(DrainMode))
        metadata = ObjectMeta(name="p", uid="p", resource_version="1")
        rules = [obj for obj in objects if isinstance(obj, AcceleratorPolicy)]
        rules = rules or [AcceleratorPolicy(metadata=metadata, spec=policy or default)]
        self.server.objects = {obj.metadata.name: obj for obj in (*objects, *rules)}
        for mirror, kinds in (
            (self.view.accelerators, [obj for obj in objects if isinstance(obj, Accelerator)]),
            (self.view.operations, [obj for obj in objects if isinstance(obj, AcceleratorOperation)]),
            (self.view.classes, [gpu]),
            (self.view.policies, rules),
        ):
            mirror.reflector.replace(cast("Any", kinds), "1")
        self.controller = OperationController(
            api, self.view, executor_of=lambda op, dev: "node/n", silent_s=lambda executor: 0.0, now=lambda: self.now
        )

    def written(self, kind: str) -> list[Any]:
        return [body for what, body in self.server.asked if what.startswith(kind)]


async def test_operations_that_wait_for_one_quota_do_not_begin_together() -> None:
    names = [f"op{number}" for number in range(4)]
    objects = [device(f"d{number}") for number in range(4)]
    policy = AcceleratorPolicySpec(operations=(V.RESET,), quota=Quota(concurrent_operations=1))
    room = Room(*objects, *(operation(name, f"d{name[2:]}", P.QUEUED) for name in names), policy=policy)
    await asyncio.gather(*(room.controller.reconcile(("lab", name)) for name in names))
    locked = [body for body in room.written("apply accelerators/") if "operation" in body["status"]]
    assert len(locked) == 1


async def test_a_quota_counts_what_its_own_policy_allowed() -> None:
    policy = AcceleratorPolicySpec(operations=(V.RESET,), quota=Quota(concurrent_operations=1))
    other = operation("other", "d1", P.RUNNING, policy="another")
    room = Room(device("d0"), device("d1"), operation("op", "d0", P.QUEUED), other, policy=policy)
    await room.controller.reconcile(("lab", "op"))
    assert len(room.written("apply accelerators/d0")) == 1


HOURLY = AcceleratorPolicySpec(operations=(V.RESET,), quota=Quota(operations_per_hour=1))


@pytest.mark.parametrize(("minutes", "begins"), [(10, False), (70, True)])
async def test_who_deletes_what_has_ended_gets_no_more_than_the_quota_of_an_hour(minutes: int, begins: bool) -> None:
    """Also from the next leader, which has seen nothing of the operation."""
    earlier = Room(device("d"), operation("first", "d", P.DRAINING), policy=HOURLY)
    earlier.now = NOW - timedelta(minutes=minutes)
    await earlier.controller.reconcile(("lab", "first"))
    assert earlier.server.objects["first"].status.phase is P.RUNNING
    room = Room(device("d"), operation("op", "d", P.QUEUED), earlier.server.objects["p"])
    await room.controller.reconcile(("lab", "op"))
    assert bool(room.written("apply accelerators/d")) is begins
    if not begins:
        (body,) = room.written("apply acceleratoroperations/op")
        assert body["status"]["reason"] == "QuotaExceeded"


async def test_what_has_left_the_hour_is_noted_no_longer() -> None:
    room = Room(*(device(f"d{number}") for number in (0, 1)), operation("op0", "d0", P.DRAINING), policy=HOURLY)
    await room.controller.reconcile(("lab", "op0"))
    later = Room(device("d1"), operation("op1", "d1", P.DRAINING, deadline=None), room.server.objects["p"])
    later.now = NOW + timedelta(hours=1)
    await later.controller.reconcile(("lab", "op1"))
    assert [one.uid for one in later.server.objects["p"].status.recent_operations] == ["op1"]


async def test_of_two_operations_one_gets_the_last_place_of_an_hour() -> None:
    locks = [OperationRef(namespace="lab", name=f"op{number}", uid=f"op{number}") for number in (0, 1)]
    devices = [device(f"d{number}", operation=lock) for number, lock in enumerate(locks)]
    draining = [operation(lock.name, f"d{number}", P.DRAINING) for number, lock in enumerate(locks)]
    room = Room(*devices, *draining, policy=HOURLY)
    keys = [("lab", one.metadata.name) for one in draining]
    await asyncio.gather(*(room.controller.reconcile(key) for key in keys), return_exceptions=True)
    await asyncio.gather(*(room.controller.reconcile(key) for key in keys), return_exceptions=True)
    stored = [room.server.objects[name].status for _, name in keys]
    assert sorted(status.phase for status in stored) == [P.DRAINING, P.RUNNING]
    assert [status.reason for status in stored if status.phase is P.DRAINING] == ["QuotaExceeded"]


async def test_where_no_more_can_be_noted_none_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_RECENT", 1)
    policy = replace(HOURLY, quota=Quota(operations_per_hour=5))
    room = Room(*(device(f"d{number}") for number in (0, 1)), operation("op0", "d0", P.DRAINING), policy=policy)
    await room.controller.reconcile(("lab", "op0"))
    after = Room(device("d1"), operation("op1", "d1", P.QUEUED), room.server.objects["p"])
    await after.controller.reconcile(("lab", "op1"))
    (body,) = after.written("apply acceleratoroperations/op1")
    assert body["status"]["reason"] == "QuotaExceeded"


def odd(obj: Any, namespace: str = "") -> Undecodable:
    """An object as the copies have it that another version has written."""
    metadata = ObjectMeta(name=obj.metadata.name, namespace=namespace, uid=obj.metadata.uid, resource_version="7")
    return Undecodable(metadata, "Invalid enum value 'Melt' - at `$.spec.operation`")


@pytest.mark.parametrize("quota", [Quota(operations_per_hour=1), Quota(concurrent_operations=1)])
async def test_an_operation_that_cannot_be_read_counts_for_the_quotas_of_its_namespace(quota: Quota) -> None:
    policy = replace(HOURLY, quota=quota)
    waiting, other = operation("op", "d0", P.QUEUED), operation("other", "d1", P.RUNNING)
    room = Room(device("d0"), device("d1"), waiting, policy=policy)
    room.view.operations.reflector.replace([waiting, odd(other, "elsewhere")], "2")
    await room.controller.reconcile(("lab", "op"))
    assert room.written("apply accelerators/d0")
    room = Room(device("d0"), device("d1"), waiting, policy=policy)
    room.view.operations.reflector.replace([waiting, odd(other, "lab")], "2")
    await room.controller.reconcile(("lab", "op"))
    assert not room.written("apply accelerators/d0")


async def test_the_lock_of_an_operation_that_cannot_be_read_is_kept() -> None:
    """After a restart of the controllers nothing is known of it but its name."""
    locked = device("d", operation=OperationRef(namespace="lab", name="op", uid="op"))
    manager = ControllerManager(cast("KubeApi", server := Server()))
    manager.view.accelerators.reflector.replace([locked], "1")
    manager.view.operations.reflector.replace([odd(operation("op", "d", P.RUNNING), "lab")], "1")
    server.objects = {"d": locked, "op": ServerFailed("the API server answered something else than expected")}
    with pytest.raises(ServerFailed):  # the queue asks again, ever more rarely
        await manager._reconcile_device("d")
    assert server.asked == []


async def test_a_policy_that_cannot_be_read_allows_nothing() -> None:
    room = Room(device("d"), operation("op", "d", P.QUEUED))
    (policy,) = room.view.policies.all()
    room.view.policies.reflector.replace([odd(policy)], "2")
    await room.controller.reconcile(("lab", "op"))
    assert room.server.objects["op"].status.phase is P.REFUSED
    assert room.server.objects["op"].status.reason == "NoPolicy"


async def test_a_device_whose_class_cannot_be_read_keeps_its_owner_and_is_not_operated() -> None:
    theirs = device("d", managed_by=LifecycleOwner.DEVICE_PLUGIN)
    room = Room(theirs, operation("op", "d", P.QUEUED))
    (acc_class,) = room.view.classes.all()
    room.view.classes.reflector.replace([odd(acc_class)], "2")
    await DeviceController(cast("KubeApi", room.server), room.view).reconcile("d")
    assert room.server.objects["d"].status.managed_by is LifecycleOwner.DEVICE_PLUGIN
    await room.controller.reconcile(("lab", "op"))
    assert room.server.objects["op"].status.phase is P.REFUSED


async def test_the_holder_of_an_extended_resource_is_evicted_without_a_uid() -> None:
    spec = AcceleratorOperationSpec(accelerator="d", operation=V.RESET, requested_by="alice", drain=DrainMode.EVICT)
    held = device("d", holders=(Holder(namespace="lab", pod="job", uid=""),))
    room = Room(held, operation("op", "d", P.DRAINING, spec=spec))
    await room.controller.reconcile(("lab", "op"))
    ((path, body),) = [entry for entry in room.server.asked if entry[0].startswith("POST")]
    assert path.endswith("/namespaces/lab/pods/job/eviction")
    assert "deleteOptions" not in body


async def test_an_eviction_that_is_refused_is_the_reason_that_people_read() -> None:
    def refuse(method: str, path: str, body: Any) -> bytes:
        raise RequestDenied("pods/eviction is forbidden")

    spec = AcceleratorOperationSpec(accelerator="d", operation=V.RESET, requested_by="alice", drain=DrainMode.EVICT)
    held = device("d", holders=(Holder(namespace="lab", pod="job", uid="7"),))
    room = Room(held, operation("op", "d", P.DRAINING, spec=spec))
    room.server.on_request = refuse
    await room.controller.reconcile(("lab", "op"))
    (body,) = room.written("apply acceleratoroperations/op")
    assert body["status"]["reason"] == "EvictionRefused"
    assert "lab/job is not evicted: pods/eviction is forbidden" in body["status"]["message"]


async def test_a_lock_whose_operation_is_not_in_the_copy_yet_is_kept() -> None:
    reference = OperationRef(namespace="lab", name="new", uid="new")
    locked = device("d", operation=reference)
    room = Room(locked)
    room.server.objects["new"] = operation("new", "d", P.QUEUED)
    await room.controller.release_orphan(locked)
    assert room.written("apply accelerators") == []
    del room.server.objects["new"]
    await room.controller.release_orphan(locked)
    (body,) = room.written("apply accelerators")
    assert body["status"]["conditions"][0]["type"] == "Quarantined"


def gated(phase: P, **status: Any) -> AcceleratorOperation:
    pod = PodReference(name="job", uid="7")
    attach = AttachParameters(node_name="n", gated_pod=pod)
    spec = AcceleratorOperationSpec(accelerator="d", operation=V.ATTACH, requested_by="alice", attach=attach)
    return operation("op", "d", phase, spec=spec, completion_time="2026-11-23T12:00:00Z", **status)


async def test_a_pod_that_refuses_to_be_released_does_not_hold_its_operation() -> None:
    def refuse(_name: str) -> None:
        if not room.written("patch acceleratoroperations"):
            raise ObjectInvalid("nodeSelector is immutable")

    room = Room(device("d"), gated(P.SUCCEEDED))
    pod = {"metadata": {"uid": "7", "resourceVersion": "3"}, "spec": {"schedulingGates": [{"name": GATE}]}}
    room.server.on_request = lambda method, path, body: msgspec.json.encode(pod)
    room.server.on_patch = refuse
    assert await room.controller.reconcile(("lab", "op")) == 0.0
    (body,) = room.written("apply acceleratoroperations/op")
    (condition,) = body["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodReleased", "False")
    await room.controller.reconcile(("lab", "op"))
    (patch,) = room.written("patch acceleratoroperations/op")
    assert patch["metadata"]["finalizers"] == []


GATE = "accelerators.backend.ai/attach"


async def test_a_pod_without_the_gate_is_left_alone() -> None:
    room = Room(device("d"), gated(P.SUCCEEDED, observed_generation=1))
    room.server.on_request = lambda method, path, body: msgspec.json.encode({"metadata": {"uid": "7"}, "spec": {}})
    await room.controller.reconcile(("lab", "op"))
    assert room.written("patch pods") == []
    assert len(room.written("patch acceleratoroperations/op")) == 1


async def test_a_change_after_the_end_is_observed() -> None:
    """``kubectl wait`` takes no condition that is older than the object."""
    room = Room(device("d"), operation("op", "d", P.SUCCEEDED, completion_time="2026-11-23T12:00:00Z"))
    await room.controller.reconcile(("lab", "op"))
    (body,) = room.written("apply acceleratoroperations/op")
    assert body["status"]["observedGeneration"] == 1


def test_counts_that_the_controllers_write_ask_no_device_again() -> None:
    async def story() -> None:
        manager = ControllerManager(cast("KubeApi", Server()))
        manager.view.accelerators.reflector.replace([device("d")], "1")
        manager.device_queue._ready.clear()
        metadata = ObjectMeta(name="gpu", generation=1, resource_version="1")
        before = AcceleratorClass(metadata=metadata)
        counted = replace(before, status=AcceleratorClassStatus(devices=5))
        changed = replace(before, metadata=replace(metadata, generation=2))
        manager._on_rule_change(before, counted)
        assert not manager.device_queue._ready
        manager._on_rule_change(before, changed)
        assert list(manager.device_queue._ready) == ["d"]

    asyncio.run(story())
