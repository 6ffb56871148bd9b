"""Network namespaces that stand for machines, joined by a cable (a pair of devices), and processes in them."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

CLONE_NEWNET = 0x40000000


@dataclass(frozen=True, slots=True)
class Machine:
    """A namespace by its name, and its address on the cable."""

    name: str
    address: str

    @property
    def path(self) -> Path:
        return Path("/run/netns") / self.name

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command in this namespace. The mounts are as outside: `ip netns exec` would hide control groups."""
        return ["nsenter", f"--net={self.path}", *command]

    def ip(self, *words: str) -> str:
        """What `ip` says in it; raises CalledProcessError."""
        return _run("ip", "-n", self.name, *words)

    def links(self) -> set[str]:
        """Its network devices, but for the loopback and the cable."""
        found = json.loads(self.ip("-j", "link", "show") or "[]")
        return {link["ifname"] for link in found} - {"lo", "cable"}

    def forwards(self) -> list[str]:
        """What its devices know of where hardware addresses are, but for the groups that the kernel listens to."""
        said = _run("bridge", "-n", self.name, "fdb", "show")
        return [line for line in said.splitlines() if " dst " in line]


@contextmanager
def two_machines(subnet: str = "192.168.77") -> Iterator[tuple[Machine, Machine]]:
    """Two namespaces that reach each other and nobody else; they are gone at the end, with everything in them."""
    mark = uuid4().hex[:8]
    one, two = (Machine(f"bai-test-{mark}-{n}", f"{subnet}.{n}") for n in (1, 2))
    try:
        for machine in (one, two):
            _run("ip", "netns", "add", machine.name)
        _run("ip", "link", "add", "cable", "netns", one.name, "type", "veth", "peer", "cable", "netns", two.name)
        for machine in (one, two):
            machine.ip("address", "add", f"{machine.address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                machine.ip("link", "set", device, "up")
        yield one, two
    finally:
        for machine in (one, two):
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "delete", machine.name)


def enter(namespace: str) -> None:
    """Move this process there, for good. Raises OSError."""
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"the namespace {namespace} cannot be entered")
    finally:
        os.close(fd)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
