"""The published client in session mode: it logs in at the web server with a password, and works without keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, free_port, wait_until

USER, PASSWORD = "web@example.com", "correct-horse-9!"


def _reaches(url: str) -> bool:
    import urllib.request

    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def web_server(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("web")
    port = free_port()
    manager = cluster.environment()["BACKEND_ENDPOINT"]
    (folder / "webserver.conf").write_text(
        f'[service]\nport = {port}\n[api]\nendpoint = "{manager}"\n[session]\nfile = "{folder / "logins.db"}"\n'
    )
    command = [sys.executable, "-m", "ai.backend.web.server", "-f", str(folder / "webserver.conf")]
    with (folder / "web.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: process.poll() is not None or _reaches(url), what="the web server")
        assert process.poll() is None, (folder / "web.log").read_text()
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


Run = Callable[..., str]


@pytest.fixture
def run(published_python: Path, web_server: str, tmp_path: Path) -> Run:
    """Runs the published command without a terminal, so that it reads the password from its input."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("BACKEND") and name != "PYTHONPATH"
    }
    own = {
        "BACKEND_ENDPOINT": web_server,
        "BACKEND_ENDPOINT_TYPE": "session",
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path),
        "COLUMNS": "400",
        "NO_COLOR": "1",
    }

    def run(*arguments: str, typed: str = "") -> str:
        done = subprocess.run(
            [published_python, published_python.with_name("backend.ai"), *arguments],
            input=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            env={**environment, **own},
            timeout=90,
            start_new_session=True,
            check=False,
        )
        return done.stdout

    return run


@pytest.mark.timeout(300)
def test_a_user_logs_in_works_and_logs_out(cluster: Cluster, run: Run, tmp_path: Path) -> None:
    cluster.run("admin", "user", "add", "default", USER, PASSWORD, "-u", "web", admin=True)
    assert "not logged in" in run("vfolder", "list-hosts")
    assert "Login failed" in run("login", typed=f"{USER}\nwrong\n")
    assert "Login succeeded" in run("login", typed=f"{USER}\n{PASSWORD}\n")
    assert "local:volume1" in run("vfolder", "list-hosts")
    assert "42" in run("run", "--rm", "python", "-c", "print(6*7)")
    assert "ready" in run("session", "create", "-t", "overweb", "python")
    assert "overweb" in run("ps")
    (tmp_path / "up.txt").write_text("through the web server")
    run("session", "upload", "overweb", "up.txt")
    assert "up.txt" in run("session", "ls", "overweb")
    assert "Done" in run("session", "rm", "overweb")
    assert "Logout done" in run("logout")
    assert "not logged in" in run("vfolder", "list-hosts")
