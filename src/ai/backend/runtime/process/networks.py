"""Private networks of sessions on one host, for root: network namespaces, joined where no rule of the host applies.

On the host a network is a pair of devices without addresses; each kernel has a device on top of one of them (macvlan),
in a namespace of its own (``supervisor.launch``). These devices reach each other, and neither the host nor what lies
behind it. They go with the kernel's last process, so that only the pair has to be removed, and is found by its alias.

<state>/networks/<session id>.json   the addresses; written before the pair is made, removed after it
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv4Network
from pathlib import Path
from uuid import UUID

from ai.backend.common.errors import CreationDenied, WorkloadError
from ai.backend.common.ids import SessionId
from ai.backend.plugin.node.crash_points import reach
from ai.backend.plugin.node.netlink import Route
from ai.backend.plugin.node.state import write_json
from ai.backend.plugin.node.subnets import addresses_of, prefix_for
from ai.backend.plugin.runtime import NetworkView

_SYSCTL = Path("/proc/sys/net")
_FENCES = ("ipv6/conf/{}/disable_ipv6", "ipv4/conf/{}/rp_filter")
"""Besides that neither device answers questions for addresses: the host listens to nothing that arrives there."""


def why_none(state: Path, *, has_sandbox: bool) -> str:
    """Why there can be no such networks here; empty if there can. Found by making one."""
    if os.geteuid() != 0:
        return "networks of sessions need root, and the agent runs as another user"
    if not has_sandbox:
        return "networks of sessions need bubblewrap, which does not work on this node"
    name = "bai" + sha256(f"probe {state} {os.getpid()}".encode()).hexdigest()[:10]
    try:
        with Route() as route:
            try:
                route.add_pair(f"{name}a", f"{name}b", "")
                route.add_child(f"{name}a", f"{name}c", os.getpid())
            finally:
                route.remove(f"{name}a")
    except OSError as error:
        return f"the kernel makes no network devices for sessions (veth, macvlan): {error.strerror or error}"
    return ""


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
        """What kernels have theirs on; its peer ends in ``b``."""
        return "bai" + sha256(f"{self._mark}{session_id}".encode()).hexdigest()[:10] + "a"

    def create(self, session_id: SessionId, hosts: Sequence[str]) -> NetworkView:
        """Raises WorkloadError if the kernel does not do it, CreationDenied if there is no room for so many."""
        prefix = prefix_for(len(hosts))
        if prefix < self.pool.prefixlen:
            raise CreationDenied(f"{self.pool} has no room for a network of {len(hosts)} kernels")
        addresses = addresses_of(IPv4Network((self.pool.network_address, prefix)), hosts)
        name = self.device(session_id)
        peer = name[:-1] + "b"
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            write_json(self.directory / f"{session_id}.json", {"version": 1, "addresses": addresses})
            reach("network.recorded")
            with Route() as route:
                if name not in route.links():
                    route.add_pair(name, peer, f"{self._mark}{session_id}")
                    reach("network.made")
                for one in (name, peer):
                    _fence(one)
                    route.set_up(one)
        except OSError as error:
            raise WorkloadError(f"the session's network could not be made: {error.strerror or error}") from error
        return NetworkView(session_id=session_id, network_id=f"{name}/{prefix}", addresses=addresses)

    def remove(self, session_id: SessionId) -> None:
        """Raises OSError."""
        record = self.directory / f"{session_id}.json"
        with Route() as route:
            route.remove(self.device(session_id))
        reach("network.removed")
        record.unlink(missing_ok=True)

    def sessions(self) -> Sequence[SessionId]:
        """By records, and by devices with our mark whose record is lost."""
        names = [path.stem for path in self.directory.glob("*.json")]
        if os.geteuid() == 0:
            with suppress(OSError), Route() as route:
                names += [a.removeprefix(self._mark) for a in route.links().values() if a.startswith(self._mark)]
        found: list[SessionId] = []
        for name in dict.fromkeys(names):
            with suppress(ValueError):
                found.append(SessionId(UUID(name)))
        return found


def _fence(name: str) -> None:
    """As far as we may write there: in a container we may not."""
    for path in _FENCES:
        with suppress(OSError):
            (_SYSCTL / path.format(name)).write_text("1")


def hosts_file(network: NetworkView) -> bytes:
    """/etc/hosts of the network's kernels."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{address} {host}" for host, address in network.addresses.items()]
    return "".join(line + "\n" for line in lines).encode()


def plan_of(network: NetworkView, hostname: str) -> dict[str, object]:
    """What the leader of a workload does to be in the network (``supervisor.launch``)."""
    device, _, prefix = network.network_id.partition("/")
    return {"parent": device, "address": network.addresses[hostname], "prefix": int(prefix)}
