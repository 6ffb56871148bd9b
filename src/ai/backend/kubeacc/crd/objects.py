"""The objects of kube-acc as the client of the API server decodes them."""

from __future__ import annotations

from ai.backend.common.device_operations import OperationVerb
from ai.backend.kubeacc.crd.accelerators import AcceleratorSpec, AcceleratorStatus
from ai.backend.kubeacc.crd.classes import AcceleratorClassSpec, AcceleratorClassStatus
from ai.backend.kubeacc.crd.operations import AcceleratorOperationSpec, AcceleratorOperationStatus
from ai.backend.kubeacc.crd.policies import AcceleratorPolicySpec, AcceleratorPolicyStatus
from ai.backend.kubeacc.crd.vocabulary import GROUP, VERSION, AcceleratorType
from ai.backend.node.kube_api.objects import KubeObject
from ai.backend.node.kube_api.resources import Resource

# A bookmark of a watch has no spec. The server lets no other object be without one.
_NO_DEVICE = AcceleratorSpec(driver="", device_id="", type=AcceleratorType.OTHER)
_NO_OPERATION = AcceleratorOperationSpec(accelerator="", operation=OperationVerb.DIAGNOSE, requested_by="")


class Accelerator(KubeObject, frozen=True, kw_only=True):
    spec: AcceleratorSpec = _NO_DEVICE
    status: AcceleratorStatus = AcceleratorStatus()


class AcceleratorClass(KubeObject, frozen=True, kw_only=True):
    spec: AcceleratorClassSpec = AcceleratorClassSpec()
    status: AcceleratorClassStatus = AcceleratorClassStatus()


class AcceleratorPolicy(KubeObject, frozen=True, kw_only=True):
    spec: AcceleratorPolicySpec = AcceleratorPolicySpec()
    status: AcceleratorPolicyStatus = AcceleratorPolicyStatus()


class AcceleratorOperation(KubeObject, frozen=True, kw_only=True):
    spec: AcceleratorOperationSpec = _NO_OPERATION
    status: AcceleratorOperationStatus = AcceleratorOperationStatus()


ACCELERATORS = Resource(GROUP, VERSION, "accelerators", "Accelerator", Accelerator, False)
CLASSES = Resource(GROUP, VERSION, "acceleratorclasses", "AcceleratorClass", AcceleratorClass, False)
POLICIES = Resource(GROUP, VERSION, "acceleratorpolicies", "AcceleratorPolicy", AcceleratorPolicy, False)
OPERATIONS = Resource(GROUP, VERSION, "acceleratoroperations", "AcceleratorOperation", AcceleratorOperation)
