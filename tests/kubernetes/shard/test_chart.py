"""The chart of the agent: what it renders, that a real API server takes it, and that wrong values are named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tools.kube.cluster import Cluster

from tests.kubernetes.shard.installation import CHART, CHART_VALUES, render_chart

pytestmark = pytest.mark.needs("kubernetes")
GOLDEN = Path(__file__).parents[2] / "data" / "helm" / "backendai-agent.golden.yaml"


def test_the_chart_renders_as_recorded(kubernetes_cluster: Cluster) -> None:
    rendered = render_chart(kubernetes_cluster, "backendai")
    assert rendered == GOLDEN.read_text(), (
        "if the change is meant: helm template with these values writes the new record"
    )


def test_a_real_api_server_takes_the_objects(kubernetes_cluster: Cluster) -> None:
    for namespace in ("backendai", "backendai-sessions"):
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        kubernetes_cluster.apply(body)
    rendered = render_chart(kubernetes_cluster, "backendai")
    answer = kubernetes_cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=rendered)
    assert answer.count("(server dry run)") == rendered.count("\nkind: ")


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("managers.publicKey=short", "publicKey"),
        ("cluster=Not_A_Name", "cluster"),
        ("replicas=0", "replicas"),
        ("unknown=1", "unknown"),
        ("keypairSecret=x: y", "keypairSecret"),
        ("records.existingClaim=x: y", "existingClaim"),
    ],
)
def test_wrong_values_are_named(kubernetes_cluster: Cluster, option: str, problem: str) -> None:
    helm = [str(kubernetes_cluster.program("helm")), "template", "rel", str(CHART), "--kube-version=1.36.0"]
    done = subprocess.run(
        [*helm, "-f", str(CHART_VALUES), "--set", option], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert problem in done.stderr
