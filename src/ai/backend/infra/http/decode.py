"""Decodes bodies and query strings into their schemas. Errors name every invalid field.

A refusal is an InvalidInput whose ``data`` maps dotted field names to the problem. It is HTTP 400: spec 03-08 says "401
Invalid API parameters" in one place, which would tell a client that its credentials are bad.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from math import isfinite
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec
from msgspec import structs

from ai.backend.common.errors import InvalidInput
from ai.backend.common.validation_messages import split_message
from ai.backend.infra.http.errors import UnsupportedMediaType
from ai.backend.infra.http.routes import Nothing

S = TypeVar("S", bound=msgspec.Struct)
V = TypeVar("V")
JSON_TYPES = ("application/json", "text/plain", "application/octet-stream", "")
_MAX_DEPTH = 32
_MAX_SHOWN_FIELDS = 32
_MAX_PARAMETERS = 4_096
"""More fit into no request line, whose repeated names are the elements of lists."""
_MAX_EXACT_INTEGER = 2.0**53


def _number(text: str) -> int | float:
    """Parses a number with a fraction or exponent; ``1.0`` is an integer, as JSON Schema says. Raises ValueError."""
    value = float(text)
    if not isfinite(value):
        raise ValueError("a number is out of range")
    return int(value) if value.is_integer() and abs(value) < _MAX_EXACT_INTEGER else value


_decode_json = msgspec.json.Decoder(float_hook=_number).decode
_fields = cache(structs.fields)  # it reads annotations, which costs more than decoding


def refuse(problems_of_fields: Mapping[str, str]) -> InvalidInput:
    """Returns an InvalidInput error that names the invalid fields."""
    shown_problems = dict(list(problems_of_fields.items())[:_MAX_SHOWN_FIELDS])
    return InvalidInput(
        "; ".join(f"{name}: {problem}" if name else problem for name, problem in shown_problems.items()),
        data=shown_problems,
    )


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """Parses a body as a JSON object.

    An empty body counts as the empty object. Raises InvalidInput, also for too deep nesting.
    """
    if not raw or raw.isspace():
        return {}
    try:
        parsed_body = _decode_json(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"The body is not JSON: {error}", data={"body": "not JSON"}) from None
    except RecursionError:
        raise refuse({"body": "nested too deeply"}) from None
    if not isinstance(parsed_body, dict):
        raise refuse({"body": "must be a JSON object"})
    _check_depth(parsed_body, _MAX_DEPTH, "")
    return parsed_body


def _check_depth(value: Any, levels_left: int, path: str) -> None:
    if levels_left == 0:
        raise refuse({path.partition(".")[0][:64] or "body": "nested too deeply"})
    if isinstance(value, dict):
        for key, nested_value in value.items():
            _check_depth(nested_value, levels_left - 1, path or key)
    elif isinstance(value, list):
        for nested_value in value:
            _check_depth(nested_value, levels_left - 1, path)


def rename_aliases(raw_fields: dict[str, Any], aliases: Mapping[str, str]) -> None:
    """Renames alternative spellings of fields to those of the schema; if both are present, they must agree."""
    for alias, name in aliases.items():
        *parents, last_name = alias.split(".")
        source_object: Any = raw_fields
        for parent in parents:
            source_object = source_object.get(parent) if isinstance(source_object, dict) else None
        if not isinstance(source_object, dict) or last_name not in source_object:
            continue
        value = source_object.pop(last_name)
        *parents, last_name = name.split(".")
        target_object: Any = raw_fields
        for parent in parents:
            target_object = target_object.setdefault(parent, {})
            if not isinstance(target_object, dict):
                raise refuse({parent: "must be an object"})
        if value is None:
            continue
        if target_object.get(last_name) is not None and target_object[last_name] != value:
            raise refuse({alias: f"contradicts {name}"})
        target_object[last_name] = value


def struct_in(annotation: Any) -> type[msgspec.Struct] | None:
    """Returns the only struct of an annotation such as ``Config`` or ``Config | None``."""
    candidates = [annotation, *get_args(annotation)] if get_origin(annotation) is not dict else []
    for candidate in candidates:
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None


def _drop_nulls(raw_fields: dict[str, Any], schema: type[msgspec.Struct]) -> None:
    """Drops nulls, because ``null`` means absent for a field with a default (spec 03-07, "JSON Value Types").

    A null stays where the default is UNSET and the field may be null, since there the two differ.
    """
    for field_info in _fields(schema):
        name = field_info.encode_name
        if name not in raw_fields:
            continue
        if raw_fields[name] is None:
            null_has_meaning = field_info.default is msgspec.UNSET and type(None) in get_args(field_info.type)
            if not field_info.required and not null_has_meaning:
                del raw_fields[name]
        elif isinstance(raw_fields[name], dict):
            inner_schema = struct_in(field_info.type)
            if inner_schema is not None:
                _drop_nulls(raw_fields[name], inner_schema)


def convert(raw_fields: dict[str, Any], schema: type[S], *, strict: bool = True) -> S:
    """Converts plain values into a schema. Raises InvalidInput, whose ``data`` names every invalid field."""
    _drop_nulls(raw_fields, schema)
    try:
        return msgspec.convert(raw_fields, schema, strict=strict)
    except msgspec.ValidationError as error:
        problems_of_fields = dict(_find_problems(raw_fields, schema, "", strict=strict))
        raise refuse(problems_of_fields or {"body": split_message(error)[1]}) from None


def _find_problems(
    raw_fields: dict[str, Any], schema: type[msgspec.Struct], prefix: str, *, strict: bool
) -> Iterator[tuple[str, str]]:
    field_infos = {field_info.encode_name: field_info for field_info in _fields(schema)}
    for name in raw_fields:
        if name not in field_infos:
            yield f"{prefix}{name[:64]}", "unknown field"
    for name, field_info in field_infos.items():
        if name not in raw_fields:
            if field_info.required:
                yield f"{prefix}{name}", "required"
            continue
        inner_schema = struct_in(field_info.type)
        if inner_schema is not None and isinstance(raw_fields[name], dict):
            yield from _find_problems(raw_fields[name], inner_schema, f"{prefix}{name}.", strict=strict)
            continue
        try:
            msgspec.convert(raw_fields[name], field_info.type, strict=strict)
        except msgspec.ValidationError as error:
            path, problem = split_message(error, field_info.type)
            yield f"{prefix}{name}{path}", problem


class QuerySchema(Generic[S]):
    """Reads query strings by a schema.

    Scalar fields are parsed leniently, list fields may be repeated or comma-joined.
    """

    def __init__(self, schema: type[S], *, reserved: frozenset[str] = frozenset()) -> None:
        self._schema = schema
        self._reserved = reserved
        self._lists = {field_info.encode_name for field_info in _fields(schema) if _is_list(field_info.type)}

    def read(self, query: str, body: dict[str, Any] | None = None) -> tuple[S, dict[str, str]]:
        """Reads a raw query string and the reserved parameters.

        Fields of a JSON body complete the query. Raises InvalidInput.
        """
        reserved_values: dict[str, str] = {}
        raw_fields: dict[str, Any] = dict(body or {})
        if query:
            self._collect_parameters(query, raw_fields, reserved_values)
        if self._schema is Nothing and not raw_fields:
            return self._schema(), reserved_values
        for name in self._reserved & raw_fields.keys():
            value = raw_fields.pop(name)
            if value is not None:
                reserved_values.setdefault(name, str(value))
        return convert(raw_fields, self._schema, strict=False), reserved_values

    def _collect_parameters(self, query: str, raw_fields: dict[str, Any], reserved_values: dict[str, str]) -> None:
        try:
            pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS)
        except ValueError:
            raise refuse({"query": "malformed"}) from None
        seen_names: set[str] = set()
        for name, value in pairs:
            if name in self._lists:
                if name not in seen_names:
                    raw_fields[name] = []
                raw_fields[name].append(value)
            elif name in seen_names:
                raise refuse({name[:64]: "given twice"})
            elif name in self._reserved:
                reserved_values[name] = value
            else:
                raw_fields[name] = value
            seen_names.add(name)


def _is_list(annotation: Any) -> bool:
    """Returns True for a list type, an annotated list type, or a union that contains a list type."""
    nested_types = (annotation, *get_args(annotation))
    return any(
        get_origin(nested_type) is list or (get_origin(nested_type) is Annotated and _is_list(get_args(nested_type)[0]))
        for nested_type in nested_types
    )


def either(first_value: V | None, second_value: V | None, first_name: str, second_name: str) -> V | None:
    """Returns the value of a field that has two names. Raises InvalidInput if they contradict each other."""
    if first_value and second_value and first_value != second_value:
        raise refuse({second_name: f"contradicts {first_name}"})
    return first_value or second_value or None


def check_json_type(media_type: str) -> None:
    """Raises UnsupportedMediaType unless a request's content type is accepted for a JSON body.

    JSON is accepted, and the content types that the published client sends with an empty or JSON body.
    """
    if media_type not in JSON_TYPES and not media_type.endswith("+json"):
        raise UnsupportedMediaType(
            f"Send application/json, not {media_type[:64]}.", data={"Content-Type": media_type[:64]}
        )
