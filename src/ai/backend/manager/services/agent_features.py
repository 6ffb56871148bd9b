"""What agents can do beyond slots and images, and what sessions need of it: runtime classes, networks of sessions.

A feature is a word; an agent serves a session if it has all words that the session needs. Source: spec 03-19, 10.3
(runtime classes). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ai.backend.common.errors import UnsupportedResource
from ai.backend.common.states import ClusterMode, Enforcement
from ai.backend.manager.model.cluster import Agent

NETWORKS = "session-networks"
MULTI_NODE = "multi-node-networks"
ENCRYPTED = "encrypted-networks"
ENCRYPTION = "encrypted_network"
"""The resource option of a session whose network must be encrypted between agents."""
_SHOWN = 3
_LONGEST = 200
"""Characters of a reason: agents write them, and users read them."""


def is_encrypted(resource_opts: Mapping[str, str]) -> bool:
    return resource_opts.get(ENCRYPTION) == "true"


def class_feature(name: str) -> str:
    return f"runtime class {name}"


def needs_of(
    cluster_size: int, cluster_mode: ClusterMode, runtime_class: str, *, encrypted: bool = False
) -> frozenset[str]:
    """Of the agents of a session."""
    found = {class_feature(runtime_class)} if runtime_class else set()
    if cluster_size > 1:
        found.add(NETWORKS if cluster_mode is ClusterMode.SINGLE_NODE else ENCRYPTED if encrypted else MULTI_NODE)
    return frozenset(found)


def features_of(agent: Agent) -> frozenset[str]:
    """An agent that does not speak of networks is believed to have those of one node, as it refuses by itself, and none
    over several nodes, as the others could not find it."""
    found = {class_feature(one.name) for one in agent.runtime_classes}
    if agent.enforcement.get(NETWORKS) != Enforcement.NONE.value:
        found.add(NETWORKS)
    if agent.overlay is not None and not agent.overlay.why_not:
        found |= {MULTI_NODE} if agent.overlay.why_plain else {MULTI_NODE, ENCRYPTED}
    return frozenset(found)


def with_networks(agents: Sequence[Agent], resource_group: str, needs: frozenset[str]) -> list[Agent]:
    """Those that can give the kernels of a session the network that it needs.

    Raises:
        UnsupportedResource: none can, with the reasons of the first three.
    """
    needs &= {NETWORKS, MULTI_NODE, ENCRYPTED}
    found = [agent for agent in agents if needs <= features_of(agent)]
    if not agents or found:
        return found
    if NETWORKS in needs:
        raise UnsupportedResource(
            f"No agent of {resource_group} can give the kernels of a session a private network: in the process runtime "
            "that takes root and bubblewrap. Ask for one kernel, or for agents with the Docker runtime.",
            data={"clusterSize": "not possible here", "feature": NETWORKS},
        )
    reasons = {agent.id: _why_not(agent)[:_LONGEST] for agent in agents[:_SHOWN]}
    shown = "; ".join(f"{agent_id}: {reason}" for agent_id, reason in reasons.items())
    more = f" (and {len(agents) - _SHOWN} more)" if len(agents) > _SHOWN else ""
    what, field = ("an encrypted", "config.resource_opts") if ENCRYPTED in needs else ("a", "clusterMode")
    raise UnsupportedResource(
        f"No agent of {resource_group} can take part in {what} network over several nodes: {shown}{more}.",
        data={field: "not possible here", "feature": min(needs), "agents": reasons},
    )


def _why_not(agent: Agent) -> str:
    if agent.overlay is None:
        return "it does not say where other agents reach it"
    return agent.overlay.why_not or agent.overlay.why_plain
