"""Tests if a cluster enforces network policies: one pod calls an allowed pod and a forbidden pod."""

from __future__ import annotations

import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

ENFORCED, NOT_ENFORCED, UNKNOWN = 0, 10, 11
"""Exit codes of the caller."""
CALL_TIMEOUT_S = 2.0
ATTEMPTS = 5
LISTEN_S = 120.0


def main(arguments: List[str]) -> int:
    """Executes ``listen PORT``, or ``call PORT FORBIDDEN ALLOWED``. Returns the verdict, 2 for wrong arguments."""
    if len(arguments) == 2 and arguments[0] == "listen":
        return listen(int(arguments[1]))
    if len(arguments) == 4 and arguments[0] == "call":
        return call(int(arguments[1]), arguments[2], arguments[3])
    sys.stderr.write("usage: main.py probe (listen PORT | call PORT FORBIDDEN ALLOWED)\n")
    return 2


def listen(port: int) -> int:
    """Accepts TCP connections on a port for two minutes, and closes each at once. Returns 0."""
    deadline = time.monotonic() + LISTEN_S
    with socket.create_server(("0.0.0.0", port)) as server:
        while (remaining_s := deadline - time.monotonic()) > 0:
            server.settimeout(remaining_s)
            try:
                server.accept()[0].close()
            except OSError:
                continue
    return 0


def call(port: int, forbidden: str, allowed: str) -> int:
    """Connects to the forbidden and the allowed pod several times, and returns if network policies are enforced.

    Returns ``ENFORCED``, ``NOT_ENFORCED`` or ``UNKNOWN``. A network plug-in may need a moment before it applies a
    policy to a new pod.
    """
    verdict = UNKNOWN
    for _ in range(ATTEMPTS):
        if not is_reachable(allowed, port):
            verdict = UNKNOWN
        elif is_reachable(forbidden, port):
            verdict = NOT_ENFORCED
        else:
            return ENFORCED
        time.sleep(1.0)
    return verdict


def is_reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CALL_TIMEOUT_S).close()
    except OSError:
        return False
    return True
