"""Networks of sessions over several agents: what all of their agents have to agree on. Pure.

It is settled once, when the session is scheduled: a number of the network (VXLAN) and addresses that no other living
session has. A session that is scheduled again gets others, so that nothing of the attempt before can be mistaken.
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
from ai.backend.manager.agents.overlay import MAX_PORT
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.network import NetworkNode, SessionNetwork, line_between
from ai.backend.manager.sessions.settings import SessionSettings

Derive = Callable[[bytes, str], bytes]
"""From a purpose and the id of a key to 32 bytes that nobody else knows, and that are the same for them each time."""


def no_secret(purpose: bytes, key_id: str) -> bytes:
    """Where no session has a network over several agents."""
    raise LookupError(f"there is no secret to derive {purpose.decode()!r} from")


_SMALLEST = 28
_NOT_HOSTS = 2  # the network itself and its broadcast address
_HEADERS = 50  # IPv4, UDP, VXLAN, Ethernet
_ENCRYPTION = 40  # ESP: header, initialization vector, padding, check value
_TRIES = 64


def needs_overlay(session: Session) -> bool:
    """Whether its kernels are in a network over several agents, on however many they are."""
    return session.cluster_mode is ClusterMode.MULTI_NODE and session.cluster_size > 1


def settle(
    session: Session,
    agents: Mapping[AgentId, Agent],
    taken: Collection[tuple[int, SessionNetwork]],
    settings: SessionSettings,
    rng: random.Random,
    key_id: str = "",
) -> tuple[int, SessionNetwork]:
    """The number and the network of a session whose kernels have their agents.

    Args:
        session: as it is to be saved.
        agents: at least those of its kernels, with what they told of themselves.
        taken: the networks of all living sessions.
        settings: which numbers and addresses there are.
        rng: where the search begins: what an agent that is lost keeps is then not given away at once.
        key_id: of the key that its secrets are to follow from.

    Raises:
        InsufficientResource: no numbers or addresses are left, or an agent takes no part in such networks any more.
    """
    placed = [(kernel.cluster_hostname, kernel.agent) for kernel in session.kernels if kernel.agent is not None]
    here = list(dict.fromkeys(agent for _, agent in placed))
    reports = {agent_id: agents[agent_id].overlay if agent_id in agents else None for agent_id in here}
    subnet = _subnet(len(placed) + len(here), [IPv4Network(other.subnet) for _, other in taken], settings, rng)
    nodes: dict[AgentId, NetworkNode] = {}
    encrypted = is_encrypted(session.resource_opts)
    mtu = MAX_PORT
    for number, (agent_id, told) in enumerate(reports.items(), 1):
        if told is None or told.why_not:
            raise InsufficientResource(f"agent {agent_id} takes no part in networks over several nodes any more")
        port = told.encrypted_port if encrypted else told.port
        nodes[agent_id] = NetworkNode(address=told.address, port=port, gateway=str(subnet[number]))
        mtu = min(mtu, told.mtu)
    network = SessionNetwork(
        subnet=str(subnet),
        mtu=mtu - _HEADERS - (_ENCRYPTION if encrypted else 0),
        addresses={host: str(subnet[len(here) + number]) for number, (host, _) in enumerate(placed, 1)},
        places=dict(placed),
        nodes=nodes,
        encrypted=encrypted,
        lines=_lines(here, taken, rng, key_id) if encrypted else {},
        key_id=key_id,
    )
    return _number({vni for vni, _ in taken}, settings, rng), network


def _lines(
    here: Collection[AgentId], taken: Iterable[tuple[int, SessionNetwork]], rng: random.Random, key_id: str
) -> dict[str, str]:
    """A word for the line of each two agents: that of the living sessions which use it, or one that never was, with the
    id of its key. States that are made anew count their packets from the start, and must not do so with a key that was
    used; and while one of its sessions lives, a line keeps its key."""
    living = {line: life for _, other in taken for line, life in other.lines.items()}
    wanted = (line_between(*pair) for pair in combinations(here, 2))
    return {line: living.get(line) or f"{key_id}:{rng.getrandbits(64):016x}" for line in wanted}


def _number(taken: Collection[int], settings: SessionSettings, rng: random.Random) -> int:
    first, last = settings.network_numbers
    for _ in range(_TRIES):
        if (vni := rng.randint(first, last)) not in taken:
            return vni
    left = next((vni for vni in range(first, last + 1) if vni not in taken), None)
    if left is None:
        raise InsufficientResource(f"all numbers of networks from {first} to {last} are in use")
    return left


def _subnet(addresses: int, taken: Iterable[IPv4Network], settings: SessionSettings, rng: random.Random) -> IPv4Network:
    pool = settings.network_pool
    prefix = min(_SMALLEST, 32 - (addresses + _NOT_HOSTS - 1).bit_length())
    if prefix < pool.prefixlen:
        raise InsufficientResource(f"{pool} has no room for a network of {addresses} addresses")
    size = 1 << (32 - prefix)
    count = pool.num_addresses // size
    start = int(pool.network_address)
    busy: set[int] = set()
    for other in taken:
        low, high = int(other.network_address) - start, int(other.broadcast_address) - start
        busy.update(range(max(0, low // size), min(count - 1, high // size) + 1))
    first = rng.randrange(count)
    for step in range(count):
        if (place := (first + step) % count) not in busy:
            return IPv4Network((start + place * size, prefix))
    raise InsufficientResource(f"no addresses of {pool} are left for networks over several nodes")


def overlay_info(session: Session, kernel: Kernel, derive: Derive) -> OverlayInfo | None:
    """What the kernel's agent is told of the session's network; None for a session that has none over several agents.

    The keys between two agents are theirs, whichever session needs them: one encrypted line carries all of them. They
    follow from who the agents are, as the link has found out, and not from the addresses that they say they have. A
    line that was not needed for a while has others.
    """
    network = session.network
    if network is None or session.vni is None or kernel.agent is None:
        return None
    here = network.nodes[kernel.agent]

    def key(source: AgentId, target: AgentId) -> bytes:
        if not network.encrypted:
            return b""
        life = network.lines.get(line_between(source, target), "")
        return derive(f"underlay {source} {target} {life}".encode(), life.partition(":")[0])

    return OverlayInfo(
        vni=session.vni,
        subnet=network.subnet,
        gateway=here.gateway,
        mtu=network.mtu,
        local=UnderlayPeer(address=here.address, port=here.port),
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
        places={host: agent_id for host, agent_id in network.places.items() if agent_id != kernel.agent},
        secret=derive(f"session-network {session.id} {session.vni}".encode(), network.key_id),
    )
