"""Implements an agent's end of the link on ZeroMQ, as one DEALER socket with CURVE that connects to the manager."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Callable, Mapping
from contextlib import suppress
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
_TIMEOUT_SHARE_PER_KEY = 0.25
"""How much of ``lost_after_s`` each of several keys of a manager that is away is tried."""


@dataclass(eq=False, kw_only=True)
class ZmqAgentEndpoint:
    """Connects one or many agents to the manager at ``connect``. Implements
    :class:`~ai.backend.infra.rpc.endpoints.AgentEndpoint`.

    The manager has bound ``keypair.public`` to ``agent_id``, which is a prefix for many agents; ``manager_key`` is its
    own public key in Z85. ``newest_keys`` returns the pair and the manager's keys that are in force: the link goes over
    to another pair when the manager takes it, and tries several keys of the manager in turn. A hello is sent every
    ``hello_every_s``; a manager that sends nothing for ``lost_after_s`` is not connected. ``context`` is shared with
    the endpoints of other agents in this process, and ended by its owner.
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
    newest_keys: Callable[[], tuple[KeyPair, tuple[str, ...]]] | None = None

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
            asyncio.create_task(self._receive(self._socket), name="link-receive"),
            asyncio.create_task(self._send_hellos(), name="link-hello"),
            asyncio.create_task(self._follow_keys(), name="link-keys"),
        ]

    def _service_of(self, agent_id: str) -> Service:
        commands = self._carried.get(agent_id) if self._carried is not None else None
        if commands is None:
            raise Unavailable(f"the agent {agent_id[:64]} is not here")
        return commands_service(commands)

    def _open_socket(self, context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
        socket = self._make_socket(context, self.keypair, self.manager_key)
        self._received_at = asyncio.get_running_loop().time()
        return socket

    def _make_socket(self, context: zmq.asyncio.Context, keypair: KeyPair, manager_key: str) -> zmq.asyncio.Socket:
        socket = context.socket(zmq.DEALER)
        socket.curve_serverkey = manager_key.encode()
        socket.curve_secretkey = keypair.secret.encode()
        socket.curve_publickey = keypair.public.encode()
        socket.linger = 0
        # Only a completed connection takes messages, so that others fail at once instead of being sent later, stale.
        socket.immediate = True
        socket.sndhwm = socket.rcvhwm = 0
        socket.maxmsgsize = self.max_message_bytes
        socket.heartbeat_ivl, socket.heartbeat_timeout = 2000, int(self.lost_after_s * 1000)
        socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 2000
        socket.connect(self.connect)
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
        """Returns the connection to the manager. Raises Unavailable if there is none after two hellos."""
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

    async def _send_hellos(self) -> None:
        """Sends a hello at every interval, and reconnects if the manager does not reply."""
        while True:
            try:
                await self._send(self._hello())
            except Unavailable as e:
                self._mark_lost(str(e))
            delay_s = self.hello_every_s if self._connected.is_set() else min(0.05, self.hello_every_s)
            await asyncio.sleep(delay_s)
            silent_s = asyncio.get_running_loop().time() - self._received_at
            has_several_keys = not self._connected.is_set() and len(self._keys()[1]) > 1
            if silent_s > self.lost_after_s * (_TIMEOUT_SHARE_PER_KEY if has_several_keys else 1):
                self._mark_lost(f"it said nothing for {silent_s:.1f} s")
                self._reconnect()

    def _keys(self) -> tuple[KeyPair, tuple[str, ...]]:
        return (self.keypair, (self.manager_key,)) if self.newest_keys is None else self.newest_keys()

    async def _follow_keys(self) -> None:
        """Reconnects with the newest keys when the agent's key pair changes or the manager's key is no longer valid.

        The keys are compared about once a second, and only while the agent is connected.
        Until the manager takes the newest keys, the present connection stays, and the agent tries again.
        """
        while self.newest_keys is not None:
            await asyncio.sleep(min(1.0, self.lost_after_s))
            keypair, manager_keys = self._keys()
            if self._connected.is_set() and (keypair != self.keypair or self.manager_key not in manager_keys):
                await self._switch_keys()

    async def _switch_keys(self) -> None:
        """Connects with the valid keys, and closes the present connection afterwards, so that calls continue.

        A pair that the manager does not take yet, or a key of its own that it does not use yet, changes nothing.
        """
        assert self._context is not None
        keypair, manager_key = self._choose_keys()
        spare_socket, old_receiver = self._make_socket(self._context, keypair, manager_key), None
        try:
            can_send = spare_socket.poll(int(self.lost_after_s * 1000), zmq.POLLOUT)  # type: ignore[call-arg]  # stub lacks it
            if not await can_send or self._socket is None:
                log.info("the manager does not take the new keys yet, those of before are used")
                return
            log.info("the link goes over to other keys")
            self.keypair, self.manager_key = keypair, manager_key
            spare_socket, self._socket = self._socket, spare_socket
            old_receiver, self._tasks[0] = self._tasks[0], asyncio.create_task(self._receive(self._socket))
            with suppress(Unavailable):
                await self._send(self._hello())
            await asyncio.sleep(min(1.0, self.lost_after_s))  # for what the manager has sent by the old connection
        finally:
            if old_receiver is not None:
                old_receiver.cancel()
            spare_socket.close(0)

    def _choose_keys(self) -> tuple[KeyPair, str]:
        """Returns the key pair to connect with, and the next public key in the list of the manager's keys.

        The key after the present one is next, and after the last key the first.
        """
        keypair, manager_keys = self._keys()
        key_index = manager_keys.index(self.manager_key) if self.manager_key in manager_keys else -1
        return keypair, manager_keys[(key_index + 1) % len(manager_keys)]

    def _hello(self) -> bytes:
        agents = None if self._carried is None else sorted(self._carried)
        hello = Hello(self.agent_id, self._incarnation, agents=agents)
        return encode(Kind.HELLO, body=hello, limit=self.max_message_bytes)

    def _mark_lost(self, reason: str) -> None:
        if self._connected.is_set():
            log.warning("the manager is no longer connected: %s", reason)
            self._connected.clear()
        self._multiplexer.fail_all(Unavailable(f"the manager is no longer connected: {reason}"))

    def _reconnect(self) -> None:
        assert self._context is not None
        self.keypair, self.manager_key = self._choose_keys()
        old_socket, self._socket = self._socket, self._open_socket(self._context)
        self._tasks[0].cancel()
        self._tasks[0] = asyncio.create_task(self._receive(self._socket), name="link-receive")
        if old_socket is not None:
            old_socket.close(0)

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        refusals_task = asyncio.create_task(self._watch_refusals(monitor, self.keypair.public), name="link-refusals")
        try:
            while True:
                message_parts = await socket.recv_multipart()
                try:
                    envelope = decode(message_parts[-1])
                    self._received_at = asyncio.get_running_loop().time()
                    if envelope.kind in (Kind.WELCOME, Kind.REFUSED):
                        self._on_greeting(envelope)
                    else:
                        self._multiplexer.feed(envelope)
                except msgspec.MsgspecError as e:
                    log.warning("a message that cannot be read is ignored: %s", e)
                except Exception:
                    log.exception("a message could not be handled")
        finally:
            refusals_task.cancel()
            if not socket.closed:
                socket.disable_monitor()
            monitor.close(0)

    async def _watch_refusals(self, monitor: zmq.asyncio.Socket, public_key: str) -> None:
        """Notes that the manager does not take the key: it ends such a connection before any message."""
        while True:
            await monitor.recv_multipart()
            command = f"backend.ai mgr allow-agent {shlex.quote(self.agent_id)} {shlex.quote(public_key)}"
            self._note_refusal(f"the key is allowed for no agent; to allow it: {command}")

    def _note_refusal(self, reason: str) -> None:
        if self._refusal != reason:
            log.warning("the manager refuses this agent: %s", reason)
        self._refusal = reason

    def _on_greeting(self, envelope: Envelope) -> None:
        if envelope.kind == Kind.WELCOME:
            if self._manager not in ("", envelope.name):
                self._mark_lost("it was started anew")
            self._manager, self._refusal = envelope.name, ""
            if not self._connected.is_set():
                log.info("connected to the manager at %s", self.connect)
                self._connected.set()
        else:
            self._note_refusal(envelope.name)
            self._mark_lost(envelope.name)
