"""``AcceleratorPolicy``: who may do what on which devices (spec 02, policy enforcement)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from ai.backend.common.device_operations import OperationVerb
from ai.backend.kubeacc.crd.fields import Conditions, Count, Decimal, ObjectName, Resource, Rule, Time, Uid
from ai.backend.kubeacc.crd.vocabulary import LIST_ATOMIC, LIST_SET, DrainMode, Labels, NameSet, SubjectKind, VerbSet


class PolicySubject(Resource, frozen=True, kw_only=True):
    __rules__: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.kind != 'ServiceAccount' || has(self.namespace)",
            message="a ServiceAccount has a namespace",
        ),
    )

    kind: SubjectKind
    name: Annotated[str, Meta(min_length=1, max_length=253)]
    namespace: ObjectName | None = None


class Quota(Resource, frozen=True, kw_only=True):
    """The limits of a policy for all of its subjects together, in each namespace; a missing limit is no limit."""

    attached_devices: Count | None = None
    concurrent_operations: Count | None = None
    operations_per_hour: Count | None = None


class Sharing(Resource, frozen=True, kw_only=True):
    """Limits the workloads that may hold a device together. ``exclusive``: workloads of one namespace at a time."""

    max_workloads_per_device: Annotated[int, Meta(ge=1, le=1024)] = 1
    exclusive: bool = True


class MaintenanceWindow(Resource, frozen=True, kw_only=True):
    """A time of the week, in UTC. Operations begin only inside of a window if a policy has any."""

    days: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=7)], ...],
        Meta(
            max_length=7,
            description="Days of the week, Monday is 1; without any, every day.",
            extra_json_schema=LIST_SET,
        ),
    ] = ()
    start: Annotated[str, Meta(max_length=5, pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    duration_minutes: Annotated[int, Meta(ge=1, le=1440)]


class AcceleratorPolicySpec(Resource, frozen=True, kw_only=True):
    """Permits operations of subjects on devices, with limits. An operation that no policy permits is refused."""

    class_names: Annotated[NameSet, Meta(description="The classes that the policy is about; without any, all.")] = ()
    namespaces: Annotated[NameSet, Meta(description="Where operations may be asked for; without any, everywhere.")] = ()
    namespace_labels: Annotated[Labels, Meta(description="Labels that the namespace must have.")] = field(
        default_factory=dict
    )
    subjects: Annotated[
        tuple[PolicySubject, ...],
        Meta(
            max_length=64,
            description="Who may ask; without any, everybody whom RBAC lets.",
            extra_json_schema=LIST_ATOMIC,
        ),
    ] = ()
    operations: Annotated[VerbSet, Meta(description="The operations that are allowed.")] = ()
    drain_modes: Annotated[
        tuple[DrainMode, ...],
        Meta(
            max_length=3, description="What may happen to workloads that hold the device.", extra_json_schema=LIST_SET
        ),
    ] = (DrainMode.REFUSE, DrainMode.WAIT)
    operate_while_held: Annotated[
        VerbSet, Meta(description="Operations that may run while a workload holds the device.")
    ] = (OperationVerb.DIAGNOSE,)
    require_signature: Annotated[
        bool, Meta(description="True: images need the signature of a signer of the class.")
    ] = False
    quota: Quota | None = None
    sharing: Sharing | None = None
    maintenance_windows: Annotated[
        tuple[MaintenanceWindow, ...], Meta(max_length=16, extra_json_schema=LIST_ATOMIC)
    ] = ()
    cost_per_hour: (
        Annotated[Decimal, Meta(description="The price of holding a device for an hour, in the unit of the site.")]
        | None
    ) = None


MAX_RECENT = 2000
"""So many operations of the last hour are noted, in all namespaces; more than these wait."""


class RecentOperation(Resource, frozen=True, kw_only=True):
    namespace: ObjectName
    uid: Uid
    start_time: Time


class AcceleratorPolicyStatus(Resource, frozen=True, kw_only=True):
    """The present use of a policy: running operations, and operations of the last hour that count for the quota.

    ``recentOperations`` outlives the operations: who deletes what has ended gets no more than the quota.
    """

    observed_generation: Annotated[int, Meta(ge=0)] = 0
    running_operations: Count = 0
    recent_operations: Annotated[
        tuple[RecentOperation, ...],
        Meta(
            max_length=MAX_RECENT,
            description="The operations that the policy let begin within the last hour, if its quota counts them.",
            extra_json_schema=LIST_ATOMIC,
        ),
    ] = ()
    conditions: Conditions = ()
