"""Lists and ends the TCP connections of another process on this host.

Traefik keeps what is open when its configuration changes, and has no command that ends a connection. A process that
may trace it can: ``pidfd_getfd`` makes a descriptor of the same socket, by which it is shut down.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

import msgspec

from ai.backend.common.errors import InvalidInput

_SYS_PIDFD_GETFD = 438
_ESTABLISHED, _LISTENING = "01", "0A"
_libc = ctypes.CDLL(None, use_errno=True)


class OpenSocket(msgspec.Struct, frozen=True):
    """Describes an established connection of a process. ``fd`` is the descriptor's number in that process.

    Addresses are ``(host, port)``.
    """

    fd: int
    local: tuple[str, int]
    remote: tuple[str, int]


def _parse_address(text: str) -> tuple[str, int]:
    """Returns an address as the kernel writes it: words of 32 bits in the order of this machine's bytes."""
    host, _, port = text.partition(":")
    packed_address = b"".join(int(host[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(host), 8))
    address: IPv4Address | IPv6Address = ip_address(packed_address)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address), int(port, 16)


def _socket_rows(process_folder: Path) -> Iterable[list[str]]:
    for table_name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in (process_folder / "net" / table_name).read_text().splitlines()[1:]:
                yield line.split()


def _descriptors_by_inode(process_folder: Path) -> dict[str, int]:
    """Returns the descriptors of a process's sockets by the inodes of the sockets.

    Raises OSError for a process that has ended, or that another user runs.
    """
    descriptors: dict[str, int] = {}
    for descriptor in (process_folder / "fd").iterdir():
        with suppress(FileNotFoundError):
            target = descriptor.readlink().name
            if target.startswith("socket:["):
                descriptors[target[8:-1]] = int(descriptor.name)
    return descriptors


def find_listening_pid(port: int) -> int:
    """Returns the id of the process that listens at a port of this host. Raises InvalidInput if none can be seen.

    Processes of other users cannot be seen.
    """
    inodes = {
        row[9] for row in _socket_rows(Path("/proc/self")) if row[3] == _LISTENING and _parse_address(row[1])[1] == port
    }
    for process_folder in Path("/proc").iterdir():
        if process_folder.name.isdigit():
            with suppress(OSError):
                if inodes & _descriptors_by_inode(process_folder).keys():
                    return int(process_folder.name)
    raise InvalidInput(
        f"No process that this worker may look into listens at port {port}: start Traefik first, as the same user."
    )


def open_sockets(pid: int) -> list[OpenSocket]:
    """Returns the established connections of a process. Raises OSError if it is gone."""
    process_folder = Path("/proc") / str(pid)
    descriptors = _descriptors_by_inode(process_folder)
    return [
        OpenSocket(descriptors[row[9]], _parse_address(row[1]), _parse_address(row[2]))
        for row in _socket_rows(process_folder)
        if row[3] == _ESTABLISHED and row[9] in descriptors
    ]


def shut_down(pid: int, sockets: Iterable[OpenSocket]) -> int:
    """Ends connections of a process at once, and returns the number of ended connections.

    Those that were closed meanwhile are passed over. Raises PermissionError if this process may not.
    """
    ended_count = 0
    pidfd = os.pidfd_open(pid)
    try:
        for open_socket in sockets:
            fd = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, open_socket.fd, 0)
            if fd < 0:
                error = ctypes.get_errno()
                if error in (1, 13):  # EPERM, EACCES
                    raise PermissionError(error, os.strerror(error))
                continue
            with socket.socket(fileno=fd) as connection, suppress(OSError):
                # Its number may belong to another connection by now.
                if connection.family in (socket.AF_INET, socket.AF_INET6) and _is_same_connection(
                    connection, open_socket
                ):
                    connection.shutdown(socket.SHUT_RDWR)
                    ended_count += 1
    finally:
        os.close(pidfd)
    return ended_count


def _is_same_connection(connection: socket.socket, open_socket: OpenSocket) -> bool:
    for address, expected in (
        (connection.getsockname(), open_socket.local),
        (connection.getpeername(), open_socket.remote),
    ):
        ip = ip_address(address[0].partition("%")[0])
        host = getattr(ip, "ipv4_mapped", None) or ip
        if (str(host), address[1]) != expected:
            return False
    return True


def may_end_connections(pid: int) -> str | None:
    """Returns why this process cannot end connections of another process. Returns None if it can."""
    process_folder = Path("/proc") / str(pid)
    try:
        fd = next(iter(_descriptors_by_inode(process_folder).values()))
        pidfd = os.pidfd_open(pid)
    except (OSError, StopIteration) as e:
        return str(e)
    try:
        copied_fd = _libc.syscall(_SYS_PIDFD_GETFD, pidfd, fd, 0)
        if copied_fd < 0:
            return os.strerror(ctypes.get_errno())
        os.close(copied_fd)
    finally:
        os.close(pidfd)
    return None
