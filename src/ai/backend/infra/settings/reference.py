"""Generates sample file, JSON schema and reference page from settings models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def json_schema(model: type[BaseModel]) -> str:
    """Returns the JSON schema of the file, for editors."""
    return json.dumps(model.model_json_schema(by_alias=True), indent=2, sort_keys=True) + "\n"


def _submodel(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        return next((found for part in get_args(annotation) if (found := _submodel(part))), None)
    return None


def _walk(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, FieldInfo]]:
    nested = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        sub = _submodel(field.annotation)
        if sub is None:
            yield prefix, key, field
        else:
            nested.append((key, sub))
    for key, sub in nested:
        yield from _walk(sub, (*prefix, key))


def _default(field: FieldInfo) -> Any:
    value = field.get_default(call_default_factory=True) if not field.is_required() else None
    return getattr(value, "value", value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    if isinstance(value, dict):
        return (
            "{ " + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + " }" if value else "{}"
        )
    return json.dumps(str(value))


def _type(field: FieldInfo) -> str:
    return str(getattr(field.annotation, "__name__", field.annotation)).replace("typing.", "")


def sample_toml(model: type[BaseModel], *, title: str) -> str:
    """Returns a file with every key, its description and its default; defaults and unset keys are commented out."""
    lines = [f"# {title}", ""]
    table: tuple[str, ...] | None = None
    for prefix, key, field in _walk(model):
        if prefix != table and prefix:
            lines += [f"[{'.'.join(prefix)}]", ""]
        table = prefix
        lines += [f"# {line}" for line in (field.description or "").splitlines()]
        value = _default(field)
        required = "  # required" if field.is_required() else ""
        lines += [f"# {key} = {_toml(value) if value is not None else '...'}{required}", ""]
    return "\n".join(lines)


def reference_page(model: type[BaseModel], *, name: str, env_prefix: str) -> str:
    """Returns a Markdown table of every key with its variable, type, default and description."""
    rows = ["| key | variable | type | default | meaning |", "|---|---|---|---|---|"]
    for prefix, key, field in _walk(model):
        path = ".".join((*prefix, key))
        variable = env_prefix + "__".join((*prefix, key)).upper().replace("-", "_")
        value = _default(field)
        default = "required" if field.is_required() else "" if value is None else f"`{_toml(value)}`"
        meaning = " ".join((field.description or "").split())
        rows.append(f"| `{path}` | `{variable}` | {_type(field).replace('|', '/')} | {default} | {meaning} |")
    return f"## `{name}.toml`\n\n" + "\n".join(rows) + "\n"
