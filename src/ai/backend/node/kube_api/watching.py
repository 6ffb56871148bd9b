"""Decodes the stream of a watch: one JSON object in each line (Kubernetes API concepts, "Efficient detection of
changes")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic

import msgspec

from ai.backend.common.errors import Unavailable
from ai.backend.node.kube_api.decoding import Undecodable, decode, undecodable
from ai.backend.node.kube_api.errors import Status, refusal_of
from ai.backend.node.kube_api.objects import KubeObject
from ai.backend.node.kube_api.resources import ObjectT

MAX_LINE_BYTES = 1 << 24
"""The largest size of a line. An object has at most 1.5 MB in etcd; as JSON, with what the server adds, it is
longer.
"""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""The annotation of the bookmark after the last present object of a streamed list."""


class _Frame(msgspec.Struct):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"{}")


_FRAME_DECODER = msgspec.json.Decoder(_Frame)
_STATUS_DECODER = msgspec.json.Decoder(Status)
_OBJECTS = msgspec.json.Decoder(KubeObject)


class WatchEvent(msgspec.Struct, Generic[ObjectT], frozen=True):
    """Describes one change of a watched object of Kubernetes.

    ``type`` is ADDED, MODIFIED, DELETED or BOOKMARK; the object of a bookmark has only its version.
    """

    type: str
    object: ObjectT | Undecodable


class WatchDecoder(Generic[ObjectT]):
    """Decodes the chunks of a watch's stream. A line that a cut connection leaves unfinished yields nothing."""

    def __init__(self, cls: type[ObjectT]) -> None:
        event = msgspec.defstruct("Event", [("type", str), ("object", cls)], gc=False, frozen=True)
        self._type = cls
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(event)
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yields the events that a chunk completes; each has the fields of :class:`WatchEvent`. An object that does not
        fit the projection comes as :class:`Undecodable`, so that it costs no other one anything.

        Raises the refusal of a frame ERROR (VersionExpired, ...), and Unavailable for a stream that is none of a watch.
        """
        lines = chunk.split(b"\n")
        unfinished_line = lines.pop()
        if lines and self._rest:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest, self._rest_bytes = [], 0
        if unfinished_line:
            self._rest.append(unfinished_line)
            self._rest_bytes += len(unfinished_line)
            if self._rest_bytes > MAX_LINE_BYTES:
                raise Unavailable(f"a watch sent a line of more than {MAX_LINE_BYTES} bytes")
        for line in lines:
            if not line or line.isspace():
                continue
            try:
                event = decode(line, self._decoder)
            except msgspec.ValidationError as e:
                event = self._other_event(line, e)
            except msgspec.DecodeError as e:
                raise Unavailable(f"a watch sent a line that is no JSON: {e}") from None
            if event.type == "ERROR":
                event = self._other_event(line, None)
            yield event

    def _other_event(self, line: bytes, problem: msgspec.ValidationError | None) -> WatchEvent[Any]:
        """Decodes a line that the usual form does not fit. Returns a bookmark, whose required fields may be null
        (``spec.containers`` of a pod), or the event of an object that does not fit. Raises the refusal in a frame
        ERROR, whose object is a Status, and Unavailable for what is no event.
        """
        try:
            frame = decode(line, _FRAME_DECODER)
            if frame.type == "ERROR":
                raise refusal_of(decode(frame.object, _STATUS_DECODER), http_status=0, request_text="watch")
            if frame.type == "BOOKMARK":
                return WatchEvent("BOOKMARK", self._type(metadata=decode(frame.object, _OBJECTS).metadata))
            if problem is not None and (obj := undecodable(frame.object, problem)) is not None:
                return WatchEvent(frame.type, obj)
        except msgspec.MsgspecError:
            pass
        raise Unavailable(f"a watch sent an object of another form: {problem}")
