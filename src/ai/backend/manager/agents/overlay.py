"""Decides which agents take part in networks over several agents."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import IPv4Address

import msgspec

from ai.backend.common.ids import AgentId
from ai.backend.common.wire.reports import OverlayReport

MAX_PORT = 65_535
_BROADCAST = IPv4Address("255.255.255.255")


def _invalid_reason(address: str, ports: Collection[int]) -> str:
    """Returns why the address is invalid; empty if it is valid."""
    try:
        parsed = IPv4Address(address)
    except ValueError:
        return f"{address[:64]!r} is no IPv4 address"
    if parsed.is_unspecified or parsed.is_multicast or parsed == _BROADCAST:
        return f"{address} is no address of one node"
    if len(ports) == 1 or not all(0 < port <= MAX_PORT for port in ports):
        return "its two ports must differ, and be from 1 to 65535"
    return ""


def admitted(report: OverlayReport, others: Mapping[AgentId, OverlayReport]) -> OverlayReport:
    """Returns the report, or one that says why the agent takes no part: its address is invalid or taken.

    Only one agent at an address takes part in encrypted networks: the packets of two to a peer's port cannot be told
    apart.

    Args:
        report: by the agent.
        others: the admitted reports of all other living agents.
    """
    if report.why_not:
        return report
    ports = {report.port, report.encrypted_port}
    if why := _invalid_reason(report.address, ports):
        return OverlayReport(why_not=why)
    neighbours = {agent_id: o for agent_id, o in others.items() if not o.why_not and o.address == report.address}
    for agent_id, other in neighbours.items():
        if ports & {other.port, other.encrypted_port}:
            why = f"agent {agent_id} is at {report.address} with the same port: set `underlay` of one of them"
            return OverlayReport(why_not=why)
    encrypts = next((agent_id for agent_id, other in neighbours.items() if not other.why_plain), None)
    if report.why_plain or encrypts is None:
        return report
    return msgspec.structs.replace(
        report, why_plain=f"agent {encrypts} encrypts at {report.address}, and one at a time can"
    )
