"""The main job with sessions as containers: `backend.ai up --runtime docker` on an engine of the tests' own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.support import audit
from tests.support.cluster import Cluster, wait_until
from tests.support.docker_engine import PYTHON_IMAGE, DockerEngine

pytestmark = [pytest.mark.needs("docker")]
RESOURCES = ("-r", "cpu=1", "-r", "mem=256m")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, docker_engine: DockerEngine) -> Iterator[Cluster]:
    docker_engine.load_foreign_image("base/foreign:1")
    data = tmp_path_factory.mktemp("docker") / "data"
    cluster = Cluster(data, "--runtime", "docker", "--mock", env={"DOCKER_HOST": docker_engine.host})
    cluster.start()
    yield cluster
    cluster.stop()


def name() -> str:
    return f"docker-{uuid4().hex[:8]}"


def container_of(engine: DockerEngine, session: str, cluster: Cluster) -> dict[str, Any]:
    """The only container of a session that runs."""
    (listed,) = [item for item in cluster.json("ps")["items"] if item["name"] == session]
    (found,) = [c for c in engine.containers() if c["Labels"].get("ai.backend.session-id") == listed["id"]]
    return found


def final_status(cluster: Cluster, session: str) -> str | None:
    """None until it has one."""
    return next((str(i["status"]) for i in cluster.json("ps", "--dead")["items"] if i["name"] == session), None)


def nothing_is_left(engine: DockerEngine, cluster: Cluster, kernel_id: str) -> bool:
    containers = [c for c in engine.containers() if kernel_id in json.dumps(c)]
    return not containers and not audit.paths(cluster.data_dir / "agents", kernel_id)


def test_hello_world_in_a_container(cluster: Cluster, docker_engine: DockerEngine) -> None:
    code = "import json, os; print(json.dumps([os.getuid(), os.path.exists('/.dockerenv'), dict(os.environ)]))"
    done = cluster.run("run", "--rm", "-q", *RESOURCES, "-r", "mock.device=1", "-c", code, PYTHON_IMAGE)
    assert done.returncode == 0, done.stderr + cluster.log()
    uid, is_container, environ = json.loads(done.stdout)
    assert (uid, is_container) == (59500, True)
    assert environ["BACKENDAI_KERNEL_IMAGE"] == PYTHON_IMAGE
    assert environ["MOCK_VISIBLE_DEVICES"]
    assert not [variable for variable in environ if "SECRET" in variable]
    assert wait_until(lambda: nothing_is_left(docker_engine, cluster, environ["BACKENDAI_KERNEL_ID"]))


@pytest.mark.needs("crun")
def test_a_cluster_of_containers_ends_as_one(cluster: Cluster, docker_engine: DockerEngine) -> None:
    session = name()
    options = ("--cluster-size", "2", "--runtime-class", "crun", "-r", "cpu=1", "-r", "mem=128m")
    cluster.run("start", "-t", session, *options, PYTHON_IMAGE, check=True)
    found = cluster.json("info", session)
    assert found["runtime_class"] == "crun"
    containers = {k["cluster_hostname"]: k["container_id"] for k in found["containers"]}
    for container in containers.values():
        shown = docker_engine.call("GET", f"/containers/{container}/json")[1]
        assert shown["HostConfig"]["Runtime"] == "crun"
    code = "import socket; print(socket.gethostname(), len({socket.gethostbyname(h) for h in ('main1', 'sub1')}))"
    done = cluster.run("run", "-t", session, "-q", *options, "-c", code, PYTHON_IMAGE)
    assert done.stdout.split() == ["main1", "2"], done.stderr
    assert len(session_networks(docker_engine, found["id"])) == 1
    docker_engine.call("DELETE", f"/containers/{containers['sub1']}?force=1")
    wait_until(lambda: final_status(cluster, session) == "TERMINATED")
    assert wait_until(lambda: all(nothing_is_left(docker_engine, cluster, k["id"]) for k in found["containers"]))
    assert wait_until(lambda: not session_networks(docker_engine, found["id"]))


def session_networks(engine: DockerEngine, session_id: str) -> list[str]:
    return [n["Name"] for n in engine.call("GET", "/networks")[1] if n["Name"].endswith(f"-net-{session_id}")]


def test_a_batch_of_files(cluster: Cluster) -> None:
    work = cluster.data_dir.parent
    (work / "main.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    done = cluster.run("run", "--rm", "-q", *RESOURCES, "--exec", "python3 main.py a b", PYTHON_IMAGE, "main.py")
    assert (done.returncode, done.stdout.strip()) == (3, "['a', 'b']"), done.stderr


def test_an_image_for_other_machines_is_refused_at_once(cluster: Cluster) -> None:
    done = cluster.run("run", "--rm", "-q", *RESOURCES, "-c", "1", "base/foreign:1")
    assert done.returncode == 125
    assert "can run base/foreign:1 (riscv64)" in done.stderr


def test_a_session_outlives_its_agent_and_is_ended_with_its_container(
    cluster: Cluster, docker_engine: DockerEngine
) -> None:
    session = name()
    assert cluster.run("start", "-t", session, *RESOURCES, PYTHON_IMAGE).returncode == 0, cluster.log()
    assert cluster.run("run", "-q", "-t", session, "-c", "x = 41", PYTHON_IMAGE).returncode == 0
    before = container_of(docker_engine, session, cluster)
    cluster.kill()
    cluster.start()
    again = container_of(docker_engine, session, cluster)
    assert (again["Id"], again["State"]) == (before["Id"], "running")
    done = cluster.run("run", "-q", "-t", session, "-c", "open('kept', 'w').write('1'); print(x + 1)", PYTHON_IMAGE)
    assert done.stdout.strip() == "42", done.stderr
    assert cluster.run("restart", session).returncode == 0
    done = cluster.run("run", "-q", "-t", session, "-c", "import os; print(os.listdir('.'))", PYTHON_IMAGE)
    assert "kept" in done.stdout, done.stderr
    after = container_of(docker_engine, session, cluster)
    assert after["Id"] != before["Id"]
    docker_engine.call("DELETE", f"/containers/{after['Id']}?force=1")
    wait_until(
        lambda: final_status(cluster, session) == "TERMINATED", what="the end of a session without its container"
    )
    kernel_id = str(after["Labels"]["ai.backend.kernel-id"])
    assert wait_until(lambda: nothing_is_left(docker_engine, cluster, kernel_id))
