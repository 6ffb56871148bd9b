"""Checks a session's options for accelerator plugins against their JSON Schema.

A schema comes from a plugin and the options from a user. References that leave the schema are not followed, and what
the schema cannot judge is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict

MAX_SCHEMA_BYTES = 65_536
MAX_OPTIONS_BYTES = 16_384
"""Bytes of JSON that one session may give to one plugin."""
_MAX_PARTS = 4_096
"""Parts of a schema, each counted as often as references lead to it: judging takes time and memory in proportion."""
_MAX_PROBLEMS = 8
_MAX_PROBLEM_LENGTH = 300
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class PluginOptions(BaseModel):
    """The base of the models that describe a session's options for an accelerator plugin.

    Models are frozen, and unknown names are refused. Give each field a description with its unit: users read the JSON
    Schema that is made of it. Names are those of the fields.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)


def schema_of(model: type[BaseModel] | None) -> dict[str, Any] | None:
    """Returns the JSON Schema of an option model.

    Returns None without a model. Raises ValueError for one that is too large.

    What pydantic makes of a model is a JSON Schema, so it is not compiled: the compiler takes three mebibytes.
    """
    if model is None:
        return None
    schema = {"$schema": _DIALECT, **model.model_json_schema()}
    _check_size(schema)
    return schema


def check_schema(schema: Mapping[str, Any]) -> None:
    """Raises ValueError if a schema is no JSON Schema of an object, or has more than 64 KiB.

    Also raises it for references in a circle or to another document.
    """
    _check_size(schema)
    if schema.get("type") != "object":
        raise ValueError("the schema of its options is not one of an object")
    try:
        if _count_parts(schema, schema, {}) > _MAX_PARTS:
            raise ValueError(f"it has more than {_MAX_PARTS} parts, with what its references lead to")
        _validator(schema)
    except RecursionError:
        raise ValueError("the schema of its options is nested too deeply") from None
    except ValueError as e:
        reason = getattr(e, "message", str(e))[:_MAX_PROBLEM_LENGTH]
        raise ValueError(f"the schema of its options is no JSON Schema: {reason}") from None


def _check_size(schema: Mapping[str, Any]) -> None:
    size_bytes = len(json.dumps(schema).encode())
    if size_bytes > MAX_SCHEMA_BYTES:
        raise ValueError(f"the schema of its options has {size_bytes} bytes; {MAX_SCHEMA_BYTES} are allowed")


def problems_of_options(options: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, str]:
    """Returns the faults of options by option name, such as ``{"threads": "0 is less than the minimum of 1"}``.

    Empty if the schema allows the options. A fault of all options together has an empty name.
    """
    try:
        size_bytes = len(json.dumps(options, allow_nan=False).encode())
        if size_bytes > MAX_OPTIONS_BYTES:
            return {"": f"they have {size_bytes} bytes; {MAX_OPTIONS_BYTES} are allowed"}
        check_schema(schema)
        problems: dict[str, str] = {}
        for error in _validator(schema).iter_errors(options):
            option_path = ".".join(str(key) for key in error.instance_path)
            message = (_non_null_error(error) or error).message
            problems.setdefault(option_path, message[:_MAX_PROBLEM_LENGTH])
            if len(problems) >= _MAX_PROBLEMS:
                break
    except Exception as e:  # noqa: BLE001  # whatever a schema of somebody else makes the validator do
        return {"": f"the plugin's schema cannot judge them ({type(e).__name__})"}
    return problems


def _count_parts(node: Any, root: Mapping[str, Any], count_by_reference: dict[str, int]) -> int:
    """Returns the number of parts of a schema. ``count_by_reference`` holds the number of parts behind each reference.

    Raises ValueError for a reference that leads back to itself, nowhere, or to another document; RecursionError.
    """
    if isinstance(node, list):
        return sum(_count_parts(item, root, count_by_reference) for item in node)
    if not isinstance(node, Mapping):
        return 1
    part_count = 1
    for key, value in node.items():
        if key not in ("$ref", "$dynamicRef") or not isinstance(value, str):
            part_count += _count_parts(value, root, count_by_reference)
            continue
        if value not in count_by_reference:
            count_by_reference[value] = 0  # while it is counted
            count_by_reference[value] = _count_parts(_resolve_reference(value, root), root, count_by_reference)
        if not count_by_reference[value]:
            raise ValueError(f"its reference {value[:64]!r} leads back to itself")
        part_count += count_by_reference[value]
    return part_count


def _resolve_reference(reference: str, root: Mapping[str, Any]) -> Any:
    anchor, *escaped_names = unquote(reference).split("/")
    node: Any = root
    try:
        for escaped_name in escaped_names:
            step_name = escaped_name.replace("~1", "/").replace("~0", "~")
            node = node[int(step_name)] if isinstance(node, list) else node[step_name]
    except (LookupError, TypeError, ValueError):
        anchor = ""
    if anchor != "#":
        raise ValueError(f"its reference {reference[:64]!r} leads to no part of it")
    return node


def _validator(schema: Mapping[str, Any]) -> Any:
    """Returns the compiled validator of a schema.

    Nothing is fetched for its references, and its patterns take linear time: a schema of a plugin and a text of a user
    together cannot stop the daemon that judges. Raises ValueError.
    """
    from jsonschema_rs import Draft202012Validator, RegexOptions

    return Draft202012Validator(dict(schema), offline=True, pattern_options=RegexOptions())


def _non_null_error(error: Any) -> Any:
    """Returns the error of the only non-null alternative of an ``anyOf``, the schema of an optional field.

    Returns None for other errors.
    """
    if error.kind.name != "anyOf":
        return None
    non_null_errors = [
        alternative_errors[0]
        for alternative_errors in error.kind.context
        if alternative_errors and not _is_null_error(alternative_errors[0])
    ]
    return non_null_errors[0] if len(non_null_errors) == 1 else None


def _is_null_error(error: Any) -> bool:
    return bool(error.kind.name == "type" and error.message.endswith('is not of type "null"'))
