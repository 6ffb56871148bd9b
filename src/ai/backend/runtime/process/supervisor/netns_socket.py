"""A socket of the workload's network for the agent, made by a child of the shim that enters that network.

The child enters the sandbox's user namespace too, but never its processes: nothing of the session sees it.
"""

from __future__ import annotations

import array
import fcntl
import os
import signal
import socket
from typing import Any

from ai.backend.node.linux import proc, syscalls
from ai.backend.node.relay.framing import encode
from ai.backend.runtime.process.supervisor.launch import become_user


def hand_over_socket(agent: socket.socket, leader: int, plan: dict[str, Any]) -> None:
    """Answers on ``agent`` in a child: with a socket if the workload has a network of its own, else without."""
    if os.fork() != 0:
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        try:
            namespace = _network_of(leader, plan)
            descriptors = []
            if namespace is not None:
                _enter(namespace, plan)
                own = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                descriptors = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [own.fileno()]))]
            agent.sendmsg([encode({"t": "socket"})], descriptors)
        except OSError as error:
            agent.send(encode({"t": "refused", "reason": str(error)}))
        code = 0
    finally:
        os._exit(code)


def _network_of(leader: int, plan: dict[str, Any]) -> int | None:
    """Returns a descriptor of the network namespace of the sandbox's first process; None if it is the host's."""
    ours = os.stat("/proc/self/ns/net").st_ino  # no pathlib here: memory
    inside = proc.children(leader)[:1] or [leader]
    try:
        fd = os.open(f"/proc/{inside[0]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        become_user(plan, plan["groups"])
        fd = os.open(f"/proc/{inside[0]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if os.fstat(fd).st_ino == ours:
        os.close(fd)
        return None
    return fd


def _enter(namespace: int, plan: dict[str, Any]) -> None:
    """Enters a network as root, or as the user who owns the sandbox. Raises OSError."""
    try:
        syscalls.enter_namespace(namespace, syscalls.CLONE_NEWNET)
    except PermissionError:
        become_user(plan, plan["groups"])
        owner = fcntl.ioctl(namespace, syscalls.NS_GET_USERNS)
        syscalls.enter_namespace(owner, syscalls.CLONE_NEWUSER)
        syscalls.enter_namespace(namespace, syscalls.CLONE_NEWNET)
