"""Defines the messages of the ZeroMQ link. Each message is one msgpack array."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from ai.backend.common.errors import LimitExceeded

PROTOCOL = 2


class Kind(IntEnum):
    HELLO = 1
    """Agent -> manager, at once and again every interval: identifies the agent. Body: :class:`Hello`."""
    WELCOME = 2
    """Manager -> agent, the answer to each hello. Name: the incarnation of the manager."""
    REFUSED = 3
    """Manager -> agent: asks for a hello, or rejects the agent. Name: the reason."""
    CALL = 4
    """Either way. Name: the method; id: the caller's number."""
    REPLY = 5
    """The answer to a call of that number."""
    ERROR = 6
    """The failure of a call of that number. Body: :class:`WireError`."""
    CANCEL = 7
    """The caller does not wait for the answer to that call any more."""


class DataOffer(msgspec.Struct, frozen=True):
    """Describes how the agent may connect one stream. ``token`` is valid once, while the call that opens the stream
    lasts.

    ``path`` is a unix socket for agents of the same host and user, ``port`` one of the manager's host, by TLS with a
    certificate of this SHA-256 ``fingerprint``.
    """

    token: bytes
    path: str | None = None
    port: int | None = None
    fingerprint: bytes = b""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """Represents a message of the link.

    ``offer``: with a call that opens a stream; ``agent``: with a call for one of several agents that share a
    connection. ``trace`` and ``request_id``, with a call: the ``traceparent`` of its span, and the request that it
    serves.
    """

    kind: int
    id: int = 0
    name: str = ""
    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    offer: DataOffer | None = None
    agent: str = ""
    trace: str | None = None
    request_id: str | None = None


class Hello(msgspec.Struct, frozen=True):
    """Represents the greeting of a connection. ``incarnation`` differs for every start of the process.

    ``agent_id`` is what its key is bound to. ``agents`` are those for which it speaks, if that is not one agent of this
    very id; each greeting names all of them.
    """

    agent_id: str
    incarnation: str
    protocol: int = PROTOCOL
    agents: list[str] | None = None


class WireError(msgspec.Struct, frozen=True):
    code: str
    message: str
    data: dict[str, Any] = {}


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(
    kind: Kind,
    number: int = 0,
    name: str = "",
    body: Any = None,
    *,
    limit: int,
    offer: DataOffer | None = None,
    agent: str = "",
    trace: str | None = None,
    request_id: str | None = None,
) -> bytes:
    """Encodes a message. Raises LimitExceeded if it is larger than the link carries."""
    raw_body = msgspec.Raw(_encoder.encode(body))
    data = _encoder.encode(Envelope(kind, number, name, raw_body, offer, agent, trace, request_id))
    if len(data) > limit:
        raise LimitExceeded(f"a message of {len(data)} bytes exceeds the link's {limit}")
    return data


def decode(data: bytes) -> Envelope:
    """Decodes a message. Raises msgspec.MsgspecError for anything that is no envelope."""
    try:
        return _decoder.decode(data)
    except UnicodeDecodeError as e:
        raise msgspec.DecodeError(str(e)) from None


def decode_body(body: msgspec.Raw, kind: Any) -> Any:
    """Decodes a body. Raises msgspec.MsgspecError if it is not of that type."""
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except UnicodeDecodeError as e:
        raise msgspec.DecodeError(str(e)) from None
