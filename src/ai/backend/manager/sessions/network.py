"""The network of a session over several agents, as assigned when the session was scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ai.backend.common.ids import AgentId
from ai.backend.common.states import SessionStatus


def line_between(first: AgentId, second: AgentId) -> str:
    """Return the name of the line between two agents; the same in both orders."""
    return " ".join(sorted((first, second)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNode:
    """An agent in the network: its IPv4 address and UDP port for other agents, and its address inside."""

    address: str
    port: int
    gateway: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNetwork:
    """The properties of the network that all of its agents share.

    Attributes:
        subnet: its addresses; no other live session has any of them.
        mtu: the largest packet in it.
        addresses: of each kernel, by host name.
        places: the agent of each kernel, by host name.
        nodes: its agents.
        encrypted: True if traffic between agents is encrypted.
        lines: the nonce of each encrypted line, by :func:`line_between`; empty without encryption.
        key_id: of the sealing key from which its secrets are derived; newer keys do not change it.
    """

    subnet: str
    mtu: int
    addresses: Mapping[str, str]
    places: Mapping[str, AgentId]
    nodes: Mapping[AgentId, NetworkNode]
    encrypted: bool = False
    lines: Mapping[str, str] = field(default_factory=dict)
    key_id: str = ""


def lasting(network: SessionNetwork, status: SessionStatus) -> SessionNetwork:
    """Return the part of a network that later sessions may share: without the lines of a session that is ending."""
    return replace(network, lines={}) if status is SessionStatus.TERMINATING else network
