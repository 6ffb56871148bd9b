"""Makes the private networks of sessions as root, from network namespaces and virtual devices.

The namespaces are joined where no rule of the host applies.

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
from hashlib import sha256
from ipaddress import IPv4Network
from pathlib import Path
from uuid import UUID

import msgspec

from ai.backend.common.errors import CreationDenied, WorkloadError
from ai.backend.common.ids import SessionId
from ai.backend.node.linux import syscalls
from ai.backend.node.linux.netlink import RouteSocket
from ai.backend.node.network import overlay
from ai.backend.node.network.overlay import addresses_of, mac_of, prefix_for
from ai.backend.node.workload.directory import write_json
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import NetworkView, Overlay

_PREDECESSOR_TIMEOUT_S = 10.0


def why_no_networks(state_directory: Path, *, has_sandbox: bool) -> str:
    """Returns the reason that this host cannot make session networks, after trying to; empty if the host can."""
    if os.geteuid() != 0:
        return "networks of sessions need root, and the agent runs as another user"
    if not has_sandbox:
        return "networks of sessions need bubblewrap, which does not work on this node"
    probe_device = _probe_device(state_directory)
    try:
        with RouteSocket() as route:
            try:
                route.add_pair(probe_device, f"{probe_device[:-1]}b", "")
                with Path("/proc/thread-self/ns/net").open("rb") as namespace:
                    route.add_child(probe_device, f"{probe_device[:-1]}c", namespace.fileno())
            finally:
                route.remove(probe_device)
    except OSError as error:
        return f"the kernel makes no network devices for sessions (veth, macvlan): {error.strerror or error}"
    return ""


def why_no_multi_node_networks(state_directory: Path, *, no_network_reason: str) -> str:
    """Returns the reason that session networks cannot span nodes; ``no_network_reason``: :func:`why_no_networks`."""
    return no_network_reason or overlay.why_no_overlays(_probe_device(state_directory))


def _probe_device(state_directory: Path) -> str:
    return overlay.device_name("probe ", f"{state_directory} {os.getpid()}", "a")


class SessionNetworks(msgspec.Struct, frozen=True):
    """Creates and removes the networks of sessions. Methods block; calls for one session do not overlap."""

    state: Path
    pool: IPv4Network

    @property
    def directory(self) -> Path:
        return self.state / "networks"

    @property
    def _device_alias_prefix(self) -> str:
        return f"backendai {sha256(str(self.state).encode()).hexdigest()[:16]} "

    def device(self, session_id: SessionId) -> str:
        """Returns the name of the network device that a session's network has on the host.

        If the device is one of a pair, the name of its peer ends in ``b``.
        """
        return overlay.device_name(self._device_alias_prefix, str(session_id), "a")

    def create(self, session_id: SessionId, hosts: Sequence[str], vxlan: Overlay | None = None) -> NetworkView:
        """Creates a session's network. Raises WorkloadError if Linux refuses, CreationDenied without free addresses."""
        subnet = self._choose_subnet(len(hosts)) if vxlan is None else IPv4Network(vxlan.subnet)
        addresses = addresses_of(subnet, hosts) if vxlan is None else dict(vxlan.addresses)
        device_name = self.device(session_id)
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            write_json(self.directory / f"{session_id}.json", {"version": 1, "addresses": addresses})
            crash_point("network.recorded")
            if vxlan is None:
                self._make_pair(device_name, session_id)
            else:
                overlay.create_device(device_name, f"{self._device_alias_prefix}{session_id}", vxlan)
        except OSError as error:
            raise WorkloadError(f"the session's network could not be made: {error.strerror or error}") from error
        return NetworkView(session_id=session_id, network_id=f"{device_name}/{subnet.prefixlen}", addresses=addresses)

    def _choose_subnet(self, host_count: int) -> IPv4Network:
        prefix_length = prefix_for(host_count)
        if prefix_length < self.pool.prefixlen:
            raise CreationDenied(f"{self.pool} has no room for a network of {host_count} kernels")
        return IPv4Network((self.pool.network_address, prefix_length))

    def _make_pair(self, device_name: str, session_id: SessionId) -> None:
        peer_name = device_name[:-1] + "b"
        with RouteSocket() as route:
            if device_name not in route.links():
                route.add_pair(device_name, peer_name, f"{self._device_alias_prefix}{session_id}")
                crash_point("network.made")
            for pair_device in (device_name, peer_name):
                overlay.isolate_from_host(pair_device)
                route.set_up(pair_device, arp=False)

    def remove(self, session_id: SessionId) -> None:
        """Removes the network of a session. Raises OSError."""
        record_path = self.directory / f"{session_id}.json"
        with RouteSocket() as route:
            route.remove(self.device(session_id))
        crash_point("network.removed")
        record_path.unlink(missing_ok=True)

    def sessions(self) -> Sequence[SessionId]:
        """Returns the sessions with a network record, or with a device of ours whose record is lost."""
        session_names = self._recorded_names()
        if os.geteuid() == 0:
            with suppress(OSError):
                session_names += overlay.marked_devices(self._device_alias_prefix).values()
        return _parse_session_ids(session_names)

    def broken(self) -> Sequence[SessionId]:
        """Returns the sessions whose network has a record, but no network device any more. Raises OSError."""
        recorded_ids = _parse_session_ids(self._recorded_names())
        if not recorded_ids:
            return ()
        with RouteSocket() as route:
            present_devices = route.links()
        return [session_id for session_id in recorded_ids if self.device(session_id) not in present_devices]

    def _recorded_names(self) -> list[str]:
        return [record_path.stem for record_path in self.directory.glob("*.json")]


def _parse_session_ids(session_names: Iterable[str]) -> list[SessionId]:
    session_ids: list[SessionId] = []
    for session_name in dict.fromkeys(session_names):
        with suppress(ValueError):
            session_ids.append(SessionId(UUID(session_name)))
    return session_ids


def hosts_file(network: NetworkView) -> bytes:
    """Returns the content of /etc/hosts for the network's kernels."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{address} {host}" for host, address in network.addresses.items()]
    return "".join(line + "\n" for line in lines).encode()


def make_namespace(network: NetworkView, hostname: str) -> int:
    """Makes a network namespace with a kernel's device in the session's network; returns a descriptor of it.

    Blocks while the kernel of Linux still removes the device of a predecessor, which has the same hardware address.
    Raises WorkloadError if it refuses, or the session's network was removed.
    """
    try:
        with ThreadPoolExecutor(1) as executor:  # it ends in the new namespace
            return executor.submit(_make_namespace_in_thread, network, hostname).result()
    except OSError as error:
        raise WorkloadError(f"the workload cannot join its session's network: {error.strerror or error}") from error


def _make_namespace_in_thread(network: NetworkView, hostname: str) -> int:
    parent_device, _, prefix_length = network.network_id.partition("/")
    address = network.addresses[hostname]
    with RouteSocket() as host_route:
        syscalls.unshare_network()
        namespace_fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            host_route.add_child(parent_device, "eth0", namespace_fd, mac_of(address))
            with RouteSocket() as inner_route:
                inner_route.set_up("lo")
                inner_route.add_address("eth0", address, int(prefix_length))
                _set_up_with_retries(inner_route, "eth0")
        except BaseException:
            os.close(namespace_fd)
            raise
        return namespace_fd


def _set_up_with_retries(route: RouteSocket, device: str) -> None:
    """Brings a network device up, and retries while an earlier device with the same hardware address still exists."""
    deadline = time.monotonic() + _PREDECESSOR_TIMEOUT_S
    while True:
        try:
            return route.set_up(device)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EADDRINUSE) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)
