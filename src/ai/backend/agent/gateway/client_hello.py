"""Reads the first message of a TLS client without taking it from the connection."""

from __future__ import annotations

import asyncio
import socket
import ssl

import msgspec

from ai.backend.common.errors import InvalidInput

_HEADER_BYTES = 5
_HANDSHAKE_RECORD, _CLIENT_HELLO = 22, 1
_RANDOM = slice(11, 43)
_MAX_RECORD_BYTES = 16 * 1024


class ClientHello(msgspec.Struct, frozen=True):
    """Holds the first message of a TLS client, and the name of the route that the client asks for.

    ``record`` is the message as it came. ``alert`` is the reply that tells the client that there is no such name.
    """

    name: str | None
    record: bytes
    alert: bytes

    @property
    def random(self) -> bytes:
        """Returns the random bytes that the client has sent in its first message."""
        return self.record[_RANDOM]


class _HelloObject(ssl.SSLObject):
    name: str | None = None


async def peek_hello(sock: socket.socket, context: ssl.SSLContext) -> ClientHello:
    """Waits for the first message of a TLS client, and reads it without taking it from the connection. OpenSSL reads
    it, as it will when the connection is passed on; ``context`` has any certificate. Raises InvalidInput for anything
    else, also for a message in several records.
    """
    header = await _peek(sock, _HEADER_BYTES)
    length = int.from_bytes(header[3:5], "big")
    if header[0] != _HANDSHAKE_RECORD or not _RANDOM.stop <= _HEADER_BYTES + length <= _MAX_RECORD_BYTES:
        raise InvalidInput("the client does not speak TLS")
    record = await _peek(sock, _HEADER_BYTES + length)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    incoming_bio, outgoing_bio = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming_bio.write(record)
    tls_object = context.wrap_bio(incoming_bio, outgoing_bio, server_side=True)
    try:
        tls_object.do_handshake()
    except ssl.SSLError as e:
        if getattr(e, "reason", "") == "CALLBACK_FAILED" and record[_HEADER_BYTES] == _CLIENT_HELLO:
            return ClientHello(getattr(tls_object, "name", None), record, outgoing_bio.read())
    raise InvalidInput("the client's first message is not understood")


def hello_context(context: ssl.SSLContext) -> ssl.SSLContext:
    """Returns a TLS context whose handshake ends as soon as the name in the client's first message is read.

    The context is for ``peek_hello``.
    """

    def record_name(tls: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int:
        if isinstance(tls, _HelloObject):
            tls.name = name
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    context.sslobject_class = _HelloObject
    context.sni_callback = record_name
    return context


async def _peek(sock: socket.socket, count: int) -> bytes:
    """Waits for the first ``count`` bytes of a connection, and returns them without taking them from the connection.

    The Linux kernel does not wake this process before, so that a client that sends single bytes costs nothing.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
    await _wait_until_readable(sock)
    data = sock.recv(count, socket.MSG_PEEK)
    if len(data) < count:
        raise InvalidInput("the client has left")
    return data


async def _wait_until_readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def on_readable() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(sock, on_readable)
    try:
        await readable
    finally:
        loop.remove_reader(sock)
