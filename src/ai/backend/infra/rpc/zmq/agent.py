"""An agent's end of the link on ZeroMQ: one DEALER with CURVE, connected to the manager."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import uuid4

import msgspec
import zmq
import zmq.asyncio

from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.rpc.data.dialer import DataDialer
from ai.backend.infra.rpc.endpoints import ServedAgents
from ai.backend.infra.rpc.frames import Envelope, Hello, Kind, decode, encode
from ai.backend.infra.rpc.methods import MAX_MESSAGE_BYTES, Service, commands_service, reports_proxy
from ai.backend.infra.rpc.multiplexer import Multiplexer
from ai.backend.infra.rpc.zmq.keys import KeyPair

log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class ZmqAgentEndpoint:
    """Connects one or many agents to the manager at ``connect``; an
    :class:`~ai.backend.infra.rpc.endpoints.AgentEndpoint`.

    The manager has bound ``keypair.public`` to ``agent_id``, which is a prefix for many agents; ``manager_key`` is its
    own public key in Z85. A hello is sent every ``hello_every_s``; a manager that sends nothing for ``lost_after_s`` is
    not connected. ``context`` is shared with the endpoints of other agents in this process, and ended by its owner.
    """

    connect: str
    agent_id: str
    keypair: KeyPair
    manager_key: str
    hello_every_s: float = 1.0
    lost_after_s: float = 6.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    deadline_scale: float = 1.0
    context: zmq.asyncio.Context | None = None

    def __post_init__(self) -> None:
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._incarnation = uuid4().hex
        self._manager = ""
        self._received_at = 0.0
        self._connected = asyncio.Event()
        self._refusal = ""
        self._dialer = DataDialer(self.connect)
        self._carried: Mapping[str, AgentCommands] | None = None
        self._multiplexer = Multiplexer(
            "the manager",
            self._send,
            max_message_bytes=self.max_message_bytes,
            deadline_scale=self.deadline_scale,
            dialer=self._dialer,
            service_of=self._service_of,
        )
        self._reports = reports_proxy(self._connection)

    async def start(self, commands: ServedAgents) -> None:
        if isinstance(commands, Mapping):
            self._carried = commands
        else:
            self._multiplexer.service = commands_service(commands)
        self._incarnation = uuid4().hex
        self._context = self.context or zmq.asyncio.Context()
        self._socket = self._open_socket(self._context)
        self._tasks = [
            asyncio.create_task(self._receive(), name="link-receive"),
            asyncio.create_task(self._greet(), name="link-hello"),
        ]

    def _service_of(self, agent_id: str) -> Service:
        commands = self._carried.get(agent_id) if self._carried is not None else None
        if commands is None:
            raise Unavailable(f"the agent {agent_id[:64]} is not here")
        return commands_service(commands)

    def _open_socket(self, context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
        socket = context.socket(zmq.DEALER)
        socket.curve_serverkey = self.manager_key.encode()
        socket.curve_secretkey = self.keypair.secret.encode()
        socket.curve_publickey = self.keypair.public.encode()
        socket.linger = 0
        # Only a completed connection takes messages, so that others fail at once instead of being sent later, stale.
        socket.immediate = True
        socket.sndhwm = socket.rcvhwm = 0
        socket.maxmsgsize = self.max_message_bytes
        socket.heartbeat_ivl, socket.heartbeat_timeout = 2000, int(self.lost_after_s * 1000)
        socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 2000
        socket.connect(self.connect)
        self._received_at = asyncio.get_running_loop().time()
        return socket

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        await cancel_all(*tasks)
        await self._multiplexer.close()
        self._dialer.close()
        self._connected.clear()
        if self._socket is not None:
            self._socket.close(0)
        if self._context is not None and self.context is None:
            self._context.term()
        self._socket = self._context = None

    @property
    def reports(self) -> ManagerReports:
        return self._reports

    async def _connection(self) -> Multiplexer:
        """Returns the connection. Raises Unavailable if there is none after two hellos."""
        if self._socket is None:
            raise Unavailable("the link is not started")
        try:
            async with asyncio.timeout(2 * self.hello_every_s):
                await self._connected.wait()
        except TimeoutError:
            reason = f" (it says: {self._refusal})" if self._refusal else ""
            raise Unavailable(f"the manager at {self.connect} does not answer{reason}") from None
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

    async def _greet(self) -> None:
        """Sends a hello at every interval, and reconnects when the manager does not reply: it refuses keys silently."""
        while True:
            agents = None if self._carried is None else sorted(self._carried)
            hello = Hello(self.agent_id, self._incarnation, agents=agents)
            try:
                await self._send(encode(Kind.HELLO, body=hello, limit=self.max_message_bytes))
            except Unavailable as e:
                self._lost(str(e))
            delay_s = self.hello_every_s if self._connected.is_set() else min(0.05, self.hello_every_s)
            await asyncio.sleep(delay_s)
            silent_s = asyncio.get_running_loop().time() - self._received_at
            if silent_s > self.lost_after_s:
                self._lost(f"it said nothing for {silent_s:.1f} s")
                self._renew()

    def _lost(self, reason: str) -> None:
        if self._connected.is_set():
            log.warning("the manager is no longer connected: %s", reason)
            self._connected.clear()
        self._multiplexer.lose(Unavailable(f"the manager is no longer connected: {reason}"))

    def _renew(self) -> None:
        assert self._context is not None
        old_socket, self._socket = self._socket, self._open_socket(self._context)
        self._tasks[0].cancel()
        self._tasks[0] = asyncio.create_task(self._receive(), name="link-receive")
        if old_socket is not None:
            old_socket.close(0)

    async def _receive(self) -> None:
        socket = self._socket
        assert socket is not None
        while True:
            parts = await socket.recv_multipart()
            try:
                envelope = decode(parts[-1])
                self._received_at = asyncio.get_running_loop().time()
                if envelope.kind in (Kind.WELCOME, Kind.REFUSED):
                    self._on_greeting(envelope)
                else:
                    self._multiplexer.feed(envelope)
            except msgspec.MsgspecError as e:
                log.warning("a message that cannot be read is ignored: %s", e)
            except Exception:
                log.exception("a message could not be handled")

    def _on_greeting(self, envelope: Envelope) -> None:
        if envelope.kind == Kind.WELCOME:
            if self._manager not in ("", envelope.name):
                self._lost("it was started anew")
            self._manager, self._refusal = envelope.name, ""
            if not self._connected.is_set():
                log.info("connected to the manager at %s", self.connect)
                self._connected.set()
        else:
            if self._refusal != envelope.name:
                log.warning("the manager refuses this agent: %s", envelope.name)
            self._refusal = envelope.name
            self._lost(envelope.name)
