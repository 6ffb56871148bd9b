"""The published client does on pods what it does elsewhere: the checks of the conformance lane, on a real kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.session import Session
from tests.conformance.catalogue import run_check
from tests.conformance.checks import Scene
from tests.conformance.published import Published, ensure_published
from tests.kubernetes.runtime.sites import PYTHON_IMAGE
from tests.kubernetes.shard.installation import Installation

pytestmark = pytest.mark.needs("kubernetes")
CHECKS = (
    *("start", "run_code", "run_long", "run_input", "run_file", "run_batch_input", "info", "logs"),
    *("upload", "download", "ls", "events", "restart", "rm", "app", "ssh", "scp"),
)


@pytest.fixture(scope="module")
def published_python() -> Path:
    return ensure_published()


@pytest.fixture(scope="module", autouse=True)
def registered(installation: Installation) -> None:
    """The manager has scanned the registry of the image: no kubelet tells the labels of an image."""
    labels = {"ai.backend.service-ports": "http:http:8080", "ai.backend.runtime-path": "/usr/bin/python3"}
    installation.register_images(PYTHON_IMAGE, labels=labels)


@pytest.fixture(scope="module")
def server(installation: Installation) -> Iterator[Session]:
    keys = installation.users["user"]
    config = APIConfig(
        endpoint=keys["BACKEND_ENDPOINT"], access_key=keys["BACKEND_ACCESS_KEY"], secret_key=keys["BACKEND_SECRET_KEY"]
    )
    with Session(config=config) as session:
        yield session


@pytest.mark.parametrize("name", CHECKS)
def test_the_published_client(
    name: str, installation: Installation, published_python: Path, server: Session, tmp_path: Path
) -> None:
    keys = installation.users["user"]
    client = Published(published_python, keys["BACKEND_ENDPOINT"], keys, tmp_path)
    run_check(name, Scene(client, server, image=PYTHON_IMAGE))
