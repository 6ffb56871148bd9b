"""Decodes objects of the API server, and describes objects that do not fit their projection."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from ai.backend.node.kube_api.objects import ObjectMeta, Part

T = TypeVar("T")
_MAX_DEPTH = 100
"""The depth of JSON below which no projection reads. The server takes JSON of 10,000 levels, as the opaque parameters
of a user's claim.
"""
_TOKEN_PATTERN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[{]|[\]}]')


class _Identity(Part, frozen=True, kw_only=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class _Named(Part, frozen=True, kw_only=True):
    metadata: _Identity


_NAMED_DECODER = msgspec.json.Decoder(_Named)


class Undecodable(msgspec.Struct, frozen=True):
    """Describes an object that does not fit the projection of its kind: another version wrote it, or a schema that
    permits more.

    ``metadata`` has only name, namespace, uid and version."""

    metadata: ObjectMeta
    problem: str

    @property
    def key(self) -> tuple[str, str]:
        return self.metadata.namespace, self.metadata.name


def decode(data: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """Decodes JSON of any depth with a decoder.

    If the JSON is too deep for the decoder, the lists and objects of the deepest permitted level are emptied first.
    Raises msgspec.ValidationError for JSON of another form, msgspec.DecodeError for what is no JSON.
    """
    try:
        return decoder.decode(data)
    except RecursionError:
        return decoder.decode(_empty_deepest_level(bytes(data)))


def undecodable(data: bytes | msgspec.Raw, problem: msgspec.ValidationError) -> Undecodable | None:
    """Returns the metadata of an object that does not fit its projection, with the problem. Returns None for what is no
    object.
    """
    try:
        metadata = decode(data, _NAMED_DECODER).metadata
    except msgspec.MsgspecError:
        return None
    fields: dict[str, Any] = {name: getattr(metadata, name) for name in metadata.__struct_fields__}
    return Undecodable(ObjectMeta(**fields), str(problem))


def _empty_deepest_level(data: bytes) -> bytes:
    """Returns JSON in which the lists and objects of the deepest permitted level are emptied."""
    kept_parts: list[bytes] = []
    depth = kept_start = 0
    for token in _TOKEN_PATTERN.finditer(data):
        first_byte = data[token.start()]
        if first_byte in b"[{":
            depth += 1
            if depth == _MAX_DEPTH:
                kept_parts.append(data[kept_start : token.end()])
        elif first_byte in b"]}":
            if depth == _MAX_DEPTH:
                kept_start = token.start()
            depth -= 1
    return b"".join([*kept_parts, data[kept_start:]])
