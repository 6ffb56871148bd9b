"""Locks the data directory of a cluster, opens its sockets, and stores how commands and shells reach the cluster.

There is one cluster per data directory.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.infra.files import write_atomically

_DEATH_TIMEOUT_S = 5.0


class ClusterFile(msgspec.Struct, frozen=True, kw_only=True):
    """Describes this cluster to the next ``up`` and to other commands, without secrets."""

    version: int = 1
    host: str = "127.0.0.1"
    port: int = 0
    rpc_port: int = 0
    agents: int = 1
    runtime: str = "process"
    separate: bool = False
    mock: str | None = None
    agent_config: str | None = None
    manager_config: str | None = None
    storage_port: int = 0
    storage_manager_port: int = 0
    coordinator_port: int = 0
    app_ports: tuple[int, int] = (10205, 10300)
    web_port: int = 0

    @property
    def endpoint(self) -> str:
        return self._url(self.port)

    @property
    def storage_url(self) -> str:
        """Returns the URL at which clients send and fetch files."""
        return self._url(self.storage_port)

    @property
    def coordinator_url(self) -> str:
        """Returns the URL of the app proxy's coordinator, for browsers, the manager and the worker."""
        return self._url(self.coordinator_port)

    @property
    def web_url(self) -> str:
        """Returns the URL of the web server and its console. Only browsers of this computer can reach it."""
        return f"http://127.0.0.1:{self.web_port}"

    def _url(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}"


def read_cluster_file(path: Path) -> ClusterFile | None:
    """Reads the cluster file. Returns None if there is no cluster file. Raises InvalidInput if it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterFile)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as e:
        raise InvalidInput(f"{path} is damaged ({e}). Remove it and start again: no session is lost.") from None


def write_cluster_file(path: Path, cluster: ClusterFile) -> None:
    write_atomically(path, msgspec.json.format(msgspec.json.encode(cluster)) + b"\n", mode=0o644)


def already_runs(root: Path, pid: int | str) -> Conflict:
    """Returns the Conflict error for a second ``up`` on a data directory whose cluster runs."""
    return Conflict(
        f"A cluster already runs on {root} (process {pid}). "
        "Use it, stop it with `backend.ai down`, or name another place with --data-dir.",
        data={"pid": str(pid)},
    )


class InstanceLock:
    """Locks a data directory while its cluster runs. The system frees the lock when the process dies.

    ``wait_s`` is how long the present holder may take to end. One that was killed is waited for in any case: the lock
    is free a moment after its process counts as ended.
    """

    def __init__(self, path: Path, *, wait_s: float = 0.0) -> None:
        self._path = path
        self._wait_s = wait_s
        self._fd: int | None = None

    def __enter__(self) -> Self:
        """Takes the lock. Raises Conflict if a cluster runs here already; the message names its process."""
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        began_at = time.monotonic()
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                pid = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                is_dead = pid.isdigit() and has_ended(int(pid))
                if time.monotonic() > began_at + max(self._wait_s, _DEATH_TIMEOUT_S if is_dead else 0.0):
                    os.close(fd)
                    raise already_runs(self._path.parent, pid) from None
                time.sleep(0.02)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def listen(host: str, port: int) -> socket.socket:
    """Opens a socket that listens at an address and port, and returns it. The caller must close it.

    Raises Conflict if the port is taken or the address is not ours.
    """
    address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(address_family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(1024)
        sock.setblocking(False)
    except OSError as e:
        sock.close()
        raise Conflict(f"Cannot listen on {host}:{port}: {e.strerror}. Name another one with --port.") from None
    return sock


def running_pid(path: Path) -> int | None:
    """Returns the id of the process that holds the lock. Returns None if no process holds the lock."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid_text = os.pread(fd, 32, 0).decode(errors="replace").strip()
        return int(pid_text) if pid_text.isdigit() else None
    finally:
        os.close(fd)
    return None


def has_ended(pid: int) -> bool:
    """Returns True if a process does not exist any more, or is a zombie that waits for its parent."""
    try:
        process_state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return True
    return process_state in (b"Z", b"X")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    access_key: str
    secret_key: str = field(repr=False)


def write_env_file(path: Path, *, endpoint: str, keys: Keys, role: str) -> None:
    """Writes the endpoint and one keypair to a file that only this user can read."""
    variables = {
        "BACKEND_ENDPOINT": endpoint,
        "BACKEND_ENDPOINT_TYPE": "api",
        "BACKEND_ACCESS_KEY": keys.access_key,
        "BACKEND_SECRET_KEY": keys.secret_key,
    }
    lines = [f"# Keys of the {role} of this cluster. Use: source {shlex.quote(str(path))}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def read_env_file(path: Path) -> Keys | None:
    """Returns the keypair that an earlier ``up`` wrote. Returns None if the file is gone or has no keypair."""
    try:
        env_text = path.read_text()
    except FileNotFoundError:
        return None
    variables: dict[str, str] = {}
    for line in env_text.splitlines():
        name, _, value = line.removeprefix("export ").partition("=")
        if line.startswith("export ") and value:
            variables[name] = shlex.split(value)[0]
    access_key, secret_key = variables.get("BACKEND_ACCESS_KEY"), variables.get("BACKEND_SECRET_KEY")
    return Keys(access_key=access_key, secret_key=secret_key) if access_key and secret_key else None
