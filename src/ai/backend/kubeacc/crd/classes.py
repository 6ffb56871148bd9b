"""``AcceleratorClass``: devices that are operated alike, and who operates them (spec 02, co-existence)."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, field

from ai.backend.kubeacc.crd.fields import Conditions, Count, Label, LongWord, Resource, Rule, Seconds
from ai.backend.kubeacc.crd.vocabulary import LIST_SET, Attachment, Labels, LifecycleOwner, TypeSet, WordSet, list_map


class ClassSelector(Resource, frozen=True, kw_only=True):
    """Selects devices; an empty list selects all."""

    types: TypeSet = ()
    drivers: WordSet = ()
    vendors: WordSet = ()
    models: Annotated[WordSet, Meta(description="Exact models, or with a * at the end the beginning of models.")] = ()
    attachments: Annotated[tuple[Attachment, ...], Meta(max_length=2, extra_json_schema=LIST_SET)] = ()
    match_labels: Labels = field(default_factory=dict)


class Signer(Resource, frozen=True, kw_only=True):
    """A key that images may be signed with: Ed25519 or ECDSA (P-256 with SHA-256), as PEM."""

    __rules__: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.publicKey.startsWith('-----BEGIN PUBLIC KEY-----')",
            message="publicKey is a public key in PEM",
        ),
    )

    name: Label
    public_key: Annotated[str, Meta(min_length=1, max_length=2048)]


class AcceleratorClassSpec(Resource, frozen=True, kw_only=True):
    """Groups devices that are operated alike."""

    __rules__: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.lifecycleOwner != 'DevicePlugin'"
            " || (has(self.devicePluginResource) && self.devicePluginResource != '')",
            message="lifecycleOwner DevicePlugin needs devicePluginResource",
        ),
    )

    selector: ClassSelector = ClassSelector()
    priority: Annotated[
        int,
        Meta(
            ge=-1000,
            le=1000,
            description="A device belongs to its class of the highest priority, then the first by name.",
        ),
    ] = 0
    lifecycle_owner: Annotated[
        LifecycleOwner, Meta(description="Who operates the devices and offers them to pods.")
    ] = LifecycleOwner.KUBE_ACC
    device_plugin_resource: Annotated[
        LongWord, Meta(description="The extended resource of the other device plugin, such as nvidia.com/gpu.")
    ] = ""
    signers: Annotated[
        tuple[Signer, ...],
        Meta(
            max_length=16,
            description="Who may sign images; without any, images need no signature.",
            extra_json_schema=list_map("name"),
        ),
    ] = ()
    default_deadline_seconds: Annotated[Seconds, Meta(description="For operations that name none.")] = 600
    default_retry_limit: Annotated[int, Meta(ge=0, le=100)] = 3


class AcceleratorClassStatus(Resource, frozen=True, kw_only=True):
    observed_generation: Annotated[int, Meta(ge=0)] = 0
    devices: Count = 0
    healthy: Count = 0
    held: Count = 0
    conditions: Conditions = ()
