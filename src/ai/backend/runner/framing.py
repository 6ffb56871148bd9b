"""The two framings: the channel to the agent (4-byte length + JSON) and the private pipes to an interpreter child.

Frames of the private pipes are `kind` (1 byte), length of the payload (4 bytes, big endian), payload: a list of fields,
each a 4-byte length and bytes. Without JSON a fresh interpreter child starts without importing any module.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

MAX_FRAME = 8 * 1024 * 1024
READ_SIZE = 256 * 1024
HIGH_WATER = 1024 * 1024
"""Above this number of unsent bytes the producers that can wait (console, file chunks, terminals) pause."""
HARD_LIMIT = 32 * 1024 * 1024
"""Above this number of unsent bytes no further request is read from the channel."""
_WOULD_BLOCK = (errno.EAGAIN, errno.EWOULDBLOCK)


class BrokenFrame(Exception):
    """The peer sent an invalid frame; the stream cannot be decoded any further."""


def encode_message(message: Dict[str, Any]) -> bytes:
    """Encodes a message as a channel frame in UTF-8; names with undecodable bytes get escapes (`\\\\udcXX`)."""
    import json

    try:
        body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        body = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(body) > MAX_FRAME:
        raise BrokenFrame(f"a message of {len(body)} bytes")
    return len(body).to_bytes(4, "big") + body


class Channel:
    """The supervisor's end of the channel; non-blocking in both directions; its users limit the buffers."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._in = bytearray()
        self._out = bytearray()
        os.set_inheritable(fd, False)
        os.set_blocking(fd, False)

    @property
    def unsent(self) -> int:
        """The number of bytes that wait for the peer."""
        return len(self._out)

    def send(self, message: Dict[str, Any]) -> None:
        """Queues one message; `flush` hands it to the kernel."""
        self._out += encode_message(message)

    def flush(self) -> bool:
        """Writes what the kernel accepts now; returns False if the peer has closed."""
        while self._out:
            with memoryview(self._out) as view:
                try:
                    done = os.write(self.fd, view[:READ_SIZE])
                except OSError as e:
                    return e.errno in _WOULD_BLOCK
            del self._out[:done]
        return True

    def receive(self) -> Optional[List[Dict[str, Any]]]:
        """Returns the messages that have arrived; None at the end. Raises BrokenFrame on an invalid length."""
        import json

        try:
            data = os.read(self.fd, READ_SIZE)
        except OSError as e:
            return [] if e.errno in _WOULD_BLOCK else None
        if not data:
            return None
        self._in += data
        messages = []
        while len(self._in) >= 4:
            size = int.from_bytes(self._in[:4], "big")
            if not 1 <= size <= MAX_FRAME:
                raise BrokenFrame(f"a frame of {size} bytes on the channel")
            if len(self._in) < 4 + size:
                break
            body = bytes(self._in[4 : 4 + size])
            del self._in[: 4 + size]
            try:
                message = json.loads(body)
            except (ValueError, RecursionError):
                message = None
            if isinstance(message, dict):
                messages.append(message)
        return messages


class Outbox:
    """Sends the messages of the supervisor: replies to requests, refusals, and all others."""

    def __init__(self, channel: Channel, log: Callable[[str, bytes], None]) -> None:
        self.send = channel.send
        self._log = log

    def reply(self, message: Dict[str, Any], data: Dict[str, Any]) -> None:
        if "req" in message:
            self.send({"t": "reply", "req": message["req"], "ok": True, "data": data})

    def refuse(self, message: Dict[str, Any], kind: str, reason: str) -> None:
        """Refuses a request; a message that expects no reply is only logged."""
        if "req" in message:
            error = {"type": kind, "message": reason}
            self.send({"t": "reply", "req": message["req"], "ok": False, "error": error})
        else:
            self.warn(f"refused {str(message.get('t'))[:40]!r}: {reason}")

    def warn(self, text: str) -> None:
        """Writes a line of the runner to the session's log."""
        self._log("stderr", f"runner: {text}\n".encode("utf-8", "replace"))


def pack(kind: bytes, fields: Sequence[bytes] = ()) -> bytes:
    """Encodes a frame for a private pipe."""
    payload = b"".join([len(field).to_bytes(4, "big") + field for field in fields])
    return kind + len(payload).to_bytes(4, "big") + payload


def unpack(buffer: bytearray) -> Iterator[Tuple[bytes, List[bytes]]]:
    """Removes and yields the complete frames of `buffer`. Raises BrokenFrame on invalid lengths."""
    while len(buffer) >= 5:
        size = int.from_bytes(buffer[1:5], "big")
        if size > MAX_FRAME:
            raise BrokenFrame(f"a frame of {size} bytes on a private pipe")
        if len(buffer) < 5 + size:
            return
        kind, payload = bytes(buffer[:1]), bytes(buffer[5 : 5 + size])
        del buffer[: 5 + size]
        fields, position = [], 0
        while position < size:
            end = position + 4 + int.from_bytes(payload[position : position + 4], "big")
            if end > size:
                raise BrokenFrame("a field that is longer than its frame")
            fields.append(payload[position + 4 : end])
            position = end
        yield kind, fields


def from_base64(data: Any) -> bytes:
    """Decodes base64. Raises ValueError."""
    import base64

    if not isinstance(data, str):
        raise ValueError("data is base64 text")
    return base64.b64decode(data, validate=True)


def to_base64(data: bytes) -> str:
    import binascii

    return binascii.b2a_base64(data, newline=False).decode("ascii")
