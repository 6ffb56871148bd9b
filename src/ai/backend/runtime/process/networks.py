"""Private networks of sessions, for root: network namespaces, joined where no rule of the host applies.

On the host a network is a pair of devices without addresses, or over several hosts one device that leads to the others;
each kernel has a device on top of that (macvlan), in a namespace of its own. These devices reach each other, and
neither the host nor what lies behind it. They are removed with the kernel's last process; only the host's device has to
be removed, and is found by its alias.

<state>/networks/<session id>.json   the addresses; written before the device is made, removed after it
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Network
from pathlib import Path
from uuid import UUID

from ai.backend.common.errors import CreationDenied, WorkloadError
from ai.backend.common.ids import SessionId
from ai.backend.node.linux import syscalls
from ai.backend.node.linux.netlink import Route
from ai.backend.node.network import overlay
from ai.backend.node.network.subnets import addresses_of, mac_of, prefix_for
from ai.backend.node.workload.directory import write_json
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import NetworkView, Overlay

_PREDECESSOR_S = 10.0


def why_none(state: Path, *, has_sandbox: bool) -> str:
    """Why there can be no such networks here; empty if there can. Found by making one."""
    if os.geteuid() != 0:
        return "networks of sessions need root, and the agent runs as another user"
    if not has_sandbox:
        return "networks of sessions need bubblewrap, which does not work on this node"
    name = _probe_device(state)
    try:
        with Route() as route:
            try:
                route.add_pair(name, f"{name[:-1]}b", "")
                with Path("/proc/thread-self/ns/net").open("rb") as namespace:
                    route.add_child(name, f"{name[:-1]}c", namespace.fileno())
            finally:
                route.remove(name)
    except OSError as error:
        return f"the kernel makes no network devices for sessions (veth, macvlan): {error.strerror or error}"
    return ""


def why_none_over_nodes(state: Path, *, no_networks: str) -> str:
    """Why they cannot reach over several nodes; ``no_networks`` is what :func:`why_none` said."""
    return no_networks or overlay.why_none(_probe_device(state))


def _probe_device(state: Path) -> str:
    return overlay.device_name("probe ", f"{state} {os.getpid()}", "a")


@dataclass(frozen=True, slots=True)
class SessionNetworks:
    """See the module. Every method blocks, and may be repeated; calls for one session come one after the other."""

    state: Path
    pool: IPv4Network

    @property
    def directory(self) -> Path:
        return self.state / "networks"

    @property
    def _mark(self) -> str:
        return f"backendai {sha256(str(self.state).encode()).hexdigest()[:16]} "

    def device(self, session_id: SessionId) -> str:
        """What kernels have theirs on; the peer of one of a pair ends in ``b``."""
        return overlay.device_name(self._mark, str(session_id), "a")

    def create(self, session_id: SessionId, hosts: Sequence[str], over: Overlay | None = None) -> NetworkView:
        """Raises WorkloadError if the kernel does not do it, CreationDenied if there is no room for so many."""
        subnet = self._subnet(len(hosts)) if over is None else IPv4Network(over.subnet)
        addresses = addresses_of(subnet, hosts) if over is None else dict(over.addresses)
        name = self.device(session_id)
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            write_json(self.directory / f"{session_id}.json", {"version": 1, "addresses": addresses})
            crash_point("network.recorded")
            if over is None:
                self._make_pair(name, session_id)
            else:
                overlay.set_up(name, f"{self._mark}{session_id}", over)
        except OSError as error:
            raise WorkloadError(f"the session's network could not be made: {error.strerror or error}") from error
        return NetworkView(session_id=session_id, network_id=f"{name}/{subnet.prefixlen}", addresses=addresses)

    def _subnet(self, hosts: int) -> IPv4Network:
        prefix = prefix_for(hosts)
        if prefix < self.pool.prefixlen:
            raise CreationDenied(f"{self.pool} has no room for a network of {hosts} kernels")
        return IPv4Network((self.pool.network_address, prefix))

    def _make_pair(self, name: str, session_id: SessionId) -> None:
        peer = name[:-1] + "b"
        with Route() as route:
            if name not in route.links():
                route.add_pair(name, peer, f"{self._mark}{session_id}")
                crash_point("network.made")
            for one in (name, peer):
                overlay.fence(one)
                route.set_up(one, arp=False)

    def remove(self, session_id: SessionId) -> None:
        """Raises OSError."""
        record = self.directory / f"{session_id}.json"
        with Route() as route:
            route.remove(self.device(session_id))
        crash_point("network.removed")
        record.unlink(missing_ok=True)

    def sessions(self) -> Sequence[SessionId]:
        """By records, and by devices with our mark whose record is lost."""
        names = self._recorded()
        if os.geteuid() == 0:
            with suppress(OSError):
                names += overlay.marked(self._mark).values()
        return _ids(names)

    def broken(self) -> Sequence[SessionId]:
        """Those that have a record and no device: the kernels' devices went with it. Raises OSError."""
        recorded = _ids(self._recorded())
        if not recorded:
            return ()
        with Route() as route:
            there = route.links()
        return [session_id for session_id in recorded if self.device(session_id) not in there]

    def _recorded(self) -> list[str]:
        return [path.stem for path in self.directory.glob("*.json")]


def _ids(names: Iterable[str]) -> list[SessionId]:
    sessions: list[SessionId] = []
    for name in dict.fromkeys(names):
        with suppress(ValueError):
            sessions.append(SessionId(UUID(name)))
    return sessions


def hosts_file(network: NetworkView) -> bytes:
    """/etc/hosts of the network's kernels."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{address} {host}" for host, address in network.addresses.items()]
    return "".join(line + "\n" for line in lines).encode()


def make_namespace(network: NetworkView, hostname: str) -> int:
    """Makes a network namespace with a kernel's device in the session's network; returns a descriptor of it.

    Blocks while the kernel of Linux still removes the device of a predecessor, which has the same hardware address.
    Raises WorkloadError if it refuses, or the session's network was removed.
    """
    try:
        with ThreadPoolExecutor(1) as thread:  # it ends in the new namespace
            return thread.submit(_make_namespace, network, hostname).result()
    except OSError as error:
        raise WorkloadError(f"the workload cannot join its session's network: {error.strerror or error}") from error


def _make_namespace(network: NetworkView, hostname: str) -> int:
    parent, _, prefix = network.network_id.partition("/")
    address = network.addresses[hostname]
    with Route() as host:
        syscalls.unshare_network()
        namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            host.add_child(parent, "eth0", namespace, mac_of(address))
            with Route() as own:
                own.set_up("lo")
                own.add_address("eth0", address, int(prefix))
                _set_up_patiently(own, "eth0")
        except BaseException:
            os.close(namespace)
            raise
        return namespace


def _set_up_patiently(route: Route, device: str) -> None:
    """Brings a device up as soon as its predecessor, which has the same hardware address, has been removed."""
    deadline = time.monotonic() + _PREDECESSOR_S
    while True:
        try:
            return route.set_up(device)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EADDRINUSE) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
