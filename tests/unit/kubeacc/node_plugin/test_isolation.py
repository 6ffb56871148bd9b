"""One device, claim or operation that is refused costs no other one anything."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from pydantic import ValidationError

from ai.backend.common.device_operations import OperationVerb as V
from ai.backend.common.devices import ComputeDevice
from ai.backend.common.errors import BackendError, PluginError
from ai.backend.common.structs import replace
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorOperation
from ai.backend.kubeacc.crd.operations import AcceleratorOperationSpec, AcceleratorOperationStatus, Order
from ai.backend.kubeacc.crd.vocabulary import PowerState
from ai.backend.kubeacc.drivers.artifact_settings import ArtifactSettings
from ai.backend.kubeacc.drivers.artifact_store import ArtifactStore
from ai.backend.kubeacc.node_plugin.accelerators import AcceleratorReports, accelerator_name, describe_device
from ai.backend.kubeacc.node_plugin.checkpoint import WorkloadRecord
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker
from ai.backend.kubeacc.node_plugin.dra import OrphanSweep
from ai.backend.kubeacc.node_plugin.facts import FactStore
from ai.backend.kubeacc.node_plugin.holders import Holders, PodHolder
from ai.backend.kubeacc.node_plugin.operations import OperationExecutor
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.node_plugin.workloads import Workloads
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.decoding import Undecodable
from ai.backend.node.kube_api.errors import ObjectInvalid
from ai.backend.node.kube_api.objects import Node, ObjectMeta
from ai.backend.node.kube_api.resources import Resource
from ai.backend.plugin.accelerator import PluginCapabilities
from tests.unit.kubeacc.node_plugin.devices import device

NODE = "n1"


class Server:
    """Takes every apply but those of the names in ``refused``."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.applied: list[tuple[str, Any]] = []
        self.objects: dict[str, Any] = {}

    def delays(self) -> Backoff:
        return Backoff(1.0, 1.0)

    async def get(self, resource: Resource[Any], name: str, _namespace: str = "") -> Any:
        return Node(metadata=ObjectMeta(name=name, uid="node-uid"))

    async def find(self, resource: Resource[Any], name: str, _namespace: str = "") -> Any:
        return None

    async def apply(self, resource: Resource[Any], name: str, body: Any, _namespace: str = "", **_: Any) -> Any:
        if name in self.refused:
            raise ObjectInvalid(f"{name} has a wrong shape")
        self.applied.append((name, body))
        spec = body.get("spec")
        return msgspec.convert({"metadata": {"name": name, "uid": name}, "spec": spec}, Accelerator) if spec else None


class Tracker:
    """Lists devices of one plugin."""

    def __init__(self, *devices: ComputeDevice) -> None:
        self._devices = devices
        self.is_complete = asyncio.Event()
        self.is_complete.set()

    def subscribe(self, _listener: Any) -> None: ...

    def plugin_keys(self) -> Sequence[str]:
        return ["mock"]

    def devices(self, _key: str) -> Sequence[ComputeDevice]:
        return self._devices

    def plugin_handle(self, _key: str) -> Any:
        return None

    def competing_plugin(self, _key: Any) -> str:
        return ""

    async def once(self) -> None: ...


def reports(server: Server, tmp_path: Path, *devices: ComputeDevice) -> AcceleratorReports:
    holders = SimpleNamespace(holders={}, foreign_offer=lambda key: "")
    made = AcceleratorReports(
        cast("KubeApi", server),
        cast("DeviceTracker", Tracker(*devices)),
        cast("Workloads", SimpleNamespace(workload_of_claim=lambda namespace, name: None)),
        cast("Holders", holders),
        FactStore(tmp_path / "facts"),
        NodePluginSettings(),
        NODE,
    )
    made._is_served = True
    made.reflector.synced.set()
    return made


async def test_a_device_that_the_server_refuses_keeps_no_other_from_being_reported(tmp_path: Path) -> None:
    server = Server(accelerator_name(NODE, "mock", "a"))
    with pytest.raises(ObjectInvalid):  # the loop counts and repeats it
        await reports(server, tmp_path, device("a"), device("b")).once()
    assert {name for name, _ in server.applied} == {accelerator_name(NODE, "mock", "b")}


async def test_a_device_whose_object_cannot_be_read_is_given_to_nobody(tmp_path: Path) -> None:
    """An operation may hold it."""
    made = reports(Server(), tmp_path, device("a"), device("b"))
    changes: list[str] = []
    made.changed = lambda: changes.append("changed")
    name = accelerator_name(NODE, "mock", "a")
    made.reflector.replace([Undecodable(ObjectMeta(name=name, uid="a", resource_version="5"), "odd")], "1")
    assert made.withheld_reason(("mock", cast("Any", "a"))) == "its Accelerator cannot be read"
    assert made.withheld_reason(("mock", cast("Any", "b"))) == ""
    assert changes == ["changed"]
    made.reflector.replace([], "2")
    assert made.withheld_reason(("mock", cast("Any", "a"))) == ""
    assert changes == ["changed", "changed"]


async def test_a_quarantined_device_is_given_to_nobody_until_it_is_reset(tmp_path: Path) -> None:
    """An interrupted operation leaves a device in any state, which no workload may get."""
    made = reports(Server(), tmp_path, device("a"))
    changes: list[str] = []
    made.changed = lambda: changes.append("changed")
    name = accelerator_name(NODE, "mock", "a")

    def accelerator(status: str, version: str) -> Accelerator:
        at = "2026-01-01T00:00:00Z"
        condition = {"type": "Quarantined", "status": status, "reason": "X", "lastTransitionTime": at}
        metadata = {"name": name, "uid": "a", "resourceVersion": version}
        body = {"metadata": metadata, "status": {"conditions": [condition]}}
        return msgspec.convert(body, Accelerator)

    made.reflector.replace([accelerator("True", "1")], "1")
    assert made.withheld_reason(("mock", cast("Any", "a"))) == "quarantined: its state is not known; reset or detach it"
    made.reflector.replace([accelerator("False", "2")], "2")
    assert made.withheld_reason(("mock", cast("Any", "a"))) == ""
    assert changes == ["changed", "changed"], "slices are written anew each time"


async def test_a_local_device_goes_with_its_node(tmp_path: Path) -> None:
    server = Server()
    await reports(server, tmp_path, device("a")).once()
    (owner,) = server.applied[0][1]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", NODE, "node-uid")


def test_a_plugin_that_boasts_is_cut_to_the_limits_of_the_resource() -> None:
    boasted = describe_device(replace(device("a"), memory_size=2**60, processing_units=2**40), PluginCapabilities())
    assert boasted.memory is not None
    msgspec.convert(msgspec.to_builtins(boasted), type(boasted))  # raises beyond a limit


async def test_a_second_pod_of_a_claim_is_not_named_by_the_uid_of_the_first(tmp_path: Path) -> None:
    made = reports(Server(), tmp_path)
    record = WorkloadRecord(uid="c", way="dra", pod="first", pod_uid="1")
    made._workloads = cast("Workloads", SimpleNamespace(workload_of_claim=lambda namespace, name: record))
    uids = [made._holder(PodHolder("ns", pod, "main", "c")).uid for pod in ("first", "second")]
    assert uids == ["1", ""]


async def test_a_claim_whose_devices_stay_keeps_no_other_claims_devices() -> None:
    released: list[str] = []

    async def release(uid: str) -> None:
        released.append(uid)
        if uid == "a":
            raise PluginError("the plugin is broken")

    records = {uid: WorkloadRecord(uid=uid, way="dra", name=uid) for uid in ("a", "b")}
    workloads = cast("Workloads", SimpleNamespace(records=records, release=release))
    await OrphanSweep(cast("KubeApi", Server()), workloads).once()
    assert released == ["a", "b"]


def operation(name: str) -> AcceleratorOperation:
    spec = AcceleratorOperationSpec(accelerator="gone", operation=V.RESET, requested_by="alice")
    order = Order(sequence=1, previous_power=PowerState.UNKNOWN)
    status = AcceleratorOperationStatus(order=order, executor=f"node/{NODE}")
    return AcceleratorOperation(metadata=ObjectMeta(name=name, namespace="lab", uid=name), spec=spec, status=status)


async def test_an_operation_whose_report_is_refused_keeps_no_other_one_waiting(tmp_path: Path) -> None:
    server = Server("first")
    executor = OperationExecutor(
        cast("KubeApi", server),
        cast("DeviceTracker", Tracker()),
        cast("AcceleratorReports", SimpleNamespace(key_of=lambda name: None)),
        FactStore(tmp_path / "facts"),
        NODE,
        store=ArtifactStore(tmp_path, ArtifactSettings(), {}),
    )
    executor.reflector.replace([operation("first"), operation("second")], "1")
    with pytest.raises(BackendError):
        await executor.once()
    assert [name for name, _ in server.applied] == ["second"]


def test_two_plugins_cannot_have_one_resource() -> None:
    both = {
        "a": {"by": "device-plugin", "resource": "x.org/gpu"},
        "b": {"by": "device-plugin", "resource": "x.org/gpu"},
    }
    with pytest.raises(ValidationError, match="plugins a and b have the same resource"):
        NodePluginSettings.model_validate({"offers": both})


class Listed:
    """A started plugin of a tracker."""

    started = True

    def __init__(self, key: str) -> None:
        self.key = key


def test_of_two_plugins_that_list_one_device_the_first_gives_it() -> None:
    tracker = DeviceTracker(NodePluginSettings(), sources=())
    tracker.handles = cast("Any", [Listed("cuda"), Listed("sysfs")])
    for key, ids in (("sysfs", ("pci-1", "pci-2")), ("cuda", ("GPU-1",))):
        listing = SimpleNamespace(devices=tuple(replace(device(one), hw_location=PLACES[one]) for one in ids))
        tracker._listings[key] = cast("Any", listing)
    tracker._claimed = tracker._devices_of_others()
    assert tracker.competing_plugin(("sysfs", cast("Any", "pci-1"))) == "cuda"
    assert tracker.competing_plugin(("sysfs", cast("Any", "pci-2"))) == ""
    assert tracker.competing_plugin(("cuda", cast("Any", "GPU-1"))) == ""


def test_a_plugin_that_starts_late_takes_no_device_from_its_holder() -> None:
    """Of the devices that both list, a workload has one by the plugin that comes second."""
    tracker = DeviceTracker(NodePluginSettings(), sources=())
    tracker.handles = cast("Any", [Listed("cuda"), Listed("sysfs")])
    for key, ids in (("sysfs", ("pci-1",)), ("cuda", ("GPU-1",))):
        listing = SimpleNamespace(devices=tuple(replace(device(one), hw_location=PLACES[one]) for one in ids))
        tracker._listings[key] = cast("Any", listing)
    tracker.is_held = lambda key: key == ("sysfs", "pci-1")
    assert tracker._devices_of_others() == {("cuda", "GPU-1"): "sysfs"}
    tracker.is_held = lambda key: False
    assert tracker._devices_of_others() == {("sysfs", "pci-1"): "cuda"}


def test_a_partition_keeps_its_whole_device_from_other_plugins() -> None:
    tracker = DeviceTracker(NodePluginSettings(), sources=())
    tracker.handles = cast("Any", [Listed("cuda"), Listed("sysfs")])
    for key, one, place in (("cuda", "GPU-1/a", "0000:3B:00.0/gi1/ci0"), ("sysfs", "pci-1", "0000:3b:00.0")):
        listing = SimpleNamespace(devices=(replace(device(one), hw_location=place),))
        tracker._listings[key] = cast("Any", listing)
    assert tracker._devices_of_others() == {("sysfs", "pci-1"): "cuda"}


PLACES = {"pci-1": "0000:3b:00.0", "pci-2": "0000:5e:00.0", "GPU-1": "0000:3B:00.0"}
