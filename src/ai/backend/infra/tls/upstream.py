"""Connects to the service gateways of agents."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import StreamReader, StreamReaderProtocol, StreamWriter
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

from ai.backend.common.errors import Unavailable
from ai.backend.infra.tls.certificates import TlsIdentity
from ai.backend.infra.tls.connection import TlsConnection
from ai.backend.infra.tls.contexts import pinned_client_context

CONNECT_TIMEOUT_S = 5.0
READ_LIMIT_BYTES = 256 * 1024
_MAX_CONTEXTS = 1024
ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)

_cached_context = lru_cache(_MAX_CONTEXTS)(pinned_client_context)


async def connect_upstream(
    protocol_factory: Callable[[], ProtocolT],
    host: str,
    port: int,
    server_name: str,
    certificate: str,
    identity: TlsIdentity,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> tuple[asyncio.Transport, ProtocolT]:
    """Connects a protocol to a port of a kernel, through a route of an agent's service gateway.

    The transport can end its direction alone (``write_eof``). A gateway that refuses the client's certificate, cannot
    reach the service, or loses it, cuts the connection: ``connection_lost`` gets an error then.

    Args:
        server_name: the name of the route.
        certificate: the gateway's certificate in PEM; no other one is accepted.
        identity: presented to the gateway. Its authority is the one that the route was opened for.

    Raises Unavailable.
    """
    loop = asyncio.get_running_loop()
    connection: TlsConnection | None = None
    try:
        context = _cached_context(certificate, identity)
        async with asyncio.timeout(timeout_s):
            _, connection = await loop.create_connection(
                lambda: TlsConnection(context, server_hostname=server_name), host, port
            )
            await connection.handshake
        if connection.ssl_object.getpeercert(binary_form=True) != ssl.PEM_cert_to_DER_cert(certificate):
            raise ConnectionError("another server answers there")
    except BaseException as e:
        if connection is not None:
            connection.abort()
        if not isinstance(e, OSError | ValueError | TimeoutError):
            raise
        reason = str(e) or f"no answer within {timeout_s:g} s"
        raise Unavailable(f"the gateway at {host}:{port} cannot be reached: {reason}") from e
    protocol = protocol_factory()
    connection.attach(protocol)
    return connection, protocol


async def open_upstream(
    host: str,
    port: int,
    server_name: str,
    certificate: str,
    identity: TlsIdentity,
    *,
    timeout_s: float = CONNECT_TIMEOUT_S,
) -> tuple[StreamReader, StreamWriter]:
    """Connects to a port of a kernel as :func:`connect_upstream` does, and returns a reader and a writer of streams."""
    loop = asyncio.get_running_loop()
    reader = StreamReader(READ_LIMIT_BYTES, loop)
    transport, protocol = await connect_upstream(
        lambda: StreamReaderProtocol(reader, loop=loop),
        host,
        port,
        server_name,
        certificate,
        identity,
        timeout_s=timeout_s,
    )
    return reader, StreamWriter(transport, protocol, reader, loop)
