"""Options of sessions for plugins, judged by schemas that plugins give."""

from __future__ import annotations

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
        ({"threads": "2"}, {"threads": "'2' is not of type 'integer'"}),
        ({"thread": 2}, {"": "Additional properties are not allowed ('thread' was unexpected)"}),
        ({"image": "A"}, {"image": "'A' does not match '^[a-z]+$'"}),
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


def test_a_schema_opens_no_connection_and_its_faults_refuse_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *a, **k: opened.append(a))
    schema = {"type": "object", "properties": {"a": {"$ref": "http://169.254.169.254/schema.json"}}}
    assert problems_of_options({"a": 1}, schema)[""].startswith("the plugin's schema cannot judge them")
    assert problems_of_options({"a": "x"}, {"type": "object", "properties": {"a": {"pattern": "("}}})
    assert opened == []
