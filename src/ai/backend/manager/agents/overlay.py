"""Overlay of agents."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import IPv4Address

import msgspec

from ai.backend.common.ids import AgentId
from ai.backend.common.wire.reports import OverlayReport

_LARGEST = 65_535


_BROADCAST = IPv4Address("255.255.255.255")


def _malformed(address: str, ports: Collection[int]) -> str:
    """Empty if others can be told it as it stands; each address has one spelling."""
    try:
        parsed = IPv4Address(address)
    except ValueError:
        return f"{address[:64]!r} is no IPv4 address"
    if parsed.is_unspecified or parsed.is_multicast or parsed == _BROADCAST:
        return f"{address} is no address of one node"
    if len(ports) == 1 or not all(0 < port <= _LARGEST for port in ports):
        return "its two ports must differ, and be from 1 to 65535"
    return ""


def admitted(told: OverlayReport, others: Mapping[AgentId, OverlayReport]) -> OverlayReport:
    """What an agent told of itself, or that it takes no part since another one has its place.

    One of those at an address takes part in encrypted networks: what two send to a peer's port cannot be told apart.

    Args:
        told: by the agent.
        others: what was admitted of all others that live.
    """
    if told.why_not:
        return told
    ports = {told.port, told.encrypted_port}
    if why := _malformed(told.address, ports):
        return OverlayReport(why_not=why)
    here = {agent_id: o for agent_id, o in others.items() if not o.why_not and o.address == told.address}
    for agent_id, other in here.items():
        if ports & {other.port, other.encrypted_port}:
            why = f"agent {agent_id} is at {told.address} with the same port: set `underlay` of one of them"
            return OverlayReport(why_not=why)
    encrypts = next((agent_id for agent_id, other in here.items() if not other.why_plain), None)
    if told.why_plain or encrypts is None:
        return told
    return msgspec.structs.replace(
        told, why_plain=f"agent {encrypts} encrypts at {told.address}, and one at a time can"
    )
