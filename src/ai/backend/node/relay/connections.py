"""Connects an agent with ports inside a sandbox that cannot hand a socket over, as under gVisor.

A child of the relay carries the bytes of one connection, so that the relay itself never waits.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress

from .framing import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .peers import Peer

_CONNECT_TIMEOUT_S = 5.0
_RECEIVE_BYTES = 256 * 1024


def carry_connection(peer: Peer, port: int) -> None:
    """Starts a process that copies bytes between the peer and a port of 127.0.0.1.

    The connection is reported to the peer first. This process lets go of the peer.
    """
    try:
        pid = os.fork()
    except OSError as error:  # the limit of processes
        peer.send(encode({"t": "refused", "reason": str(error)}))
        return
    if pid:
        peer.is_open = False
        return
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for signal_number in (signal.SIGTERM, signal.SIGHUP):  # it lasts as long as the workload
            signal.signal(signal_number, signal.SIG_IGN)
        _close_others(peer.fileno())
        _copy_both_ways(peer.sock, port)
    finally:
        os._exit(0)


def _close_others(kept_fd: int) -> None:
    for fd_name in os.listdir("/proc/self/fd"):
        if int(fd_name) > 2 and int(fd_name) != kept_fd:
            with suppress(OSError):  # that of the listing itself
                os.close(int(fd_name))


def _copy_both_ways(agent_socket: socket.socket, port: int) -> None:
    agent_socket.setblocking(True)
    try:
        service_socket = socket.create_connection(("127.0.0.1", port), _CONNECT_TIMEOUT_S)
    except OSError as error:
        agent_socket.sendall(encode({"t": "refused", "reason": error.strerror or "no answer"}))
        return
    service_socket.settimeout(None)
    service_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    agent_socket.sendall(encode({"t": "connected"}))
    return_thread = threading.Thread(target=_copy, args=(service_socket, agent_socket))
    return_thread.start()
    _copy(agent_socket, service_socket)
    return_thread.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies bytes from one socket to another until the source ends, and then ends the sending side of the target.

    If either socket is cut, both are cut.
    """
    try:
        while True:
            data = source.recv(_RECEIVE_BYTES)
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)
    except OSError:
        for cut_socket in (source, target):
            with suppress(OSError):  # it is gone
                cut_socket.shutdown(socket.SHUT_RDWR)
