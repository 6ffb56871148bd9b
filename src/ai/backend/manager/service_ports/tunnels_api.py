"""Tunnels over WebSockets: the bytes of one connection to a service, in binary frames (wire contract 2.3).

If the client requests ``half-close``, an empty frame ends its direction, and the socket is closed when both directions
have ended. Otherwise the socket is closed when the service has sent everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
from typing import Annotated

from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import Meta

from ai.backend.common.errors import BackendError
from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.routes import Call, Nothing, OwnerKey, Schema, route
from ai.backend.infra.http.streams import PING_INTERVAL_S, open_socket
from ai.backend.manager.access.requests import SESSION_PROBLEMS, caller_of
from ai.backend.manager.service_ports.api import request_of
from ai.backend.manager.service_ports.tunnels import Tunnel, TunnelService

LINGER_S = 5.0
_KEEPALIVE_OPTIONS = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


class TunnelQuery(Schema, frozen=True, rename="kebab"):
    """Names a service; ``envs`` and ``arguments`` are JSON objects, ``service`` is an older name of ``app``."""

    app: Annotated[str, Meta(max_length=64)] | None = None
    service: Annotated[str, Meta(max_length=64)] | None = None
    port: Annotated[int, Meta(ge=1, le=65_535)] | None = None
    arguments: Annotated[str, Meta(max_length=16_384)] | None = None
    envs: Annotated[str, Meta(max_length=16_384)] | None = None
    half_close: bool = False


class TunnelsApi:
    """Routes of tunnels; ``{s}`` is the name or id of a session."""

    owner_key = OwnerKey.NAMED
    problems = SESSION_PROBLEMS

    def __init__(self, tunnels: TunnelService) -> None:
        self._tunnels = tunnels

    @route("GET", "/stream/session/{s}/tcpproxy", kind="socket", query=TunnelQuery)
    @route("GET", "/stream/session/{s}/httpproxy", kind="socket", query=TunnelQuery)
    async def proxy(self, call: Call[Nothing, TunnelQuery]) -> web.StreamResponse:
        """Connects to a service of the session, which is started if it does not run; bytes in binary frames."""
        query, app = call.query, call.query.app or call.query.service
        if not app:
            raise refuse({"app": "missing"})
        request = request_of(app, query.port, query.envs, query.arguments)
        tunnel = await self._tunnels.open(
            caller_of(call), call.params["s"], request, owner_access_key=call.owner_access_key
        )
        idle_s = self._tunnels.settings.idle_timeout
        try:
            # No heartbeat: a client that reads slowly would answer pings too late.
            async with open_socket(call.request, heartbeat_s=None) as socket:
                _enable_keepalive(call.request)
                await _TunnelTransfer(socket, tunnel, half_close=query.half_close, idle_s=idle_s).transfer()
        finally:
            await tunnel.close()
        return socket


def _enable_keepalive(request: web.Request) -> None:
    """Enables TCP keep-alive, which detects a vanished client."""
    raw_socket = request.transport.get_extra_info("socket") if request.transport is not None else None
    if raw_socket is None or raw_socket.family not in (sockets.AF_INET, sockets.AF_INET6):
        return
    raw_socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE_OPTIONS.items():
        if hasattr(sockets, name):
            raw_socket.setsockopt(sockets.IPPROTO_TCP, getattr(sockets, name), value)


class _TunnelTransfer:
    """Transfers the bytes of one tunnel until both directions have ended or one is interrupted."""

    def __init__(self, socket: web.WebSocketResponse, tunnel: Tunnel, *, half_close: bool, idle_s: float) -> None:
        self._socket = socket
        self._tunnel = tunnel
        self._half_close = half_close
        self._idle_s = idle_s
        self._moved_at = asyncio.get_running_loop().time()

    async def transfer(self) -> None:
        to_service, to_client = (
            asyncio.create_task(self._forward_to_service()),
            asyncio.create_task(self._forward_to_client()),
        )
        connection_watch = asyncio.create_task(self._watch_connection())
        tasks = {to_service, to_client, connection_watch}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if to_client.done() and to_client.exception() is None and self._half_close and not connection_watch.done():
                await asyncio.wait({to_service, connection_watch}, return_when=asyncio.FIRST_COMPLETED)
            elif (
                to_service.done()
                and to_service.exception() is None
                and to_service.result()
                and not connection_watch.done()
            ):
                await asyncio.wait({to_client, connection_watch}, return_when=asyncio.FIRST_COMPLETED)
            for task in (to_service, to_client, connection_watch):
                error = task.exception() if task.done() else None
                if error is not None and not isinstance(error, ConnectionError):
                    raise error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward_to_service(self) -> bool:
        """Transfers the bytes of the client to the service until the client ends its direction or disconnects.

        Returns True if the client ended its direction, and False if it closed the connection. Bytes that a client
        sent before it closed are written if the service reads them within :data:`LINGER_S`.
        """
        async for message in self._socket:
            if message.type is WSMsgType.BINARY:
                data = message.data
            elif message.type is WSMsgType.TEXT:
                data = message.data.encode()
            else:
                continue
            self._record_traffic()
            if not data and self._half_close:
                await self._tunnel.write_eof()
                return True
            await self._tunnel.write(data)
        with contextlib.suppress(TimeoutError, BackendError):
            async with asyncio.timeout(LINGER_S):
                await self._tunnel.write_eof()
        return False

    async def _forward_to_client(self) -> bool:
        """Transfers from the service to the client until the service ends its direction. Returns True."""
        while data := await self._tunnel.read():
            await self._socket.send_bytes(data)
            self._record_traffic()
        if self._half_close:
            await self._socket.send_bytes(b"")
        return True

    def _record_traffic(self) -> None:
        self._moved_at = asyncio.get_running_loop().time()

    async def _watch_connection(self) -> bool:
        """Pings the client periodically, and closes an idle connection."""
        pinged_at = self._moved_at
        while True:
            now = asyncio.get_running_loop().time()
            waits_s = [pinged_at + PING_INTERVAL_S - now]
            if self._idle_s:
                waits_s.append(self._moved_at + self._idle_s - now)
                if waits_s[1] <= 0:
                    with contextlib.suppress(ConnectionError):
                        await self._socket.close(code=WSCloseCode.OK, message=b"nothing came for too long")
                    return True
            if waits_s[0] <= 0:
                pinged_at = now
                await self._socket.ping()
                continue
            await asyncio.sleep(min(waits_s))
