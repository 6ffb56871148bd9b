"""Runs the first process of a sandbox whose relay runs outside of the sandbox, as under gVisor.

No process of the host reaches the sockets of such a sandbox. This process starts the runner with the relay's channel,
reaps orphans, and does what only a process inside can do: it connects to ports, by a process for each connection that
the relay passes in, and signals. Its end is that of the runner.
"""

from __future__ import annotations

import _socket
import os
import select
import sys

from .first_process import FirstProcess, shell_code, signal_all, timeout_ms
from .framing import decode
from .light import Socket, signal
from .peers import Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, List

_MAX_REQUEST_BYTES = 4096
_FD_BYTES = 4


class Inner:
    """Starts the runner in a sandbox, and serves the requests of the relay outside until the runner ends.

    ``runner`` is called in the child process. A request is one packet of ``request_socket``:
    ``{"t": "connect", "port": N}`` comes with the agent's connection, ``{"t": "signal", "number": N}`` is for every
    process but this one.
    """

    def __init__(self, request_socket: Socket, runner: Any) -> None:
        self._requests = request_socket
        self._poll = select.poll()
        self._poll.register(request_socket, select.POLLIN)
        self._first = FirstProcess(self._poll)
        self._first.start(runner)

    def run(self) -> int:
        """Serves until the runner has ended; returns its exit code as a shell does."""
        first_process = self._first
        while first_process.status is None:
            for fd, _events in self._poll.poll(timeout_ms(first_process.kill_at)):
                if fd == first_process.wakeup:
                    first_process.on_wakeup()
                else:
                    self._serve()
        signal_all(signal.SIGKILL)
        return shell_code(first_process.status)

    def _serve(self) -> None:
        message, ancillary, _, _ = self._requests.recvmsg(_MAX_REQUEST_BYTES, _socket.CMSG_SPACE(_FD_BYTES))
        if not message:  # without a relay nobody can reach this session any more
            self._poll.unregister(self._requests)
            signal_all(signal.SIGKILL)
            return
        request = decode(message)
        if request["t"] == "signal":
            signal_all(request["number"])
        for level, kind, data in ancillary:
            if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS):
                self._connect(int.from_bytes(data[:_FD_BYTES], sys.byteorder), request["port"])

    @staticmethod
    def _connect(fd: int, port: int) -> None:
        import socket

        from .connections import carry_connection

        peer = Peer(socket.socket(fileno=fd))
        carry_connection(peer, port)
        peer.close()


def main(arguments: List[str]) -> int:
    """Parses `--channel-fd N --requests-fd M`, and passes the rest to the runner; returns 2 for wrong arguments."""
    options = dict(zip(arguments[::2], arguments[1::2]))
    if not {"--channel-fd", "--requests-fd"} <= options.keys():
        sys.stderr.write("usage: main.py inner --channel-fd N --requests-fd M --runtime NAME --home DIR\n")
        return 2
    process_module = __import__("_backendai_runner.process", fromlist=["prctl"])
    process_module.prctl(process_module.PR_SET_DUMPABLE, 0)
    request_socket = Socket(fileno=int(options.pop("--requests-fd")))

    def runner() -> int:
        request_socket.close()
        supervisor = __import__("_backendai_runner.supervisor", fromlist=["main"])
        code: int = supervisor.main([argument for name, value in options.items() for argument in (name, value)])
        return code

    inner = Inner(request_socket, runner)
    os.close(int(options["--channel-fd"]))
    return inner.run()
