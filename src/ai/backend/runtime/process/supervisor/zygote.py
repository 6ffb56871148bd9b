"""The zygote: one small process per agent from which shims are forked.

Descriptor 0 is its end of a SOCK_SEQPACKET pair. A request is one packet, ``{"directory": ...}``, with one descriptor
on which the new shim reports, and a second one of the workload's network namespace if it joins one. The zygote ends
with the agent's end of the pair; a shim is a grandchild in a session of its own.
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

REQUEST_LIMIT = 8192
__all__ = ["main"]


def main() -> None:
    """Serves until the agent is gone."""
    assert _shim is not None
    assert _ascii is not None  # as the shim's code: every shim reads files of the kernel in it
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    gc.disable()
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(requests, REQUEST_LIMIT, 4)
        except InterruptedError:
            continue
        except OSError:
            return
        if not data:
            return
        _fork_shim(requests, json.loads(data)["directory"], *fds)


def _fork_shim(requests: socket.socket, directory: str, report: int, network: int | None = None) -> None:
    child = os.fork()
    if child:
        os.close(report)
        if network is not None:
            os.close(network)
        os.waitpid(child, 0)
        return
    code = 1
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        requests.close()
        os.set_inheritable(report, False)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.enable()
        spawn.prepare(directory, report, network)
        code = 0
    except BaseException as error:  # noqa: BLE001  # this process must never return into the zygote's loop
        sys.stderr.write(f"shim of {directory}: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
    finally:
        os._exit(code)
