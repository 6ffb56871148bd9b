"""Makes a workload's own network, which a helper program connects to the outside.

The helper copies the packets of the workload as an ordinary program's.

The helper is slirp4netns or pasta. It runs outside of the sandbox, as the session's user; as root only for the network
of a cluster, which root owns. Its life ends with the workload's: the shim kills it, or who finds the shim dead.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, NoReturn

from ai.backend.node.linux import syscalls
from ai.backend.runtime.process.supervisor.launch import become_namespace_owner

DEVICE = "tap0"
TIMEOUT_S = 5.0
_POLL_S = 0.002
_DEFAULT_ROUTE = f"{DEVICE}\t00000000\t"


def make_network(plan: dict[str, Any], namespace_fd: int | None) -> tuple[int, int]:
    """Connects a network namespace to the outside by a helper process; makes the namespace unless one is passed.

    Returns the namespace's descriptor and the helper.

    Closes ``namespace_fd``. Raises OSError.
    """
    own_socket, holder_socket = socket.socketpair()
    holder_pid = os.fork()
    if holder_pid == 0:
        own_socket.close()
        _hold_namespace(plan, namespace_fd, holder_socket)
    holder_socket.close()
    helper_pid = 0
    try:
        failure_text, received_fds, _, _ = socket.recv_fds(own_socket, 500, 1)
        if not received_fds:
            raise OSError(failure_text.decode(errors="replace") or "no network namespace could be made")
        helper_pid = _start_helper(plan, holder_pid, as_root=namespace_fd is not None)
        _await_route(helper_pid, holder_pid)
    except BaseException:
        if helper_pid:
            with suppress(ProcessLookupError):  # it has ended
                os.kill(helper_pid, signal.SIGKILL)
        raise
    finally:
        own_socket.close()  # the holder ends
        os.waitpid(holder_pid, 0)
        if namespace_fd is not None:
            os.close(namespace_fd)
    return received_fds[0], helper_pid


def _hold_namespace(plan: dict[str, Any], namespace_fd: int | None, reply_socket: socket.socket) -> NoReturn:
    """Enters or makes a network namespace, sends its descriptor, and keeps it alive until the other side ends.

    The other side closes the socket.
    """
    try:
        signal.set_wakeup_fd(-1)
        if namespace_fd is not None:
            syscalls.enter_namespace(namespace_fd, syscalls.CLONE_NEWNET)
        else:
            become_namespace_owner(plan)
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # to write its own maps, after a change of user
            syscalls.unshare_user()
            syscalls.unshare_network()
            syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # the helper is to open its namespaces
        own_fd = os.open("/proc/self/ns/net", os.O_RDONLY)
        socket.send_fds(reply_socket, [b"ok"], [own_fd])
        reply_socket.recv(1)
    except OSError as error:
        reply_socket.send(str(error).encode()[:500])
    finally:
        os._exit(0)


def _start_helper(plan: dict[str, Any], holder_pid: int, *, as_root: bool) -> int:
    arguments = plan["egress"]["as-root" if as_root else "as-user"]
    argv = [argument.replace("{pid}", str(holder_pid)) for argument in arguments]
    helper_pid = os.fork()
    if helper_pid:
        return helper_pid
    try:
        signal.set_wakeup_fd(-1)
        for signal_number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            signal.signal(signal_number, signal.SIG_DFL)
        null_fd = os.open("/dev/null", os.O_RDWR)
        for target_fd in (0, 1, 2):
            os.dup2(null_fd, target_fd)
        os.closerange(3, 4096)
        if os.geteuid() == 0:
            # slirp4netns detaches the old root in its sandbox; from shared mounts that would propagate to the host.
            syscalls.unshare_mounts()
        os.chdir("/")
        if not as_root:
            become_namespace_owner(plan)
        syscalls.die_with_parent()
        os.execve(argv[0], argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    finally:
        os._exit(127)


def _await_route(helper_pid: int, holder_pid: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with open(f"/proc/{holder_pid}/net/route", encoding="ascii") as route_file:  # no pathlib here: memory
            if _DEFAULT_ROUTE in route_file.read():
                return
        if os.waitpid(helper_pid, os.WNOHANG)[0]:
            raise OSError("the helper of the session's network has ended")
        time.sleep(_POLL_S)
    raise OSError("the helper of the session's network does not come up")


def main() -> None:
    """Makes a network by the plan in the first argument, and removes it; exits with the reason if that fails."""
    plan = json.loads(sys.argv[1])
    try:
        namespace_fd = None
        if plan["root-owned"]:
            namespace_fd = os.open("/proc/self/ns/net", os.O_RDONLY)
            syscalls.unshare_network()
            namespace_fd = os.open("/proc/self/ns/net", os.O_RDONLY)
        _, helper_pid = make_network(plan, namespace_fd)
    except OSError as error:
        sys.exit(str(error))
    os.kill(helper_pid, signal.SIGKILL)
