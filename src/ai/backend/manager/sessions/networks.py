"""Assigns networks over several agents to sessions, with the numbers, addresses and keys that the agents share. Pure.

A network is assigned when the session is scheduled: a number (VXLAN) and addresses that no other live session has. A
session that is scheduled again gets new ones, so that packets of the previous attempt cannot reach it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import IPv4Network
from itertools import combinations

from ai.backend.common.errors import InsufficientResource
from ai.backend.common.ids import AgentId
from ai.backend.common.states import ClusterMode
from ai.backend.common.wire.agent import OverlayInfo, UnderlayPeer
from ai.backend.manager.agents.capabilities import is_encrypted
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.sessions.model import Kernel, NetworkNode, Session, SessionNetwork, connection_name_of
from ai.backend.manager.sessions.settings import SessionSettings

Derive = Callable[[bytes, str], bytes]
"""Derives 32 secret bytes from a purpose and the id of a key; the same input gives the same bytes."""


def no_secret(purpose: bytes, key_id: str) -> bytes:
    """Raises LookupError whenever it is called, since this manager has no secret to derive keys from.

    Serves as :data:`Derive` in managers whose sessions have no networks over several agents.
    """
    raise LookupError(f"there is no secret to derive {purpose.decode()!r} from")


_SMALLEST_PREFIX_BITS = 28
_MAX_MTU = 65_535
_RESERVED_ADDRESSES = 2  # the network itself and its broadcast address
_HEADER_BYTES = 50  # IPv4, UDP, VXLAN, Ethernet
_ENCRYPTION_BYTES = 40  # ESP: header, initialization vector, padding, check value
_MAX_TRIES = 64


def needs_overlay(session: Session) -> bool:
    """Returns True if the kernels of a session need a network over several agents."""
    return session.cluster_mode is ClusterMode.MULTI_NODE and session.cluster_size > 1


def assign_network(
    session: Session,
    agents: Mapping[AgentId, Agent],
    existing_networks: Collection[tuple[int, SessionNetwork]],
    settings: SessionSettings,
    rng: random.Random,
    key_id: str = "",
) -> tuple[int, SessionNetwork]:
    """Returns the number and the network of a session whose kernels have their agents.

    ``agents`` are at least those of its kernels; ``existing_networks`` are the networks of all live sessions. The
    search begins at random, so that numbers that a lost agent still uses are not reused at once. Raises
    InsufficientResource if no numbers or addresses are free, or an agent does not support such networks any more.
    """
    placed_hosts = [(kernel.cluster_hostname, kernel.agent) for kernel in session.kernels if kernel.agent is not None]
    member_agents = list(dict.fromkeys(agent for _, agent in placed_hosts))
    overlay_reports = {agent_id: agents[agent_id].overlay if agent_id in agents else None for agent_id in member_agents}
    subnet = _free_subnet(
        len(placed_hosts) + len(member_agents),
        [IPv4Network(network_in_use.subnet) for _, network_in_use in existing_networks],
        settings,
        rng,
    )
    nodes: dict[AgentId, NetworkNode] = {}
    is_network_encrypted = is_encrypted(session.resource_opts)
    mtu = _MAX_MTU
    for address_index, (agent_id, overlay) in enumerate(overlay_reports.items(), 1):
        if overlay is None or overlay.why_not:
            raise InsufficientResource(f"agent {agent_id} does not support networks over several nodes any more")
        port = overlay.encrypted_port if is_network_encrypted else overlay.port
        nodes[agent_id] = NetworkNode(address=overlay.address, port=port, gateway=str(subnet[address_index]))
        mtu = min(mtu, overlay.mtu)
    network = SessionNetwork(
        subnet=str(subnet),
        mtu=mtu - _HEADER_BYTES - (_ENCRYPTION_BYTES if is_network_encrypted else 0),
        addresses={
            host_name: str(subnet[len(member_agents) + address_index])
            for address_index, (host_name, _) in enumerate(placed_hosts, 1)
        },
        places=dict(placed_hosts),
        nodes=nodes,
        encrypted=is_network_encrypted,
        lines=_connection_nonces(member_agents, existing_networks, rng, key_id) if is_network_encrypted else {},
        key_id=key_id,
    )
    return _free_vni({vni for vni, _ in existing_networks}, settings, rng), network


def _connection_nonces(
    member_agents: Collection[AgentId],
    existing_networks: Iterable[tuple[int, SessionNetwork]],
    rng: random.Random,
    key_id: str,
) -> dict[str, str]:
    """Returns, for the connection between each two agents, its name with a key id and nonce as ``KEY_ID:NONCE``.

    The nonce is that of live sessions, or a new one. A new line counts packets from zero and must not reuse a key; a
    line keeps its key while a session uses it.
    """
    existing_nonces = {
        connection_name: nonce for _, network in existing_networks for connection_name, nonce in network.lines.items()
    }
    connection_names = (connection_name_of(*agent_pair) for agent_pair in combinations(member_agents, 2))
    return {
        connection_name: existing_nonces.get(connection_name) or f"{key_id}:{rng.getrandbits(64):016x}"
        for connection_name in connection_names
    }


def _free_vni(taken_vnis: Collection[int], settings: SessionSettings, rng: random.Random) -> int:
    first_vni, last_vni = settings.network_numbers
    for _ in range(_MAX_TRIES):
        if (vni := rng.randint(first_vni, last_vni)) not in taken_vnis:
            return vni
    free_vni = next((vni for vni in range(first_vni, last_vni + 1) if vni not in taken_vnis), None)
    if free_vni is None:
        raise InsufficientResource(f"all numbers of networks from {first_vni} to {last_vni} are in use")
    return free_vni


def _free_subnet(
    address_count: int, taken_subnets: Iterable[IPv4Network], settings: SessionSettings, rng: random.Random
) -> IPv4Network:
    address_pool = settings.network_pool
    prefix_bits = min(_SMALLEST_PREFIX_BITS, 32 - (address_count + _RESERVED_ADDRESSES - 1).bit_length())
    if prefix_bits < address_pool.prefixlen:
        raise InsufficientResource(f"{address_pool} has no room for a network of {address_count} addresses")
    subnet_size = 1 << (32 - prefix_bits)
    subnet_count = address_pool.num_addresses // subnet_size
    pool_start = int(address_pool.network_address)
    used_indexes: set[int] = set()
    for subnet in taken_subnets:
        low_offset, high_offset = int(subnet.network_address) - pool_start, int(subnet.broadcast_address) - pool_start
        used_indexes.update(
            range(max(0, low_offset // subnet_size), min(subnet_count - 1, high_offset // subnet_size) + 1)
        )
    first_index = rng.randrange(subnet_count)
    for offset in range(subnet_count):
        if (index := (first_index + offset) % subnet_count) not in used_indexes:
            return IPv4Network((pool_start + index * subnet_size, prefix_bits))
    raise InsufficientResource(f"no addresses of {address_pool} are left for networks over several nodes")


def overlay_info(session: Session, kernel: Kernel, derive: Derive) -> OverlayInfo | None:
    """Returns the session's network for the kernel's agent; None for a session without a network over several agents.
    Sessions share the encrypted line between two agents and its keys. The keys are derived from the ids that the link
    has authenticated, not from reported addresses. A line that was unused for a while has new keys."""
    network = session.network
    if network is None or session.vni is None or kernel.agent is None:
        return None
    own_node = network.nodes[kernel.agent]

    def key(source: AgentId, target: AgentId) -> bytes:
        if not network.encrypted:
            return b""
        nonce = network.lines.get(connection_name_of(source, target), "")
        return derive(f"underlay {source} {target} {nonce}".encode(), nonce.partition(":")[0])

    return OverlayInfo(
        vni=session.vni,
        subnet=network.subnet,
        gateway=own_node.gateway,
        mtu=network.mtu,
        local=UnderlayPeer(address=own_node.address, port=own_node.port),
        addresses=dict(network.addresses),
        peers={
            agent_id: UnderlayPeer(
                address=node.address,
                port=node.port,
                key_out=key(kernel.agent, agent_id),
                key_in=key(agent_id, kernel.agent),
            )
            for agent_id, node in network.nodes.items()
            if agent_id != kernel.agent
        },
        places={host_name: agent_id for host_name, agent_id in network.places.items() if agent_id != kernel.agent},
        secret=derive(f"session-network {session.id} {session.vni}".encode(), network.key_id),
    )
