"""Turns msgspec types into structural OpenAPI schemas, as custom resource definitions require them.

A structural schema has no references, no unions and no unlimited text, and says the type of every node (Kubernetes
documentation, "Specifying a structural schema")."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect as types

from ai.backend.kubeacc.crd.fields import Resource

Schema = dict[str, Any]


class NotStructural(TypeError):
    """A type has no structural schema. The message names the field."""


def structural_schema(resource: type[Resource], *, with_defaults: bool) -> Schema:
    """Returns the structural OpenAPI schema of a resource type, with the defaults of fields if ``with_defaults``.

    Defaults belong to a spec: in a status they would have no writer.

    Raises:
        NotStructural: a type without a counterpart, or text or a collection without a limit.
    """
    return _SchemaWriter(with_defaults).schema(types.type_info(resource), resource.__name__)


class _SchemaWriter:
    def __init__(self, with_defaults: bool) -> None:
        self._with_defaults = with_defaults

    def schema(self, node: types.Type, field_path: str) -> Schema:
        if isinstance(node, types.Metadata):
            extra_schema = node.extra_json_schema or {}
            return {**self.schema(node.type, field_path), **extra_schema}
        if isinstance(node, types.UnionType):
            return self._optional(node, field_path)
        if isinstance(node, types.StructType):
            return self._object(node)
        if isinstance(node, types.EnumType):
            return {"type": "string", "enum": [member.value for member in node.cls]}
        if isinstance(node, types.StrType):
            return self._text(node, field_path)
        if isinstance(node, types.IntType):
            return _without_nones(
                {"type": "integer", "format": "int64", "minimum": node.ge, "maximum": node.le},
            )
        if isinstance(node, types.BoolType):
            return {"type": "boolean"}
        if isinstance(node, types.VarTupleType):
            return self._array(node, field_path)
        if isinstance(node, types.DictType):
            return self._map(node, field_path)
        raise NotStructural(f"{field_path} has no structural schema: {type(node).__name__}")

    def _optional(self, node: types.UnionType, field_path: str) -> Schema:
        """Returns the schema of a type ``X | None``, which is the schema of X.

        A field without a value is left out of an object, and is never null.
        """
        other_types = [member_type for member_type in node.types if not isinstance(member_type, types.NoneType)]
        if len(other_types) != 1:
            raise NotStructural(f"{field_path} is one of several types")
        return self.schema(other_types[0], field_path)

    def _text(self, node: types.StrType, field_path: str) -> Schema:
        if node.max_length is None:
            raise NotStructural(f"{field_path} is text without a limit")
        return _without_nones(
            {"type": "string", "minLength": node.min_length, "maxLength": node.max_length, "pattern": node.pattern}
        )

    def _array(self, node: types.VarTupleType, field_path: str) -> Schema:
        if node.max_length is None:
            raise NotStructural(f"{field_path} is a list without a limit")
        items = self.schema(node.item_type, f"{field_path}[]")
        return {"type": "array", "maxItems": node.max_length, "items": items}

    def _map(self, node: types.DictType, field_path: str) -> Schema:
        if node.max_length is None:
            raise NotStructural(f"{field_path} is a map without a limit")
        return {
            "type": "object",
            "maxProperties": node.max_length,
            "additionalProperties": self.schema(node.value_type, f"{field_path}[]"),
        }

    def _object(self, node: types.StructType) -> Schema:
        properties: Schema = {}
        required_names: list[str] = []
        for field in node.fields:
            field_path = f"{node.cls.__name__}.{field.encode_name}"
            schema = self.schema(field.type, field_path)
            if self._with_defaults and (default_value := _default(field.default)) is not None:
                schema["default"] = default_value
            if field.required:
                required_names.append(field.encode_name)
            properties[field.encode_name] = schema
        description = inspect.cleandoc(node.cls.__doc__ or "") if "__doc__" in vars(node.cls) else ""
        rules = [msgspec.to_builtins(rule) for rule in getattr(node.cls, "__rules__", ())]
        return {
            "type": "object",
            **({"description": " ".join(description.replace("``", "").split())} if description else {}),
            "properties": properties,
            **({"required": required_names} if required_names else {}),
            **({"x-kubernetes-validations": rules} if rules else {}),
        }


def _without_nones(schema: Mapping[str, Any]) -> Schema:
    return {key: value for key, value in schema.items() if value is not None}


def _default(value: Any) -> Any:
    """Returns a field's default as JSON for the schema, or None if the schema need not state the default."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bool | int):
        return value
    if isinstance(value, tuple):
        return [_default(item) for item in value] or None
    return value if isinstance(value, str) and value else None
