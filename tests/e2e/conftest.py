"""Clusters for end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster with two mock accelerators for all tests of a module; each test makes sessions of its own."""
    with running_cluster(tmp_path_factory.mktemp("cluster") / "data", "--mock") as cluster:
        yield cluster


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that the test may kill; not started yet."""
    cluster = Cluster(tmp_path / "data", "--mock")
    yield cluster
    cluster.stop()
