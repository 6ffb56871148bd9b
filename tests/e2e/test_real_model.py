"""A real model, as an ordinary package ships it, is served, changed under load, and scaled to zero and back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from ai.backend.client.session import Session
from tests.e2e.test_model_service import Load, session_of, under
from tests.support import wheels
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until
from tests.support.docker_engine import PYTHON_IMAGE, SYSTEM_PYTHON, DockerEngine

pytestmark = [pytest.mark.needs("minilm"), pytest.mark.timeout(300)]
RUNTIMES = ["process", pytest.param("docker", marks=pytest.mark.needs("docker"))]
LIBRARIES = (
    *("libstdc++.so.6", "libgcc_s.so.1", "libz.so.1"),
    *("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1"),
)
MODEL, IMAGES = "all-MiniLM-L6-v2", {"process": "python", "docker": PYTHON_IMAGE}


@pytest.fixture(params=RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _version_of(python: str) -> str:
    command = [python, "-c", "import sys; print(sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def cluster(
    runtime: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    first, folder = free_port(then=9), tmp_path_factory.mktemp("real-model")
    consent = folder / "agent.toml"
    consent.write_text("[services]\nshared-network = true\n")
    options = ("--app-ports", f"{first}-{first + 9}", "--agent-config", str(consent), "--runtime", runtime)
    env = {}
    if runtime == "docker":
        if _version_of(SYSTEM_PYTHON) != _version_of(sys.executable):
            pytest.skip("machine: the tests' image has another Python than the model's packages are for")
        engine: DockerEngine = request.getfixturevalue("docker_engine")
        env = {"DOCKER_HOST": engine.host}
    with running_cluster(folder / "data", *options, env=env) as cluster:
        source = wheels.model_folder()
        cluster.run("vfolder", "create", "minilm", check=True)
        files = [str(path) for path in sorted(source.iterdir())]
        cluster.run("vfolder", "upload", "minilm", *files, "-b", str(source), check=True, timeout_s=120)
        if runtime == "docker":
            _upload_libraries(cluster, folder)
        yield cluster


def _upload_libraries(cluster: Cluster, folder: Path) -> None:
    """Puts the libraries into the model folder that NumPy needs and the tests' image lacks."""
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    places = {line.split()[0]: line.rpartition("=> ")[2] for line in listed.splitlines() if "=>" in line}
    for name in LIBRARIES:
        shutil.copy(places[name], folder / name)
    files = [str(folder / name) for name in LIBRARIES]
    cluster.run("vfolder", "upload", "minilm", *files, "-b", str(folder), check=True)


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Session]:
    with session_of(cluster) as api:
        yield api


def _is_hopeless(service: Any) -> bool:
    """Fails with the reason of a replica that has ended; else returns False."""
    details = [each["detail"] for each in service.why()["replicas"] if each["detail"]]
    assert not details
    return False


def test_a_packaged_model_is_served_rolled_over_and_scaled_to_zero(
    cluster: Cluster, api: Session, runtime: str
) -> None:
    environ = {"LD_LIBRARY_PATH": "/models"} if runtime == "docker" else {}
    service = api.Service.create(
        IMAGES[runtime],
        "minilm",
        1,
        service_name="minilm-service",
        resources={"cpu": 1, "mem": "1g"},
        envs=environ,
    )
    wait_until(lambda: service.info()["url"] or _is_hopeless(service), timeout_s=90, what="the URL")
    token = service.generate_api_token("3600s")["token"]
    client = openai.OpenAI(base_url=f"{service.info()['url']}/v1", api_key=token, max_retries=0, timeout=60)
    assert [model.id for model in client.models.list()] == [MODEL]

    def embed(*texts: str) -> Any:
        return client.embeddings.create(model=MODEL, input=list(texts), encoding_format="float")

    reply = embed("a cat sits on the mat", "a kitten is on a rug", "how to file a tax return")
    cat, kitten, tax = (each.embedding for each in reply.data)
    assert len(cat) == 384
    assert sum(map(float.__mul__, cat, kitten)) > 0.5 > 0.2 > sum(map(float.__mul__, cat, tax))
    assert reply.usage.prompt_tokens > 15

    releases: list[str] = []

    def ask() -> Any:
        reply = embed("a text")
        releases.append(str(reply.model_extra["release"]))
        return reply

    with under(Load(ask, threads=2)) as load:
        wait_until(lambda: len(load.served_by) > 20, timeout_s=60, what="some answers")
        service.modify(environ={**environ, "RELEASE": "2"})
        wait_until(
            lambda: (
                service.describe()["revisions"][0]["status"] == "active"
                and len(service.describe()["active_routes"]) == 1
            ),
            timeout_s=120,
            what="the second revision",
        )
    print(f"{len(load.served_by)} requests, {len(load.failures)} failed")
    assert load.failures == []
    assert (releases[0], releases[-1]) == ("1", "2")

    service.set_scaling(min_replicas=0, max_replicas=2, idle_s=2.0)
    wait_until(lambda: service.describe()["status"] == "idle", timeout_s=60, what="an idle service")
    wait_until(lambda: not service.describe()["active_routes"], timeout_s=60, what="the end of its replica")
    assert len(embed("awake again").data[0].embedding) == 384
    decision = service.why()["autoscaling"]["last_decision"]
    assert (decision["reason"], decision["inputs"]["queued"]) == ("request-arrived", 1)
    service.delete()
