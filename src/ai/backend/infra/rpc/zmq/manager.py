"""Implements the manager's end of the link on ZeroMQ, as one ROUTER socket with CURVE to which all agents connect."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import zmq
import zmq.asyncio
from zmq.utils import z85

from ai.backend.common.errors import Unavailable
from ai.backend.common.wire.link import AgentCommands, ManagerReports
from ai.backend.common.wire.methods import Method
from ai.backend.infra.loop import cancel_all
from ai.backend.infra.rpc.data.server import DataServer
from ai.backend.infra.rpc.endpoints import ConnectedAgents
from ai.backend.infra.rpc.frames import PROTOCOL, Envelope, Hello, Kind, decode, decode_body, encode
from ai.backend.infra.rpc.methods import MAX_MESSAGE_BYTES, Caller, commands_proxy, reports_service
from ai.backend.infra.rpc.multiplexer import Multiplexer
from ai.backend.infra.rpc.zmq.keys import AgentKeys, KeyPair, covers

log = logging.getLogger(__name__)
_PROBE_INTERVAL_S = 0.25
_REBIND_S = 0.2
_UNBIND_S = 5.0
_ZAP_DOMAIN = b"backendai"
_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_ZAP_VERSION = b"1.0"


@dataclass(slots=True)
class _Peer:
    """Represents a connected process of one or many agents.

    ``agent_id`` is what its key is bound to, ``agents`` those for which it speaks; ``route`` is the ROUTER's name of
    its present connection.
    """

    agent_id: str
    incarnation: str
    route: bytes
    multiplexer: Multiplexer
    seen_at: float
    agents: frozenset[str] = frozenset()


class _AgentConnection(msgspec.Struct, frozen=True):
    """Sends calls to one of the agents that share a connection."""

    multiplexer: Multiplexer
    agent_id: str

    async def call(self, method: Method, request: object) -> Any:
        return await self.multiplexer.call(method, request, agent=self.agent_id)

    async def open_stream(self, method: Method, request: object) -> Any:
        return await self.multiplexer.open_stream(method, request, agent=self.agent_id)


@dataclass(eq=False, kw_only=True)
class ZmqManagerEndpoint:
    """Accepts agents at ``bind``. Implements :class:`~ai.backend.infra.rpc.endpoints.ManagerEndpoint`.

    Port 0 chooses one, see ``address``. An agent that sends nothing for ``lost_after_s`` is not connected. ``data``
    accepts the connections of streams, without it none can be opened. When ``newest_keypair`` returns another pair than
    ``keypair``, that one is used from then on: agents have to connect anew, and ``on_new_key`` gets its public half.
    """

    bind: str
    keypair: KeyPair
    agent_keys: AgentKeys
    lost_after_s: float = 6.0
    max_message_bytes: int = MAX_MESSAGE_BYTES
    deadline_scale: float = 1.0
    data: DataServer | None = None
    newest_keypair: Callable[[], KeyPair] | None = None
    on_new_key: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._zap: _ZapHandler | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._reports: ManagerReports | None = None
        self._peers: dict[str, _Peer] = {}
        self._routes: dict[bytes, _Peer] = {}
        self._incarnation = ""
        self._peer_of: dict[str, _Peer] = {}
        """Agent -> the connection that speaks for it; of several the one that began last."""
        self._agents = ConnectedAgents(lambda: self._peer_of, self.agent)
        self.address = self.bind

    async def start(self, reports: ManagerReports) -> None:
        """Binds the address and serves agents. Raises Unavailable if it cannot be bound."""
        self._reports = reports
        self._incarnation = uuid4().hex
        self._context = zmq.asyncio.Context()
        try:
            self._zap = _ZapHandler(self._context, lambda key: self.agent_keys.agent_for(key) is not None)
            self._socket = self._open_socket(self._context)
            if self.data is not None:
                await self.data.start(self.address)
        except (zmq.ZMQError, Unavailable) as e:
            await self.stop()
            raise e if isinstance(e, Unavailable) else Unavailable(f"cannot bind {self.bind}: {e}") from None
        self._tasks = [
            asyncio.create_task(self._receive(self._socket), name="link-receive"),
            asyncio.create_task(self._watch_peers(), name="link-watch"),
            asyncio.create_task(self._follow_keypair(self._socket), name="link-keys"),
        ]

    def _open_socket(self, context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
        socket = context.socket(zmq.ROUTER)
        socket.curve_server = True
        self._use_keypair(socket)
        socket.zap_domain = _ZAP_DOMAIN
        socket.linger = 0
        socket.router_mandatory = True
        # No high-water mark: an agent that stalls must not stall the others. What may be under way is bounded by the
        # number of calls, the credit of streams, and by the heartbeat that drops a dead connection with its queue.
        socket.sndhwm = socket.rcvhwm = 0
        socket.maxmsgsize = self.max_message_bytes
        socket.heartbeat_ivl, socket.heartbeat_timeout = 2000, int(self.lost_after_s * 1000)
        try:
            socket.bind(self.bind)
        except zmq.ZMQError:
            socket.close(0)
            raise
        self.address = bytes(socket.getsockopt(zmq.LAST_ENDPOINT)).decode().rstrip("\0")
        return socket

    def _use_keypair(self, socket: zmq.asyncio.Socket) -> None:
        socket.curve_secretkey = self.keypair.secret.encode()
        socket.curve_publickey = self.keypair.public.encode()

    async def _replace_keypair(self, socket: zmq.asyncio.Socket, keypair: KeyPair) -> None:
        """Replaces the manager's key pair, and binds the manager's address again with the new key pair.

        ZeroMQ ends the connections that the address has accepted before.
        """
        self.keypair = keypair
        self._use_keypair(socket)
        monitor_socket = socket.get_monitor_socket(zmq.EVENT_CLOSED)
        try:
            socket.unbind(self.address)
            # Until then the address is in use, and the file of an ipc address would be removed after the next bind.
            with suppress(TimeoutError):
                await asyncio.wait_for(monitor_socket.recv_multipart(), _UNBIND_S)
        finally:
            socket.disable_monitor()
            monitor_socket.close(0)
        while True:
            try:
                socket.bind(self.address)
                break
            except zmq.ZMQError as e:  # without the address no agent reaches this manager: another program may free it
                log.warning("%s cannot be bound again yet: %s", self.address, e)
                await asyncio.sleep(_REBIND_S)
        log.info("agents connect by the key %s from now on", keypair.public)
        if self.on_new_key is not None:
            try:
                self.on_new_key(keypair.public)
            except OSError as e:
                log.warning("the new public key cannot be written for agents: %s", e)

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        await cancel_all(*tasks)
        for peer in list(self._peers.values()):
            await peer.multiplexer.close()
        if self.data is not None:
            await self.data.stop()
        self._peers.clear()
        self._peer_of.clear()
        self._routes.clear()
        if self._zap is not None:
            await self._zap.close()
        if self._socket is not None:
            self._socket.close(0)
        if self._context is not None:
            self._context.term()
        self._zap = self._socket = self._context = self._reports = None

    def agent(self, agent_id: str) -> AgentCommands:
        return commands_proxy(partial(self._connection, agent_id))

    async def _connection(self, agent_id: str) -> Caller:
        """Returns the connection of an agent. Raises Unavailable if it is not connected."""
        peer = self._peer_of.get(agent_id)
        if peer is None:
            raise Unavailable(f"agent {agent_id} is not connected")
        return peer.multiplexer if peer.agent_id == agent_id else _AgentConnection(peer.multiplexer, agent_id)

    @property
    def agents(self) -> Mapping[str, AgentCommands]:
        return self._agents

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            frames = await socket.recv_multipart(copy=False)
            try:
                await self._handle_message(frames)
            except msgspec.MsgspecError as e:
                log.warning("a message that cannot be read is ignored: %s", e)
            except Exception:
                log.exception("a message could not be handled")

    async def _handle_message(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 2:
            log.warning("a message of %d parts is ignored", len(frames))
            return
        route = frames[0].bytes
        envelope = decode(frames[1].bytes)
        peer = self._routes.get(route)
        if envelope.kind == Kind.HELLO:
            await self._handle_hello(route, str(frames[1].get("User-Id")), envelope)
        elif peer is None:
            await self._refuse(route, "say hello first")
        else:
            peer.seen_at = asyncio.get_running_loop().time()
            peer.multiplexer.feed(envelope)

    async def _handle_hello(self, route: bytes, public_key: str, envelope: Envelope) -> None:
        try:
            hello = decode_body(envelope.body, Hello)
        except msgspec.MsgspecError:
            await self._refuse(route, "the hello cannot be read")
            return
        bound_agent = self.agent_keys.agent_for(public_key)
        if hello.protocol != PROTOCOL:
            await self._refuse(route, f"protocol {hello.protocol} is not {PROTOCOL}")
        elif bound_agent is None or bound_agent != hello.agent_id:
            log.warning("the key %s belongs to %s and claims to be %s", public_key, bound_agent, hello.agent_id[:64])
            self._drop_route(route, "its key was taken away")
            await self._refuse(route, "the key belongs to another agent")
        elif foreign_id := next(
            (agent_index for agent_index in hello.agents or () if not covers(bound_agent, agent_index)), None
        ):
            log.warning("the key of %s claims to speak for %s", bound_agent, foreign_id[:64])
            await self._refuse(route, "the key may not speak for all of these agents")
        else:
            self._admit(route, hello)
            await self._send_welcome(route)

    def _admit(self, route: bytes, hello: Hello) -> None:
        assert self._reports is not None
        peer = self._peers.get(hello.agent_id)
        if peer is not None and peer.incarnation != hello.incarnation:
            self._drop(peer, "it was started anew")
            peer = None
        if peer is None:
            multiplexer = Multiplexer(
                f"agent {hello.agent_id}",
                lambda data: self._send_message(self._route_of(hello.agent_id), data),
                service=reports_service(self._reports, lambda agent_id: self._speaks_for(hello.agent_id, agent_id)),
                max_message_bytes=self.max_message_bytes,
                deadline_scale=self.deadline_scale,
                server=self.data,
            )
            peer = self._peers[hello.agent_id] = _Peer(hello.agent_id, hello.incarnation, route, multiplexer, 0.0)
            log.info("agent %s is connected", hello.agent_id)
        if peer.route != route:
            self._routes.pop(peer.route, None)
            peer.route = route
        self._routes[route] = peer
        peer.seen_at = asyncio.get_running_loop().time()
        self._assign_agents(peer, frozenset([hello.agent_id] if hello.agents is None else hello.agents))

    def _assign_agents(self, peer: _Peer, agents: frozenset[str]) -> None:
        """Makes a connection the one that carries the calls of the given agents, and of no other agents.

        An agent that two connections name belongs to the later one, though both name it in every greeting.
        """
        if agents == peer.agents:
            return
        for agent_id in peer.agents - agents:
            if self._peer_of.get(agent_id) is peer:
                del self._peer_of[agent_id]
        self._peer_of.update(dict.fromkeys(agents - peer.agents, peer))
        peer.agents = agents

    def _speaks_for(self, bound_id: str, agent_id: str) -> bool:
        """Returns True if a key covers an agent that no other connection carries.

        The agent may report before its next greeting names it.
        """
        peer = self._peers.get(bound_id)
        return covers(bound_id, agent_id) and self._peer_of.get(agent_id, peer) is peer

    async def _refuse(self, route: bytes, reason: str) -> None:
        await self._send_greeting(route, encode(Kind.REFUSED, name=reason, limit=self.max_message_bytes))

    async def _send_welcome(self, route: bytes) -> None:
        await self._send_greeting(route, encode(Kind.WELCOME, name=self._incarnation, limit=self.max_message_bytes))

    def _route_of(self, agent_id: str) -> bytes | None:
        peer = self._peers.get(agent_id)
        return peer.route if peer is not None else None

    async def _send_greeting(self, route: bytes, data: bytes) -> None:
        with suppress(Unavailable):
            await self._send_message(route, data)

    async def _send_message(self, route: bytes | None, data: bytes) -> None:
        """Sends a message. Raises Unavailable if the connection is lost."""
        if self._socket is None or route is None:
            raise Unavailable("the agent is not connected")
        try:
            await self._socket.send_multipart([route, data])
        except zmq.ZMQError as e:
            if e.errno != zmq.EHOSTUNREACH:
                log.warning("a message could not be sent: %s", e)
            self._drop_route(route, "its connection is gone")
            raise Unavailable("the connection of the agent is gone") from None

    def _drop_route(self, route: bytes, reason: str) -> None:
        peer = self._routes.get(route)
        if peer is not None:
            self._drop(peer, reason)

    def _drop(self, peer: _Peer, reason: str) -> None:
        if self._peers.get(peer.agent_id) is not peer:
            return
        log.warning("agent %s is no longer connected: %s", peer.agent_id, reason)
        del self._peers[peer.agent_id]
        self._assign_agents(peer, frozenset())
        self._routes.pop(peer.route, None)
        peer.multiplexer.fail_all(Unavailable(f"agent {peer.agent_id} is no longer connected: {reason}"))

    async def _watch_peers(self) -> None:
        while True:
            await asyncio.sleep(min(_PROBE_INTERVAL_S, self.lost_after_s / 6))
            now = asyncio.get_running_loop().time()
            for peer in list(self._peers.values()):
                if now - peer.seen_at > self.lost_after_s:
                    self._drop(peer, f"it said nothing for {self.lost_after_s:g} s")
                elif peer.multiplexer.is_waiting:
                    # A connection that was closed refuses what is sent: an agent that died need not be waited for.
                    await self._send_greeting(
                        peer.route, encode(Kind.WELCOME, name=self._incarnation, limit=self.max_message_bytes)
                    )

    async def _follow_keypair(self, socket: zmq.asyncio.Socket) -> None:
        while self.newest_keypair is not None:
            await asyncio.sleep(min(1.0, self.lost_after_s))
            keypair = self.newest_keypair()
            if keypair != self.keypair:
                await self._replace_keypair(socket, keypair)


# zmq.auth.asyncio answers nothing after a second start in one process.
class _ZapHandler:
    """Authenticates peers by the ZeroMQ authentication protocol (RFC 27). ``is_allowed`` receives the public key in
    Z85.

    The key comes with every message as ``User-Id``. A socket with another domain than ``_ZAP_DOMAIN`` would wait for
    ever.
    """

    def __init__(self, context: zmq.asyncio.Context, is_allowed: Callable[[str], bool]) -> None:
        self._is_allowed = is_allowed
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP_ENDPOINT)
        self._task = asyncio.create_task(self._run(), name="zap")

    async def _run(self) -> None:
        while True:
            request = await self._socket.recv_multipart()
            try:
                answer = self._authenticate(request)
            except Exception:
                log.exception("an authentication request failed")
                answer = (b"500", b"internal error", b"")
            request_id = request[1] if len(request) > 1 else b"1"
            await self._socket.send_multipart([_ZAP_VERSION, request_id, *answer, b""])

    def _authenticate(self, request: list[bytes]) -> tuple[bytes, bytes, bytes]:
        if len(request) != 7:
            return b"400", b"a CURVE key is needed", b""
        version, _, domain, address, _, mechanism, key = request
        if version != _ZAP_VERSION or domain != _ZAP_DOMAIN or mechanism != b"CURVE" or len(key) != 32:
            return b"400", b"not for this link", b""
        public_key = z85.encode(key).decode()
        if not self._is_allowed(public_key):
            log.warning("refused the unknown key %s from %s", public_key, address.decode(errors="replace"))
            return b"400", b"unknown key", b""
        return b"200", b"OK", public_key.encode()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        self._socket.close(0)
