"""Encodes and decodes frames of the runner protocol: a length of 4 bytes (big-endian), and a JSON object.

See docs/reference/runner-protocol.
"""

from __future__ import annotations

from .light import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MAX_FRAME = 8 * 1024 * 1024
_TYPE_PREFIXES = (b'{"t":"', b'{"t": "')
_MAX_TYPE_BYTES = 40


class ProtocolViolation(Exception):
    """Raised when the peer violates the runner protocol."""


def encode(message: dict[str, Any]) -> bytes:
    """Encodes a message as one frame with its length."""
    return pack(dumps(message).encode())


def pack(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def kind_of(body: bytes | bytearray) -> str:
    """Returns the type of a message from its encoded body. Raises ProtocolViolation.

    A body that begins with the type is not decoded.
    """
    if body.startswith(_TYPE_PREFIXES):
        type_start = body.index(b'"', 4) + 1
        type_bytes = body[type_start : max(type_start, body.find(b'"', type_start, type_start + _MAX_TYPE_BYTES + 1))]
        letters = type_bytes.replace(b"-", b"")
        if letters.isalpha() and letters.islower():
            return type_bytes.decode()
    kind = decode(body).get("t")
    if not isinstance(kind, str):
        raise ProtocolViolation("a message without a type")
    return kind


def decode(body: bytes | bytearray) -> dict[str, Any]:
    """Decodes a frame's body to a message. Raises ProtocolViolation."""
    try:
        message = loads(body)
    except (ValueError, RecursionError) as error:
        raise ProtocolViolation("not JSON") from error
    if not isinstance(message, dict):
        raise ProtocolViolation("not an object")
    return message


def stamp(body: bytes | bytearray, seq: int) -> bytes:
    """Puts the number ``seq`` into a message's encoded body. Raises ProtocolViolation.

    The number overrides a ``seq`` of the sender.
    """
    object_text = bytes(body).rstrip()
    if not (object_text.startswith(b"{") and object_text.endswith(b"}")):
        raise ProtocolViolation("not an object")
    return object_text[:-1] + b',"seq":%d}' % seq


class FrameReader:
    """Cuts a byte stream into frame bodies."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Adds received bytes; yields every complete frame body. Raises ProtocolViolation for an invalid length."""
        self._buffer += data
        frame_start = 0
        try:
            while len(self._buffer) - frame_start >= 4:
                size = int.from_bytes(self._buffer[frame_start : frame_start + 4], "big")
                if not 1 <= size <= MAX_FRAME:
                    raise ProtocolViolation(f"a frame of {size} bytes")
                if len(self._buffer) - frame_start - 4 < size:
                    break
                body = bytes(self._buffer[frame_start + 4 : frame_start + 4 + size])
                frame_start += 4 + size
                yield body
        finally:
            if frame_start:
                del self._buffer[:frame_start]
