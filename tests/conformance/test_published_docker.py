"""What the published client can do only where sessions are containers, on an engine of the tests' own."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.session import Session
from tests.conformance.broken import Breakage, broken_server
from tests.conformance.checks import Scene, ended, until
from tests.conformance.published import Published
from tests.support.cluster import Cluster, running_cluster
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine

pytestmark = [pytest.mark.needs("docker"), pytest.mark.timeout(180)]
NEVER_COMMITTED = Breakage("a commit that never happens", "commit", "/session/.*/commit", swallow=(201, "{}"))


@pytest.fixture
def containers(tmp_path: Path, docker_engine: DockerEngine) -> Iterator[Cluster]:
    with running_cluster(tmp_path / "c", "--runtime", "docker", env={"DOCKER_HOST": docker_engine.host}) as running:
        yield running


def test_a_commit_makes_an_archive_that_an_engine_loads(
    containers: Cluster, docker_engine: DockerEngine, published_python: Path, tmp_path: Path
) -> None:
    environment = containers.environment()
    keys = {name: environment[name] for name in ("BACKEND_ENDPOINT", "BACKEND_ACCESS_KEY", "BACKEND_SECRET_KEY")}
    endpoint = keys["BACKEND_ENDPOINT"]
    config = APIConfig(endpoint=endpoint, access_key=keys["BACKEND_ACCESS_KEY"], secret_key=keys["BACKEND_SECRET_KEY"])

    def scene(at: str) -> Scene:
        return Scene(Published(published_python, at, keys, tmp_path), server, image=PYTHON_IMAGE)

    with Session(config=config) as server, scene(endpoint).session("conf-commit"):
        with broken_server(endpoint, NEVER_COMMITTED) as broken, pytest.raises(AssertionError, match="is committed"):
            committed(scene(broken), containers, timeout_s=1.0)
        archive = committed(scene(endpoint), containers)
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]  # it is a file
    (name,) = manifest[0]["RepoTags"]
    assert name.startswith(PYTHON_IMAGE.partition(":")[0])
    status, said = docker_engine.call("POST", "/images/load?quiet=1", archive)
    assert status == 200, said
    try:
        labels = docker_engine.call("GET", f"/images/{name}/json")[1]["Config"]["Labels"] or {}
        assert not [label for label in labels if label.startswith("ai.backend.kernel-id")], labels
    finally:
        assert docker_engine.call("DELETE", f"/images/{name}")[0] == 200


def committed(scene: Scene, cluster: Cluster, timeout_s: float = 30.0) -> Path:
    """The archive that the client's command makes."""
    said = ended(scene.client("session", "commit", "conf-commit"))
    assert "Request to commit" in said.all, said.all

    def archives() -> list[Path]:
        return list(cluster.data_dir.glob("agents/*/docker/commits/*/conf-commit-*.tar.gz"))

    until(archives, "the session is committed", timeout_s)
    (found,) = archives()
    return found
