"""The network of a session over several agents, as it was settled when the session was scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ai.backend.common.ids import AgentId
from ai.backend.common.states import SessionStatus


def line_between(one: AgentId, other: AgentId) -> str:
    """The same from both ends."""
    return " ".join(sorted((one, other)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkNode:
    """One agent in it: where the others reach it (an IPv4 address and a UDP port), and its own address inside."""

    address: str
    port: int
    gateway: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNetwork:
    """Everything that its agents have to agree on.

    Attributes:
        subnet: of its addresses; no other living session has any of them.
        mtu: the largest packet in it.
        addresses: of each kernel, by host name.
        places: the agent of each kernel, by host name.
        nodes: its agents.
        encrypted: whether what goes from agent to agent is.
        lines: which life of their encrypted line two agents are in, by :func:`line_between`; empty if it is not.
        key_id: of the sealing key that its secrets follow from, however often there is a newer one.
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
    """As later sessions may share it: the lines of a session that ends are left by one agent after the other."""
    return replace(network, lines={}) if status is SessionStatus.TERMINATING else network
