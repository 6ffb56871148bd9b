"""Accepts the TLS connections of pods' relays, checks the token that names the pod, and reads the connection's purpose.

A connection is of nobody until its token was verified; until then it may send one frame and stay for ten seconds.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import logging
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, cast
from weakref import WeakSet

import msgspec

from ai.backend.common.errors import AuthenticationFailed, BackendError
from ai.backend.node.relay.framing import encode
from ai.backend.node.relay.tls import PROTOCOL
from ai.backend.runtime.kubernetes.signals import Ended
from ai.backend.runtime.kubernetes.tokens import PodIdentity

log = logging.getLogger(__name__)
HELLO_TIMEOUT_S = 10
MAX_HELLO_BYTES = 64 * 1024
MAX_PENDING_CONNECTIONS = 2_000
"""The largest number of connections at once that have not named their pod yet."""
MAX_PENDING_OF_ADDRESS = 256
"""The largest number of such connections from one address: a session can reach this port, and must not keep the relays
of others out.
"""
TLS_BUFFER_BYTES = 16 * 1024
"""The size in bytes of what is read from a TLS connection at once, which is one record."""


class Hello(msgspec.Struct, kw_only=True):
    """Holds the first frame of a connection from a pod: token, pod, and the connection's role (relay or stream).

    See docs/reference/runner-protocol, "Pods".
    """

    t: str
    protocol: int
    role: str
    token: str
    pod: str
    id: str = ""
    epoch: int = -1
    begun: dict[str, Any] | None = None
    waiting: bool = False
    ended: Ended | None = None


Admit = Callable[[Hello, PodIdentity], Awaitable[asyncio.Protocol]]
"""Returns the protocol that takes a connection over. Raises BackendError for a connection that is not expected."""
Verify = Callable[[str], Awaitable[PodIdentity]]


class _Tls(asyncio.sslproto.SSLProtocol):
    """Represents a TLS connection, which is refused if too many connections have not named their pods yet.

    The connection counts as pending from its first packet on. A client that never begins its handshake takes a
    descriptor too.

    All connections are read into one buffer, where asyncio would keep 256 KiB for each: the event loop calls
    ``buffer_updated``, which copies what was read, before it reads from another connection.
    """

    def __init__(
        self, listener: RelayListener, pending_connection: _PendingConnection, context: ssl.SSLContext
    ) -> None:
        self.max_size = 0  # type: ignore[misc]  # of the buffer that asyncio makes here
        super().__init__(
            asyncio.get_running_loop(),
            pending_connection,
            context,
            None,  # type: ignore[arg-type]  # nobody waits for the handshake of a server
            server_side=True,
            ssl_handshake_timeout=HELLO_TIMEOUT_S,
            ssl_shutdown_timeout=1,
        )
        self.max_size = TLS_BUFFER_BYTES  # type: ignore[misc]
        self._ssl_buffer, self._ssl_buffer_view = listener.read_buffer, memoryview(listener.read_buffer)
        self._listener = listener
        self._pending_connection = pending_connection

    def connection_made(self, transport: Any) -> None:
        if self._listener.add_pending(self._pending_connection, str(transport.get_extra_info("peername")[0])):
            super().connection_made(transport)
        else:
            transport.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._listener.remove_pending(self._pending_connection)
        super().connection_lost(exc)

    def cut(self) -> None:
        """Ends the connection at once, without the closing message of TLS."""
        if self._transport is not None:
            cast("asyncio.Transport", self._transport).abort()


class RelayListener:
    """Accepts connections of relays, and passes each to the protocol that ``admit`` returns for it."""

    def __init__(self, context: ssl.SSLContext, verify: Verify, admit: Admit) -> None:
        self._context = context
        self._verify = verify
        self._admit = admit
        self.read_buffer = bytearray(TLS_BUFFER_BYTES)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: WeakSet[_Tls] = WeakSet()
        self._pending: dict[_PendingConnection, str] = {}
        self._pending_counts: Counter[str] = Counter()

    async def start(self, address: str) -> int:
        """Listens at ``host:port``; returns the port. Raises OSError."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make_connection, host.strip("[]"), int(port), backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    def _make_connection(self) -> asyncio.BaseProtocol:
        connection = _Tls(self, _PendingConnection(self), self._context)
        self._connections.add(connection)
        return connection

    async def close(self) -> None:
        """Stops listening, and ends all connections. The relays then connect again."""
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self._connections):
            connection.cut()
        await asyncio.sleep(0)  # their protocols hear of it in the next round of the event loop

    def add_pending(self, pending_connection: _PendingConnection, address: str) -> bool:
        """Counts a connection that has not named its pod yet.

        Returns False if there are too many, in all or from this address.
        """
        if len(self._pending) >= MAX_PENDING_CONNECTIONS or self._pending_counts[address] >= MAX_PENDING_OF_ADDRESS:
            return False
        self._pending[pending_connection] = address
        self._pending_counts[address] += 1
        return True

    def remove_pending(self, pending_connection: _PendingConnection) -> None:
        """Stops counting a connection that has named its pod or is lost."""
        address = self._pending.pop(pending_connection, None)
        if address is not None:
            self._pending_counts[address] -= 1
            if not self._pending_counts[address]:
                del self._pending_counts[address]

    def identify_soon(self, pending_connection: _PendingConnection, body: bytes) -> None:
        task = asyncio.get_running_loop().create_task(self._identify(pending_connection, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _identify(self, pending_connection: _PendingConnection, body: bytes) -> None:
        try:
            hello = msgspec.json.decode(body, type=Hello)
            if hello.t != "hello" or hello.protocol != PROTOCOL:
                raise AuthenticationFailed("this agent speaks another version of the protocol")
            identity = await self._verify(hello.token)
            if f"{identity.namespace}/{identity.name}" != hello.pod:
                raise AuthenticationFailed("the token is another pod's")
            protocol = await self._admit(hello, identity)
        except (BackendError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            log.info("a relay was refused: %s", error)
            pending_connection.refuse(str(error)[:200])
        else:
            pending_connection.hand_over(protocol)


class _PendingConnection(asyncio.Protocol):
    """Represents a connection that has not named its pod yet."""

    def __init__(self, listener: RelayListener) -> None:
        self._listener = listener
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_asked = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._timer = asyncio.get_running_loop().call_later(HELLO_TIMEOUT_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_pending()

    def _stop_pending(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._listener.remove_pending(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        size = int.from_bytes(self._buffer[:4], "big")
        if self._transport is None or self._is_asked:
            return
        if len(self._buffer) >= 4 and not 1 <= size <= MAX_HELLO_BYTES:
            self._transport.abort()
        elif len(self._buffer) >= 4 + size > 4:
            self._is_asked = True
            body = bytes(self._buffer[4 : 4 + size])
            del self._buffer[: 4 + size]
            self._transport.pause_reading()
            self._listener.identify_soon(self, body)

    def refuse(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.write(encode({"t": "refused", "reason": reason}))
            self._transport.close()

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        transport = self._transport
        if transport is None:
            protocol.connection_lost(None)
            return
        self._stop_pending()
        transport.set_protocol(protocol)
        transport.write(encode({"t": "welcome"}))
        protocol.connection_made(transport)
        if self._buffer:
            protocol.data_received(bytes(self._buffer))
        with contextlib.suppress(RuntimeError):
            transport.resume_reading()
