"""The main job with sessions as containers: `backend.ai up --runtime docker` on an engine of the tests' own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    env = {"DOCKER_HOST": docker_engine.host, "BACKEND_AGENT_INTERVALS__SYNC": "0.5"}
    cluster = Cluster(data, "--runtime", "docker", "--mock", env=env)
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
    (network,) = session_networks(docker_engine, found["id"])
    body = json.dumps({"Container": containers["sub1"], "Force": True}).encode()
    assert docker_engine.call("POST", f"/networks/{network}/disconnect", body)[0] == 200
    wait_until(lambda: final_status(cluster, session) == "TERMINATED")
    assert "removed its session's network" in json.dumps(cluster.json("info", found["id"])["status_data"])
    assert wait_until(lambda: all(nothing_is_left(docker_engine, cluster, k["id"]) for k in found["containers"]))
    assert wait_until(lambda: not session_networks(docker_engine, found["id"]))


def session_networks(engine: DockerEngine, session_id: str) -> list[str]:
    return [n["Name"] for n in engine.call("GET", "/networks")[1] if n["Name"].endswith(f"-net-{session_id}")]


def test_a_batch_of_files(cluster: Cluster) -> None:
    work = cluster.data_dir.parent
    (work / "main.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(3)\n")
    done = cluster.run("run", "--rm", "-q", *RESOURCES, "--exec", "python3 main.py a b", PYTHON_IMAGE, "main.py")
    assert (done.returncode, done.stdout.strip()) == (3, "['a', 'b']"), done.stderr


@pytest.mark.needs("ssh")
def test_openssh_reaches_a_container(cluster: Cluster, docker_engine: DockerEngine) -> None:
    session, work = name(), cluster.data_dir.parent
    cluster.run("start", "-t", session, *RESOURCES, PYTHON_IMAGE, check=True)
    assert container_of(docker_engine, session, cluster)["HostConfig"]["NetworkMode"] == "none"
    done = cluster.run("ssh", session, "echo $PWD $(id -u); test -f /.dockerenv; cat; exit 7", input_="typed")
    assert (done.returncode, done.stdout) == (7, "/home/work 59500\ntyped"), done.stderr

    (work / "sent.bin").write_bytes(os.urandom(2_000_000))
    (work / "folder").mkdir()
    (work / "folder" / "in it").write_text("kept")
    cluster.run("scp", "-r", session, "sent.bin", "folder", ":", check=True)
    cluster.run("scp", session, ":sent.bin", "back.bin", check=True)
    batch = "rename sent.bin moved.bin\nget moved.bin again.bin\nput back.bin\nls folder\n"
    listed = cluster.run("sftp", session, "-b", "-", input_=batch, check=True).stdout
    assert "folder/in it" in listed
    for copy in ("back.bin", "again.bin"):
        assert (work / copy).read_bytes() == (work / "sent.bin").read_bytes()

    with terminal(cluster, "ssh", session) as keyboard:
        os.write(keyboard, b"python3 -c 'import os; print(*os.get_terminal_size())'; exit $((6 * 7))\r")
        shown = read_to_the_end(keyboard)
    assert b"97 31" in shown, shown
    assert cluster.run("rm", session).returncode == 0


@contextmanager
def terminal(cluster: Cluster, *command: str) -> Iterator[int]:
    """The keyboard and screen of a command that has a terminal of 97 columns; it must end with 42."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
    with subprocess.Popen(
        [cluster.python, "-m", "ai.backend.cli.main", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**cluster.environment(), "TERM": "xterm"},
        start_new_session=True,
    ) as process:
        os.close(theirs)
        try:
            yield ours
            assert process.wait(30) == 42
        finally:
            process.kill()
            os.close(ours)


def read_to_the_end(keyboard: int) -> bytes:
    """What the screen shows until nobody has the terminal any more."""
    shown = b""
    with suppress(OSError):  # how a terminal says that
        while piece := os.read(keyboard, 4096):
            shown += piece
    return shown


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
    told = cluster.json("info", str(after["Labels"]["ai.backend.session-id"]))
    assert any(reason in json.dumps(told["status_data"]) for reason in ("container-killed", "container-removed")), told
    kernel_id = str(after["Labels"]["ai.backend.kernel-id"])
    assert wait_until(lambda: nothing_is_left(docker_engine, cluster, kernel_id))
