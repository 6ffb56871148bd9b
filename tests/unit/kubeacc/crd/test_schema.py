"""Structural schemas of types, and the definitions of kube-acc."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta

from ai.backend.kubeacc.crd.definitions import KINDS, crds_yaml, manifests
from ai.backend.kubeacc.crd.fields import Resource, Rule
from ai.backend.kubeacc.crd.operations import AcceleratorOperationSpec
from ai.backend.kubeacc.crd.policies import AcceleratorPolicySpec
from ai.backend.kubeacc.crd.schema import NotStructural, structural_schema
from ai.backend.kubeacc.crd.vocabulary import DrainMode

ROOT = Path(__file__).resolve().parents[4]


class Part(Resource, frozen=True, kw_only=True):
    """A ``part`` of
    something."""

    __rules__ = (Rule(rule="self.size > 0", message="size is positive"),)
    size: Annotated[int, Meta(ge=0, description="In bytes.")] = 1
    name: Annotated[str, Meta(min_length=1, max_length=8)] | None = None
    mode: DrainMode


def test_an_object_has_types_limits_rules_and_defaults() -> None:
    assert structural_schema(Part, with_defaults=True) == {
        "type": "object",
        "description": "A part of something.",
        "properties": {
            "size": {"type": "integer", "format": "int64", "minimum": 0, "description": "In bytes.", "default": 1},
            "name": {"type": "string", "minLength": 1, "maxLength": 8},
            "mode": {"type": "string", "enum": ["Refuse", "Wait", "Evict"]},
        },
        "required": ["mode"],
        "x-kubernetes-validations": [{"rule": "self.size > 0", "message": "size is positive"}],
    }
    assert "default" not in str(structural_schema(Part, with_defaults=False))


class Unlimited(Resource, frozen=True, kw_only=True):
    text: str


class Several(Resource, frozen=True, kw_only=True):
    value: int | bool


class Endless(Resource, frozen=True, kw_only=True):
    items: tuple[int, ...]


@pytest.mark.parametrize(
    ("resource", "place"), [(Unlimited, "Unlimited.text"), (Several, "Several.value"), (Endless, "Endless.items")]
)
def test_what_cannot_be_structural_is_named(resource: type[Resource], place: str) -> None:
    with pytest.raises(NotStructural, match=place):
        structural_schema(resource, with_defaults=True)


def test_the_committed_definitions_are_those_of_the_types() -> None:
    assert (ROOT / "deploy/helm/kube-acc/templates/crds.yaml").read_text(encoding="utf-8") == crds_yaml()


def _nodes(schema: dict[str, Any], place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield place, schema
    for name, part in schema.get("properties", {}).items():
        yield from _nodes(part, f"{place}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from _nodes(schema[name], f"{place}[]")


def test_every_kind_has_its_columns_conditions_and_a_status_of_its_own() -> None:
    for kind, manifest in zip(KINDS, manifests(), strict=True):
        (version,) = manifest["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]
        status = schema["properties"]["status"]["properties"]
        assert {"observedGeneration", "conditions"} <= set(status), kind.name
        assert status["conditions"]["x-kubernetes-list-map-keys"] == ["type"]
        assert version["subresources"] == {"status": {}}
        for place, node in _nodes(schema, kind.name):
            assert node.get("type") in {"object", "array", "string", "integer", "boolean"}, place
            assert not set(node) & {"$ref", "anyOf", "x-kubernetes-preserve-unknown-fields"}, place
        for column in version["additionalPrinterColumns"]:
            node = schema
            for part in column["jsonPath"].strip(".").split("."):
                if column["jsonPath"].startswith(".metadata"):
                    break
                node = node["properties"][part]


def test_objects_are_read_by_the_names_that_the_schema_has() -> None:
    text = b'{"accelerator": "a", "operation": "Power", "requestedBy": "alice", "power": {"state": "Off"}}'
    spec = msgspec.json.decode(text, type=AcceleratorOperationSpec)
    assert (spec.requested_by, spec.power and spec.power.state, spec.drain) == ("alice", "Off", DrainMode.REFUSE)
    assert msgspec.json.decode(msgspec.json.encode(spec)) == msgspec.json.decode(text)
    assert AcceleratorPolicySpec().drain_modes == (DrainMode.REFUSE, DrainMode.WAIT)
