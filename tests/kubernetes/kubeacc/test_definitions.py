"""The definitions on a real API server: every wrong shape is refused with the field or the rule."""

from __future__ import annotations

from typing import Any

import pytest
from tools.kube.cluster import Cluster

from ai.backend.kubeacc.crd.objects import ACCELERATORS, CLASSES, OPERATIONS, POLICIES
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectInvalid
from ai.backend.node.kube_api.resources import Resource
from tests.kubernetes.kubeacc.conftest import Bench, add

pytestmark = pytest.mark.needs("kubernetes")

DEVICE = {"driver": "mock", "deviceID": "0", "type": "FPGA", "nodeName": "n"}
IMAGE = {"uri": "https://images/a", "sha256": "0" * 64}
POWER = {"accelerator": "a", "operation": "Power", "requestedBy": "admin", "power": {"state": "Off"}}


def program(**image: Any) -> dict[str, Any]:
    spec = {"accelerator": "a", "operation": "Program", "requestedBy": "admin"}
    return {**spec, "program": {"artifact": {**IMAGE, **image}}}


WRONG: list[tuple[Resource[Any], dict[str, Any], str]] = [
    (ACCELERATORS, {}, "spec.driver: Required value"),
    (ACCELERATORS, {**DEVICE, "type": "Toaster"}, 'Unsupported value: "Toaster"'),
    (ACCELERATORS, {**DEVICE, "deviceID": ""}, "should be at least 1 chars"),
    (ACCELERATORS, {**DEVICE, "deviceID": "x" * 513}, "Too long"),
    (ACCELERATORS, {"driver": "m", "deviceID": "0", "type": "GPU"}, "a locally attached device has a nodeName"),
    (ACCELERATORS, {**DEVICE, "nodeName": "No Such"}, "spec.nodeName in body should match"),
    (CLASSES, {"lifecycleOwner": "DevicePlugin"}, "needs devicePluginResource"),
    (CLASSES, {"selector": {"types": ["GPU", "GPU"]}}, "Duplicate value"),
    (CLASSES, {"signers": [{"name": "a", "publicKey": "secret"}]}, "is a public key in PEM"),
    (CLASSES, {"priority": 10**9}, "should be less than or equal to 1000"),
    (POLICIES, {"operations": ["Explode"]}, 'Unsupported value: "Explode"'),
    (POLICIES, {"subjects": [{"kind": "ServiceAccount", "name": "a"}]}, "a ServiceAccount has a namespace"),
    (POLICIES, {"maintenanceWindows": [{"start": "25:00", "durationMinutes": 5}]}, "should match"),
    (POLICIES, {"quota": {"concurrentOperations": -1}}, "should be greater than or equal to 0"),
    (POLICIES, {"costPerHour": "much"}, "should match"),
    (OPERATIONS, {**POWER, "power": {"state": "Unknown"}}, "Unsupported value"),
    (OPERATIONS, {**POWER, "operation": "Reset"}, "operation Power needs power, and no other operation has it"),
    (OPERATIONS, {**POWER, "deadlineSeconds": 0}, "should be greater than or equal to 1"),
    (OPERATIONS, program(uri="ftp://images/a"), "should match"),
    (OPERATIONS, program(uri="file://host/a"), "should match"),
    (OPERATIONS, program(sha256="0"), "should be at least 64 chars"),
    (OPERATIONS, program(signature="AAAA"), "signature and signer are given together"),
    (
        OPERATIONS,
        {**POWER, "operation": "Partition", "power": None, "partition": {"action": "Create"}},
        "Create needs a profile",
    ),
]


@pytest.mark.parametrize(("resource", "spec", "message"), WRONG)
async def test_wrong_shapes_are_refused(
    api: KubeApi, acc_cluster: Cluster, resource: Resource[Any], spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(ObjectInvalid, match=message):
        await api.create(resource, {"metadata": {"name": "wrong"}, "spec": spec}, "default", dry_run=True)


async def test_what_identifies_an_object_does_not_change(bench: Bench, device: str) -> None:
    for name in ("driver", "deviceID", "attachment"):
        value = "Remote" if name == "attachment" else "other"
        with pytest.raises(ObjectInvalid, match=f"{name} is immutable"):
            await bench.api.patch(ACCELERATORS, device, {"spec": {name: value}})
    await bench.ask("op", device, "Reset")
    for change, message in (
        ({"accelerator": "b"}, "accelerator is immutable"),
        ({"requestedBy": "root"}, "requestedBy is immutable"),
        ({"deadlineSeconds": 5}, "deadlineSeconds is immutable"),
        ({"drain": "Evict"}, "drain is immutable"),
    ):
        with pytest.raises(ObjectInvalid, match=message):
            await bench.api.patch(OPERATIONS, "op", {"spec": change}, bench.namespace)
    await bench.cancel("op")
    with pytest.raises(ObjectInvalid, match="a cancelled operation stays cancelled"):
        await bench.api.patch(OPERATIONS, "op", {"spec": {"cancel": False}}, bench.namespace)
    await bench.wait_for_end("op")


def test_columns_show_what_people_look_for(acc_cluster: Cluster, device: str) -> None:
    add(acc_cluster, "AcceleratorClass", "shown", {"selector": {"types": ["NIC"]}})
    line = acc_cluster.kubectl("get", "acc", device).splitlines()
    assert line[0].split() == [
        "NAME",
        "TYPE",
        "NODE",
        "CLASS",
        "MODEL",
        "HEALTH",
        "ATTACHED",
        "HELD",
        "OPERATION",
        "AGE",
    ]
    assert "KubeAcc" in acc_cluster.kubectl("get", "accclass", "shown")
    assert device in acc_cluster.kubectl("get", "kube-acc", "-A")
