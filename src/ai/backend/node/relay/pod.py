"""Runs the relay of a pod, in a container beside the session's container.

It connects to the agent and outlives the runner.

The session's first process (:mod:`reaper`) connects twice by a unix socket in a folder that both containers have: for
commands, and for the runner's stream. Then the socket is unlinked, before any code of the user runs. Token and
connection to the agent are in this container alone.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import random
import select
import signal
import socket
import sys
import threading
import time

from .framing import FrameReader, ProtocolViolation, decode, encode, kind_of
from .peers import Peer
from .pod_files import SOCKET, place_file
from .relay import Relay
from .streams import Pump
from .tls import Dialler, Refused, TlsSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Tuple

FIRST_DELAY_S, MAX_DELAY_S = 0.1, 10.0
CONNECT_TIMEOUT_S = 5.0
MAX_STREAMS = 128
MAX_PLACED_BYTES = 16 * 1024 * 1024
_REAPER_MESSAGES = ("begin", "file", "end")


class PodRelay:
    """Relays between one pod's session and the agent.

    Args:
        channel_folder: the folder that both containers have.
        place_folders: folders for files that the agent sends, by the name of the place.
        dialler: dials the agent.
        pod: namespace and name, as ``namespace/name``.
        keep_s: how long unread messages of an ended session are kept.
    """

    def __init__(
        self,
        channel_folder: str,
        place_folders: Dict[str, str],
        dialler: Dialler,
        pod: str,
        replay_bytes: int,
        keep_s: float,
    ) -> None:
        self._keep_s = keep_s
        self._keep_until: Optional[float] = None
        self._places = place_folders
        self._placed_bytes = 0
        self._dialler = dialler
        self._pod = pod
        self._poll = select.poll()
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wakeup, self._wakeup_write = os.pipe()
        for fd in (self._wakeup, self._wakeup_write):
            os.set_blocking(fd, False)
        self._poll.register(self._wakeup, select.POLLIN)
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_sigterm)
        self._socket_path = os.path.join(channel_folder, SOCKET)
        self._listener: Optional[socket.socket] = self._listen()
        self._arrivals: Dict[int, Tuple[socket.socket, FrameReader]] = {}
        self._reaper: Optional[Peer] = None
        self._has_runner = False
        self._relay = Relay(
            self._poll,
            None,
            None,
            replay_bytes=replay_bytes,
            on_command=self._on_command,
            on_runner_lost=self._on_runner_lost,
        )
        self._link: Optional[Peer] = None
        self._is_dialling = False
        self._delay_s = FIRST_DELAY_S
        self._dial_at = 0.0
        self._begun: Optional[Dict[str, Any]] = None
        self._ended: Optional[Dict[str, Any]] = None
        self._stats: Optional[bytes] = None
        self._is_end_sent = False
        self._is_end_known = False
        self._is_terminated = False
        self._is_dismissed = False
        self._stream_count = 0

    def run(self) -> int:
        """Relays until the agent knows the end of the session, or this container is killed."""
        while not self._is_done():
            self._keep_dialling()
            self._relay.update_poll_events()
            self._update_reaper_events()
            for fd, events in self._poll.poll(self._timeout_ms()):
                self._dispatch(fd, events)
            self._report_end()
        return 0

    # ---- the local side

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.unlink(self._socket_path)  # of this container before it was started again
        except FileNotFoundError:
            pass
        listener.bind(self._socket_path)
        listener.listen(2)
        listener.setblocking(False)
        self._poll.register(listener, select.POLLIN)
        return listener

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        self._arrivals[sock.fileno()] = (sock, FrameReader())
        self._poll.register(sock, select.POLLIN)

    def _identify(self, fd: int) -> None:
        """Reads the first frame of a new connection, and registers the connection as that of the reaper or the runner.

        The connection comes from the session's container. Any other connection is closed.
        """
        sock, reader = self._arrivals.pop(fd)
        self._poll.unregister(fd)
        try:
            role = _read_role(sock, reader)
        except BlockingIOError:
            self._arrivals[fd] = (sock, reader)
            self._poll.register(fd, select.POLLIN)
            return
        except (OSError, ProtocolViolation):
            sock.close()
            return
        if role == "reaper" and self._reaper is None:
            self._reaper = Peer(sock)
            self._poll.register(self._reaper, select.POLLIN)
        elif role == "runner" and not self._has_runner:
            self._has_runner = True
            self._relay.attach_runner(sock)
        else:
            sock.close()
            return
        if self._reaper is not None and self._has_runner:
            self._close_listener()
            self._send({"t": "waiting"})

    def _close_listener(self) -> None:
        if self._listener is None:
            return
        self._poll.unregister(self._listener)
        self._listener.close()
        self._listener = None
        os.unlink(self._socket_path)

    def _update_reaper_events(self) -> None:
        if self._reaper is not None:
            self._poll.modify(self._reaper, select.POLLIN | (select.POLLOUT if self._reaper.queued else 0))

    def _serve_reaper(self, reaper: Peer, events: int) -> None:
        if events & select.POLLOUT:
            reaper.flush()
        if not events & ~select.POLLOUT:
            return
        received_bytes = reaper.receive()
        try:
            for body in reaper.reader.feed(received_bytes or b""):
                self._on_reaper_message(decode(body))
        except ProtocolViolation:
            received_bytes = None
        if received_bytes is None:
            self._poll.unregister(reaper)
            reaper.close()
            self._reaper = None
            if self._ended is None:
                self._on_ended({"t": "ended", "code": None, "signal": None, "reason": "", "lost": True})

    def _on_reaper_message(self, message: Dict[str, Any]) -> None:
        kind = message.get("t")
        if kind == "begun":
            self._begun = message
            self._send(message)
        elif kind == "stats":
            self._stats = encode(message)
            self._send_frame(self._stats)
        elif kind == "ended":
            self._on_ended(message)
        elif kind == "failed":
            self._send(message)

    def _on_ended(self, message: Dict[str, Any]) -> None:
        self._relay.read_remaining()
        self._ended = dict(message, last_seq=self._relay.last_seq)
        self._keep_until = time.monotonic() + self._keep_s

    def _on_runner_lost(self, violation: str) -> None:
        if violation and self._reaper is not None:
            self._reaper.send(encode({"t": "end", "grace": 0.0, "reason": violation}))

    # ---- the agent's side

    def _keep_dialling(self) -> None:
        if self._link is not None and not self._link.is_open:
            self._link = None
            self._delay_s, self._dial_at = FIRST_DELAY_S, time.monotonic() + FIRST_DELAY_S * random.random()
        if self._link is None and not self._is_dialling and time.monotonic() >= self._dial_at:
            self._is_dialling = True
            hello = {
                "role": "relay",
                "pod": self._pod,
                "epoch": self._relay.epoch,
                "begun": self._begun,
                "waiting": self._reaper is not None and self._has_runner,
                "ended": self._ended,
            }
            threading.Thread(target=self._dial, args=(hello,), daemon=True).start()

    def _dial(self, hello: Dict[str, Any]) -> None:
        try:
            sock, _ = self._dialler.dial(hello)
        except (OSError, Refused, ValueError) as error:
            reason = str(error) or type(error).__name__
            self._call(lambda: self._on_dial_failed(reason))
        else:
            self._call(lambda: self._on_dialled(sock))

    def _on_dial_failed(self, reason: str) -> None:
        self._is_dialling = False
        self._delay_s = min(MAX_DELAY_S, 2 * self._delay_s)
        self._dial_at = time.monotonic() + self._delay_s * (0.5 + random.random())
        sys.stderr.write("the agent cannot be reached: %s\n" % reason)

    def _on_dialled(self, sock: Any) -> None:
        self._is_dialling = False
        self._link = peer = self._relay.add_peer(TlsSocket(sock))
        self._is_end_sent = False
        # What has changed since the introduction was written.
        if self._reaper is not None and self._has_runner:
            self._send({"t": "waiting"})
        if self._begun is not None:
            self._send(self._begun)
        if self._stats is not None:
            self._send_frame(self._stats)
        self._relay.dispatch(peer.fileno(), select.POLLIN)  # what came in one record with the welcome

    def _on_command(self, peer: Peer, kind: str, body: bytes) -> bool:
        if kind in _REAPER_MESSAGES:
            if kind == "file":
                self._place_or_forward(decode(body), body)
            elif self._reaper is not None:
                self._reaper.send(len(body).to_bytes(4, "big") + body)
        elif kind == "dial":
            self._open_stream(decode(body))
        elif kind == "ended-seen":
            self._is_end_known = True
        elif kind == "dismiss":
            self._is_dismissed = True
        else:
            return False
        return True

    def _place_or_forward(self, message: Dict[str, Any], body: bytes) -> None:
        """Writes a file that the agent sent, or forwards the message to the first process of the session's container.

        A file for a folder of this container is written here; the first process writes all others.
        """
        folder = self._places.get(str(message.get("place")))
        if folder is None:
            if self._reaper is not None:
                self._reaper.send(len(body).to_bytes(4, "big") + body)
            return
        content = base64.b64decode(str(message.get("data")))
        self._placed_bytes += len(content)
        path_parts = str(message.get("path")).split("/")
        if {"", ".", ".."} & set(path_parts) or self._placed_bytes > MAX_PLACED_BYTES:
            self._send({"t": "failed", "reason": "a file cannot be placed"})
            return
        try:
            place_file(folder, path_parts, content, 0o600 if message.get("private") else 0o644)
        except OSError as error:
            self._send({"t": "failed", "reason": "a file cannot be placed: %s" % error})

    def _send(self, message: Dict[str, Any]) -> None:
        self._send_frame(encode(message))

    def _send_frame(self, frame: bytes) -> None:
        if self._link is not None and self._link.is_open:
            self._link.send(frame)

    # ---- streams to ports

    def _open_stream(self, message: Dict[str, Any]) -> None:
        stream_id, port = str(message["id"]), int(message["port"])
        if self._stream_count >= MAX_STREAMS:
            self._send({"t": "dial-failed", "id": stream_id, "reason": "too many connections"})
            return
        self._stream_count += 1
        threading.Thread(target=self._serve_stream, args=(stream_id, port), daemon=True).start()

    def _serve_stream(self, stream_id: str, port: int) -> None:
        try:
            with socket.create_connection(("127.0.0.1", port), CONNECT_TIMEOUT_S) as session_socket:
                session_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                agent_socket, _ = self._dialler.dial({"role": "stream", "pod": self._pod, "id": stream_id})
                with agent_socket:
                    Pump(session_socket, TlsSocket(agent_socket)).run()
        except (OSError, Refused, OverflowError) as error:
            failure_message = {"t": "dial-failed", "id": stream_id, "reason": str(error)[:200]}
            self._call(lambda: self._send(failure_message))
        finally:
            self._call(self._on_stream_closed)

    def _on_stream_closed(self) -> None:
        self._stream_count -= 1

    # ---- the loop

    def _call(self, call: Callable[[], None]) -> None:
        """Queues a function that the main thread will run, and wakes the main thread."""
        self._calls.put(call)
        try:
            os.write(self._wakeup_write, b"c")
        except BlockingIOError:
            pass  # it is awake

    def _on_sigterm(self, *_args: Any) -> None:
        self._is_terminated = True

    def _dispatch(self, fd: int, events: int) -> None:
        if fd == self._wakeup:
            os.read(self._wakeup, 512)
            while not self._calls.empty():
                self._calls.get()()
        elif self._listener is not None and fd == self._listener.fileno():
            self._accept()
        elif fd in self._arrivals:
            self._identify(fd)
        elif self._reaper is not None and fd == self._reaper.fileno():
            self._serve_reaper(self._reaper, events)
        else:
            self._relay.dispatch(fd, events)

    def _timeout_ms(self) -> Optional[int]:
        deadlines = [self._keep_until] if self._keep_until is not None else []
        if self._link is None and not self._is_dialling:
            deadlines.append(self._dial_at)
        return max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1) if deadlines else None

    def _report_end(self) -> None:
        if self._ended is not None and not self._is_end_sent and self._link is not None and self._relay.is_sent:
            self._is_end_sent = True
            self._send(self._ended)

    def _is_done(self) -> bool:
        """True once this relay may end: it was dismissed, the session never began, or the agent has every message.

        Also if unread messages of an ended session were kept for ``keep_s``. SIGTERM alone is no reason: the session's
        process gets one at the same time, and has last words.
        """
        if self._is_dismissed:
            return True
        if self._ended is None:
            return self._is_terminated and self._begun is None
        if self._keep_until is not None and time.monotonic() >= self._keep_until:
            return True
        return self._begun is None or (self._is_end_known and self._relay.is_acknowledged)


def _read_role(sock: socket.socket, reader: FrameReader) -> str:
    """Reads only the first frame of a connection, and returns the frame's type.

    Every later byte stays unread. Raises BlockingIOError, OSError, ProtocolViolation.
    """
    while True:
        header = sock.recv(4, socket.MSG_PEEK)
        if not header:
            raise ConnectionResetError
        size = int.from_bytes(header, "big") if len(header) == 4 else 0
        if not 1 <= size <= 256:
            raise ProtocolViolation("a first frame of %d bytes" % size)
        if len(sock.recv(4 + size, socket.MSG_PEEK)) < 4 + size:
            # The first process writes it at once. One that is waited for would stay readable: a loop without a pause.
            raise ProtocolViolation("a first frame in pieces")
        for body in reader.feed(sock.recv(4 + size)):
            return kind_of(body)


def main(arguments: List[str]) -> int:
    """Serves the pod that the environment describes; returns 2 if it is incomplete.

    Environment: ``RELAY_TARGET`` (host:port), ``RELAY_AUTHORITY`` (PEM), ``RELAY_POD`` (namespace/name), and
    ``RELAY_SETUP``, a JSON object with ``channel``, ``token``, ``places``, ``replay_bytes`` and ``keep_s``.
    """
    try:
        host, _, port = os.environ["RELAY_TARGET"].rpartition(":")
        setup = json.loads(os.environ["RELAY_SETUP"])
        dialler = Dialler((host.strip("[]"), int(port)), os.environ["RELAY_AUTHORITY"], setup["token"])
        os.umask(0o022)
        relay = PodRelay(
            setup["channel"],
            setup["places"],
            dialler,
            os.environ["RELAY_POD"],
            int(setup["replay_bytes"]),
            float(setup["keep_s"]),
        )
    except (KeyError, ValueError) as error:
        sys.stderr.write("the relay's environment is incomplete: %s\n" % error)
        return 2
    return relay.run()
