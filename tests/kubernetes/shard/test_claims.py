"""A device claim on a real kubelet: sessions in turn get the very same device of the driver, and nobody else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.kube.cluster import NODE_NAME

from ai.backend.kubeacc.crd.vocabulary import GROUP
from tests.kubernetes.kubeacc.node_plugin import DEVICE_CLASS, device_class, running_node_plugin
from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, Site
from tests.kubernetes.shard.installation import DRIVER, Installation
from tests.support.kube_volumes import provisioned

pytestmark = pytest.mark.needs("kubernetes")
CLUSTER = "claims"
SHOW = "import os; print(os.environ.get('MOCK_VISIBLE_DEVICES'))"
RESOURCES = ("-r", "cpu=1", "-r", "mem=128m")


@pytest.fixture
def claiming(site: Site, tmp_path: Path) -> Iterator[Installation]:
    """An installation whose nodes have the devices of the node plugin, by their ids."""
    installation = Installation(tmp_path, site, CLUSTER)
    path = tmp_path / "agent.toml"
    text = path.read_text().replace(DRIVER, GROUP).replace('device-name = "cuda"', 'device-name = "mock"')
    path.write_text(f'{text}device-classes = {{ "{GROUP}" = "{DEVICE_CLASS}" }}\n')
    site.cluster.apply(device_class())
    with provisioned(site.cluster, NAMESPACE), running_node_plugin(site.cluster, tmp_path / "plugin") as plugin:
        plugin.wait_for_devices(5)
        try:
            installation.start()
            installation.start_shard("shard")
            offered = f"SELECT count(*) FROM agents WHERE id = '{CLUSTER}.{NODE_NAME}' AND devices LIKE '%GPU-big-3%'"
            installation.until(lambda: installation.rows(offered) == [(1,)], "the devices of the node")
            yield installation
        finally:
            installation.stop()
        plugin.wait(lambda: not plugin.records(), "release of the devices", 60)


def claim_status(installation: Installation) -> str:
    return str(installation.rows("SELECT status FROM device_claims")[0][0])


@pytest.mark.timeout(400)
def test_sessions_in_turn_get_the_device_of_their_claim(claiming: Installation, site: Site) -> None:
    claiming.run("claim", "create", "one", "-r", "mock.device=1", who="user")
    seen = []
    for name in ("first", "second"):
        create = ("session", "create", "--name", name, "--claim", "one", *RESOURCES, PYTHON_IMAGE)
        claiming.run(*create, who="user", timeout_s=150)
        seen.append(claiming.run("run", "--name", name, "-c", SHOW, PYTHON_IMAGE, who="user").split()[-1])
        others = []
        if name == "first":
            create = ("session", "create", "--name", "other", "-r", "mock.device=1", *RESOURCES, PYTHON_IMAGE)
            claiming.run(*create, who="user", timeout_s=150)
            others.append(claiming.run("run", "--name", "other", "-c", SHOW, PYTHON_IMAGE, who="user").split()[-1])
        assert seen[0] not in others
        claiming.run("rm", name, who="user")
        claiming.until(lambda: claim_status(claiming) == "IDLE", "the end of the session")
    assert seen[0] == seen[1]
    assert seen[0].startswith(("GPU-big", "cut"))
    claiming.run("rm", "other", who="user")
    claiming.run("claim", "delete", "one", who="user")
    claiming.until(lambda: not site.pods(), "the end of the pods")
