"""Builds the network policies of all sessions and of one session's kernels (NetworkPolicy, networking.k8s.io/v1).

Whether the cluster enforces them is another question, see :mod:`isolation`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from ipaddress import ip_network
from typing import Any

from ai.backend.common.ids import SessionId
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL, NODE_ANNOTATION, SESSION_LABEL, policy_name
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

_DEFAULT_POLICY = "backendai-default-deny"
HOSTS_ANNOTATION = "backend.ai/hosts"
_DNS_PORT = 53


def default_policy_name(instance: str) -> str:
    """Returns the name of an installation's default policy.

    Names differ by installation, so that two in one namespace do not overwrite each other's policy.
    """
    return _DEFAULT_POLICY if instance == "default" else f"{_DEFAULT_POLICY}-{instance}"


def default_policy(settings: KubernetesRuntimeSettings, agent_networks: Sequence[str]) -> dict[str, Any]:
    """Returns the default policy of all sessions.

    It admits no incoming connection, and outgoing ones only to name servers, the agents and the allowed networks.
    """
    allowed_blocks = [{"ipBlock": block} for network in settings.egress for block in _blocks_of(network, settings)]
    agent_blocks = [{"ipBlock": {"cidr": network}} for network in agent_networks]
    relay_port = int(settings.relay_target.rpartition(":")[2])
    egress_rules: list[dict[str, Any]] = [
        {"ports": [{"protocol": protocol, "port": _DNS_PORT} for protocol in ("UDP", "TCP")]},
        {"ports": [{"protocol": "TCP", "port": relay_port}], **({"to": agent_blocks} if agent_blocks else {})},
    ]
    if allowed_blocks:
        egress_rules.append({"to": allowed_blocks})
    return {
        "metadata": {"name": default_policy_name(settings.instance), "labels": {INSTANCE_LABEL: settings.instance}},
        "spec": {
            "podSelector": {"matchLabels": {INSTANCE_LABEL: settings.instance}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": egress_rules,
        },
    }


def _blocks_of(network: str, settings: KubernetesRuntimeSettings) -> list[dict[str, Any]]:
    """Returns the address blocks of a network policy that permit ``network`` except the networks of ``blocked_egress``.

    Returns an empty list if the whole network is blocked.
    """
    whole_network = ip_network(network)
    excepted_cidrs: list[str] = []
    for blocked_network in map(ip_network, settings.blocked_egress):
        if blocked_network.version != whole_network.version:
            continue
        if whole_network.subnet_of(blocked_network):  # type: ignore[arg-type]  # of one version
            return []
        if blocked_network.subnet_of(whole_network):  # type: ignore[arg-type]  # of one version
            excepted_cidrs.append(str(blocked_network))
    return [{"cidr": network, **({"except": excepted_cidrs} if excepted_cidrs else {})}]


def session_policy(instance: str, session_id: SessionId, hosts: Sequence[str], node: str) -> dict[str, Any]:
    """Returns the network policy that lets the kernels of one cluster session reach each other.

    The policy is the network's record too.
    """
    peers = [{"podSelector": {"matchLabels": {SESSION_LABEL: str(session_id)}}}]
    return {
        "metadata": {
            "name": policy_name(session_id),
            "labels": {INSTANCE_LABEL: instance, SESSION_LABEL: str(session_id)},
            "annotations": {HOSTS_ANNOTATION: json.dumps(list(hosts)), NODE_ANNOTATION: node},
        },
        "spec": {
            "podSelector": {"matchLabels": {SESSION_LABEL: str(session_id)}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": peers}],
            "egress": [{"to": peers}],
        },
    }
