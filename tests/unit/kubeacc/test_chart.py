"""What the chart gives to the programs, they take: settings, and the words of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from ai.backend.infra.settings.load import load_settings, search_path
from ai.backend.kubeacc.controllers.settings import ControllerSettings
from ai.backend.kubeacc.main import main
from ai.backend.kubeacc.node_plugin.settings import NodePluginSettings
from ai.backend.kubeacc.policies.roles import CONTROLLERS_ACCOUNT, NAMESPACE, NODE_ACCOUNT

GOLDEN = Path(__file__).parents[2] / "data" / "helm" / "kube-acc.golden.yaml"


@pytest.fixture
def rendered() -> dict[str, dict[str, Any]]:
    """The rendered objects by kind, and the settings of the controllers as ``Settings``."""
    objects = list(yaml.safe_load_all(GOLDEN.read_text(encoding="utf-8")))
    by_name = {(obj["kind"], obj["metadata"]["name"]): obj for obj in objects}
    settings = by_name.pop(("ConfigMap", "kube-acc-controllers"))
    return {"Settings": settings, **{kind: obj for (kind, _), obj in by_name.items()}}


def test_the_controllers_take_the_settings(rendered: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "kube-acc-controllers.toml"
    path.write_text(rendered["Settings"]["data"]["kube-acc-controllers.toml"])
    settings = load_settings(ControllerSettings, name="kube-acc-controllers", path=path)
    secret = settings.drivers["cyborg"]["auth"]["password-file"]
    mounts = rendered["Deployment"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    paths = {mount["mountPath"] for mount in mounts}
    assert {str(Path(secret).parent), str(settings.image_cache.parent), str(search_path("x")[-1].parent)} <= paths


def test_the_node_plugin_takes_the_settings(rendered: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "kube-acc-node.toml"
    path.write_text(rendered["ConfigMap"]["data"]["kube-acc-node.toml"])
    settings = load_settings(NodePluginSettings, name="kube-acc-node", path=path)
    assert settings.metrics_address is not None
    assert settings.metrics_address.port == 9410
    mounts = rendered["DaemonSet"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    paths = {mount["mountPath"] for mount in mounts}
    assert {str(settings.kubelet_directory), str(settings.cdi_directory), str(settings.state_directory)} <= paths


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_the_programs_take_their_words(rendered: dict[str, dict[str, Any]], kind: str) -> None:
    _, *words = rendered[kind]["spec"]["template"]["spec"]["containers"][0]["args"]
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output
    known = done.output
    assert all(word.partition("=")[0] in known for word in words if word.startswith("-"))


def test_the_pods_have_the_accounts_of_the_roles(rendered: dict[str, dict[str, Any]]) -> None:
    accounts = {
        kind: rendered[kind]["spec"]["template"]["spec"]["serviceAccountName"] for kind in ("Deployment", "DaemonSet")
    }
    assert accounts == {"Deployment": CONTROLLERS_ACCOUNT, "DaemonSet": NODE_ACCOUNT}
    namespaced = [obj for kind, obj in rendered.items() if kind != "DeviceClass"]
    assert {obj["metadata"]["namespace"] for obj in namespaced} == {NAMESPACE}
