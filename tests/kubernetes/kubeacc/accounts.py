"""The accounts of kube-acc with the roles of its chart, as pods of it have them."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path

from tools.kube.cluster import Cluster

from ai.backend.kubeacc.policies.roles import NAMESPACE

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "deploy" / "helm" / "kube-acc"
CHART_VALUES = ROOT / "tests" / "data" / "helm" / "kube-acc.values.yaml"


def render_chart(cluster: Cluster, *options: str, namespace: str = NAMESPACE) -> subprocess.CompletedProcess[str]:
    """Returns what Helm makes of the chart."""
    helm = [str(cluster.program("helm")), "template", "rel", str(CHART), "--kube-version=1.36.0", "-n", namespace]
    return subprocess.run([*helm, "-f", str(CHART_VALUES), *options], capture_output=True, text=True, check=False)


@cache
def install_access(cluster: Cluster) -> None:
    """Makes the namespace, accounts, roles and admission policies of the chart."""
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    rendered = render_chart(cluster, "-s", "templates/access.yaml")
    assert rendered.returncode == 0, rendered.stderr
    cluster.kubectl("apply", "--server-side", "-f", "-", text=rendered.stdout)


def account_kubeconfig(cluster: Cluster, folder: Path, account: str, *, node: str = "") -> Path:
    """Returns a kubeconfig of an account of kube-acc; with ``node``, of a token that is bound to it."""
    install_access(cluster)
    bound = []
    if node:
        uid = cluster.request("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
        bound = ["--bound-object-kind=Node", f"--bound-object-name={node}", f"--bound-object-uid={uid}"]
    token = cluster.kubectl("-n", NAMESPACE, "create", "token", account, "--duration=4h", *bound).strip()
    address = {"server": cluster.url, "certificate-authority": str(cluster.certificate_authority)}
    config = {
        "clusters": [{"name": "c", "cluster": address}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / f"{account}.kubeconfig"
    path.write_text(json.dumps(config))
    return path
