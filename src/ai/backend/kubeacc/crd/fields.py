"""Field types of the resources. Every text and list has a limit, because the API server prices CEL rules by them."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

ObjectName = Annotated[str, Meta(min_length=1, max_length=253, pattern=DNS_NAME)]
Label = Annotated[str, Meta(min_length=1, max_length=63, pattern=DNS_LABEL)]
Word = Annotated[str, Meta(min_length=1, max_length=128)]
OptionalWord = Annotated[str, Meta(max_length=128)]
LongWord = Annotated[str, Meta(max_length=512)]
Text = Annotated[str, Meta(max_length=1024)]
Reason = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
Time = Annotated[str, Meta(max_length=40, extra_json_schema={"format": "date-time"})]
Sha256 = Annotated[str, Meta(min_length=64, max_length=64, pattern=r"^[0-9a-f]{64}$")]
Decimal = Annotated[str, Meta(max_length=32, pattern=r"^(0|[1-9][0-9]*)(\.[0-9]+)?$")]
Uid = Annotated[str, Meta(max_length=64)]
Count = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
Bytes = Annotated[int, Meta(ge=0, le=(1 << 53) - 1)]
Seconds = Annotated[int, Meta(ge=1, le=7 * 86_400)]
Properties = Annotated[dict[Word, LongWord], Meta(max_length=64)]


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """A CEL rule of an object, and the sentence that a refused writer reads."""

    rule: str
    message: str


def immutable(*names: str) -> tuple[Rule, ...]:
    """Returns a rule for each field of an object that may not change after the creation."""
    return tuple(
        Rule(
            rule=f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
            message=f"{name} is immutable",
        )
        for name in names
    )


class Resource(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of every object inside a resource. ``__rules__`` are the CEL rules of the object."""

    __rules__: ClassVar[tuple[Rule, ...]] = ()


class Condition(Resource, frozen=True, kw_only=True, omit_defaults=False):
    """A condition as every Kubernetes resource has it."""

    type: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    status: Annotated[str, Meta(max_length=7, pattern=r"^(True|False|Unknown)$")]
    reason: Reason
    message: Annotated[str, Meta(max_length=4096)] = ""
    last_transition_time: Time
    observed_generation: Annotated[int, Meta(ge=0)] = 0


Conditions = Annotated[
    tuple[Condition, ...],
    Meta(
        max_length=16,
        description="What is true of the object now. Each condition has one writer.",
        extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    ),
]
