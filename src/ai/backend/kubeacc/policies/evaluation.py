"""Decides if the policies allow an operation now, later or never.

Admission asks a part of it before (see :mod:`.admission`); the controllers ask all of it, and again when the operation
begins. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from ai.backend.common.device_operations import OperationVerb
from ai.backend.kubeacc.crd.operations import AcceleratorOperationSpec
from ai.backend.kubeacc.crd.policies import AcceleratorPolicySpec, MaintenanceWindow, PolicySubject
from ai.backend.kubeacc.crd.vocabulary import SubjectKind


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts how much a namespace uses of the limits of a policy.

    Counted are attached remote devices, operations that hold a device, and operations of the last hour. Only classes
    and subjects of the policy count.
    """

    attached_devices: int = 0
    concurrent_operations: int = 0
    operations_last_hour: int = 0


class OperationContext(msgspec.Struct, frozen=True, kw_only=True):
    """Holds all facts about an operation that the policies evaluate. ``usage`` maps the name of a policy to its use."""

    spec: AcceleratorOperationSpec
    namespace: str
    namespace_labels: Mapping[str, str]
    class_name: str | None
    now: datetime
    usage: Mapping[str, Usage] = msgspec.field(default_factory=dict)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the decision of the policies about an operation, with its reason.

    ``is_allowed`` False with ``retry_at`` or ``must_wait``: not now, but maybe later.
    ``policy`` is the policy that allows the operation, ``may_run_while_held`` one of its rules.
    """

    is_allowed: bool
    reason: str
    message: str
    policy: str | None = None
    may_run_while_held: bool = False
    needs_signature: bool = False
    cost_per_hour: str | None = None
    must_wait: bool = False
    retry_at: datetime | None = None


def evaluate(policies: Mapping[str, AcceleratorPolicySpec], context: OperationContext) -> Decision:
    """Decides by the first policy, in the order of names, that allows the operation now.

    Without one, the nearest refusal decides: a policy that lets the operation wait, then a policy that is about the
    caller.
    """
    refusals: list[tuple[int, Decision]] = []
    for name, policy in sorted(policies.items()):
        decision, distance = _evaluate_one(name, policy, context)
        if decision.is_allowed:
            return decision
        refusals.append((distance, decision))
    if not refusals:
        return Decision(
            is_allowed=False, reason="NoPolicy", message="there is no AcceleratorPolicy, so nothing is allowed"
        )
    return min(refusals, key=lambda refusal: refusal[0])[1]


def _evaluate_one(name: str, policy: AcceleratorPolicySpec, context: OperationContext) -> tuple[Decision, int]:
    """Returns the decision of one policy about an operation, and how far the policy is from allowing the operation."""
    spec = context.spec

    def refuse(reason: str, message: str, *, waits: bool = False, retry_at: datetime | None = None) -> Decision:
        return Decision(
            is_allowed=False, reason=reason, message=message, policy=name, must_wait=waits, retry_at=retry_at
        )

    if policy.class_names and context.class_name not in policy.class_names:
        class_description = f"class {context.class_name}" if context.class_name else "devices without a class"
        return refuse("ClassNotAllowed", f"no policy is about {class_description}"), 9
    if not _is_about_namespace(policy, context):
        return refuse("NamespaceNotAllowed", f"no policy lets the namespace {context.namespace} operate the device"), 8
    if policy.subjects and not any(_is_subject(subject, spec) for subject in policy.subjects):
        return refuse("SubjectNotAllowed", f"no policy lets {spec.requested_by} operate the device"), 7
    if spec.operation not in policy.operations:
        allowed_operations = ", ".join(policy.operations) or "nothing"
        return refuse("OperationNotAllowed", f"the policy {name} allows {allowed_operations}, not {spec.operation}"), 6
    if spec.drain not in policy.drain_modes:
        allowed_modes = ", ".join(policy.drain_modes) or "none"
        return refuse(
            "DrainNotAllowed", f"the policy {name} allows the drain modes {allowed_modes}, not {spec.drain}"
        ), 5
    if _needs_signature(policy, spec):
        return refuse("SignatureRequired", f"the policy {name} requires images to be signed"), 4
    if (limit := _exceeded_quota(policy, context.usage.get(name, Usage()), spec.operation)) is not None:
        return refuse("QuotaExceeded", f"the policy {name} allows {limit} in {context.namespace}", waits=True), 3
    if (opens_at := next_opening(policy.maintenance_windows, context.now)) is not None and opens_at > context.now:
        message = f"the next maintenance window of the policy {name} opens at {opens_at.isoformat()}"
        return refuse("OutsideMaintenanceWindow", message, waits=True, retry_at=opens_at), 2
    return (
        Decision(
            is_allowed=True,
            reason="PolicyAllows",
            message=f"the policy {name} allows the operation",
            policy=name,
            may_run_while_held=spec.operation in policy.operate_while_held,
            needs_signature=policy.require_signature,
            cost_per_hour=policy.cost_per_hour,
        ),
        0,
    )


def _is_about_namespace(policy: AcceleratorPolicySpec, context: OperationContext) -> bool:
    labels = context.namespace_labels
    return (not policy.namespaces or context.namespace in policy.namespaces) and all(
        labels.get(key) == value for key, value in policy.namespace_labels.items()
    )


def _is_subject(subject: PolicySubject, spec: AcceleratorOperationSpec) -> bool:
    if subject.kind is SubjectKind.GROUP:
        return subject.name in spec.requested_groups
    return subject_user_name(subject) == spec.requested_by


def subject_user_name(subject: PolicySubject) -> str:
    """Returns the user name by which the API server knows a subject. The subject must not be a group."""
    if subject.kind is SubjectKind.SERVICE_ACCOUNT:
        return f"system:serviceaccount:{subject.namespace}:{subject.name}"
    return subject.name


def _needs_signature(policy: AcceleratorPolicySpec, spec: AcceleratorOperationSpec) -> bool:
    return policy.require_signature and spec.program is not None and spec.program.artifact.signature is None


def _exceeded_quota(policy: AcceleratorPolicySpec, usage: Usage, verb: OperationVerb) -> str | None:
    """Returns a text that states the limit of a policy's quota that one more operation would exceed.

    Returns None if there is room.
    """
    quota = policy.quota
    if quota is None:
        return None
    if quota.concurrent_operations is not None and usage.concurrent_operations >= quota.concurrent_operations:
        return f"{quota.concurrent_operations} operations at a time"
    if quota.operations_per_hour is not None and usage.operations_last_hour >= quota.operations_per_hour:
        return f"{quota.operations_per_hour} operations an hour"
    if (
        verb is OperationVerb.ATTACH
        and quota.attached_devices is not None
        and usage.attached_devices >= quota.attached_devices
    ):
        return f"{quota.attached_devices} attached devices"
    return None


def next_opening(windows: Iterable[MaintenanceWindow], now: datetime) -> datetime | None:
    """Returns when the next time window is open.

    Returns ``now`` inside a window, and None if there are no windows. In UTC.
    """
    utc = now.astimezone(UTC)
    openings = [_opening(window, utc) for window in windows]
    return min(openings, default=None)


def _opening(window: MaintenanceWindow, now: datetime) -> datetime:
    hour, _, minute = window.start.partition(":")
    today = now.replace(hour=int(hour), minute=int(minute), second=0, microsecond=0)
    window_length = timedelta(minutes=window.duration_minutes)
    # A window may begin yesterday and reach into today.
    start_times = [today + timedelta(days=day_offset) for day_offset in range(-1, 8)]
    start_times = [
        start_time for start_time in start_times if not window.days or start_time.isoweekday() in window.days
    ]
    return next(max(start_time, now) for start_time in start_times if start_time + window_length > now)
