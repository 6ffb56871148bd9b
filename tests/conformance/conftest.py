from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.session import Session
from tests.conformance.checks import Scene
from tests.conformance.published import Published, ensure_published
from tests.support.cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def published_python() -> Path:
    return ensure_published()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The embedded cluster as a process of its own; its sessions have networks of their own, and so services."""
    folder = tmp_path_factory.mktemp("conf")
    (folder / "agent.toml").write_text('[runtime]\nnetwork = "none"\n')
    with running_cluster(folder / "c", "--mock", "--agent-config", str(folder / "agent.toml")) as running:
        yield running


@pytest.fixture(scope="session")
def keys(cluster: Cluster) -> dict[str, str]:
    environment = cluster.environment()
    return {name: environment[name] for name in ("BACKEND_ENDPOINT", "BACKEND_ACCESS_KEY", "BACKEND_SECRET_KEY")}


@pytest.fixture(scope="session")
def server(keys: dict[str, str]) -> Iterator[Session]:
    """Our own SDK on the real endpoint: what the server's state is."""
    config = APIConfig(
        endpoint=keys["BACKEND_ENDPOINT"], access_key=keys["BACKEND_ACCESS_KEY"], secret_key=keys["BACKEND_SECRET_KEY"]
    )
    with Session(config=config) as session:
        yield session


@pytest.fixture(scope="session")
def admin(cluster: Cluster) -> Iterator[Session]:
    """Our own SDK with the administrator's keys."""
    environment = cluster.environment(admin=True)
    config = APIConfig(
        endpoint=environment["BACKEND_ENDPOINT"],
        access_key=environment["BACKEND_ACCESS_KEY"],
        secret_key=environment["BACKEND_SECRET_KEY"],
    )
    with Session(config=config) as session:
        yield session


@pytest.fixture
def scene(published_python: Path, keys: dict[str, str], server: Session, admin: Session, tmp_path: Path) -> Scene:
    return Scene(Published(published_python, keys["BACKEND_ENDPOINT"], keys, tmp_path), server, admin)
