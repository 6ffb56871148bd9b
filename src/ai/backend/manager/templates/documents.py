"""Parses uploaded template text into plain documents, and formats documents as text. Pure.

Every scalar stays text, because YAML reads ``19.10`` as the number 19.1 and ``no`` as a boolean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

import msgspec
import yaml

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.yaml_structure import structure_problem

MAX_PAYLOAD_BYTES = 262_144
MAX_TEMPLATES = 50
"""The maximum number of templates in one payload."""
_MAX_DEPTH = 16
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _malformed_error(reason: str) -> InvalidInput:
    return InvalidInput(f"The template cannot be read: {reason}.", data={"payload": "malformed"})


def read_documents(payload: str) -> list[Mapping[str, Any]]:
    """Parses the templates of a payload in JSON or YAML, whose documents are templates or lists of templates. Raises
    InvalidInput if it is malformed, too large, nested too deeply, or has aliases.
    """
    if len(payload.encode(errors="replace")) > MAX_PAYLOAD_BYTES:
        raise _malformed_error(f"it exceeds {MAX_PAYLOAD_BYTES} bytes")
    templates: list[Any] = []
    for document in _parse_json(payload) if payload.lstrip()[:1] in ("{", "[") else _parse_yaml(payload):
        templates += document if isinstance(document, list) else [document]
    if not 1 <= len(templates) <= MAX_TEMPLATES:
        raise _malformed_error(f"it holds {len(templates)} templates, and may hold 1 to {MAX_TEMPLATES}")
    for template in templates:
        if not isinstance(template, Mapping):
            raise _malformed_error("a template is an object")
    return templates


def _parse_json(payload: str) -> list[Any]:
    try:
        return [_plain_value(msgspec.json.decode(payload.encode()), 0)]
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _parse_yaml(payload)  # YAML in flow style begins like JSON


def _plain_value(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise _malformed_error("it is nested too deeply")
    if isinstance(value, dict):
        return {name: _plain_value(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain_value(item, depth + 1) for item in value]
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, bool | int | float) else value


def _parse_yaml(payload: str) -> list[Any]:
    try:
        problem = structure_problem(payload, _Loader, max_depth=_MAX_DEPTH)
        if problem is not None:
            raise _malformed_error(problem)
        return [document for document in yaml.load_all(payload, Loader=_Loader) if document != ""]  # BaseLoader: text
    except yaml.MarkedYAMLError as e:
        line = f" in line {e.problem_mark.line + 1}" if e.problem_mark is not None else ""
        raise _malformed_error(f"{e.problem or 'it is not YAML'}{line}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        raise _malformed_error("it is neither JSON nor YAML") from None


def write_document(document: Mapping[str, Any], text_format: Literal["yaml", "json"]) -> str:
    """Formats a document as text."""
    if text_format == "json":
        return json.dumps(document, indent=2, ensure_ascii=False)
    return str(yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True))
