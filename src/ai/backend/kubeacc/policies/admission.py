"""Generates the ValidatingAdmissionPolicies of kube-acc, by which the API server itself refuses requests, in CEL.

The one of operations is written anew by the controllers whenever an AcceleratorPolicy changes, and by nobody else: an
installation that brought its first state would reset it with each upgrade. It repeats of :mod:`.evaluation` what CEL
can see: it knows the caller for certain, but neither the device's class nor its use. The rule that an operation names
its writer belongs to the installation, because the controllers trust that name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ai.backend.kubeacc.crd.definitions import to_yaml
from ai.backend.kubeacc.crd.operations import AcceleratorOperationStatus
from ai.backend.kubeacc.crd.policies import AcceleratorPolicySpec
from ai.backend.kubeacc.crd.vocabulary import GROUP, OPERATION_FINALIZER, VERSION, SubjectKind
from ai.backend.kubeacc.policies import roles
from ai.backend.kubeacc.policies.evaluation import subject_user_name
from ai.backend.kubeacc.policies.roles import CONTROLLERS_USER, NAMESPACE, NODE_ACCOUNT

OPERATIONS_POLICY = f"kube-acc-operations.{GROUP}"
REQUESTER_POLICY = f"kube-acc-requester.{GROUP}"
FINALIZER_POLICY = f"kube-acc-finalizer.{GROUP}"
NODE_POLICY = f"kube-acc-node.{GROUP}"
MAX_POLICIES = 200
"""The largest number of policies in the admission policy, whose cost the server limits.

The controllers check the others.
"""
_NODE_EXTRA = "authentication.kubernetes.io/node-name"
_API = "admissionregistration.k8s.io/v1"


def requester_policy() -> dict[str, Any]:
    """Returns the admission policy that requires an operation to name its writer, and only groups of its writer."""
    validations = [
        {
            "expression": "object.spec.requestedBy == request.userInfo.username",
            "messageExpression": "'requestedBy must be your own name, ' + request.userInfo.username",
            "reason": "Forbidden",
        },
        {
            "expression": "!has(object.spec.requestedGroups)"
            " || object.spec.requestedGroups.all(g, g in request.userInfo.groups)",
            "message": "requestedGroups may name only groups that you are in",
            "reason": "Forbidden",
        },
    ]
    return _policy(
        REQUESTER_POLICY,
        rules=[_rule(["acceleratoroperations"], ["CREATE"])],
        variables=[],
        validations=validations,
    )


def finalizer_policy() -> dict[str, Any]:
    """Returns the admission policy that keeps an operation until its device is free, whoever deletes it.

    Administrators of accelerators may remove the finalizer where no controllers run any more."""
    has_finalizer = f"(has(%s.metadata.finalizers) && '{OPERATION_FINALIZER}' in %s.metadata.finalizers)"
    validations = [
        {
            "expression": f"!{has_finalizer % ('oldObject', 'oldObject')} || {has_finalizer % ('object', 'object')}"
            f" || request.userInfo.username == '{CONTROLLERS_USER}'"
            f" || authorizer.group('{GROUP}').resource('accelerators').check('delete').allowed()",
            "message": "the finalizer of an operation falls when its device is free: cancel or delete the operation",
            "reason": "Forbidden",
        },
    ]
    return _policy(
        FINALIZER_POLICY,
        rules=[_rule(["acceleratoroperations"], ["UPDATE"])],
        variables=[],
        validations=validations,
    )


def operations_policy(policies: Mapping[str, AcceleratorPolicySpec]) -> dict[str, Any]:
    """Returns the admission policy that refuses operations which no AcceleratorPolicy allows."""
    variables = [
        {"name": f"policy{policy_index}", "expression": _allow_expression(policy)}
        for policy_index, (_, policy) in enumerate(sorted(policies.items()))
    ]
    expression = " || ".join(f"variables.{variable['name']}" for variable in variables) or "false"
    if len(variables) > MAX_POLICIES:
        variables, expression = [], "true"
    validations = [
        {
            "expression": expression,
            "messageExpression": "'no AcceleratorPolicy lets ' + request.userInfo.username + ' '"
            " + object.spec.operation + ' devices from namespace ' + request.namespace"
            " + ' with drain ' + object.spec.drain",
            "reason": "Forbidden",
        }
    ]
    return _policy(
        OPERATIONS_POLICY,
        rules=[_rule(["acceleratoroperations"], ["CREATE"])],
        variables=variables,
        validations=validations,
    )


def _allow_expression(policy: AcceleratorPolicySpec) -> str:
    """Returns a CEL expression that is true for operations that a policy allows, as far as CEL can decide."""
    conditions = [
        f"object.spec.operation in {_literal(policy.operations)}",
        f"object.spec.drain in {_literal(policy.drain_modes)}",
    ]
    if policy.namespaces:
        conditions.append(f"request.namespace in {_literal(policy.namespaces)}")
    conditions += [
        f"(has(namespaceObject.metadata.labels) && {_literal(key)} in namespaceObject.metadata.labels"
        f" && namespaceObject.metadata.labels[{_literal(key)}] == {_literal(value)})"
        for key, value in policy.namespace_labels.items()
    ]
    if policy.subjects:
        users = [subject_user_name(subject) for subject in policy.subjects if subject.kind is not SubjectKind.GROUP]
        groups = [subject.name for subject in policy.subjects if subject.kind is SubjectKind.GROUP]
        # The groups that the operation names, as the controllers see them.
        is_in_group = (
            f"(has(object.spec.requestedGroups) && object.spec.requestedGroups.exists(g, g in {_literal(groups)}))"
        )
        conditions.append(f"(request.userInfo.username in {_literal(users)} || {is_in_group})")
    if policy.require_signature:
        conditions.append("(!has(object.spec.program) || has(object.spec.program.artifact.signature))")
    return " && ".join(conditions)


def _literal(value: str | Iterable[str]) -> str:
    """Returns text, or a list of texts, as a CEL literal. It equals JSON except for escaped surrogate pairs."""
    return json.dumps(value if isinstance(value, str) else list(value), ensure_ascii=False)


def node_policy() -> dict[str, Any]:
    """Returns the admission policy that lets a node plugin write only objects of its own node and its own reports.

    The name of the node comes from the claim in the plugin's token, so a node cannot write in the name of another."""
    node = "variables.node"
    unchanged_fields = [
        f"(has(object.status.{name}) == has(oldObject.status.{name})"
        f" && (!has(object.status.{name}) || object.status.{name} == oldObject.status.{name}))"
        for name in AcceleratorOperationStatus.__struct_encode_fields__
        if name != "report"
    ]
    is_about_node = (
        "!(request.resource.resource in ['accelerators', 'resourceslices'])"
        f" || (has(%s.spec.nodeName) && %s.spec.nodeName == {node})"
    )
    slice_condition = {**_rule(["resourceslices"], ["CREATE", "UPDATE", "DELETE"]), "apiGroups": ["resource.k8s.io"]}
    return _policy(
        NODE_POLICY,
        rules=[
            _rule(["accelerators", "accelerators/status"], ["CREATE", "UPDATE", "DELETE"]),
            _rule(["acceleratoroperations", "acceleratoroperations/status"], ["CREATE", "UPDATE", "DELETE"]),
            {**slice_condition, "apiVersions": ["*"]},
        ],
        match_conditions=[
            {
                "name": "is-node-plugin",
                "expression": f"request.userInfo.username == 'system:serviceaccount:{NAMESPACE}:{NODE_ACCOUNT}'",
            }
        ],
        variables=[
            {
                "name": "node",
                "expression": f"has(request.userInfo.extra) && '{_NODE_EXTRA}' in request.userInfo.extra"
                f" ? request.userInfo.extra['{_NODE_EXTRA}'][0] : ''",
            }
        ],
        validations=[
            {
                "expression": f"{node} != ''",
                "message": "a node plugin needs a token that is bound to its node",
                "reason": "Forbidden",
            },
            {
                "expression": "object == null || " + is_about_node % ("object", "object"),
                "message": "a node plugin writes accelerators and slices of its own node only",
                "reason": "Forbidden",
            },
            {
                "expression": "oldObject == null || " + is_about_node % ("oldObject", "oldObject"),
                "message": "a node plugin writes accelerators and slices of its own node only",
                "reason": "Forbidden",
            },
            {
                "expression": "request.resource.resource != 'acceleratoroperations' || (request.operation == 'UPDATE'"
                " && has(oldObject.status) && has(oldObject.status.executor)"
                f" && oldObject.status.executor == 'node/' + {node} && object.spec == oldObject.spec && "
                + " && ".join(unchanged_fields)
                + ")",
                "message": "a node plugin writes nothing but the report of an operation that its node executes",
                "reason": "Forbidden",
            },
        ],
    )


def _rule(resources: list[str], operations: list[str]) -> dict[str, Any]:
    return {"apiGroups": [GROUP], "apiVersions": [VERSION], "operations": operations, "resources": resources}


def _policy(
    name: str,
    *,
    rules: list[dict[str, Any]],
    validations: list[dict[str, str]],
    variables: list[dict[str, str]],
    match_conditions: list[dict[str, str]] | None = None,
) -> dict[str, Any]:
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": rules},
            **({"matchConditions": match_conditions} if match_conditions else {}),
            **({"variables": variables} if variables else {}),
            "validations": validations,
        },
    }


def binding(name: str) -> dict[str, Any]:
    """Returns the object that activates an admission policy in the whole cluster."""
    return {
        "apiVersion": _API,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }


def manifests() -> list[dict[str, Any]]:
    """Returns the admission policies of an installation. The controllers add the policy of operations."""
    policies = {
        REQUESTER_POLICY: requester_policy(),
        FINALIZER_POLICY: finalizer_policy(),
        NODE_POLICY: node_policy(),
    }
    return [manifest for name, policy in policies.items() for manifest in (policy, binding(name))]


def access_yaml() -> str:
    """Returns namespace, roles and admission policies, for kubectl apply --server-side -f -."""
    return to_yaml([roles.namespace(), *roles.manifests(), *manifests()])


def chart_access_yaml() -> str:
    """Returns the text of ``deploy/helm/kube-acc/templates/access.yaml``: Helm makes the namespace."""
    objects = to_yaml([*roles.manifests(), *manifests()])
    return f"# Written by `python -m tools.docs` from src/ai/backend/kubeacc/policies; do not edit.\n{objects}"
