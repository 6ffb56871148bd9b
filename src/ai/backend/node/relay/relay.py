"""Numbers, stores and replays the messages of one runner for the agent that drives it.

There is one controller, replaced by a newer epoch, and any number of watchers, which only receive the end. The owner
runs the poll loop and handles other messages. Nothing is read that could not be stored: this is the flow control.
"""

from __future__ import annotations

import select

from .framing import ProtocolViolation, decode, encode, kind_of, pack
from .light import dumps
from .peers import Peer
from .replay import Replay

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from typing import Any, Callable

    from .light import Socket

PROTOCOL = 1
UNSENT_LIMIT = 1024 * 1024
TO_RUNNER_LIMIT = 16 * 1024 * 1024


class Relay:
    """Relays between a runner and its controller.

    Args:
        poll: the owner's; the relay registers the listener, the runner and its peers there.
        listener: of the peers; None where the owner makes the connections, and gives them to :meth:`add_peer`.
        runner: the stream of the runner; None until there is one.
        replay_bytes: the limit of stored unacknowledged messages.
        on_command: called with (peer, type, body) for a message that any peer may send; returns False for others.
        on_runner_lost: called when the runner's stream has ended, with "" or with the violation of the protocol.
        convert_for_runner: returns what to write to the runner for a message of the controller, by its type and body.
    """

    def __init__(
        self,
        poll: select.poll,
        listener: Socket | None,
        runner: _socket.socket | None,
        *,
        replay_bytes: int,
        on_command: Callable[[Peer, str, bytes], bool],
        on_runner_lost: Callable[[str], None],
        convert_for_runner: Callable[[str, bytes], bytes] = lambda _type, body: pack(body),
    ) -> None:
        self._poll = poll
        self._listener = listener
        self._command = on_command
        self._lost = on_runner_lost
        self._convert = convert_for_runner
        self._runner: Peer | None = None
        self._replay = Replay(replay_bytes)
        self._peers: dict[int, Peer] = {}
        self._watchers: set[int] = set()
        self._controller: Peer | None = None
        self._epoch = -1
        self._sent = 0
        self._acked = 0
        self.exit: dict[str, Any] | None = None
        if listener is not None:
            poll.register(listener, select.POLLIN)
        if runner is not None:
            self.attach_runner(runner)

    def attach_runner(self, runner: _socket.socket) -> None:
        """Begins to relay this runner."""
        self._runner = Peer(runner)
        self._poll.register(self._runner, select.POLLIN)

    @property
    def epoch(self) -> int:
        """The highest epoch of all controllers that have attached; -1 before the first controller."""
        return self._epoch

    @property
    def last_seq(self) -> int:
        """The sequence number of the runner's last message."""
        return self._replay.last_seq

    @property
    def is_sent(self) -> bool:
        """True if no frame of the runner waits to be sent to the controller, or no controller is connected."""
        return self._controller is None or self._sent >= self._replay.last_seq

    @property
    def is_acknowledged(self) -> bool:
        """True if a controller is connected and has acknowledged every frame of the runner."""
        all_sent = self._sent >= self._replay.last_seq and self._acked >= self._replay.last_seq
        return self._controller is not None and self._controller.queued == 0 and all_sent

    def unacknowledged(self) -> list[bytes]:
        """Returns the runner's frames that the controller has not acknowledged, each with its length."""
        frames = (self._replay.get(seq) for seq in self._replay.after(self._acked))
        return [frame for frame in frames if frame is not None]

    def dispatch(self, fd: int, events: int) -> bool:
        """Handles events of a ready descriptor; returns False for a descriptor that is not the relay's."""
        if self._listener is not None and fd == self._listener.fileno():
            self._accept_peer(self._listener)
        elif self._runner is not None and fd == self._runner.fileno():
            if events & select.POLLOUT:
                self._runner.flush()
            if events & ~select.POLLOUT:
                self._read_runner()
        elif fd in self._peers:
            self._serve_peer(self._peers[fd], events)
        else:
            return False
        return True

    def report_end(self, exit_report: dict[str, Any]) -> None:
        """Reports the workload's end to controller and watchers, after all frames of the runner."""
        self.exit = exit_report
        frame = encode({"t": "exited", **exit_report})
        for peer in list(self._peers.values()):
            if peer is self._controller:
                self._send_unsent()
            if peer.fileno() in self._watchers or peer is self._controller:
                peer.send(frame)

    def send_for_runner(self, message: dict[str, Any]) -> None:
        """Sends the controller a message in the runner's name, numbered and stored like the runner's own."""
        self._replay.push(dumps(message).encode())
        self._send_unsent()

    def read_remaining(self) -> None:
        """Reads the rest of the runner's stream after the runner has ended."""
        while self._runner is not None and not self._replay.is_full:
            received_bytes = self._runner.receive()
            if not received_bytes:
                self._drop_runner()
                break
            self._receive_from_runner(received_bytes)

    def update_poll_events(self) -> None:
        """Updates the events that ``poll`` reports for the runner and all connections. Call it before each wait.

        The runner and the controller are read only while the relay can take more frames of them.
        """
        if self._runner is not None:
            is_controller_behind = self._controller is not None and self._sent < self._replay.last_seq
            takes_frames = not self._replay.is_full and not is_controller_behind
            self._poll.modify(
                self._runner, (select.POLLIN if takes_frames else 0) | (select.POLLOUT if self._runner.queued else 0)
            )
        is_runner_full = self._runner is not None and self._runner.queued > TO_RUNNER_LIMIT
        for peer in list(self._peers.values()):
            if not peer.is_open:
                self._forget_peer(peer)
                continue
            takes_frames = not (is_runner_full and peer is self._controller)
            self._poll.modify(peer, (select.POLLIN if takes_frames else 0) | (select.POLLOUT if peer.queued else 0))

    def _read_runner(self) -> None:
        assert self._runner is not None
        received_bytes = self._runner.receive()
        if received_bytes is None:
            self._drop_runner()
            self._lost("")
        else:
            self._receive_from_runner(received_bytes)

    def _receive_from_runner(self, data: bytes) -> None:
        if self._runner is None:
            return
        try:
            for body in self._runner.reader.feed(data):
                self._replay.push(body)
        except ProtocolViolation as violation:
            self._drop_runner()
            self._lost(f"protocol-violation: {violation}")
        self._send_unsent()

    def _drop_runner(self) -> None:
        if self._runner is not None:
            self._poll.unregister(self._runner)
            self._runner.close()
            self._runner = None

    def _accept_peer(self, listener: Socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        self.add_peer(sock)

    def add_peer(self, sock: Any) -> Peer:
        """Starts serving a connection. It is a socket, or an object that has the methods of a socket."""
        peer = Peer(sock)
        self._peers[peer.fileno()] = peer
        self._poll.register(peer, select.POLLIN)
        return peer

    def _send_unsent(self) -> None:
        """Sends the controller the runner's frames that were not sent yet, until the connection's queue is full."""
        peer = self._controller
        if peer is None:
            return
        while peer.is_open and peer.queued < UNSENT_LIMIT and self._sent < self._replay.last_seq:
            self._send_next(peer)

    def _send_next(self, peer: Peer) -> None:
        self._sent = max(self._sent + 1, self._replay.first_seq)
        frame = self._replay.get(self._sent)
        if frame is not None:
            peer.send(frame)

    def _forget_peer(self, peer: Peer) -> None:
        fd = next(peer_fd for peer_fd, open_peer in self._peers.items() if open_peer is peer)
        try:
            self._poll.unregister(fd)
        except (KeyError, ValueError, OSError):
            pass  # it was not registered, or is closed
        del self._peers[fd]
        self._watchers.discard(fd)
        if peer is self._controller:
            self._controller = None
        peer.close()

    def _serve_peer(self, peer: Peer, events: int) -> None:
        if events & select.POLLOUT and peer.flush() and peer is self._controller:
            self._send_unsent()
        if not events & ~select.POLLOUT:
            return
        received_bytes = peer.receive()
        if received_bytes is None:
            self._forget_peer(peer)
            return
        try:
            for body in peer.reader.feed(received_bytes):
                self._handle_message(peer, body)
                if not peer.is_open:
                    break
        except (ProtocolViolation, KeyError, TypeError, ValueError):
            peer.is_open = False

    def _handle_message(self, peer: Peer, body: bytes) -> None:
        kind = kind_of(body)
        if kind == "attach":
            self._attach_controller(peer, decode(body))
        elif kind == "watch":
            self._watchers.add(peer.fileno())
            peer.send(encode({"t": "watching", "exit": self.exit}))
            if self.exit is not None:
                peer.send(encode({"t": "exited", **self.exit}))
        elif self._command(peer, kind, body):
            return
        elif peer is not self._controller:
            raise ProtocolViolation("not attached")
        elif kind == "ack":
            self._acked = max(self._acked, int(decode(body)["seq"]))
            self._replay.ack(self._acked)
        elif self._runner is not None and (runner_bytes := self._convert(kind, body)):
            self._runner.send(runner_bytes)

    def _attach_controller(self, peer: Peer, message: dict[str, Any]) -> None:
        epoch, last_seq = int(message["epoch"]), int(message["last_seq"])
        if epoch < self._epoch or message.get("protocol") != PROTOCOL:
            peer.send(encode({"t": "refused", "reason": "stale-epoch"}))
            peer.is_open = False
            return
        if self._controller is not None and self._controller is not peer:
            self._forget_peer(self._controller)
        self._epoch = epoch
        self._controller = peer
        # Numbers the agent says it has are acknowledged; a number we never gave comes from another incarnation.
        self._sent = last_seq if last_seq <= self._replay.last_seq else 0
        self._acked = max(self._acked, self._sent)
        answer = {
            "t": "attached",
            "protocol": PROTOCOL,
            "first_seq": self._replay.first_seq,
            "last_seq": self._replay.last_seq,
            "alive": self.exit is None,
            "exit": self.exit,
        }
        peer.send(encode(answer))
        self._send_unsent()
        if self.exit is not None:
            while self._sent < self._replay.last_seq and peer.is_open:
                self._send_next(peer)
            peer.send(encode({"t": "exited", **self.exit}))
