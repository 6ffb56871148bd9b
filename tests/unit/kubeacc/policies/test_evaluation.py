"""Policies: who may do what, and when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ai.backend.common.device_operations import OperationVerb as V
from ai.backend.common.structs import replace
from ai.backend.kubeacc.crd.operations import AcceleratorOperationSpec, Artifact, PowerParameters, ProgramParameters
from ai.backend.kubeacc.crd.policies import AcceleratorPolicySpec, MaintenanceWindow, PolicySubject, Quota
from ai.backend.kubeacc.crd.vocabulary import DrainMode, PowerState, SubjectKind
from ai.backend.kubeacc.policies.evaluation import Decision, OperationContext, Usage, evaluate, next_opening

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)  # a Monday
POWER = AcceleratorOperationSpec(
    accelerator="a", operation=V.POWER, requested_by="alice", power=PowerParameters(state=PowerState.OFF)
)
ALL = AcceleratorPolicySpec(operations=tuple(V), drain_modes=tuple(DrainMode))
SERVICE = PolicySubject(kind=SubjectKind.SERVICE_ACCOUNT, name="robot", namespace="ci")


def decide(spec: AcceleratorOperationSpec = POWER, usage: Usage | None = None, **policy: Any) -> Decision:
    context = OperationContext(
        spec=spec,
        namespace="lab",
        namespace_labels={"team": "vision"},
        class_name="fpga",
        now=NOW,
        usage={"p": usage or Usage()},
    )
    return evaluate({"p": replace(ALL, **policy)}, context)


def test_what_no_policy_allows_is_refused() -> None:
    context = OperationContext(spec=POWER, namespace="lab", namespace_labels={}, class_name=None, now=NOW)
    assert (evaluate({}, context).is_allowed, evaluate({}, context).reason) == (False, "NoPolicy")
    assert evaluate({"p": ALL}, context).policy == "p"


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"class_names": ("gpu",)}, "ClassNotAllowed"),
        ({"class_names": ("gpu", "fpga")}, None),
        ({"namespaces": ("other",)}, "NamespaceNotAllowed"),
        ({"namespaces": ("lab",), "namespace_labels": {"team": "vision"}}, None),
        ({"namespace_labels": {"team": "audio"}}, "NamespaceNotAllowed"),
        ({"subjects": (PolicySubject(kind=SubjectKind.USER, name="bob"),)}, "SubjectNotAllowed"),
        ({"subjects": (SERVICE,)}, "SubjectNotAllowed"),
        ({"subjects": (SERVICE, PolicySubject(kind=SubjectKind.USER, name="alice"))}, None),
        ({"subjects": (PolicySubject(kind=SubjectKind.GROUP, name="alice"),)}, "SubjectNotAllowed"),
        ({"operations": (V.RESET, V.DIAGNOSE)}, "OperationNotAllowed"),
        ({"drain_modes": (DrainMode.WAIT,)}, "DrainNotAllowed"),
    ],
)
def test_each_part_of_a_policy(policy: dict[str, Any], reason: str | None) -> None:
    decision = decide(**policy)
    assert decision.is_allowed == (reason is None)
    assert decision.reason == (reason or "PolicyAllows")
    assert not decision.must_wait


def test_groups_and_service_accounts_are_subjects() -> None:
    spec = replace(POWER, requested_by="system:serviceaccount:ci:robot", requested_groups=("ops",))
    assert decide(spec, subjects=(SERVICE,)).is_allowed
    assert decide(spec, subjects=(PolicySubject(kind=SubjectKind.GROUP, name="ops"),)).is_allowed


def test_images_are_signed_where_it_is_required() -> None:
    artifact = Artifact(uri="https://images/a", sha256="0" * 64)
    spec = replace(POWER, operation=V.PROGRAM, program=ProgramParameters(artifact=artifact), power=None)
    assert decide(spec).is_allowed
    assert decide(spec, require_signature=True).reason == "SignatureRequired"
    signed = replace(artifact, signature="AAAA", signer="lab")
    decision = decide(replace(spec, program=ProgramParameters(artifact=signed)), require_signature=True)
    assert (decision.is_allowed, decision.needs_signature) == (True, True)


@pytest.mark.parametrize(
    ("quota", "usage", "verb", "message"),
    [
        (Quota(concurrent_operations=1), Usage(concurrent_operations=1), V.POWER, "1 operations at a time"),
        (Quota(operations_per_hour=2), Usage(operations_last_hour=2), V.POWER, "2 operations an hour"),
        (Quota(attached_devices=0), Usage(), V.ATTACH, "0 attached devices"),
        (Quota(attached_devices=0), Usage(attached_devices=5), V.POWER, None),
        (Quota(concurrent_operations=2), Usage(concurrent_operations=1), V.POWER, None),
    ],
)
def test_a_full_quota_lets_wait(quota: Quota, usage: Usage, verb: V, message: str | None) -> None:
    decision = decide(replace(POWER, operation=verb), usage, quota=quota)
    assert decision.is_allowed == (message is None)
    assert decision.must_wait == (message is not None)
    assert (message or "allows the operation") in decision.message


def test_outside_of_the_windows_an_operation_waits_for_the_next_one() -> None:
    decision = decide(maintenance_windows=(MaintenanceWindow(days=(6,), start="22:00", duration_minutes=60),))
    assert (decision.reason, decision.must_wait) == ("OutsideMaintenanceWindow", True)
    assert decision.retry_at == datetime(2026, 11, 28, 22, 0, tzinfo=UTC)


def test_the_first_policy_that_allows_counts_and_refusals_name_the_nearest() -> None:
    context = OperationContext(
        spec=POWER, namespace="lab", namespace_labels={}, class_name=None, now=NOW, usage={"a": Usage()}
    )
    other_class = replace(ALL, class_names=("gpu",))
    reset_only = replace(ALL, operations=(V.RESET,))
    assert evaluate({"a": other_class, "b": reset_only}, context).reason == "OperationNotAllowed"
    assert evaluate({"a": other_class, "b": reset_only, "c": ALL}, context).policy == "c"
    closed = MaintenanceWindow(days=(7,), start="01:00", duration_minutes=5)
    waiting = replace(ALL, maintenance_windows=(closed,))
    assert evaluate({"b": reset_only, "z": waiting}, context).must_wait


@pytest.mark.parametrize(
    ("days", "start", "minutes", "opening"),
    [
        ((), "11:00", 120, NOW),
        ((), "12:00", 1, NOW),
        ((), "11:00", 60, NOW + timedelta(hours=23)),
        ((), "13:00", 1, NOW + timedelta(hours=1)),
        ((1,), "11:00", 60, NOW + timedelta(days=7, hours=-1)),
        ((7,), "23:00", 14 * 60, NOW),
        ((7,), "23:00", 13 * 60, NOW + timedelta(days=6, hours=11)),
        ((2,), "00:00", 5, NOW + timedelta(hours=12)),
    ],
)
def test_windows_open_by_day_and_time(days: tuple[int, ...], start: str, minutes: int, opening: datetime) -> None:
    window = MaintenanceWindow(days=days, start=start, duration_minutes=minutes)
    assert next_opening((window,), NOW) == opening
    assert next_opening((), NOW) is None
