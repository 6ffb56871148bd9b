"""Options of sessions for plugins, judged by schemas that plugins give."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from pydantic import Field

from ai.backend.plugin.options import MAX_OPTIONS_BYTES, PluginOptions, check_schema, problems_of_options, schema_of


class Options(PluginOptions):
    threads: int = Field(default=1, ge=1, le=8, description="Threads.")
    image: str | None = Field(default=None, pattern="^[a-z]+$")


SCHEMA = schema_of(Options) or {}


def test_the_schema_is_that_of_the_model() -> None:
    assert schema_of(None) is None
    assert SCHEMA["properties"]["threads"] == {
        "default": 1, "description": "Threads.", "maximum": 8, "minimum": 1, "title": "Threads", "type": "integer",
    }  # fmt: skip
    assert SCHEMA["additionalProperties"] is False


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({}, {}),
        ({"threads": 8, "image": "abc"}, {}),
        ({"threads": 0}, {"threads": "0 is less than the minimum of 1"}),
        ({"threads": "2"}, {"threads": '"2" is not of type "integer"'}),
        ({"thread": 2}, {"": "Additional properties are not allowed ('thread' was unexpected)"}),
        ({"image": "A"}, {"image": '"A" does not match "^[a-z]+$"'}),
        ({"image": "x" * MAX_OPTIONS_BYTES}, {"": "they have 16397 bytes; 16384 are allowed"}),
        ({"threads": float("nan")}, {"": "the plugin's schema cannot judge them (ValueError)"}),
    ],
)
def test_problems_name_their_place(options: dict[str, Any], problems: dict[str, str]) -> None:
    assert problems_of_options(options, SCHEMA) == problems


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "string"}, "not one of an object"),
        ({"type": "object", "properties": {"a": {"type": "nothing"}}}, "no JSON Schema"),
        ({"type": "object", "description": "x" * 70_000}, "65536 are allowed"),
    ],
)
def test_what_is_no_schema_of_an_object_is_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_schema(schema)


def test_a_schema_opens_no_connection_and_its_faults_refuse_the_options() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema.json"
        schema = {"type": "object", "properties": {"a": {"$ref": url}}}
        assert problems_of_options({"a": 1}, schema)[""].startswith("the plugin's schema cannot judge them")
        with pytest.raises(BlockingIOError):
            server.accept()
    assert problems_of_options({"a": "x"}, {"type": "object", "properties": {"a": {"pattern": "("}}})


def doubled(depth: int) -> dict[str, Any]:
    """Returns a schema of a kilobyte in which references double what must be judged, as often as ``depth``."""
    parts: dict[str, Any] = {
        f"p{i}": {"allOf": [{"$ref": f"#/$defs/p{i + 1}"}, {"$ref": f"#/$defs/p{i + 1}"}]} for i in range(depth)
    }
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/p0"}},
        "$defs": {**parts, f"p{depth}": {"type": "integer"}},
    }


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (doubled(20), "more than 4096 parts"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "leads back to itself"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, "leads to no part"),
        ({"type": "object", "properties": {"a": {"$ref": "other.json"}}}, "leads to no part"),
    ],
)
def test_references_that_multiply_or_go_in_circles_are_refused(schema: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_schema(schema)
    assert problems_of_options({"a": "x"}, schema) == {"": "the plugin's schema cannot judge them (ValueError)"}


def test_references_to_other_parts_are_followed() -> None:
    assert problems_of_options({"a": 1}, doubled(3)) == {}
    assert problems_of_options({"a": "x"}, doubled(3)) == {"a": '"x" is not of type "integer"'}


def test_a_pattern_takes_linear_time_or_is_refused() -> None:
    """By backtracking, this pattern would take 2 to the power of 16,000 steps."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(x+)+$"}}}
    assert "a" in problems_of_options({"a": "x" * 16_000 + "!"}, schema)
    with pytest.raises(ValueError, match="no JSON Schema"):
        check_schema({"type": "object", "properties": {"a": {"pattern": "(?=x)"}}})
