"""Defines the protocol between an agent and a plugin's host: the frames, and the shape of every call.

A frame is a big-endian length of four bytes and a msgpack body. Arguments and answers are bytes inside of it, so that
each side can read them by the shape of their method. Nothing is ever pickled.

Executables of vendors speak it as well: ``docs/reference/accelerators/host-protocol.md`` is written from this module
and from :mod:`ai.backend.plugin.accelerator.shapes`.
"""

from __future__ import annotations

import asyncio
import struct
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.ids import DeviceId, SlotName
from ai.backend.plugin.accelerator.shapes import MAX_FRAME, MAX_TEXT, InvalidResponse, KeptState


def safe_message(error: BaseException) -> str:
    """Returns the message of any exception as text that can be encoded."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # a plugin's own class
        return "it cannot say what"
    return message[:MAX_TEXT].encode(errors="replace").decode()


class Frame(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag=True):
    """The base of the frames between an agent and a plugin's host. ``id`` is the number of the call.

    ``id`` is chosen by the agent; every frame about one call has the same.
    """

    id: int


class Call(Frame, frozen=True, kw_only=True, array_like=True):
    """Sent by the agent to begin a call. ``deadline_s`` 0: none, the call is a stream of items."""

    method: str
    arguments: bytes
    deadline_s: float


class Cancel(Frame, frozen=True, kw_only=True, array_like=True):
    """Sent by the agent to cancel this call."""


class Answer(Frame, frozen=True, kw_only=True, array_like=True):
    """Sent by the host with the result of a call that has returned.

    ``state`` is the managed state after a hook call.
    """

    result: bytes
    state: KeptState | None = None


class Failure(Frame, frozen=True, kw_only=True, array_like=True):
    """Sent by the host when the call has raised an exception.

    ``kind`` is ``backend`` (``name`` is the code of a BackendError), ``deferred`` (TerminationDeferred), ``deadline``,
    ``nonsense`` (a InvalidResponse) or ``other`` (``name`` is the exception's class).
    """

    kind: str
    name: str
    message: str
    data: bytes = b"\x80"
    trace: str = ""
    state: KeptState | None = None


class Item(Frame, frozen=True, kw_only=True, array_like=True):
    """Sent by the host with one more item of a stream."""

    value: bytes


class Save(Frame, frozen=True, kw_only=True, array_like=True):
    """Sent by the host during a hook call, so that the agent stores the managed state at once."""

    state: KeptState


class Saved(Frame, frozen=True, kw_only=True, array_like=True):
    """Sent by the agent after storing the managed state of a hook call, or after failing to store it.

    ``error`` is the reason why it is not stored.
    """

    error: str = ""


ToHost = Call | Cancel | Saved
ToAgent = Answer | Failure | Item | Save


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Sent by the agent to request devices from a plugin's own alloc map, given the devices that are already held.

    See :mod:`.external_alloc_map`.
    """

    held: DeviceAllocation
    request: dict[SlotName, Decimal]
    numa_nodes: frozenset[int]
    eligible: frozenset[DeviceId] | None


PROTOCOLS = (1,)
"""The versions of the protocol that an agent speaks. A field or frame that others may ignore is no new version."""
CALLS_FD = 3
"""The descriptor on which an executable serves calls."""
PROTOCOL_VARIABLE = "BACKENDAI_PLUGIN_PROTOCOL"
"""The environment variable that an executable gets: the newest of :data:`PROTOCOLS`."""
NOT_EXECUTED = 126
"""The exit status of a host that cannot execute its program, the same as a shell's."""

F = TypeVar("F")
_LENGTH = struct.Struct(">I")
TO_HOST = msgspec.msgpack.Decoder(ToHost)
TO_AGENT = msgspec.msgpack.Decoder(ToAgent)


def pack(body: Any) -> bytes:
    body_bytes = msgspec.msgpack.encode(body)
    return _LENGTH.pack(len(body_bytes)) + body_bytes


def length_of(length_bytes: bytes) -> int:
    """Returns the length that a frame's head announces. Raises InvalidResponse for a frame that is too large."""
    (length,) = _LENGTH.unpack(length_bytes)
    if length > MAX_FRAME:
        raise InvalidResponse(f"a frame of {length} bytes")
    return int(length)


async def read_frame(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[F]) -> F | None:
    """Returns the next frame of a stream, or None at the end.

    Raises InvalidResponse or MsgspecError for invalid data.
    """
    try:
        body_bytes = await reader.readexactly(length_of(await reader.readexactly(_LENGTH.size)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return decoder.decode(body_bytes)
