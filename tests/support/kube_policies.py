"""Enforces the network policies of a namespace on the cluster of the tests, by rules of the packet filter of its node.

The cluster's network plug-in (a bridge) knows no policies. As plug-ins that do, this lets a pod that a policy selects
take and send only what some policy allows, answers excepted.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from tools.kube.cluster import ApiError, Cluster

_PERIOD_S = 0.2
_CHAINS = ("POLICY-IN", "POLICY-OUT")
Addresses = Mapping[str, dict[str, str]]
"""Labels of the pods by address."""


@contextmanager
def enforced(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Enforces the policies meanwhile, each change within a second, in a cluster with services."""
    for chain in _CHAINS:
        cluster.place.run("iptables", "-N", chain)
        cluster.place.run("iptables", "-I", "FORWARD", "-j", chain)
    end = threading.Event()
    thread = threading.Thread(target=_serve, args=(cluster, namespace, end), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        for chain in _CHAINS:
            cluster.place.run("iptables", "-D", "FORWARD", "-j", chain)
            cluster.place.run("iptables", "-F", chain)
            cluster.place.run("iptables", "-X", chain)


def _serve(cluster: Cluster, namespace: str, end: threading.Event) -> None:
    written = ""
    while not end.wait(_PERIOD_S):
        with suppress(ApiError, OSError, subprocess.SubprocessError):
            pods = cluster.request("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
            path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
            policies = [item["spec"] for item in cluster.request("GET", path)["items"]]
            labels = {
                pod["status"]["podIP"]: pod["metadata"].get("labels", {}) for pod in pods if pod["status"].get("podIP")
            }
            rules = "\n".join(["*filter", *_rules(labels, policies), "COMMIT", ""])
            if rules != written:
                command = cluster.place.inside(["iptables-restore", "--noflush"])
                subprocess.run(command, input=rules, text=True, check=True, capture_output=True)
                written = rules


def _rules(pods: Addresses, policies: list[dict[str, Any]]) -> Iterator[str]:
    for chain in _CHAINS:
        yield f":{chain} - [0:0]"
        yield f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"
    for address, labels in pods.items():
        selecting = [policy for policy in policies if _selects(policy["podSelector"], labels)]
        for chain, kind, peers, own, other in (
            ("POLICY-IN", "Ingress", "from", "-d", "-s"),
            ("POLICY-OUT", "Egress", "to", "-s", "-d"),
        ):
            closing = [policy for policy in selecting if kind in policy["policyTypes"]]
            for policy in closing:
                for rule in policy.get(kind.lower(), ()):
                    for peer in _peers(rule.get(peers), pods, other):
                        for port in _ports(rule.get("ports")):
                            yield f"-A {chain} {own} {address} {peer} {port} -j RETURN"
            if closing:
                yield f"-A {chain} {own} {address} -j DROP"


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def _peers(peers: list[dict[str, Any]] | None, pods: Addresses, option: str) -> list[str]:
    if not peers:
        return [""]
    matches = [f"{option} {peer['ipBlock']['cidr']}" for peer in peers if "ipBlock" in peer]
    selectors = [peer["podSelector"] for peer in peers if "podSelector" in peer]
    matches += [f"{option} {ip}" for ip, labels in pods.items() if any(_selects(each, labels) for each in selectors)]
    return matches


def _ports(ports: list[dict[str, Any]] | None) -> list[str]:
    return [f"-p {port['protocol'].lower()} --dport {port['port']}" for port in ports or ()] or [""]
