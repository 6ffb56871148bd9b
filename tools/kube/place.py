"""Where a cluster runs: namespaces of its own, joined to this machine by a pair of network devices, and a number of
which addresses, device and control groups are made.

A place ends with its owner: its first process, and with it every other of its process namespace, ends when the
owner's end of a pipe is closed; mounts and network go with the last process. Files and control groups of an owner that
was killed are removed by the next start, or by :func:`sweep`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_REGISTRY = Path("/run/backendai-kube")
_PLACES = 100
FIRST_JOINED = 50
"""From here on the places of nodes have their numbers whose control plane runs on another machine."""
_CGROUPS = Path("/sys/fs/cgroup")
_END_TIMEOUT_S = 15.0


class PlaceFailed(RuntimeError):
    """Says why no place for a cluster could be made."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Names the addresses of one place, which no other on this machine has."""

    number: int

    @property
    def device(self) -> str:
        """The device in this machine's network that leads to the cluster."""
        return f"bai-kube{self.number}"

    @property
    def host(self) -> str:
        """This machine, as the cluster and its pods reach it."""
        return f"10.196.{self.number}.1"

    @property
    def cluster(self) -> str:
        """The cluster's only node and its API server, as this machine reaches them."""
        return f"10.196.{self.number}.2"

    @property
    def pods(self) -> str:
        return f"10.197.{self.number}.0/24"

    @property
    def services(self) -> str:
        return f"10.198.{self.number}.0/24"

    @property
    def api_service(self) -> str:
        return f"10.198.{self.number}.1"

    @property
    def cgroup(self) -> str:
        return f"/backendai-kube{self.number}"


class Place:
    """Holds the namespaces of one cluster, and starts processes in them. Needs root."""

    def __init__(self, folder: Path, pause: Path, first_number: int = 0) -> None:
        self.folder = folder
        self._pause = pause
        self._first_number = first_number
        self._owner_end = -1
        self._first: subprocess.Popen[bytes] | None = None
        self.addresses = Addresses(0)
        self.pid = 0

    def open(self) -> None:
        """Make the namespaces. Raises PlaceFailed."""
        sweep()
        with _registry():
            number = next((n for n in range(self._first_number, _PLACES) if not _entry(n).exists()), None)
            if number is None:
                raise PlaceFailed(f"{_PLACES} clusters run on this machine already")
            self.addresses = Addresses(number)
            self._write_entry()
            try:
                self._start_first_process()
                self._write_entry()
                self._connect()
                self._make_cgroups()
            except (OSError, subprocess.SubprocessError) as e:
                self._end_first_process()
                _clear(json.loads(_entry(number).read_text()))
                output = getattr(e, "stderr", b"") or b""
                raise PlaceFailed(f"the namespaces of a cluster cannot be made: {e} {output.decode()}") from e

    def close(self) -> None:
        """End every process of the place, and remove its files, control groups and devices."""
        if self._first is None:
            return
        self._end_first_process()
        with _registry():
            entry = _entry(self.addresses.number)
            if entry.exists():
                _clear(json.loads(entry.read_text()))

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs ``command`` in all namespaces of the place."""
        return ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--", *command]

    @property
    def network(self) -> Path:
        """The network namespace, for ``nsenter --net=``."""
        return Path(f"/proc/{self.pid}/ns/net")

    def run(self, *command: str) -> str:
        """Return what a command in the place writes. Raises subprocess.CalledProcessError."""
        return subprocess.run(self.inside(command), check=True, capture_output=True, text=True).stdout

    def start(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> tuple[subprocess.Popen[bytes], int]:
        """Start a program in the place; return the process that waits for it, and its own number.

        Raises:
            PlaceFailed: it did not start.
        """
        with log.open("ab") as output:
            waiting = subprocess.Popen(
                self.inside(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environment)
            )
        # nsenter forks into the process namespace, and waits for its child.
        children = Path(f"/proc/{waiting.pid}/task/{waiting.pid}/children")
        while waiting.poll() is None:
            with suppress(OSError):
                if numbers := children.read_text().split():
                    return waiting, int(numbers[0])
            time.sleep(0.002)
        raise PlaceFailed(f"{command[0]} did not start:\n{log.read_text(errors='replace')[-2000:]}")

    def _write_entry(self) -> None:
        entry = {
            "number": self.addresses.number,
            "owner": os.getpid(),
            "owner_started": _start_time(os.getpid()),
            "folder": str(self.folder),
            "pid": self.pid,
            "pid_started": _start_time(self.pid),
        }
        path = _entry(self.addresses.number)
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(entry))
        unfinished.rename(path)

    def _start_first_process(self) -> None:
        for name in ("kubelet", "var", "var-work"):
            (self.folder / name).mkdir(parents=True)
        reading, self._owner_end = os.pipe()
        # Kubelet, containerd and the network plug-ins have fixed folders below /var/lib, /var/log and /run. What this
        # machine mounts and unmounts meanwhile comes in, nothing gets out. Sockets in a folder of an overlay cannot be
        # reached from outside: the kubelet's own is a folder of this machine.
        layers = f"lowerdir=/var/lib,upperdir={self.folder}/var,workdir={self.folder}/var-work"
        steps = (
            "mount --make-rshared /",
            "mount -t tmpfs -o mode=755 tmpfs /run",
            "mkdir /run/netns",
            "mount -t tmpfs tmpfs /var/log",
            f"mount -t overlay -o {layers} overlay /var/lib",
            "mkdir -p /var/lib/kubelet",
            f"mount --bind {self.folder}/kubelet /var/lib/kubelet",
            "echo ready >&2",
            f"exec {self._pause} owner",
        )
        command = ["unshare", "--mount", "--propagation=slave", "--net", "--pid", "--fork", "--mount-proc"]
        try:
            self._first = subprocess.Popen(
                [*command, "sh", "-c", " && ".join(steps)],
                stdin=reading,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
        finally:
            os.close(reading)
        assert self._first.stderr is not None
        answer = self._first.stderr.readline()
        if answer != b"ready\n":
            raise OSError((answer + self._first.stderr.read()).decode(errors="replace").strip())
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        self.pid = int(children[0])

    def _connect(self) -> None:
        here, there = self.addresses, ["nsenter", f"--net={self.network}", "ip"]
        _run("ip", "link", "add", "name", here.device, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        _run("ip", "address", "add", f"{here.host}/30", "dev", here.device)
        _run("ip", "link", "set", here.device, "up")
        _run(*there, "address", "add", f"{here.cluster}/30", "dev", "eth0")
        _run(*there, "link", "set", "lo", "up")
        _run(*there, "link", "set", "eth0", "up")
        _run(*there, "route", "add", "default", "via", here.host)
        _run("ip", "route", "add", here.pods, "via", here.cluster)
        _run("ip", "route", "add", here.services, "via", here.cluster)
        _run("nsenter", f"--net={self.network}", "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")

    def _make_cgroups(self) -> None:
        for hierarchy in _hierarchies():
            group = hierarchy / self.addresses.cgroup[1:]
            group.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):  # in version 2 an empty one is that of the parent
                if (hierarchy / name).exists() and not (group / name).read_text().strip():
                    (group / name).write_text((hierarchy / name).read_text())

    def _end_first_process(self) -> None:
        if self._owner_end >= 0:
            os.close(self._owner_end)
            self._owner_end = -1
        if self._first is None:
            return
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        else:
            self._first.kill()
        self._first.wait()
        if self._first.stderr is not None:
            self._first.stderr.close()
        self._first = None


def sweep() -> None:
    """Remove what clusters have left whose owners are gone. Raises OSError."""
    with _registry():
        for path in sorted(_REGISTRY.glob("*.json")):
            entry = json.loads(path.read_text())
            if _start_time(entry["owner"]) != entry["owner_started"]:
                _clear(entry)


def _clear(entry: Mapping[str, int | str]) -> None:
    """Remove everything of a place; the caller holds the registry."""
    addresses, pid = Addresses(int(entry["number"])), int(entry["pid"])
    if pid and _start_time(pid) == entry["pid_started"]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + _END_TIMEOUT_S
    while pid and _start_time(pid) == entry["pid_started"] and time.monotonic() < deadline:
        time.sleep(0.01)
    subprocess.run(["ip", "link", "delete", addresses.device], check=False, capture_output=True)
    _remove_cgroups(addresses.cgroup, deadline)
    shutil.rmtree(str(entry["folder"]), ignore_errors=True)
    _entry(addresses.number).unlink(missing_ok=True)


def _remove_cgroups(name: str, deadline: float) -> None:
    for hierarchy in _hierarchies():
        top = hierarchy / name[1:]
        while top.exists() and time.monotonic() < deadline:
            for folder, _, _ in os.walk(top, topdown=False):
                with suppress(OSError):  # a process of it is not quite gone
                    Path(folder).rmdir()
            if top.exists():
                time.sleep(0.02)


def _hierarchies() -> list[Path]:
    """Return the control group hierarchies of this machine: those of version 1, or the only one of version 2."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in sorted(_CGROUPS.iterdir()) if path.is_mount()]


def _start_time(pid: int) -> int:
    """Return when a process started, in ticks since the boot; 0 where there is none, or only what its parent has not
    read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in {"Z", "X"} else int(fields[19])


def _entry(number: int) -> Path:
    return _REGISTRY / f"{number}.json"


@contextmanager
def _registry() -> Iterator[None]:
    _REGISTRY.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (_REGISTRY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
