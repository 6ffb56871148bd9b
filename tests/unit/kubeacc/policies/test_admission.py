"""The expressions of the admission policy."""

from __future__ import annotations

from ai.backend.common.device_operations import OperationVerb as V
from ai.backend.kubeacc.crd.policies import AcceleratorPolicySpec, PolicySubject
from ai.backend.kubeacc.crd.vocabulary import SubjectKind
from ai.backend.kubeacc.policies.admission import (
    MAX_POLICIES,
    OPERATIONS_POLICY,
    REQUESTER_POLICY,
    manifests,
    operations_policy,
)

RESET = AcceleratorPolicySpec(operations=(V.RESET,))


def test_a_policy_becomes_an_expression_of_everything_that_cel_can_see() -> None:
    policy = AcceleratorPolicySpec(
        operations=(V.RESET, V.PROGRAM),
        namespaces=("lab",),
        namespace_labels={"team": "a"},
        subjects=(
            PolicySubject(kind=SubjectKind.USER, name="alice"),
            PolicySubject(kind=SubjectKind.GROUP, name="ops"),
        ),
        require_signature=True,
    )
    (variable,) = operations_policy({"p": policy})["spec"]["variables"]
    assert variable["expression"].split(" && ") == [
        'object.spec.operation in ["Reset", "Program"]',
        'object.spec.drain in ["Refuse", "Wait"]',
        'request.namespace in ["lab"]',
        "(has(namespaceObject.metadata.labels)",
        '"team" in namespaceObject.metadata.labels',
        'namespaceObject.metadata.labels["team"] == "a")',
        '(request.userInfo.username in ["alice"] || (has(object.spec.requestedGroups)',
        'object.spec.requestedGroups.exists(g, g in ["ops"])))',
        "(!has(object.spec.program) || has(object.spec.program.artifact.signature))",
    ]


def test_names_cannot_leave_their_literal() -> None:
    name = 'x"] || true || "\\\n'
    policy = AcceleratorPolicySpec(subjects=(PolicySubject(kind=SubjectKind.USER, name=name),))
    (variable,) = operations_policy({"p": policy})["spec"]["variables"]
    assert '["x\\"] || true || \\"\\\\\\n"]' in variable["expression"]


def test_without_a_policy_everything_is_refused() -> None:
    assert operations_policy({})["spec"]["validations"][-1]["expression"] == "false"
    two = operations_policy({"b": RESET, "a": RESET})["spec"]
    assert two["validations"][-1]["expression"] == "variables.policy0 || variables.policy1"


def test_too_many_policies_are_left_to_the_controllers() -> None:
    many = operations_policy({str(number): RESET for number in range(MAX_POLICIES + 1)})["spec"]
    assert "variables" not in many
    assert many["validations"][-1]["expression"] == "true"


def test_an_installation_brings_no_policy_that_the_controllers_write() -> None:
    """An upgrade would reset it, and what it had allowed would be refused."""
    assert OPERATIONS_POLICY not in {obj["metadata"]["name"] for obj in manifests()}
    assert REQUESTER_POLICY in {obj["metadata"]["name"] for obj in manifests()}


def test_every_policy_is_bound() -> None:
    policies = {obj["metadata"]["name"] for obj in manifests() if obj["kind"] == "ValidatingAdmissionPolicy"}
    bound = {obj["spec"]["policyName"] for obj in manifests() if obj["kind"].endswith("Binding")}
    assert policies == bound
