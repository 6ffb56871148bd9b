"""``AcceleratorOperation``: one operation on one device, its orders and reports (spec 02, life cycle management).

The controllers decide, an executor acts. The executor ``status.executor`` (``node/NAME``: the plugin of a node) reads
``status.order`` and acts once on each new ``sequence``: it applies ``status.report`` with the same sequence and without
an outcome when it begins, and with the outcome at the end. ``rollback`` tells it to undo what ``result`` describes;
``abort`` (with the sequence that is running) to stop and report ``Aborted``. After a restart it reports what it finds:
an order that it has begun and cannot prove done is repeated, so every action must be safe to repeat."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from ai.backend.common.device_operations import OperationPhase, OperationVerb
from ai.backend.kubeacc.crd.accelerators import Program
from ai.backend.kubeacc.crd.fields import (
    Conditions,
    Count,
    Decimal,
    Label,
    LongWord,
    ObjectName,
    Properties,
    Reason,
    Resource,
    Rule,
    Seconds,
    Sha256,
    Text,
    Time,
    Uid,
    Word,
    immutable,
)
from ai.backend.kubeacc.crd.vocabulary import LIST_SET, DrainMode, Outcome, PartitionAction, PowerState, RollbackState


class PodReference(Resource, frozen=True, kw_only=True):
    name: ObjectName
    uid: Uid


class AttachParameters(Resource, frozen=True, kw_only=True):
    """The node to which a device is attached, and a pod of the operation's namespace that waits for the device.

    The scheduling gate of the pod ``gatedPod`` falls when the device is attached.
    """

    node_name: ObjectName
    gated_pod: PodReference | None = None


class Artifact(Resource, frozen=True, kw_only=True):
    """An image for a device. The executor takes it only with the right digest, and signature where one is needed."""

    __rules__: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.signature) == has(self.signer)",
            message="signature and signer are given together",
        ),
    )

    uri: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=2048,
            pattern=r"^(https://|oci://|file:///|glance:)[^\s]+$",
            description="Where the image is: https, oci, a file of the node (file:///), or an id of Glance.",
        ),
    ]
    sha256: Sha256
    signature: (
        Annotated[str, Meta(max_length=1024, description="Base64 of the signature over the 32 bytes of the digest.")]
        | None
    ) = None
    signer: Label | None = None


class ProgramParameters(Resource, frozen=True, kw_only=True):
    artifact: Artifact


class PowerParameters(Resource, frozen=True, kw_only=True):
    state: Annotated[PowerState, Meta(extra_json_schema={"enum": ["On", "Off"]})]


class PartitionParameters(Resource, frozen=True, kw_only=True):
    __rules__: ClassVar[tuple[Rule, ...]] = (
        Rule(rule="(self.action == 'Create') == has(self.profile)", message="Create needs a profile, Destroy has none"),
    )

    action: PartitionAction
    profile: Word | None = None


class AcceleratorOperationSpec(Resource, frozen=True, kw_only=True):
    """Asks for one operation on one device. Only ``cancel`` can be changed later, and only to true."""

    __rules__: ClassVar[tuple[Rule, ...]] = (
        *immutable(
            *(
                "accelerator",
                "operation",
                "requestedBy",
                "requestedGroups",
                "attach",
                "program",
                "power",
                "partition",
                "drain",
            ),
            *("deadlineSeconds", "retryLimit"),
        ),
        *(
            Rule(
                rule=f"(self.operation == '{verb}') == has(self.{verb.lower()})",
                message=f"operation {verb} needs {verb.lower()}, and no other operation has it",
            )
            for verb in (OperationVerb.ATTACH, OperationVerb.PROGRAM, OperationVerb.POWER, OperationVerb.PARTITION)
        ),
        Rule(rule="self.cancel || !oldSelf.cancel", message="a cancelled operation stays cancelled"),
    )

    accelerator: Annotated[ObjectName, Meta(description="The Accelerator to operate on.")]
    operation: OperationVerb
    requested_by: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=253,
            description="The name of the user who asks; admission compares it with the writer.",
        ),
    ]
    requested_groups: Annotated[
        tuple[Word, ...],
        Meta(
            max_length=64, description="Groups of that user, for policies that name groups.", extra_json_schema=LIST_SET
        ),
    ] = ()
    attach: AttachParameters | None = None
    program: ProgramParameters | None = None
    power: PowerParameters | None = None
    partition: PartitionParameters | None = None
    drain: DrainMode = DrainMode.REFUSE
    deadline_seconds: (
        Annotated[Seconds, Meta(description="From the creation to the end, without the rollback.")] | None
    ) = None
    retry_limit: Annotated[int, Meta(ge=0, le=100)] | None = None
    ttl_seconds_after_finished: Annotated[int, Meta(ge=0, le=30 * 86_400)] = 86_400
    cancel: Annotated[bool, Meta(description="True: stop, and undo what was done.")] = False


class Order(Resource, frozen=True, kw_only=True):
    """Orders the next action of the executor, which acts on each ``sequence`` once, and reports it."""

    sequence: Count
    issued_at: Time | None = None
    rollback: bool = False
    abort: bool = False
    previous_program: Program | None = None
    previous_power: PowerState | None = None
    result: Annotated[Properties, Meta(description="What the attempt that is to be undone reported.")] = field(
        default_factory=dict
    )


class Report(Resource, frozen=True, kw_only=True):
    """Reports the outcome of an order. Written by the executor alone."""

    sequence: Count
    started: bool = True
    outcome: Outcome | None = None
    retryable: bool = False
    reason: Reason | None = None
    message: Text = ""
    result: Properties = field(default_factory=dict)


class AcceleratorOperationStatus(Resource, frozen=True, kw_only=True):
    """The progress and the result of an operation. The executor writes ``report``, the controllers everything else."""

    observed_generation: Annotated[int, Meta(ge=0)] = 0
    phase: OperationPhase = OperationPhase.PENDING
    verdict: Annotated[OperationPhase, Meta(description="How the operation ends once it is undone.")] | None = None
    reason: Reason | None = None
    message: Text = ""
    attempts: Count = 0
    executor: Annotated[
        LongWord,
        Meta(description="Who executes: node/NAME is the plugin of a node, driver/NAME a driver of the controllers."),
    ] = ""
    order: Order | None = None
    report: Report | None = None
    policy: Annotated[ObjectName, Meta(description="The policy that allows the operation.")] | None = None
    cost_per_hour: Decimal | None = None
    start_time: Time | None = None
    deadline: Time | None = None
    retry_at: Time | None = None
    completion_time: Time | None = None
    rollback: RollbackState | None = None
    conditions: Conditions = ()
