"""Defines the roles of kube-acc as data: who may do what with which resource, as RBAC objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ai.backend.kubeacc.crd.vocabulary import GROUP

NAMESPACE = "kube-acc"
CONTROLLERS_ACCOUNT = "kube-acc-controllers"
NODE_ACCOUNT = "kube-acc-node"
CONTROLLERS_USER = f"system:serviceaccount:{NAMESPACE}:{CONTROLLERS_ACCOUNT}"
"""Asks for the attachment of devices that the scheduler has chosen; policies name it to allow that."""

_READ = ("get", "list", "watch")
_RESOURCES = ("acceleratorclasses", "accelerators", "acceleratorpolicies", "acceleratoroperations")
Grants = Mapping[tuple[str, str], tuple[str, ...]]
"""(API group, resource) -> verbs."""

VIEWER: Grants = {(GROUP, resource): _READ for resource in _RESOURCES}
OPERATOR: Grants = {
    **VIEWER,
    (GROUP, "acceleratoroperations"): (*_READ, "create", "patch", "update", "delete"),
}
ADMINISTRATOR: Grants = {
    **OPERATOR,
    (GROUP, "accelerators"): (*_READ, "patch", "update", "delete"),
    (GROUP, "acceleratorclasses"): (*_READ, "create", "patch", "update", "delete"),
    (GROUP, "acceleratorpolicies"): (*_READ, "create", "patch", "update", "delete"),
}
CONTROLLERS: Grants = {
    **VIEWER,
    (GROUP, "acceleratorclasses/status"): ("get", "patch"),
    (GROUP, "acceleratorpolicies/status"): ("get", "patch"),
    (GROUP, "accelerators"): (*_READ, "create", "patch", "delete"),
    (GROUP, "accelerators/status"): ("get", "patch"),
    (GROUP, "acceleratoroperations"): (*_READ, "create", "patch", "delete"),
    (GROUP, "acceleratoroperations/status"): ("get", "patch"),
    ("resource.k8s.io", "resourceclaims"): _READ,
    ("resource.k8s.io", "resourceclaims/status"): ("get", "patch"),
    ("resource.k8s.io", "resourceclaims/driver"): ("arbitrary-node:patch",),
    ("", "namespaces"): _READ,
    ("", "nodes"): _READ,
    ("", "pods"): (*_READ, "patch"),
    ("", "pods/eviction"): ("create",),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies"): ("get", "create", "patch"),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"): ("get", "create", "patch"),
}
NODE: Grants = {
    (GROUP, "acceleratorclasses"): _READ,
    (GROUP, "accelerators"): (*_READ, "create", "patch", "delete"),
    (GROUP, "accelerators/status"): ("get", "patch"),
    (GROUP, "acceleratoroperations"): _READ,
    (GROUP, "acceleratoroperations/status"): ("get", "patch"),
    ("resource.k8s.io", "resourceslices"): (*_READ, "create", "update", "patch", "delete"),
    ("resource.k8s.io", "resourceclaims"): ("get",),
    ("", "nodes"): ("get",),
}
"""The plugin's own node only: see :func:`.admission.node_policy`."""
ROLES: Mapping[str, tuple[Grants, Mapping[str, str]]] = {
    "kube-acc-viewer": (VIEWER, {"rbac.authorization.k8s.io/aggregate-to-view": "true"}),
    "kube-acc-operator": (OPERATOR, {}),
    "kube-acc-administrator": (ADMINISTRATOR, {}),
    CONTROLLERS_ACCOUNT: (CONTROLLERS, {}),
    NODE_ACCOUNT: (NODE, {}),
}
"""Role -> what it grants, and the labels by which roles of the cluster take it in."""


def role(name: str) -> dict[str, Any]:
    """Returns the ClusterRole of kube-acc with the given name.

    Bind ``kube-acc-operator`` in a namespace, the others in the cluster.
    """
    grants, labels = ROLES[name]
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, **({"labels": dict(labels)} if labels else {})},
        "rules": [
            {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
            for (group, resource), verbs in grants.items()
        ],
    }


def _binding(account: str) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": account},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}],
    }


def _lease_role() -> list[dict[str, Any]]:
    """Returns the role by which controllers elect a leader, in their own namespace only."""
    metadata = {"name": f"{CONTROLLERS_ACCOUNT}-lease", "namespace": NAMESPACE}
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update", "patch"]}
    ]
    subjects = [{"kind": "ServiceAccount", "name": CONTROLLERS_ACCOUNT, "namespace": NAMESPACE}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": metadata["name"]}
    version = "rbac.authorization.k8s.io/v1"
    return [
        {"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": rules},
        {
            "apiVersion": version,
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": reference,
            "subjects": subjects,
        },
    ]


def namespace() -> dict[str, Any]:
    """Returns the Namespace object of kube-acc.

    Its name is fixed: the admission policies name the account of node plugins.
    """
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}


def manifests() -> list[dict[str, Any]]:
    """Returns the accounts, roles and bindings of kube-acc. Their namespace must exist."""
    accounts = (CONTROLLERS_ACCOUNT, NODE_ACCOUNT)
    return [
        *(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": NAMESPACE}}
            for name in accounts
        ),
        *(role(name) for name in ROLES),
        *(_binding(name) for name in accounts),
        *_lease_role(),
    ]
