"""The first process of a container: it relays between the agent and the runner, its child, and ends with the runner.

It listens in a directory that the agent mounted; `begin` starts the runner, after the agent has closed the directory to
the session's user. Unacknowledged frames are written at the end to a file that was opened before, and this process is
not dumpable, so no other process of the session reaches it. As process 1 it reaps orphans.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

from .connections import carry_connection
from .framing import decode, encode
from .peers import hand_over_socket
from .relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List, Optional

    from .peers import Peer

SOCKET, LEFT = "shim.sock", "left"
RUNNER_LOST_GRACE_S = 1.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Container:
    """Relays for one container. `runner` is called in the child process with its channel's descriptor."""

    def __init__(self, directory: str, replay_bytes: int, runner: Any) -> None:
        self._start_runner = runner
        self._pid = 0
        self._status: Optional[int] = None
        self._is_stopping = False
        self._kill_at: Optional[float] = None
        self._reason = ""
        self._left = os.open(os.path.join(directory, LEFT), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._wakeup, wakeup_write = os.pipe()
        for fd in (self._wakeup, wakeup_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_args: None)
        for signal_number in _STOP_SIGNALS:
            signal.signal(signal_number, self._stop)
        self._poll = select.poll()
        self._poll.register(self._wakeup, select.POLLIN)
        self._relay = Relay(
            self._poll,
            listen(directory),
            None,
            replay_bytes=replay_bytes,
            command=self._on_command,
            lost=self._on_runner_lost,
        )

    def run(self) -> int:
        """Relays until the runner has ended; returns its exit code as a shell does."""
        while self._status is None:
            kill_deadline = self._kill_at
            timeout_ms = None if kill_deadline is None else max(0, int((kill_deadline - time.monotonic()) * 1000) + 1)
            for fd, events in self._poll.poll(timeout_ms):
                if fd == self._wakeup:
                    os.read(self._wakeup, 512)
                    self._reap_children()
                else:
                    self._relay.dispatch(fd, events)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill_at = None
                _signal_all(signal.SIGKILL)
            self._relay.interest()
        self._store_unacknowledged()
        if os.WIFSIGNALED(self._status):
            return 128 + os.WTERMSIG(self._status)
        return os.WEXITSTATUS(self._status)

    def _stop(self, *_args: Any) -> None:
        if not self._pid:
            self._status = 0
        elif not self._is_stopping:
            self._is_stopping = True
            _signal_all(signal.SIGTERM)

    def _reap_children(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._pid:
                self._status = status

    def _on_runner_lost(self, violation: str) -> None:
        self._reason = violation
        self._kill_at = time.monotonic() + (0.0 if violation else RUNNER_LOST_GRACE_S)

    def _on_command(self, peer: Peer, kind: str, body: bytes) -> bool:
        if kind == "socket":
            hand_over_socket(peer)
            return True
        if kind == "connect":
            carry_connection(peer, int(decode(body)["port"]))
            return True
        if kind != "begin":
            return False
        if not self._pid:
            self._start_relay()
        peer.send(encode({"t": "begun", "pid": self._pid}))
        return True

    def _start_relay(self) -> None:
        shim_socket, runner_socket = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            code = 70
            try:
                signal.set_wakeup_fd(-1)
                for signal_number in (signal.SIGCHLD, *_STOP_SIGNALS):
                    signal.signal(signal_number, signal.SIG_DFL)
                code = self._start_runner(runner_socket.fileno())
            except BaseException as error:  # noqa: BLE001  # this process must not go on as a second relay
                os.write(2, ("runner: %s: %s\n" % (type(error).__name__, error)).encode("utf-8", "replace"))
            finally:
                os._exit(code)
        runner_socket.close()
        self._relay.follow(shim_socket)

    def _store_unacknowledged(self) -> None:
        """Stores unacknowledged frames on disk; a full disk loses only these frames."""
        _signal_all(signal.SIGKILL)
        self._relay.drain()
        frames = [encode({"t": "left", "reason": self._reason}), *self._relay.unacknowledged()]
        try:
            for frame in frames:
                os.write(self._left, frame)
        except OSError:
            return


def listen(directory: str) -> socket.socket:
    """Returns the agent's listener, which appears under its name when it accepts connections."""
    temporary_path = os.path.join(directory, SOCKET)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(temporary_path + ".new")
    listener.listen(16)
    listener.setblocking(False)
    os.rename(temporary_path + ".new", temporary_path)
    return listener


def _signal_all(signal_number: int) -> None:
    """Signals all other processes of the PID namespace, if first in it: elsewhere `kill(-1)` hits others."""
    if os.getpid() == 1:
        try:
            os.kill(-1, signal_number)
        except (ProcessLookupError, PermissionError):
            return


def main(arguments: List[str]) -> int:
    """Parses `--directory DIR --replay-bytes N`, and passes the rest to the runner; returns 2 for wrong arguments."""
    options = dict(zip(arguments[::2], arguments[1::2]))
    if not {"--directory", "--replay-bytes"} <= options.keys() or not options["--replay-bytes"].isdigit():
        sys.stderr.write("usage: main.py --directory DIR --replay-bytes N --runtime NAME --home DIR\n")
        return 2
    os.umask(0o077)
    process_module = __import__("_backendai_runner.process", fromlist=["prctl"])
    process_module.prctl(process_module.PR_SET_DUMPABLE, 0)
    other_arguments = [
        word for name, text in options.items() if name in ("--runtime", "--home") for word in (name, text)
    ]

    def runner(fd: int) -> int:
        os.umask(0o022)
        supervisor = __import__("_backendai_runner.supervisor", fromlist=["main"])
        code: int = supervisor.main(["--channel-fd", str(fd), *other_arguments])
        return code

    return Container(options["--directory"], int(options["--replay-bytes"]), runner).run()
