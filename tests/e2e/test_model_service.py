"""A model that is served to clients of OpenAI: scaled and changed under load, without a failed request (issue 15 B)."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from ai.backend.client.config import APIConfig
from ai.backend.client.session import Session
from tests.e2e.test_howtos import HOWTOS, follow
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

MODEL = Path(__file__).resolve().parents[2] / "docs" / "examples" / "embedding-model"
RESOURCES = {"cpu": 1, "mem": "256m"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    first, folder = free_port(then=9), tmp_path_factory.mktemp("serving")
    consent = folder / "agent.toml"  # for hosts where sessions have no networks of their own
    consent.write_text("[services]\nshared-network = true\n")
    options = ("--app-ports", f"{first}-{first + 9}", "--agent-config", str(consent))
    with running_cluster(folder / "data", *options) as cluster:
        cluster.run("vfolder", "create", "tiny-embedding", check=True)
        files = [str(path) for path in MODEL.iterdir()]
        cluster.run("vfolder", "upload", "tiny-embedding", *files, "-b", str(MODEL), check=True)
        yield cluster


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Session]:
    with session_of(cluster) as api:
        yield api


@contextmanager
def session_of(cluster: Cluster) -> Iterator[Session]:
    """Yields an SDK session of the cluster's first user."""
    environ = cluster.environment()
    config = APIConfig(
        endpoint=environ["BACKEND_ENDPOINT"],
        access_key=environ["BACKEND_ACCESS_KEY"],
        secret_key=environ["BACKEND_SECRET_KEY"],
    )
    with Session(config=config) as api:
        yield api


class Load:
    """Asks for embeddings until it is stopped, and keeps what went wrong."""

    def __init__(self, ask: Callable[[], Any], *, threads: int = 4) -> None:
        self.served_by: list[str] = []
        self.failures: list[str] = []
        self._ask = ask
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self.served_by.append(self._ask().model_extra["served_by"])
            except openai.OpenAIError as e:
                self.failures.append(repr(e))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(30)


@contextmanager
def under(load: Load) -> Iterator[Load]:
    load.start()
    try:
        yield load
    finally:
        load.stop()


@pytest.mark.timeout(180)
def test_a_model_is_served_scaled_and_changed_under_load(cluster: Cluster, api: Session) -> None:
    service = api.Service.create(
        "python", "tiny-embedding", 1, service_name="tiny-service", resources=RESOURCES, open_to_public=False
    )

    def ready() -> int:
        return sum(route["status"] == "ready" for route in service.describe()["active_routes"])

    def live() -> int:
        return len(service.describe()["active_routes"])

    wait_until(lambda: service.info()["url"], timeout_s=60, what="the URL")
    assert service.info()["status"] == "healthy"
    token = service.generate_api_token("3600s")["token"]
    base_url = f"{service.info()['url']}/v1"
    client = openai.OpenAI(base_url=base_url, api_key=token, max_retries=0, timeout=20)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=base_url, api_key="forged", max_retries=0).models.list()
    assert [model.id for model in client.models.list()] == ["tiny-embedding"]
    cat, kitten, tax = (
        each.embedding
        for each in client.embeddings.create(
            model="tiny-embedding", input=["a cat sat", "a cat sits", "tax return"], encoding_format="float"
        ).data
    )
    assert sum(map(float.__mul__, cat, kitten)) > sum(map(float.__mul__, cat, tax))

    def ask() -> Any:
        return client.embeddings.create(model="tiny-embedding", input="a text", encoding_format="float")

    with under(Load(ask)) as load:
        service.scale(2)
        wait_until(lambda: ready() == 2, timeout_s=60, what="two replicas")
        wait_until(lambda: len(set(load.served_by[-40:])) == 2, what="requests at both replicas")
        service.scale(1)
        wait_until(lambda: live() == 1, timeout_s=60, what="one replica")
        before = service.describe()["active_routes"][0]["route_id"]
        service.modify(environ={"RELEASE": "2"})
        wait_until(
            lambda: service.describe()["revisions"][0]["status"] == "active" and live() == 1,
            timeout_s=90,
            what="the second revision",
        )
        time.sleep(1)  # requests that the new revision alone serves
    print(f"{len(load.served_by)} requests, {len(load.failures)} failed")
    assert load.failures == []
    assert len(load.served_by) > 100
    assert load.served_by[-1] == service.describe()["active_routes"][0]["route_id"] != before
    requests = 2 + len(load.served_by)  # the list of models and the three sentences too
    wait_until(lambda: service.usage()["total"]["requests"] >= requests, timeout_s=40, what="the use of all requests")
    [used] = [each for each in service.usage(by="token")["groups"] if each["requests"] >= requests]
    assert (used["requests"], used["errors"]) == (requests, 0)
    assert used["prompt_tokens"] >= requests
    assert used["tokens_per_s"] > 0
    assert service.describe()["tokens_per_s"] > 0
    assert "in this hour" in cluster.run("service", "info", "tiny-service", check=True).stdout
    assert [each["name"] for each in api.Service.usage(by="endpoint")["groups"]] == ["tiny-service"]
    assert {each["name"] for each in service.usage(by="revision")["groups"]} >= {"1", "2"}
    assert "tiny-service" in cluster.run("service", "usage", check=True).stdout
    reasons = {event["reason"] for event in service.history(limit=200)}
    assert {"created", "probes-passed", "scaled-down", "promoted", "superseded"} <= reasons
    service.delete()
    wait_until(lambda: service_status(api, service) == "destroyed", timeout_s=60, what="the end")
    assert cluster.json("ps")["total_count"] == 0


def service_status(api: Session, service: Any) -> str:
    """The status by the id, as the name is free again once it is destroyed."""
    items = api.Service.list()
    return "destroyed" if not items else str(items[0]["status"])


@pytest.mark.timeout(120)
def test_a_killed_cluster_goes_on_with_the_same_replicas(tmp_path: Path) -> None:
    first = free_port(then=9)
    consent = tmp_path / "agent.toml"
    consent.write_text("[services]\nshared-network = true\n")
    cluster = Cluster(tmp_path / "data", "--app-ports", f"{first}-{first + 9}", "--agent-config", str(consent))
    cluster.start(env={"BACKENDAI_CRASH_POINT": "after-replica-create"})
    try:
        cluster.run("vfolder", "create", "tiny-embedding", check=True)
        files = [str(path) for path in MODEL.iterdir()]
        cluster.run("vfolder", "upload", "tiny-embedding", *files, "-b", str(MODEL), check=True)
        command = ("service", "create", "-t", "tiny-service", "-r", "cpu=1", "-r", "mem=256m")
        cluster.run(*command, "python", "tiny-embedding")
        assert cluster.process is not None
        cluster.process.wait(30)
        cluster.start()
        done = cluster.run("service", "create", "-t", "tiny-service", "python", "tiny-embedding")
        assert "already" in done.stderr
        wait_until(
            lambda: cluster.json("service", "info", "tiny-service")["status"] == "healthy",
            timeout_s=60,
            what="the service after the kill",
        )
        assert cluster.json("ps")["total_count"] == 1
    finally:
        cluster.stop()


@pytest.mark.timeout(120)
def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    shutil.copytree(MODEL, tmp_path / "embedding-model")
    cluster = Cluster(tmp_path / "data")
    try:
        follow(HOWTOS / "serve-a-model.md", tmp_path, cluster.environment())
    finally:
        cluster.run("down", "--data-dir", str(cluster.data_dir))


@pytest.mark.timeout(120)
def test_an_idle_service_ends_and_the_next_request_starts_it(cluster: Cluster, api: Session) -> None:
    service = api.Service.create("python", "tiny-embedding", 1, service_name="idle-service", resources=RESOURCES)
    wait_until(lambda: service.info()["url"], timeout_s=60, what="the URL")
    token = service.generate_api_token("3600s")["token"]
    client = openai.OpenAI(base_url=f"{service.info()['url']}/v1", api_key=token, max_retries=0, timeout=60)
    cluster.run(*("service", "autoscale", "set", "idle-service", "--min", "0", "--max", "2", "--idle", "2"), check=True)
    wait_until(lambda: service.describe()["status"] == "idle", timeout_s=30, what="an idle service")
    wait_until(lambda: not service.describe()["active_routes"], timeout_s=30, what="the end of its replica")
    reply = client.embeddings.create(model="tiny-embedding", input="a text", encoding_format="float")
    assert reply.data[0].embedding
    decision = service.why()["autoscaling"]["last_decision"]
    assert (decision["reason"], decision["inputs"]["queued"]) == ("request-arrived", 1)
    assert "request-arrived" in cluster.run("service", "why", "idle-service", check=True).stdout
    off = cluster.json("service", "autoscale", "off", "idle-service")
    assert (off["is_enabled"], off["desired_session_count"]) == (False, 1)
    service.delete()


def test_rules_of_autoscaling_are_made_changed_and_removed(cluster: Cluster, api: Session) -> None:
    service = api.Service.create("python", "tiny-embedding", 0, service_name="ruled-service", resources=RESOURCES)
    rules = ("service", "autoscale")
    made = cluster.json(
        *(*rules, "add", "ruled-service", "--metric", "load", "--comparator", "greater-than"),
        *("--threshold", "8", "--step", "2", "--min", "0", "--max", "4"),
    )
    changed = cluster.json(*rules, "update", "ruled-service", made["id"], "--threshold", "2.5")
    assert (changed["threshold"], changed["step_size"], changed["max_replicas"]) == ("2.5", 2, 4)
    shown = cluster.json(*rules, "show", "ruled-service")
    assert (shown["min_replicas"], shown["desired_session_count"]) == (0, 0)
    assert [each["id"] for each in shown["rules"]] == [made["id"]]
    assert "greater-than" in cluster.run(*rules, "show", "ruled-service", check=True).stdout
    refused = cluster.run(*rules, "set", "ruled-service", "--min", "5", "--max", "4")
    assert refused.returncode != 0
    assert "min_replicas is at most max_replicas" in refused.stderr
    cluster.run(*rules, "rm", "ruled-service", made["id"], check=True)
    assert service.scaling()["rules"] == []
    service.delete()


def test_of_several_models_the_chosen_one_is_served(cluster: Cluster, api: Session, tmp_path: Path) -> None:
    models = [
        {"name": name, "service": {"start_command": ["python3", "/models/server.py"], "health_check": {"interval": 1}}}
        for name in ("first/model", "second:7b")
    ]
    (tmp_path / "model-definition.yaml").write_text(json.dumps({"models": models}))
    for name in ("server.py", "model.json"):
        shutil.copy(MODEL / name, tmp_path)
    cluster.run("vfolder", "create", "two-models", check=True)
    files = [str(path) for path in tmp_path.glob("*.*")]
    cluster.run("vfolder", "upload", "two-models", *files, "-b", str(tmp_path), check=True)
    create = ("service", "create", "-t", "chosen-service", "-r", "cpu=1", "-r", "mem=256m", "python", "two-models")
    unclear = cluster.run(*create)
    assert unclear.returncode != 0
    assert "first/model, second:7b" in unclear.stderr
    unknown = cluster.run(*create, "--model-name", "third")
    assert unknown.returncode != 0
    assert "no model 'third'" in unknown.stderr
    cluster.run(*create, "--model-name", "second:7b", check=True)
    service = api.Service("chosen-service")

    def served() -> list[str]:
        client = openai.OpenAI(base_url=f"{service.info()['url']}/v1", api_key=token, max_retries=0, timeout=20)
        return [model.id for model in client.models.list()]

    wait_until(lambda: service.info()["url"], timeout_s=60, what="the URL")
    token = service.generate_api_token("3600s")["token"]
    assert (served(), service.describe()["model_name"]) == (["second:7b"], "second:7b")
    assert "second:7b at /models" in cluster.run("service", "info", "chosen-service", check=True).stdout
    same = cluster.run("service", "update", "chosen-service", "--tag", "t", check=True)
    assert "revision 2" in same.stdout
    cluster.run("service", "update", "chosen-service", "--model-name", "first/model", check=True)
    wait_until(lambda: served() == ["first/model"], timeout_s=60, what="the other model")
    wait_until(lambda: service.describe()["model_name"] == "first/model", timeout_s=60, what="the roll-out")
    folder = ("service", "update", "chosen-service", "--model", "tiny-embedding")
    stays = cluster.run(*folder)
    assert stays.returncode != 0
    assert "no model 'first/model'; it has: tiny-embedding" in stays.stderr
    cluster.run(*folder, "--model-name", "tiny-embedding", check=True)
    wait_until(lambda: served() == ["tiny-embedding"], timeout_s=60, what="the only model of another folder")
    service.delete()
