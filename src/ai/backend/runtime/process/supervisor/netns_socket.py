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


def hand_over_socket(agent: socket.socket, leader: int, plan: dict[str, Any]) -> None:
    """Answers on ``agent`` in a child: with a socket if the workload has a network of its own, else without."""
    if os.fork() != 0:
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        try:
            namespace = _network_of(leader, plan)
            if namespace is not None:
                _enter(namespace, plan)
            _answer(agent, is_private=namespace is not None)
        except OSError as error:
            agent.send(encode({"t": "refused", "reason": str(error)}))
        code = 0
    finally:
        os._exit(code)


def _answer(agent: socket.socket, *, is_private: bool) -> None:
    answer = encode({"t": "socket"})
    if not is_private:
        agent.send(answer)
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as made:
        agent.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made.fileno()]))])


def _network_of(leader: int, plan: dict[str, Any]) -> int | None:
    """Returns a descriptor of the network namespace of the sandbox's first process; None if it is the host's."""
    ours = os.stat("/proc/self/ns/net").st_ino  # no pathlib here: memory
    inside = proc.children(leader)[:1] or [leader]
    try:
        fd = os.open(f"/proc/{inside[0]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        _become_user(plan)
        fd = os.open(f"/proc/{inside[0]}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if os.fstat(fd).st_ino == ours:
        os.close(fd)
        return None
    return fd


def _enter(namespace: int, plan: dict[str, Any]) -> None:
    """By root's power, or by that of the user who made the sandbox over what it owns. Raises OSError."""
    try:
        syscalls.enter_namespace(namespace, syscalls.CLONE_NEWNET)
    except PermissionError:
        _become_user(plan)
        owner = fcntl.ioctl(namespace, syscalls.NS_GET_USERNS)
        syscalls.enter_namespace(owner, syscalls.CLONE_NEWUSER)
        syscalls.enter_namespace(namespace, syscalls.CLONE_NEWNET)


def _become_user(plan: dict[str, Any]) -> None:
    if plan["uid"] is not None and os.geteuid() == 0:
        os.setgroups(plan["groups"])
        os.setresgid(plan["gid"], plan["gid"], plan["gid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
