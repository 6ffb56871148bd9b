"""Decodes the stream of a watch: one JSON object in each line (Kubernetes API concepts, "Efficient detection of
changes")."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic

import msgspec

from ai.backend.common.errors import Unavailable
from ai.backend.node.kube_api.errors import Status, refusal_of
from ai.backend.node.kube_api.objects import KubeObject, ObjectMeta
from ai.backend.node.kube_api.resources import ObjectT

MAX_LINE_BYTES = 1 << 24
"""An object has at most 1.5 MB in etcd; as JSON, with what the server adds, it is longer."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark after the last present object of a streamed list."""


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass(frozen=True, slots=True)
class WatchEvent(Generic[ObjectT]):
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK; the object of a bookmark has only its version."""

    type: str
    object: ObjectT


class WatchDecoder(Generic[ObjectT]):
    """Decodes chunks as they come. A line that a cut connection leaves unfinished yields nothing."""

    def __init__(self, cls: type[ObjectT]) -> None:
        event = msgspec.defstruct("Event", [("type", str), ("object", cls)], gc=False, frozen=True)
        self._type = cls
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(event)
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yields the events that a chunk completes; each has the fields of :class:`WatchEvent`.

        Raises the refusal of a frame ERROR (VersionExpired, ...), and Unavailable for a stream that is none of a watch.
        """
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._rest:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest, self._rest_bytes = [], 0
        if rest:
            self._rest.append(rest)
            self._rest_bytes += len(rest)
            if self._rest_bytes > MAX_LINE_BYTES:
                raise Unavailable(f"a watch sent a line of more than {MAX_LINE_BYTES} bytes")
        decode = self._decoder.decode
        for line in lines:
            if not line or line.isspace():
                continue
            try:
                event = decode(line)
            except msgspec.ValidationError as e:
                if (version := _bookmark_of(line)) is None:
                    raise _error_of(line, e) from None
                event = WatchEvent("BOOKMARK", self._type(metadata=version))
            except msgspec.DecodeError as e:
                raise Unavailable(f"a watch sent a line that is no JSON: {e}") from None
            if event.type == "ERROR":
                raise _error_of(line, None)
            yield event


def _bookmark_of(line: bytes) -> ObjectMeta | None:
    """Returns the metadata of a bookmark, whose required fields may be null (``spec.containers`` of a pod); None for
    any other frame."""
    try:
        frame = msgspec.json.decode(line, type=_Frame)
        return msgspec.json.decode(frame.object, type=KubeObject).metadata if frame.type == "BOOKMARK" else None
    except msgspec.MsgspecError:
        return None


def _error_of(line: bytes, problem: msgspec.ValidationError | None) -> Exception:
    """Returns the refusal in a frame ERROR, whose object is a Status and fits no projection."""
    try:
        frame = msgspec.json.decode(line, type=_Frame)
        if frame.type == "ERROR":
            return refusal_of(msgspec.json.decode(frame.object, type=Status), http_status=0, what="watch")
    except msgspec.MsgspecError:
        pass
    return Unavailable(f"a watch sent an object of another form: {problem}")
