"""The chart of kube-acc: what it renders, that a real API server takes it, and that wrong values are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.kube.cluster import Cluster

from tests.kubernetes.kubeacc.accounts import render_chart

pytestmark = pytest.mark.needs("kubernetes")
GOLDEN = Path(__file__).parents[2] / "data" / "helm" / "kube-acc.golden.yaml"


def test_the_chart_renders_as_recorded(acc_cluster: Cluster) -> None:
    own = ("-s", "templates/controllers.yaml", "-s", "templates/node-plugin.yaml")  # the others are generated
    assert render_chart(acc_cluster, *own).stdout == GOLDEN.read_text(), (
        "if the change is meant: helm template with these values writes the new record"
    )


def test_a_real_api_server_takes_the_objects(acc_cluster: Cluster) -> None:
    rendered = render_chart(acc_cluster).stdout
    options = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    answer = acc_cluster.kubectl("apply", *options, "-f", "-", text=rendered)
    assert answer.count("(server dry run)") == rendered.count("\nkind: ")
    assert "deviceclass.resource.k8s.io/kube-acc" in answer


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("image=", "image"),
        ("controllers.replicas=0", "replicas"),
        ("controllers.drivers={a b}", "drivers"),
        ("nodePlugin.kubeletDirectory=var", "kubeletDirectory"),
        ("unknown=1", "unknown"),
    ],
)
def test_wrong_values_are_named(acc_cluster: Cluster, option: str, problem: str) -> None:
    done = render_chart(acc_cluster, "--set", option)
    assert done.returncode != 0
    assert problem in done.stderr


def test_another_namespace_is_refused(acc_cluster: Cluster) -> None:
    done = render_chart(acc_cluster, namespace="default")
    assert done.returncode != 0
    assert "into the namespace kube-acc" in done.stderr


def test_without_a_node_plugin_there_is_none(acc_cluster: Cluster) -> None:
    assert "kind: DaemonSet" not in render_chart(acc_cluster, "--set", "nodePlugin.enabled=false").stdout


def test_the_controllers_get_the_settings_of_their_drivers(acc_cluster: Cluster) -> None:
    options = ("--set-string", "controllers.settings=[drivers.cyborg]", "--set", "controllers.secretName=cloud")
    rendered = render_chart(acc_cluster, "-s", "templates/controllers.yaml", *options).stdout
    assert "  kube-acc-controllers.toml: |\n    [drivers.cyborg]\n" in rendered
    assert "mountPath: /etc/backend.ai" in rendered
    assert 'secret: {secretName: "cloud"}' in rendered
    apply = ("--server-side", "--force-conflicts", "--dry-run=server", "--validate=strict")
    assert "configmap/kube-acc-controllers" in acc_cluster.kubectl("apply", *apply, "-f", "-", text=rendered)
