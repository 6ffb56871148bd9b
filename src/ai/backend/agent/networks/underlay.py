"""Where the other agents reach this one, for networks over several nodes."""

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
from ai.backend.node.linux.netlink import Route
from ai.backend.node.network import overlay
from ai.backend.plugin.runtime import RuntimeInfo

_ANYWHERE = "192.0.2.1"  # documentation only (RFC 5737): the default route leads there
MULTI_NODE = "multi-node-networks"


def overlay_report(settings: AgentSettings, info: RuntimeInfo) -> OverlayReport:
    """How this agent takes part in networks over several agents, or why it does not. Blocks for a look at routes."""
    if MULTI_NODE not in info.capabilities:
        return OverlayReport(why_not=info.no_multi_node_networks)
    address = settings.underlay.address or _own_address(settings.link.manager_addr)
    if not address:
        return OverlayReport(why_not="no route leads to other nodes: set `underlay.address`")
    try:
        with Route() as route:
            mtu = route.mtu_at(address)
    except OSError as error:
        return OverlayReport(why_not=f"{error.strerror or error}: set `underlay.address`")
    if ipaddress.ip_address(address).is_loopback:
        why = _why_none_here(settings)
        if why:
            return OverlayReport(why_not=why)
    return OverlayReport(
        address=address,
        port=settings.underlay.port,
        encrypted_port=settings.underlay.encrypted_port,
        mtu=mtu,
        why_plain=ipsec.why_none(encryption_mark(settings)),
    )


def _why_none_here(settings: AgentSettings) -> str:
    """For an agent whose peers are all on its own node."""
    name = overlay.device_name("underlay ", f"{settings.data_dir} {os.getpid()}", "u")
    return overlay.why_none(name, within_node=True)


def encryption_mark(settings: AgentSettings) -> int:
    """What this agent tells the kernel to encrypt carries it; the same in each life."""
    return int.from_bytes(sha256(str(settings.data_dir).encode()).digest()[:4]) | 1


def _own_address(managers: str) -> str:
    """That of the route to a manager, or of the default route where the manager is on this node; empty for none."""
    for target in (*_hosts(managers), _ANYWHERE):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            try:
                one.connect((target, 9))  # nothing is sent
                found = str(one.getsockname()[0])
            except OSError:
                continue
        if not ipaddress.ip_address(found).is_loopback:
            return found
    return ""


def _hosts(managers: str) -> Iterator[str]:
    for one in managers.split(","):
        try:
            host = urlsplit(one.strip()).hostname
        except ValueError:
            continue
        if host:
            yield host
