"""Gives the agent a socket of the workload's network, which a child of the shim makes after entering that network.

The child enters the sandbox's user namespace too, but never its processes: nothing of the session sees it.
"""

from __future__ import annotations

import array
import os
import signal
import socket
from typing import Any

from ai.backend.node.linux import proc, syscalls
from ai.backend.node.relay.framing import encode
from ai.backend.runtime.process.supervisor.launch import become_namespace_owner, enter_network


def hand_over_socket(agent_socket: socket.socket, leader_pid: int, plan: dict[str, Any]) -> None:
    """Has a child make a socket in the workload's own network, and sends the socket to the agent.

    Sends no socket if the workload uses the host's network.
    """
    if os.fork() != 0:
        return
    exit_code = 1
    try:
        signal.set_wakeup_fd(-1)
        try:
            namespace_fd = _open_network_namespace(leader_pid, plan)
            ancillary_data = []
            if namespace_fd is not None:
                _enter_network(namespace_fd, plan)
                network_socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                ancillary_data = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [network_socket.fileno()]))]
            agent_socket.sendmsg([encode({"t": "socket"})], ancillary_data)
        except OSError as error:
            agent_socket.send(encode({"t": "refused", "reason": str(error)}))
        exit_code = 0
    finally:
        os._exit(exit_code)


def _open_network_namespace(leader_pid: int, plan: dict[str, Any]) -> int | None:
    """Returns a descriptor of the sandbox's network namespace; None if the sandbox uses the host's network."""
    own_inode = os.stat("/proc/self/ns/net").st_ino  # no pathlib here: memory
    inner_pids = proc.children(leader_pid)[:1] or [leader_pid]
    try:
        namespace_fd = os.open(f"/proc/{inner_pids[0]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        become_namespace_owner(plan)
        namespace_fd = os.open(f"/proc/{inner_pids[0]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if os.fstat(namespace_fd).st_ino == own_inode:
        os.close(namespace_fd)
        return None
    return namespace_fd


def _enter_network(namespace_fd: int, plan: dict[str, Any]) -> None:
    """Enters a network namespace as root, or as the user who owns the sandbox. Raises OSError."""
    try:
        syscalls.enter_namespace(namespace_fd, syscalls.CLONE_NEWNET)
    except PermissionError:
        become_namespace_owner(plan)
        enter_network(namespace_fd)
