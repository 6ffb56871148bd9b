"""An agent's end of the link on ZeroMQ: one DEALER with CURVE, connected to the manager."""

from __future__ import annotations

import asyncio
import logging
from uuid import uuid4

import msgspec
import zmq
import zmq.asyncio

from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.infra.rpc.data.dialer import DataDialer
from ai.backend.infra.rpc.frames import Envelope, Hello, Kind, decode, encode
from ai.backend.infra.rpc.methods import MAX_MESSAGE_BYTES
from ai.backend.infra.rpc.multiplexer import Multiplexer
from ai.backend.infra.rpc.proxies import commands_service, reports_proxy
from ai.backend.infra.rpc.zmq.keys import KeyPair

log = logging.getLogger(__name__)


class ZmqAgentEndpoint:
    """Implements an :class:`~ai.backend.infra.rpc.endpoints.AgentEndpoint`.

    Args:
        connect: the manager's address.
        agent_id: who this is; the manager has bound the key to it.
        keypair: this agent's CURVE keys.
        manager_key: the manager's public key, in Z85.
        hello_every_s: how often it says that it is there.
        lost_after_s: a manager that says nothing for so long is not connected.
    """

    def __init__(
        self,
        *,
        connect: str,
        agent_id: str,
        keypair: KeyPair,
        manager_key: str,
        hello_every_s: float = 1.0,
        lost_after_s: float = 6.0,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        deadline_scale: float = 1.0,
    ) -> None:
        self._connect = connect
        self._agent_id = agent_id
        self._keypair = keypair
        self._manager_key = manager_key
        self._hello_every_s = hello_every_s
        self._lost_after_s = lost_after_s
        self._limit = max_message_bytes
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._incarnation = uuid4().hex
        self._manager = ""
        self._heard_at = 0.0
        self._connected = asyncio.Event()
        self._refused = ""
        self._dialer = DataDialer(connect)
        self._multiplexer = Multiplexer(
            "the manager",
            self._send,
            max_message_bytes=max_message_bytes,
            deadline_scale=deadline_scale,
            dialer=self._dialer,
        )
        self._reports = reports_proxy(self._connection)

    async def start(self, commands: AgentCommands) -> None:
        self._multiplexer.service = commands_service(commands)
        self._incarnation = uuid4().hex
        self._context = zmq.asyncio.Context()
        self._socket = self._open_socket(self._context)
        self._tasks = [
            asyncio.create_task(self._receive(), name="link-receive"),
            asyncio.create_task(self._greet(), name="link-hello"),
        ]

    def _open_socket(self, context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
        socket = context.socket(zmq.DEALER)
        socket.curve_serverkey = self._manager_key.encode()
        socket.curve_secretkey = self._keypair.secret.encode()
        socket.curve_publickey = self._keypair.public.encode()
        socket.linger = 0
        # Only a completed connection takes messages: what is said to nobody fails at once and is not said later, stale.
        socket.immediate = True
        socket.sndhwm = socket.rcvhwm = 0
        socket.maxmsgsize = self._limit
        socket.heartbeat_ivl, socket.heartbeat_timeout = 2000, int(self._lost_after_s * 1000)
        socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 2000
        socket.connect(self._connect)
        self._heard_at = asyncio.get_running_loop().time()
        return socket

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._multiplexer.close()
        self._dialer.close()
        self._connected.clear()
        if self._socket is not None:
            self._socket.close(0)
        if self._context is not None:
            self._context.term()
        self._socket = self._context = None

    @property
    def reports(self) -> ManagerReports:
        return self._reports

    async def _connection(self) -> Multiplexer:
        """Returns the connection. Raises Unavailable if there is no manager after a short wait."""
        if self._socket is None:
            raise Unavailable("the link is not started")
        try:
            async with asyncio.timeout(2 * self._hello_every_s):
                await self._connected.wait()
        except TimeoutError:
            reason = f" (it says: {self._refused})" if self._refused else ""
            raise Unavailable(f"the manager at {self._connect} does not answer{reason}") from None
        return self._multiplexer

    async def _send(self, data: bytes) -> None:
        if self._socket is None:
            raise Unavailable("the link is closed")
        try:
            await self._socket.send(data, flags=zmq.NOBLOCK)
        except zmq.Again:
            raise Unavailable("there is no connection to the manager") from None
        except zmq.ZMQError as e:
            raise Unavailable(f"the connection to the manager failed: {e}") from None

    # ---- hello ------------------------------------------------------------------------------------------------------

    async def _greet(self) -> None:
        """Sends a hello at once and at every interval, and reconnects when the manager stays silent.

        A manager that refuses a key never says so, and libzmq may not try again by itself.
        """
        hello = encode(Kind.HELLO, body=Hello(self._agent_id, self._incarnation), limit=self._limit)
        while True:
            try:
                await self._send(hello)
            except Unavailable as e:
                self._lost(str(e))
            delay_s = self._hello_every_s if self._connected.is_set() else min(0.05, self._hello_every_s)
            await asyncio.sleep(delay_s)
            silent_s = asyncio.get_running_loop().time() - self._heard_at
            if silent_s > self._lost_after_s:
                self._lost(f"it said nothing for {silent_s:.1f} s")
                self._renew()

    def _lost(self, reason: str) -> None:
        if self._connected.is_set():
            log.warning("the manager is no longer connected: %s", reason)
            self._connected.clear()
        self._multiplexer.lose(Unavailable(f"the manager is no longer connected: {reason}"))

    def _renew(self) -> None:
        assert self._context is not None
        old, self._socket = self._socket, self._open_socket(self._context)
        self._tasks[0].cancel()
        self._tasks[0] = asyncio.create_task(self._receive(), name="link-receive")
        if old is not None:
            old.close(0)

    # ---- receiving --------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        socket = self._socket
        assert socket is not None
        while True:
            parts = await socket.recv_multipart()
            try:
                envelope = decode(parts[-1])
                self._heard_at = asyncio.get_running_loop().time()
                if envelope.kind in (Kind.WELCOME, Kind.REFUSED):
                    self._take_greeting(envelope)
                else:
                    self._multiplexer.feed(envelope)
            except msgspec.MsgspecError as e:
                log.warning("a message that cannot be read is ignored: %s", e)
            except Exception:
                log.exception("a message could not be handled")

    def _take_greeting(self, envelope: Envelope) -> None:
        if envelope.kind == Kind.WELCOME:
            if self._manager not in ("", envelope.name):
                self._lost("it was started anew")
            self._manager, self._refused = envelope.name, ""
            if not self._connected.is_set():
                log.info("connected to the manager at %s", self._connect)
                self._connected.set()
        else:
            if self._refused != envelope.name:
                log.warning("the manager refuses this agent: %s", envelope.name)
            self._refused = envelope.name
            self._lost(envelope.name)
