"""Encodes and decodes the frames of two connections: to the agent, and to an interpreter child.

Frames of the channel to the agent are a 4-byte length and JSON.

Frames of the private pipes are `kind` (1 byte), length of the payload (4 bytes, big endian), payload: a list of fields,
each a 4-byte length and bytes. Without JSON a fresh interpreter child starts without importing any module.
"""

from __future__ import annotations

import errno
import os

from .light import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

MAX_FRAME_BYTES = 8 * 1024 * 1024
READ_BYTES = 256 * 1024
HIGH_WATER_BYTES = 1024 * 1024
"""The number of unsent bytes above which producers that can wait (console, file chunks, terminals) pause."""
HARD_LIMIT_BYTES = 32 * 1024 * 1024
"""The number of unsent bytes above which no further request is read from the channel."""
END_OF_INPUT = "\x04"
"""The answer that stands for the end of a client's input, as Ctrl-D does on a terminal."""
_WOULD_BLOCK_ERRNOS = (errno.EAGAIN, errno.EWOULDBLOCK)


class BrokenFrame(Exception):
    """Reports an invalid frame of the peer; the rest of the stream cannot be decoded."""


def encode_message(message: Dict[str, Any]) -> bytes:
    """Encodes a message as a channel frame in UTF-8; names with undecodable bytes get escapes (`\\\\udcXX`)."""
    try:
        body = dumps(message, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        body = dumps(message).encode("ascii")
    if len(body) > MAX_FRAME_BYTES:
        raise BrokenFrame(f"a message of {len(body)} bytes")
    return len(body).to_bytes(4, "big") + body


class Channel:
    """Sends and receives the supervisor's messages on the agent's channel without blocking."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._in = bytearray()
        self._out = bytearray()
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)

    @property
    def unsent(self) -> int:
        """The number of queued bytes that the agent has not received."""
        return len(self._out)

    def send(self, message: Dict[str, Any]) -> None:
        """Queues one message for the agent; `flush` writes the queue."""
        self._out += encode_message(message)

    def flush(self) -> bool:
        """Writes the queued bytes that the kernel accepts; returns False if the agent has closed the channel."""
        while self._out:
            with memoryview(self._out) as unsent_bytes:
                try:
                    sent_bytes = os.write(self.fd, unsent_bytes[:READ_BYTES])
                except OSError as e:
                    return e.errno in _WOULD_BLOCK_ERRNOS
            del self._out[:sent_bytes]
        return True

    def receive(self) -> Optional[List[Dict[str, Any]]]:
        """Returns the messages that have arrived; None at the end of the channel. Raises BrokenFrame."""
        try:
            received_bytes = os.read(self.fd, READ_BYTES)
        except OSError as e:
            return [] if e.errno in _WOULD_BLOCK_ERRNOS else None
        if not received_bytes:
            return None
        self._in += received_bytes
        messages = []
        while len(self._in) >= 4:
            body_bytes = int.from_bytes(self._in[:4], "big")
            if not 1 <= body_bytes <= MAX_FRAME_BYTES:
                raise BrokenFrame(f"a frame of {body_bytes} bytes on the channel")
            if len(self._in) < 4 + body_bytes:
                break
            body = bytes(self._in[4 : 4 + body_bytes])
            del self._in[: 4 + body_bytes]
            try:
                message = loads(body)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                messages.append(message)
        return messages


class Outbox:
    """Sends the supervisor's messages to the agent: replies to requests, refusals and events."""

    def __init__(self, channel: Channel, write_log: Callable[[str, bytes], None]) -> None:
        self.send = channel.send
        self._log = write_log

    def reply(self, request: Dict[str, Any], reply_data: Dict[str, Any]) -> None:
        if "req" in request:
            self.send({"t": "reply", "req": request["req"], "ok": True, "data": reply_data})

    def refuse(self, request: Dict[str, Any], kind: str, reason: str) -> None:
        """Answers a request with a refusal. A refusal of a message that expects no reply is only logged."""
        if "req" in request:
            error = {"type": kind, "message": reason}
            self.send({"t": "reply", "req": request["req"], "ok": False, "error": error})
        else:
            self.warn(f"refused {str(request.get('t'))[:40]!r}: {reason}")

    def warn(self, text: str) -> None:
        """Writes a line of the runner to the session's log."""
        self._log("stderr", f"runner: {text}\n".encode("utf-8", "replace"))


def pack(kind: bytes, fields: Sequence[bytes] = ()) -> bytes:
    """Encodes a frame for the private pipe of an interpreter child."""
    payload = b"".join([len(field).to_bytes(4, "big") + field for field in fields])
    return kind + len(payload).to_bytes(4, "big") + payload


def unpack(buffer: bytearray) -> Iterator[Tuple[bytes, List[bytes]]]:
    """Removes and yields the complete frames (kind, fields) of `buffer`. Raises BrokenFrame on invalid lengths."""
    while len(buffer) >= 5:
        payload_bytes = int.from_bytes(buffer[1:5], "big")
        if payload_bytes > MAX_FRAME_BYTES:
            raise BrokenFrame(f"a frame of {payload_bytes} bytes on a private pipe")
        if len(buffer) < 5 + payload_bytes:
            return
        kind, payload = bytes(buffer[:1]), bytes(buffer[5 : 5 + payload_bytes])
        del buffer[: 5 + payload_bytes]
        fields, position = [], 0
        while position < payload_bytes:
            end = position + 4 + int.from_bytes(payload[position : position + 4], "big")
            if end > payload_bytes:
                raise BrokenFrame("a field that is longer than its frame")
            fields.append(payload[position + 4 : end])
            position = end
        yield kind, fields


def from_base64(data: Any) -> bytes:
    """Decodes a base64 text of a message. Raises ValueError."""
    import base64

    if not isinstance(data, str):
        raise ValueError("data is base64 text")
    return base64.b64decode(data, validate=True)


def to_base64(data: bytes) -> str:
    import binascii

    return binascii.b2a_base64(data, newline=False).decode("ascii")
