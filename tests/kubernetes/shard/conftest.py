"""An installation with two processes of one shard, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tools.kube.cluster import NODE_NAME, Cluster

from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, Site
from tests.kubernetes.shard.installation import Installation
from tests.support.kube_volumes import provisioned


@contextmanager
def running_installation(site: Site, root: Path) -> Iterator[Installation]:
    """Runs a manager and two processes of a shard until the end of the block; the node is an agent with its images."""
    installation = Installation(root, site)
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


def prepared_site(cluster: Cluster, images: Path) -> Site:
    """Returns the site of a cluster whose node reports the images of sessions. ``images`` holds archives meanwhile."""
    site = Site(cluster)
    site.prepare(images)
    node = f"/api/v1/nodes/{NODE_NAME}"
    cluster.wait_for(lambda: PYTHON_IMAGE in str(cluster.request("GET", node)["status"]["images"]), "the image", 120)
    return site


@pytest.fixture(scope="session")
def site(kubernetes_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    return prepared_site(kubernetes_cluster, tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def installation(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with running_installation(site, tmp_path_factory.mktemp("installation")) as installation:
        yield installation
