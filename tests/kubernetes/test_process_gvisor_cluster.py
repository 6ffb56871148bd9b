"""A cluster of one command whose sessions run in gVisor, without an engine: what users do in them, and kill -9."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tools.kube.families import families

from tests.support.cluster import Cluster, free_port, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.needs("gvisor", "cgroups", "root", "isolation")]
SMALL = ("--runtime-class", "gvisor", "-r", "cpu=1", "-r", "mem=512m")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("gvisor")
    settings = folder / "agent.toml"
    settings.write_text(f"[runtime]\nrunsc = {json.dumps(str(families()['gvisor'].place() / 'runsc'))}\n")
    cluster = Cluster(folder / "data", "--mock", "--agent-config", str(settings))
    cluster.start()
    yield cluster
    for session in ("keeps", "several"):
        cluster.run("rm", session)
    cluster.stop()


def _run(cluster: Cluster, session: str, code: str) -> str:
    return str(cluster.run("run", "-q", "-t", session, "-c", code, "python", check=True).stdout)


def test_the_class_is_reported_and_its_kernel_is_gvisor(cluster: Cluster) -> None:
    code = "print('gvisor' in open('/proc/version').read())"
    done = cluster.run("run", "--rm", "-q", *SMALL, "-c", code, "python", check=True)
    assert done.stdout == "True\n"
    done = cluster.run("run", "--rm", "-q", "-r", "cpu=1", "-r", "mem=256m", "-c", code, "python", check=True)
    assert done.stdout == "False\n", "a session that names no class is in the sandbox of the host's kernel"


def test_an_accelerator_is_refused_when_the_session_is_asked_for(cluster: Cluster) -> None:
    refused = cluster.run("run", "--rm", "-q", *SMALL, "-r", "mock.device=1", "-c", "1", "python")
    assert refused.returncode != 0
    assert "takes no devices" in refused.stderr
    assert "gvisor" in refused.stderr


def test_a_batch_job_ends_with_its_code(cluster: Cluster) -> None:
    command = "grep -c gvisor /proc/version; exit 3"
    cluster.run("start", "-q", *SMALL, "--type", "batch", "-t", "batchjob", "-c", command, "python", check=True)
    assert cluster.run("watch", "batchjob").returncode == 3
    assert cluster.run("logs", "batchjob", check=True).stdout == "1\n"


def test_a_session_outlives_a_killed_cluster_and_serves(cluster: Cluster) -> None:
    cluster.run("start", "-q", "-t", "keeps", *SMALL, "python", check=True)
    _run(cluster, "keeps", "x = 41")
    cluster.kill()
    cluster.start()
    assert _run(cluster, "keeps", "_ = open('page.txt', 'w').write('of a service'); print(x + 1)") == "42\n"
    port = free_port()
    command = [sys.executable, "-m", "ai.backend.cli.main", "app", "keeps", "http", "-b", f"127.0.0.1:{port}"]
    app = subprocess.Popen(command, env=cluster.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: _page(port) == b"of a service", what="the page of the service")
    finally:
        app.terminate()
        app.wait()
    cluster.run("restart", "keeps", check=True)
    assert _run(cluster, "keeps", "print(open('page.txt').read())") == "of a service\n"
    cluster.run("rm", "keeps", check=True)
    wait_until(lambda: "keeps" not in cluster.run("ps", check=True).stdout, what="the end of the session")


def _page(port: int) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/page.txt")
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return b""
    finally:
        connection.close()


def test_kernels_of_a_cluster_reach_each_other(cluster: Cluster) -> None:
    cluster.run("start", "-q", "-t", "several", *SMALL, "--cluster-size", "2", "python", check=True)
    code = (
        "import subprocess\n"
        "command = ['ssh', '-o', 'StrictHostKeyChecking=no', 'sub1', 'cat /proc/version; hostname']\n"
        "print(subprocess.run(command, capture_output=True, text=True).stdout)"
    )
    said = _run(cluster, "several", code)
    assert "gvisor" in said
    assert "sub1" in said
