"""Devices as ResourceSlices."""

from __future__ import annotations

import asyncio
import re
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from ai.backend.common.devices import DeviceSlot
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.common.states import SlotType
from ai.backend.common.structs import replace
from ai.backend.infra.retry import Backoff
from ai.backend.kubeacc.node_plugin.devices import DeviceTracker, device_name
from ai.backend.kubeacc.node_plugin.publication import SlicePublication
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.node_plugin.slices import OfferedDevice, SliceFeatures, link_groups, slice_specs, taint_value
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.objects import Device, Node, ResourceSlice, ResourceSliceSpec
from tests.unit.kubeacc.node_plugin.devices import device, failed

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def _offered(*devices: object) -> list[OfferedDevice]:
    return [OfferedDevice(plugin="mock", type="GPU", device=one) for one in devices]  # type: ignore[arg-type]  # devices


def test_a_claim_can_select_by_what_the_plugin_tells() -> None:
    (spec,) = slice_specs(_offered(device("GPU-1", numa_node=1)), driver="d.example", node="n", generation=3)
    assert spec["pool"] == {"name": "n", "generation": 3, "resourceSliceCount": 1}
    (described,) = spec["devices"]
    assert described["attributes"] == {
        "plugin": {"string": "mock"},
        "type": {"string": "GPU"},
        "uuid": {"string": "GPU-1"},
        "model": {"string": "Mock H100"},
        "numaNode": {"int": 1},
        "resource.kubernetes.io/pciBusID": {"string": "0000:3b:00.0"},
    }
    below = [replace(one, pcie_root="pci0000:3a") for one in _offered(device("GPU-1"))]
    (spec,) = slice_specs(below, driver="d.example", node="n", generation=3)
    assert spec["devices"][0]["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:3a"}
    assert described["capacity"] == {"memory": {"value": str(80 << 30)}, "mock_device": {"value": "1"}}


def test_different_ids_have_different_names_that_are_labels() -> None:
    ids = ["gpu-1", "GPU-1", "gpu_1", "x" * 100, "x" * 101, "é", "", "-", "a/b", "a-b"]
    names = [device_name(one) for one in ids]
    assert len(set(names)) == len(ids)
    assert all(LABEL.fullmatch(name) for name in names), names
    assert names[0] == "gpu-1"


def test_partitions_and_their_device_share_counters_in_a_slice_of_their_own() -> None:
    specs = slice_specs(
        _offered(device("g", amount=0), device("g/1g.10gb/0")), driver="d.example", node="n", generation=1
    )
    devices, counters = specs
    assert [one["attributes"]["uuid"]["string"] for one in devices["devices"]] == ["g/1g.10gb/0"]  # the whole is cut
    (counter_set,) = counters["sharedCounters"]
    (consumed,) = devices["devices"][0]["consumesCounters"]
    assert consumed["counterSet"] == counter_set["name"]
    assert {spec["pool"]["resourceSliceCount"] for spec in specs} == {2}


def test_many_devices_fill_several_slices_in_a_stable_order() -> None:
    devices = [device(f"gpu-{number}") for number in range(150)]
    specs = slice_specs(_offered(*devices), driver="d.example", node="n", generation=1)
    assert [len(spec["devices"]) for spec in specs] == [64, 64, 22]
    assert specs == slice_specs(_offered(*reversed(devices)), driver="d.example", node="n", generation=1)


def test_a_device_that_can_be_divided_is_shared_by_the_amounts_that_claims_ask_for() -> None:
    slot = DeviceSlot(
        slot_name=SlotName("mock.shares"), slot_type=SlotType.COUNT, amount=Decimal(8), quantum=Decimal("0.1")
    )
    one = OfferedDevice(plugin="mock", type="GPU", device=replace(device("g"), slots=(slot,)), is_shared=True)
    whole = OfferedDevice(plugin="mock", type="GPU", device=device("h"), is_shared=True)
    (spec,) = slice_specs([one, whole], driver="d.example", node="n", generation=1)
    shared, undivided = spec["devices"]
    assert shared["allowMultipleAllocations"] is True
    policy = {"default": "8", "validRange": {"min": "0.1", "max": "8", "step": "0.1"}}
    assert shared["capacity"]["mock_shares"] == {"value": "8", "requestPolicy": policy}
    assert shared["capacity"]["memory"]["requestPolicy"] == {"default": "0"}  # else the first claim had all of it
    assert "allowMultipleAllocations" not in undivided


def test_a_device_of_another_box_is_bound_when_it_is_attached() -> None:
    far = replace(device("far"), slots=(), memory_size=0)
    one = OfferedDevice(plugin="mock", type="GPU", device=far, is_detached=True)
    (spec,) = slice_specs([one], driver="d.example", node="n", generation=1)
    (described,) = spec["devices"]
    assert described["bindsToNode"] is True
    assert described["bindingConditions"] == ["accelerators.backend.ai/Attached"]
    assert described["bindingFailureConditions"] == ["accelerators.backend.ai/AttachFailed"]


@pytest.mark.parametrize(
    ("gates", "names"),
    [
        ({}, {"near", "far", "broken"}),
        ({"bindingConditions": ()}, {"near", "broken"}),
        ({"taints": ()}, {"near", "far"}),
        ({"taints": (), "bindingConditions": ()}, {"near"}),
    ],
    ids=["1.36", "no binding conditions", "no taints", "1.34"],
)
async def test_what_a_cluster_drops_lets_no_pod_get_a_device_that_is_away_or_broken(
    gates: dict[str, tuple[()]], names: set[str]
) -> None:
    written: list[dict[str, Any]] = []

    class Server:
        def delays(self) -> Backoff:
            return Backoff(1.0, 1.0)

        async def create(self, _resource: Any, body: Any, *, dry_run: bool) -> ResourceSlice:
            assert dry_run
            devices = [{**one, **{key: () for key in gates if key in one}} for one in body["spec"]["devices"]]
            return ResourceSlice(spec=ResourceSliceSpec(devices=msgspec.convert(devices, tuple[Device, ...])))

        async def get(self, _resource: Any, _name: str) -> Node:
            return Node()

        async def apply(self, _resource: Any, _name: str, body: dict[str, Any], **_: Any) -> ResourceSlice:
            written.append(body["spec"])
            return ResourceSlice()

    complete = asyncio.Event()
    complete.set()
    tracker = SimpleNamespace(
        plugin_keys=lambda: ["mock"],
        devices=lambda key: (device("near"), failed(device("broken"), "Xid 79")),
        is_complete=complete,
        subscribe=lambda listener: None,
    )
    settings = NodePluginSettings.model_validate({"offers": {"mock": {"attach": True}}})
    publication = SlicePublication(
        cast("KubeApi", Server()),
        cast("DeviceTracker", tracker),
        settings,
        "n",
        detached_devices=lambda key: [device("far")],
    )
    publication.reflector.synced.set()
    await publication.once()
    assert {one["attributes"]["uuid"]["string"] for spec in written for one in spec["devices"]} == names


def test_a_cluster_without_shares_and_counters_gets_whole_devices() -> None:
    slot = DeviceSlot(
        slot_name=SlotName("mock.shares"), slot_type=SlotType.COUNT, amount=Decimal(8), quantum=Decimal("0.1")
    )
    one = OfferedDevice(plugin="mock", type="GPU", device=replace(device("g"), slots=(slot,)), is_shared=True)
    offered = [one, *_offered(device("cut", amount=0), device("cut/1"))]
    features = SliceFeatures(shares=False, counters=False)
    (spec,) = slice_specs(offered, driver="d.example", node="n", generation=1, features=features)
    assert not any({"allowMultipleAllocations", "consumesCounters"} & described.keys() for described in spec["devices"])
    assert not any("requestPolicy" in value for one in spec["devices"] for value in one["capacity"].values())


def test_direct_links_make_groups() -> None:
    devices = [
        device("a", peers=("b",)),
        device("b", peers=("c",)),
        device("c"),
        device("x"),
        device("y", peers=("z",)),
    ]
    groups = link_groups(devices)
    assert (groups["a"], groups["b"], groups["c"]) == ("a", "a", "a")
    assert "x" not in groups


def test_a_reason_becomes_the_value_of_a_taint() -> None:
    assert taint_value("Xid 79: fell off\nthe bus!") == "Xid-79-fell-off-the-bus"
    assert len(taint_value("x" * 500)) == 63
    assert taint_value("???") == ""


def _slice(driver: str, name: str, **attributes: str) -> ResourceSlice:
    values = {key.replace("__", "/").replace("_", "."): {"string": value} for key, value in attributes.items()}
    spec = {"driver": driver, "nodeName": "n", "devices": [{"name": "d", "attributes": values}]}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)


async def test_a_device_that_another_dra_driver_offers_is_left_to_it() -> None:
    """By its uuid or its PCI address, until the other driver removes its slice."""
    devices = (
        replace(device("GPU-1"), hw_location="0000:3B:00.0"),
        replace(device("GPU-2"), hw_location="0000:5e:00.0"),
        replace(device("GPU-3"), hw_location="mock:3"),
    )
    tracker = SimpleNamespace(
        plugin_keys=lambda: ["mock"], devices=lambda key: devices, subscribe=lambda listener: None
    )
    server = SimpleNamespace(delays=lambda: Backoff(1.0, 1.0))
    publication = SlicePublication(cast("KubeApi", server), cast("DeviceTracker", tracker), NodePluginSettings(), "n")
    changes: list[None] = []
    publication.changed = lambda: changes.append(None)
    own = _slice("accelerators.backend.ai", "own", uuid="GPU-2")
    theirs = _slice("gpu.vendor.example", "theirs", uuid="GPU-3")
    placed = _slice("nic.vendor.example", "placed", resource_kubernetes_io__pciBusID="0000:3b:00.0")
    publication.reflector.replace([own, theirs, placed], "1")
    assert [one.device.device_id for one in publication.offered_devices()] == ["GPU-2"]
    assert publication.other_driver(("mock", DeviceId("GPU-3"))) == "gpu.vendor.example"
    assert publication.other_driver(("mock", DeviceId("GPU-1"))) == "nic.vendor.example"
    publication.reflector.replace([own], "2")
    assert len(publication.offered_devices()) == 3
    assert len(changes) == 2
