"""An installation with two processes of one shard, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tools.kube.cluster import NODE_NAME, Cluster

from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, Site
from tests.kubernetes.shard.installation import Installation
from tests.support.kube_volumes import provisioned


@pytest.fixture(scope="session")
def site(kubernetes_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(kubernetes_cluster)
    site.prepare(tmp_path_factory.mktemp("images"))
    images = f"/api/v1/nodes/{NODE_NAME}"
    kubernetes_cluster.wait_for(
        lambda: PYTHON_IMAGE in str(kubernetes_cluster.request("GET", images)["status"]["images"]), "the image", 120
    )
    return site


@pytest.fixture(scope="session")
def installation(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = Installation(tmp_path_factory.mktemp("installation"), site)
    with provisioned(site.cluster, NAMESPACE):
        try:
            installation.start()
            installation.start_shard("first")
            installation.start_shard("second")
            is_there = "SELECT count(*) FROM agents WHERE status = 'ALIVE' AND images LIKE '%base/python%'"
            installation.until(lambda: installation.rows(is_there) == [(1,)], "the agent of the node, with its images")
            yield installation
        finally:
            installation.stop()
