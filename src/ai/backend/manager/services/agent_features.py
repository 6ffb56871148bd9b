"""What agents can do beyond slots and images, and what sessions need of it: runtime classes, networks of sessions.

A feature is a word; an agent serves a session if it has all words that the session needs. Source: spec 03-19, 10.3
(runtime classes). Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ai.backend.common.errors import UnsupportedResource
from ai.backend.common.states import ClusterMode, Enforcement
from ai.backend.manager.model.cluster import Agent

NETWORKS = "session-networks"


def class_feature(name: str) -> str:
    return f"runtime class {name}"


def needs_of(cluster_size: int, cluster_mode: ClusterMode, runtime_class: str) -> frozenset[str]:
    """Of the agents of a session."""
    found = {class_feature(runtime_class)} if runtime_class else set()
    if cluster_size > 1 and cluster_mode is ClusterMode.SINGLE_NODE:
        found.add(NETWORKS)
    return frozenset(found)


def features_of(agent: Agent) -> frozenset[str]:
    """An agent that does not speak of networks is believed to have them; it refuses by itself."""
    found = {class_feature(one.name) for one in agent.runtime_classes}
    if agent.enforcement.get(NETWORKS) != Enforcement.NONE.value:
        found.add(NETWORKS)
    return frozenset(found)


def with_networks(agents: Sequence[Agent], resource_group: str) -> list[Agent]:
    """Those that can give the kernels of a session a network. Raises UnsupportedResource if none can."""
    found = [agent for agent in agents if NETWORKS in features_of(agent)]
    if agents and not found:
        raise UnsupportedResource(
            f"No agent of {resource_group} can give the kernels of a session a private network: in the process runtime "
            "that takes root and bubblewrap. Ask for one kernel, or for agents with the Docker runtime.",
            data={"clusterSize": "not possible here", "feature": NETWORKS},
        )
    return found
