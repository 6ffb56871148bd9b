"""The dialer reaches a gateway by its certificate and names the route; whoever else answers there gets nothing."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ai.backend.common.errors import Unavailable
from ai.backend.infra.tls.certificates import (
    TlsIdentity,
    create_authority,
    create_request,
    create_server_identity,
    issue_client_certificate,
)
from ai.backend.infra.tls.contexts import server_context
from ai.backend.infra.tls.upstream import open_upstream

SERVER, AUTHORITY = create_server_identity(), create_authority()


def client_identity() -> TlsIdentity:
    key, request = create_request("worker")
    return TlsIdentity(key, issue_client_certificate(AUTHORITY, request, "worker"))


@asynccontextmanager
async def gateway(identity: TlsIdentity = SERVER) -> AsyncIterator[tuple[int, list[str | None]]]:
    """Yield the port of a server that echoes, and the route names that it was asked for."""
    names: list[str | None] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    context = server_context(identity, [AUTHORITY.certificate])
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1], names


async def test_bytes_go_both_ways_and_the_route_is_named() -> None:
    async with gateway() as (port, names):
        reader, writer = await open_upstream("127.0.0.1", port, "r0123", SERVER.certificate, client_identity())
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        assert names == ["r0123"]
        writer.close()


async def test_another_server_is_refused() -> None:
    async with gateway(create_server_identity()) as (port, _):
        with pytest.raises(Unavailable, match="cannot be reached"):
            await open_upstream("127.0.0.1", port, "r0123", SERVER.certificate, client_identity())


async def test_nothing_and_silence_are_unavailable() -> None:
    async with gateway() as (port, _):
        pass
    with pytest.raises(Unavailable):
        await open_upstream("127.0.0.1", port, "r0123", SERVER.certificate, client_identity())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unavailable, match=r"no answer within 0\.2 s"):
            await open_upstream("127.0.0.1", port, "r0", SERVER.certificate, client_identity(), timeout_s=0.2)


async def test_a_client_that_the_gateway_refuses_hears_it_as_an_error() -> None:
    key, request = create_request("worker")
    stranger = TlsIdentity(key, issue_client_certificate(create_authority(), request, "worker"))
    async with gateway() as (port, _):
        reader, writer = await open_upstream("127.0.0.1", port, "r0123", SERVER.certificate, stranger)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await reader.read()
        writer.close()
