"""The custom resource definitions of kube-acc, generated from the types of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import yaml

from ai.backend.kubeacc.crd.accelerators import AcceleratorSpec, AcceleratorStatus
from ai.backend.kubeacc.crd.classes import AcceleratorClassSpec, AcceleratorClassStatus
from ai.backend.kubeacc.crd.fields import Resource, Rule
from ai.backend.kubeacc.crd.operations import AcceleratorOperationSpec, AcceleratorOperationStatus
from ai.backend.kubeacc.crd.policies import AcceleratorPolicySpec, AcceleratorPolicyStatus
from ai.backend.kubeacc.crd.schema import structural_schema
from ai.backend.kubeacc.crd.vocabulary import GROUP, VERSION


class Column(msgspec.Struct, frozen=True):
    """A column of ``kubectl get``. ``priority`` 1 is shown with ``-o wide`` only."""

    name: str
    json_path: str
    type: str = "string"
    priority: int = 0


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A resource of the group ``accelerators.backend.ai``."""

    name: str
    plural: str
    short_name: str
    is_namespaced: bool
    spec: type[Resource]
    status: type[Resource]
    columns: Sequence[Column]
    rules: Sequence[Rule] = ()

    @property
    def definition_name(self) -> str:
        return f"{self.plural}.{GROUP}"


AGE = Column("Age", ".metadata.creationTimestamp", "date")
ACCELERATOR = Kind(
    name="Accelerator",
    plural="accelerators",
    short_name="acc",
    is_namespaced=False,
    spec=AcceleratorSpec,
    status=AcceleratorStatus,
    columns=(
        Column("Type", ".spec.type"),
        Column("Node", ".spec.nodeName"),
        Column("Class", ".status.className"),
        Column("Model", ".status.device.model"),
        Column("Health", ".status.health.state"),
        Column("Attached", ".status.attachState"),
        Column("Held", ".status.held", "boolean"),
        Column("Operation", ".status.operation.name"),
        Column("Driver", ".spec.driver", priority=1),
        Column("Device", ".spec.deviceID", priority=1),
        Column("Power", ".status.powerState", priority=1),
        Column("Program", ".status.program.image", priority=1),
        Column("Managed by", ".status.managedBy", priority=1),
        AGE,
    ),
)
CLASS = Kind(
    name="AcceleratorClass",
    plural="acceleratorclasses",
    short_name="accclass",
    is_namespaced=False,
    spec=AcceleratorClassSpec,
    status=AcceleratorClassStatus,
    columns=(
        Column("Owner", ".spec.lifecycleOwner"),
        Column("Devices", ".status.devices", "integer"),
        Column("Healthy", ".status.healthy", "integer"),
        Column("Held", ".status.held", "integer"),
        Column("Priority", ".spec.priority", "integer", priority=1),
        AGE,
    ),
)
POLICY = Kind(
    name="AcceleratorPolicy",
    plural="acceleratorpolicies",
    short_name="accpolicy",
    is_namespaced=False,
    spec=AcceleratorPolicySpec,
    status=AcceleratorPolicyStatus,
    columns=(
        Column("Operations", ".spec.operations"),
        Column("Classes", ".spec.classNames"),
        Column("Running", ".status.runningOperations", "integer"),
        AGE,
    ),
)
OPERATION = Kind(
    name="AcceleratorOperation",
    plural="acceleratoroperations",
    short_name="accop",
    is_namespaced=True,
    spec=AcceleratorOperationSpec,
    status=AcceleratorOperationStatus,
    columns=(
        Column("Operation", ".spec.operation"),
        Column("Accelerator", ".spec.accelerator"),
        Column("Phase", ".status.phase"),
        Column("Reason", ".status.reason"),
        Column("Attempts", ".status.attempts", "integer"),
        Column("By", ".spec.requestedBy", priority=1),
        Column("Message", ".status.message", priority=1),
        AGE,
    ),
)
KINDS = (CLASS, ACCELERATOR, POLICY, OPERATION)


def definition(kind: Kind) -> dict[str, Any]:
    """Returns the CustomResourceDefinition of a kind."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(kind.spec, with_defaults=True),
            "status": structural_schema(kind.status, with_defaults=False),
        },
        "required": ["spec"],
    }
    columns = [
        {
            "name": column.name,
            "jsonPath": column.json_path,
            "type": column.type,
            **({"priority": column.priority} if column.priority else {}),
        }
        for column in kind.columns
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Without a definition the objects of its kind are gone: an uninstallation leaves it.
        "metadata": {"name": kind.definition_name, "annotations": {"helm.sh/resource-policy": "keep"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if kind.is_namespaced else "Cluster",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": [kind.short_name],
                "categories": ["kube-acc"],
            },
            "conversion": {"strategy": "None"},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": columns,
                    **({"selectableFields": fields} if (fields := _selectable(kind)) else {}),
                }
            ],
        },
    }


def _selectable(kind: Kind) -> list[dict[str, str]]:
    """Returns the fields of a kind that watchers may select objects by.

    A node plugin thus reads only what is about its node.
    """
    paths = {ACCELERATOR.name: [".spec.nodeName"], OPERATION.name: [".status.executor", ".spec.accelerator"]}
    return [{"jsonPath": path} for path in paths.get(kind.name, ())]


def manifests() -> list[dict[str, Any]]:
    """Returns all definitions, in the order in which they are created."""
    return [definition(kind) for kind in KINDS]


def to_yaml(objects: Sequence[dict[str, Any]]) -> str:
    """Returns objects as one YAML file."""
    return yaml.safe_dump_all(objects, sort_keys=False, width=120, allow_unicode=True)


def crds_yaml() -> str:
    """Returns the text of ``deploy/helm/kube-acc/templates/crds.yaml``, which kubectl takes as well."""
    return f"# Written by `python -m tools.docs` from src/ai/backend/kubeacc/crd; do not edit.\n{to_yaml(manifests())}"
