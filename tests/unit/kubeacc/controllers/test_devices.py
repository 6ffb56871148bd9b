"""Classes of devices, and who may share them."""

from __future__ import annotations

from typing import Any

import pytest

from ai.backend.kubeacc.controllers.devices import class_of, ownership_of, sharing_violation
from ai.backend.kubeacc.crd.accelerators import AcceleratorSpec, AcceleratorStatus, DeviceDescription, Holder
from ai.backend.kubeacc.crd.classes import AcceleratorClassSpec, ClassSelector
from ai.backend.kubeacc.crd.objects import Accelerator, AcceleratorClass, AcceleratorPolicy
from ai.backend.kubeacc.crd.policies import AcceleratorPolicySpec, Sharing
from ai.backend.kubeacc.crd.vocabulary import AcceleratorType, Attachment, LifecycleOwner
from ai.backend.node.kube_api.objects import ObjectMeta


def device(*holders: str, **status: Any) -> Accelerator:
    spec = AcceleratorSpec(driver="cuda", device_id="0", type=AcceleratorType.GPU, node_name="n")
    held_by = tuple(Holder(namespace=name, pod="p", uid=str(number)) for number, name in enumerate(holders))
    description = DeviceDescription(vendor="Acme", model="H100-80")
    values = {"device": description, "class_name": "gpu", "holders": held_by, **status}
    return Accelerator(
        metadata=ObjectMeta(name="d", labels={"rack": "7"}), spec=spec, status=AcceleratorStatus(**values)
    )


def acc_class(name: str, priority: int = 0, **selector: Any) -> AcceleratorClass:
    spec = AcceleratorClassSpec(selector=ClassSelector(**selector), priority=priority)
    return AcceleratorClass(metadata=ObjectMeta(name=name), spec=spec)


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        ({}, True),
        ({"types": (AcceleratorType.GPU, AcceleratorType.NPU)}, True),
        ({"types": (AcceleratorType.FPGA,)}, False),
        ({"drivers": ("cuda",), "vendors": ("Acme",)}, True),
        ({"vendors": ("Other",)}, False),
        ({"models": ("H100*",)}, True),
        ({"models": ("H100",)}, False),
        ({"models": ("H100-80",)}, True),
        ({"models": ("[a-z]*",)}, False),
        ({"attachments": (Attachment.REMOTE,)}, False),
        ({"match_labels": {"rack": "7"}}, True),
        ({"match_labels": {"rack": "8"}}, False),
    ],
)
def test_a_class_selects_by_every_part_of_its_selector(selector: dict[str, Any], selects: bool) -> None:
    chosen = class_of(device(), [acc_class("a", **selector)])
    assert (chosen is not None) == selects


def test_the_highest_priority_wins_then_the_first_name() -> None:
    classes = [acc_class("b"), acc_class("a"), acc_class("z", 5), acc_class("y", 9, models=("Other",))]
    chosen = class_of(device(), classes)
    assert chosen is not None
    assert chosen.metadata.name == "z"
    chosen = class_of(device(), classes[:2])
    assert chosen is not None
    assert chosen.metadata.name == "a"


def test_another_device_plugin_takes_a_local_device_from_us() -> None:
    rule = ownership_of(device(device_plugin_resource="nvidia.com/gpu"), acc_class("gpu"))
    assert rule is not None
    assert rule.owner is LifecycleOwner.DEVICE_PLUGIN
    assert ownership_of(device(), None) is None


def policy(sharing: Sharing | None, **spec: Any) -> AcceleratorPolicy:
    return AcceleratorPolicy(metadata=ObjectMeta(name="p"), spec=AcceleratorPolicySpec(sharing=sharing, **spec))


@pytest.mark.parametrize(
    ("rule", "holders", "problem"),
    [
        (policy(None), ("a", "b"), ""),
        (policy(Sharing()), ("a",), ""),
        (policy(Sharing()), ("a", "a"), "1 workloads, and 2"),
        (policy(Sharing(max_workloads_per_device=2)), ("a", "b"), "one namespace at a time, and a, b"),
        (policy(Sharing(max_workloads_per_device=2, exclusive=False)), ("a", "b"), ""),
        (policy(Sharing(), namespaces=("c",)), ("a", "b"), ""),
        (policy(Sharing(), namespaces=("b",)), ("a", "b"), "one namespace"),
        (policy(Sharing(), class_names=("fpga",)), ("a", "b"), ""),
    ],
)
def test_sharing_is_judged_by_the_policies_of_the_class(
    rule: AcceleratorPolicy, holders: tuple[str, ...], problem: str
) -> None:
    found = sharing_violation(device(*holders), [rule])
    assert problem in found
    assert bool(found) == bool(problem)
