"""Options of a session for accelerator plugins: their JSON Schema, and what is wrong with given ones.

A schema comes from a plugin and the options from a user. References that leave the schema are not followed, and what
the schema cannot judge is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

MAX_SCHEMA_BYTES = 65_536
MAX_OPTIONS_BYTES = 16_384
"""Bytes of JSON that one session may give to one plugin."""
_MAX_PROBLEMS = 8
_MAX_PROBLEM_LENGTH = 300
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class PluginOptions(BaseModel):
    """Base of a model of options: frozen, unknown names refused. Give each field a description with its unit: users
    read the JSON Schema that is made of it. Names are those of the fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def schema_of(model: type[BaseModel] | None) -> dict[str, Any] | None:
    """Returns the JSON Schema of a model of options, None without a model. Raises ValueError for one that is too
    large."""
    if model is None:
        return None
    schema = {"$schema": _DIALECT, **model.model_json_schema()}
    check_schema(schema)
    return schema


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises ValueError for what is no JSON Schema of an object, or has more than 64 KiB."""
    from jsonschema import Draft202012Validator, SchemaError

    size_bytes = len(json.dumps(schema).encode())
    if size_bytes > MAX_SCHEMA_BYTES:
        raise ValueError(f"the schema of its options has {size_bytes} bytes; {MAX_SCHEMA_BYTES} are allowed")
    if schema.get("type") != "object":
        raise ValueError("the schema of its options is not one of an object")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as e:
        raise ValueError(f"the schema of its options is no JSON Schema: {e.message[:_MAX_PROBLEM_LENGTH]}") from None


def problems_of_options(options: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, str]:
    """Returns what is wrong with options by their place, such as ``{"threads": "0 is less than the minimum of 1"}``;
    empty if the schema allows them. The place of the whole is empty."""
    from jsonschema import Draft202012Validator
    from referencing import Registry

    try:
        size_bytes = len(json.dumps(options, allow_nan=False).encode())
        if size_bytes > MAX_OPTIONS_BYTES:
            return {"": f"they have {size_bytes} bytes; {MAX_OPTIONS_BYTES} are allowed"}
        # An empty registry: a schema of a plugin makes nobody open a connection.
        validator = Draft202012Validator(schema, registry=Registry())
        problems: dict[str, str] = {}
        for error in validator.iter_errors(options):
            place = ".".join(str(part) for part in error.absolute_path)
            message = (_of_value(error) or error).message
            problems.setdefault(place, message[:_MAX_PROBLEM_LENGTH])
            if len(problems) >= _MAX_PROBLEMS:
                break
    except Exception as e:  # noqa: BLE001  # whatever a schema of somebody else makes the validator do
        return {"": f"the plugin's schema cannot judge them ({type(e).__name__})"}
    return problems


def _of_value(error: Any) -> Any:
    """Returns the error of the only alternative that is not ``null``, as the schema of an optional field has; None for
    other errors."""
    if error.validator != "anyOf":
        return None
    inner_errors = [inner for inner in error.context if inner.schema.get("type") != "null"]
    return inner_errors[0] if len(inner_errors) == 1 else None
