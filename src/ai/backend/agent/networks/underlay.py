"""Reports the address at which other agents reach this one, for multi-node networks."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator
from hashlib import sha256
from urllib.parse import urlsplit

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.node.linux import ipsec
from ai.backend.node.linux.netlink import RouteSocket
from ai.backend.node.network import overlay
from ai.backend.plugin.runtime import RuntimeInfo

_EXTERNAL_ADDRESS = "192.0.2.1"  # documentation only (RFC 5737): the default route leads there
MULTI_NODE = "multi-node-networks"


def overlay_report(settings: AgentSettings, info: RuntimeInfo) -> OverlayReport:
    """Returns the agent's parameters for multi-node networks, or the reason why it cannot have such networks.

    Blocks while it reads routes.
    """
    if MULTI_NODE not in info.capabilities:
        return OverlayReport(why_not=info.no_multi_node_networks)
    address = settings.underlay_address or _own_address(settings.link.manager_addr)
    if not address:
        return OverlayReport(why_not="no route leads to other nodes: set `underlay.address`")
    try:
        with RouteSocket() as route:
            mtu = route.mtu_at(address)
    except OSError as error:
        return OverlayReport(why_not=f"{error.strerror or error}: set `underlay.address`")
    if ipaddress.ip_address(address).is_loopback:
        problem = _local_problem(settings)
        if problem:
            return OverlayReport(why_not=problem)
    return OverlayReport(
        address=address,
        port=settings.underlay.port,
        encrypted_port=settings.underlay.encrypted_port,
        mtu=mtu,
        why_plain=ipsec.why_no_ipsec(encryption_mark(settings)),
    )


def _local_problem(settings: AgentSettings) -> str:
    """Returns the reason why this node cannot create multi-node networks to itself, or an empty text if it can.

    This is for an agent whose peers are on its own node.
    """
    probe_device = overlay.device_name("underlay ", f"{settings.data_dir} {os.getpid()}", "u")
    return overlay.why_no_overlays(probe_device, within_node=True)


def encryption_mark(settings: AgentSettings) -> int:
    """Returns the mark of this agent's encryption rules in the Linux kernel; the same after each start."""
    return int.from_bytes(sha256(str(settings.data_dir).encode()).digest()[:4]) | 1


def _own_address(managers: str) -> str:
    """Returns this node's address on the route to a manager, or on the default route if all managers are local.

    Returns an empty text if there is no such address.
    """
    for target_address in (*_hosts(managers), _EXTERNAL_ADDRESS):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
            try:
                probe_socket.connect((target_address, 9))  # nothing is sent
                address = str(probe_socket.getsockname()[0])
            except OSError:
                continue
        if not ipaddress.ip_address(address).is_loopback:
            return address
    return ""


def _hosts(managers: str) -> Iterator[str]:
    for manager_address in managers.split(","):
        try:
            host = urlsplit(manager_address.strip()).hostname
        except ValueError:
            continue
        if host:
            yield host
