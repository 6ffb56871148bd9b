"""The site of the tests of the Kubernetes runtime."""

from __future__ import annotations

import pytest
from tools.kube.cluster import Cluster

from tests.kubernetes.runtime.sites import Site


@pytest.fixture(scope="session")
def session_site(kubernetes_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(kubernetes_cluster)
    site.prepare(tmp_path_factory.mktemp("images"))
    return site
