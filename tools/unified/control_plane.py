"""A control plane of Kubernetes on this machine, for a node in the virtual one.

By translation the programs of the control plane would take longer to answer than they wait for each other.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.kube.cluster import Cluster, ClusterOptions, running_cluster
from tools.kube.control_plane import ControlPlane
from tools.kube.place import FIRST_JOINED, Addresses

_DEVICE = "machine"
_OURS, _MACHINE = "10.199.0.1", "10.199.0.2"


@dataclass(frozen=True, slots=True)
class Connection:
    """Connects the machine to the control plane by a device in the network namespace of the latter."""

    cluster: Cluster

    @property
    def prefix(self) -> list[str]:
        """The start of the command that runs QEMU where the device is."""
        return ["nsenter", f"--net={self.cluster.network}", "--"]

    @property
    def options(self) -> list[str]:
        """Options of QEMU."""
        netdev = f"tap,id=network,ifname={_DEVICE},script=no,downscript=no"
        return ["-netdev", netdev, "-device", "virtio-net-pci,netdev=network,romfile="]

    def variables(self, authority: Path) -> dict[str, str]:
        """Return variables of the machine, which sees the authority's folder at ``authority``."""
        name, value = ControlPlane(self.cluster.api_address, authority).variable
        return {"ADDRESS": f"{_MACHINE}/30", "GATEWAY": _OURS, name: value}


@contextmanager
def running_control_plane() -> Iterator[Connection]:
    """Start a control plane with a device for the machine, and end it with the block.

    Raises:
        BuildFailed, PlaceFailed, DaemonFailed: it cannot be started.
    """
    with running_cluster(ClusterOptions(has_node=False)) as cluster:
        connection, node = Connection(cluster), Addresses(FIRST_JOINED)
        for command in (
            ("ip", "tuntap", "add", _DEVICE, "mode", "tap"),
            ("ip", "address", "add", f"{_OURS}/30", "dev", _DEVICE),
            ("ip", "link", "set", _DEVICE, "up"),
            ("ip", "route", "add", f"{node.cluster}/32", "via", _MACHINE),
        ):
            subprocess.run([*connection.prefix, *command], check=True)
        yield connection
