"""Runs the first process of a container: it starts the runner and relays messages between the agent and the runner.

The process ends with the runner, its child. It listens in a directory that the agent mounted; `begin` starts the
runner, after the agent has closed the directory to the session's user. Unacknowledged frames are written at the end to
a file that was opened before, and this process is not dumpable, so no other process of the session reaches it. As
process 1 it reaps orphans.
"""

from __future__ import annotations

import _socket
import os
import select
import sys
import time

from .first_process import FirstProcess, shell_code, signal_all, timeout_ms
from .framing import decode, encode
from .light import Socket, signal
from .peers import hand_over_socket
from .relay import Relay

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

    from .peers import Peer

SOCKET_NAME, LEFT_FRAMES_NAME = "shim.sock", "left"
RUNNER_LOST_GRACE_S = 1.0


class Container:
    """Relays messages between the agent and the runner of one container, and starts the runner as a child process.

    `runner` is called in the child process with its channel's descriptor.
    """

    def __init__(self, directory: str, replay_bytes: int, runner: Any) -> None:
        self._start_runner = runner
        self._reason = ""
        self._left = os.open(
            os.path.join(directory, LEFT_FRAMES_NAME), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        self._poll = select.poll()
        self._first = FirstProcess(self._poll)
        self._relay = Relay(
            self._poll,
            listen(directory),
            None,
            replay_bytes=replay_bytes,
            on_command=self._on_command,
            on_runner_lost=self._on_runner_lost,
        )

    def run(self) -> int:
        """Relays until the runner has ended; returns its exit code as a shell does."""
        first_process = self._first
        while first_process.status is None:
            for fd, poll_events in self._poll.poll(timeout_ms(first_process.kill_at)):
                if fd == first_process.wakeup:
                    first_process.on_wakeup()
                else:
                    self._relay.dispatch(fd, poll_events)
            first_process.kill_if_due()
            self._relay.update_poll_events()
        self._store_unacknowledged()
        return shell_code(first_process.status)

    def _on_runner_lost(self, violation: str) -> None:
        self._reason = violation
        self._first.kill_at = time.monotonic() + (0.0 if violation else RUNNER_LOST_GRACE_S)

    def _on_command(self, peer: Peer, kind: str, body: bytes) -> bool:
        if kind == "socket":
            hand_over_socket(peer)
            return True
        if kind == "connect":
            from .connections import carry_connection

            carry_connection(peer, int(decode(body)["port"]))
            return True
        if kind != "begin":
            return False
        if not self._first.pid:
            self._start_runner_process()
        peer.send(encode({"t": "begun", "pid": self._first.pid}))
        return True

    def _start_runner_process(self) -> None:
        shim_socket, runner_socket = _socket.socketpair()
        self._first.start(lambda: self._start_runner(runner_socket.fileno()))
        runner_socket.close()
        self._relay.attach_runner(shim_socket)

    def _store_unacknowledged(self) -> None:
        """Stores unacknowledged frames on disk; a full disk loses only these frames."""
        signal_all(signal.SIGKILL)
        self._relay.read_remaining()
        frames = [encode({"t": "left", "reason": self._reason}), *self._relay.unacknowledged()]
        try:
            for frame in frames:
                os.write(self._left, frame)
        except OSError:
            return


def listen(directory: str) -> Socket:
    """Returns the agent's listener, which appears under its name when it accepts connections."""
    temporary_path = os.path.join(directory, SOCKET_NAME)
    listener = Socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    listener.bind(temporary_path + ".new")
    listener.listen(16)
    listener.setblocking(False)
    os.rename(temporary_path + ".new", temporary_path)
    return listener


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
        argument for name, value in options.items() if name in ("--runtime", "--home") for argument in (name, value)
    ]

    def runner(fd: int) -> int:
        os.umask(0o022)
        supervisor = __import__("_backendai_runner.supervisor", fromlist=["main"])
        code: int = supervisor.main(["--channel-fd", str(fd), *other_arguments])
        return code

    return Container(options["--directory"], int(options["--replay-bytes"]), runner).run()
