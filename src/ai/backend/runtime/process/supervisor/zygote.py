"""Runs the zygote, one small process per agent from which shims are forked.

Descriptor 0 is its end of a SOCK_SEQPACKET pair. A request is one packet, ``{"directory": ...}``, with one descriptor
on which the new shim reports, and a second one of the workload's network namespace if it joins one. The zygote ends
with the agent's end of the pair; a shim is a child in a session of its own, which lives on without it.
"""

from __future__ import annotations

import encodings.ascii as _ascii
import gc
import json
import os
import signal
import socket
import sys

from ai.backend.runtime.process.supervisor import shim as _shim  # loaded before the fork, so that its pages are shared
from ai.backend.runtime.process.supervisor import spawn

MAX_REQUEST_BYTES = 8192
__all__ = ["main"]


def main() -> None:
    """Forks a shim for each request until the agent ends."""
    assert _shim is not None
    assert _ascii is not None  # as the shim's code: every shim reads files of the kernel in it
    request_socket = socket.socket(fileno=os.dup(0))
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _collect_ended_shims)
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        try:
            request_json, fds, _, _ = socket.recv_fds(request_socket, MAX_REQUEST_BYTES, 4)
        except InterruptedError:
            continue
        except OSError:
            return
        if not request_json:
            return
        _fork_shim(request_socket, json.loads(request_json)["directory"], *fds)


def _collect_ended_shims(*_: object) -> None:
    """Collects the exit status of every ended shim, so that no zombie process is left.

    The zygote's account then includes the processor time of the ended shims.
    """
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            continue
    except ChildProcessError:
        return


def _fork_shim(request_socket: socket.socket, directory: str, report_fd: int, namespace_fd: int | None = None) -> None:
    """Forks one shim for a prepared directory.

    Each fork of this process costs a millisecond for the pages that both write to later.
    """
    child_pid = os.fork()
    if child_pid:
        os.close(report_fd)
        if namespace_fd is not None:
            os.close(namespace_fd)
        return
    exit_code = 1
    try:
        os.setsid()
        request_socket.close()
        os.set_inheritable(report_fd, False)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.enable()
        spawn.run_shim(directory, report_fd, namespace_fd)
        exit_code = 0
    except BaseException as error:  # noqa: BLE001  # this process must never return into the zygote's loop
        sys.stderr.write(f"shim of {directory}: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(exit_code)
