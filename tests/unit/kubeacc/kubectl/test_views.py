"""What kubectl accelerators prints."""

from __future__ import annotations

import io
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console, RenderableType

from ai.backend.common.device_operations import OperationPhase, OperationVerb
from ai.backend.common.devices import DeviceHealth, LinkKind
from ai.backend.common.errors import InvalidInput
from ai.backend.kubeacc.crd.accelerators import (
    AcceleratorSpec,
    AcceleratorStatus,
    DeviceDescription,
    Health,
    Holder,
    Link,
    Topology,
    Usage,
)
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorOperation
from ai.backend.kubeacc.crd.operations import AcceleratorOperationSpec, AcceleratorOperationStatus
from ai.backend.kubeacc.crd.vocabulary import AcceleratorType
from ai.backend.kubeacc.kubectl import views
from ai.backend.kubeacc.kubectl.main import main, operation_spec
from ai.backend.node.kube_api.objects import ObjectMeta

TIME = "2026-11-23T12:00:00Z"


def device(name: str, node: str | None = "n1", parent: str | None = None, **status: Any) -> Accelerator:
    spec = AcceleratorSpec(driver="mock", device_id=name, type=AcceleratorType.GPU, node_name=node, parent=parent)
    return Accelerator(metadata=ObjectMeta(name=name), spec=spec, status=AcceleratorStatus(**status))


def text_of(drawing: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=200, color_system=None).print(drawing)
    return file.getvalue()


PLACE = Topology(
    numa_node=1, pcie_root="pci0000:40", links=(Link(peer="b", kind=LinkKind.DIRECT, bandwidth_gi_b_s="50"),)
)


def test_the_tree_shows_nodes_places_links_and_partitions() -> None:
    devices = [
        device("a", device=DeviceDescription(model="M", topology=PLACE)),
        device("a-part", parent="a"),
        device("far", node=None),
    ]
    lines = [line.strip("│├└─ ") for line in text_of(views.device_tree(devices)).splitlines()]
    assert lines == [
        "accelerators",
        "not attached",
        "far  GPU   unknown",
        "node n1",
        "NUMA node 1",
        "PCIe root pci0000:40",
        "a  GPU M  unknown",
        "direct to b 50 GiB/s",
        "a-part  GPU   unknown",
    ]


def test_lists_show_health_and_holders_without_control_characters() -> None:
    sick = device("a", health=Health(state=DeviceHealth.UNHEALTHY, reason="fell \x1b[31moff"))
    held = device(
        "b", holders=(Holder(namespace="lab", pod="job", uid="1"),), health=Health(state=DeviceHealth.HEALTHY)
    )
    text = text_of(views.device_list([held, sick]))
    assert "unhealthy: fell \ufffd[31moff" in text
    assert "lab/job" in text
    assert "\x1b" not in text
    assert "[red]" in text_of(views.device_list([device("[red]x")]))


def test_the_most_used_device_comes_first() -> None:
    devices = [
        device("idle", usage=Usage(measured_at=TIME, utilization_percent="1")),
        device("unknown"),
        device("busy", usage=Usage(measured_at=TIME, utilization_percent="99", memory_used_bytes=3 << 30)),
    ]
    lines = text_of(views.usage_table(devices)).splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "busy", "idle", "unknown"]
    assert "3.0 GiB" in lines[1]


def test_a_description_has_the_operations_of_the_device_alone() -> None:
    operations = [
        AcceleratorOperation(
            metadata=ObjectMeta(name=f"on-{name}", namespace="lab"),
            spec=AcceleratorOperationSpec(accelerator=name, operation=OperationVerb.RESET, requested_by="alice"),
            status=AcceleratorOperationStatus(phase=OperationPhase.RUNNING),
        )
        for name in ("a", "b")
    ]
    text = text_of(views.device_details(device("a", device=DeviceDescription(model="M")), operations))
    assert "lab/on-a" in text
    assert "lab/on-b" not in text
    assert "Running" in text


OPTIONS: dict[str, Any] = dict.fromkeys(("power", "node", "image", "sha256", "signature", "signer", "profile"), "")
OPTIONS |= {"deadline": None, "drain": "Refuse"}


@pytest.mark.parametrize(
    ("verb", "options", "part"),
    [
        (OperationVerb.POWER, {"power": "off"}, {"power": {"state": "Off"}}),
        (OperationVerb.ATTACH, {"node": "n"}, {"attach": {"nodeName": "n"}}),
        (OperationVerb.RESET, {"deadline": 5}, {"deadlineSeconds": 5}),
        (
            OperationVerb.PROGRAM,
            {"image": "https://a", "sha256": "AB"},
            {"program": {"artifact": {"uri": "https://a", "sha256": "ab"}}},
        ),
        (OperationVerb.PARTITION, {"profile": "1g"}, {"partition": {"action": "Create", "profile": "1g"}}),
        (OperationVerb.PARTITION, {}, {"partition": {"action": "Destroy"}}),
    ],
)
def test_options_become_an_operation(verb: OperationVerb, options: dict[str, Any], part: dict[str, Any]) -> None:
    spec = operation_spec(verb, "dev", **(OPTIONS | options))
    assert spec == {"accelerator": "dev", "operation": verb.value, "drain": "Refuse", **part}


def test_a_missing_option_is_named() -> None:
    with pytest.raises(InvalidInput, match="program needs --sha256"):
        operation_spec(OperationVerb.PROGRAM, "dev", **(OPTIONS | {"image": "https://a"}))
    signed = {"image": "https://a", "sha256": "0", "signature": "x"}
    with pytest.raises(InvalidInput, match="needs --signer"):
        operation_spec(OperationVerb.PROGRAM, "dev", **(OPTIONS | signed))


def test_a_missing_cluster_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nonexistent/config")
    result = CliRunner().invoke(main, ["list"])
    assert result.exit_code == 1
    assert result.output.startswith("Error: /nonexistent/config is no kubeconfig")
    assert result.output.count("\n") == 1
