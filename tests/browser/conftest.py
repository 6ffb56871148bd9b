"""A real cluster with its console in Chromium. The journeys are in ``webui/e2e``, a file each, driven by Node.js."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tools.webui import WEBUI, ensure_packages, node_environment

from ai.backend.infra.console.build import build_bundle
from ai.backend.infra.console.places import cache_folder
from tests.support.cluster import Cluster, free_port, running_cluster
from tests.support.hub_thread import hub_with_tiny

MODEL = Path(__file__).resolve().parents[1] / "data" / "chat-model"
HOSTILE_TEXT = "<img src=x onerror=window.__hacked=1>"
HOSTILE_DIRECTORY = "<script>window.__hacked=1<script>"
RESOURCES = ("-r", "cpu=1", "-r", "mem=256m")
TIMEOUT_S = 840.0  # less than the test's own: what has hung is then in the report

Journey = Callable[..., None]


@pytest.fixture(scope="session")
def console() -> Path:
    """The built console, and the packages that drive the browser."""
    ensure_packages()
    return build_bundle(WEBUI, cache_folder(), report=print)


@pytest.fixture(scope="module")
def cluster(console: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder, first = tmp_path_factory.mktemp("console"), free_port(then=9)
    consent = folder / "agent.toml"  # for hosts where sessions have no networks of their own
    consent.write_text("[services]\nshared-network = true\n")
    (folder / "data").mkdir()
    (folder / "data" / "storage-proxy.toml").write_text('[artifacts]\nallowed-hosts = ["127.0.0.1"]\n')
    options = ("--mock", "--app-ports", f"{first}-{first + 9}", "--agent-config", str(consent))
    with running_cluster(folder / "data", *options) as cluster:
        yield cluster
        clear(cluster, set())


@pytest.fixture
def journey(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Journey:
    """Runs a journey against the cluster; what else it needs to know is given by name.

    ``acts`` are what it may ask the test to do in its midst, by name.
    """
    ports = json.loads((cluster.data_dir / "cluster.json").read_text())
    screenshots = tmp_path_factory.getbasetemp() / "screenshots"

    def run(name: str, acts: Mapping[str, Callable[[], object]] | None = None, **facts: str) -> None:
        site: dict[str, Any] = {
            "url": f"http://127.0.0.1:{ports['web_port']}",
            "storage": f"http://127.0.0.1:{ports['storage_port']}",
            "chromium": "/usr/bin/chromium",
            "screenshots": str(screenshots),
            **{user: {"email": f"{user}@local", "password": password(cluster, user)} for user in ("user", "admin")},
            **facts,
        }
        earlier_sessions = sessions_of_everyone(cluster)
        environment = {**node_environment(), "BACKENDAI_SITE": json.dumps(site)}
        output: list[str] = []
        with subprocess.Popen(
            ["node", str(WEBUI / "e2e" / f"{name}.mjs")],
            env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            ending = threading.Timer(TIMEOUT_S, process.kill)
            ending.start()
            try:
                for line in process.stdout:
                    if not line.startswith("@"):
                        output.append(line)
                        continue
                    (acts or {})[line[1:].strip()]()
                    process.stdin.write("done\n")
                    process.stdin.flush()
            finally:
                ending.cancel()
                if sys.exception() is not None:
                    process.kill()
        if process.returncode != 0:
            clear(cluster, earlier_sessions)
            pytest.fail(f"{''.join(output)}\nscreenshots: {screenshots}\n{cluster.log()}", pytrace=False)

    return run


def sessions_of_everyone(cluster: Cluster) -> set[str]:
    """The ids of the sessions that have not ended."""
    return {session["id"] for admin in (False, True) for session in cluster.json("ps", admin=admin)["items"]}


def clear(cluster: Cluster, earlier_sessions: set[str]) -> None:
    """Ends what a failed journey has left, which would fail the journeys after it: a frozen manager, its sessions."""
    cluster.run("manager", "unfreeze", admin=True)
    for admin in (False, True):
        leftovers = {session["id"] for session in cluster.json("ps", admin=admin)["items"]} - earlier_sessions
        if leftovers:
            cluster.run("rm", "--forced", *leftovers, admin=admin)


def password(cluster: Cluster, user: str) -> str:
    """The password that `up` prints for a user."""
    return (cluster.data_dir / "keys" / f"{user}.password").read_text()


@pytest.fixture
def session(cluster: Cluster) -> Iterator[str]:
    cluster.run("start", "-t", "first", *RESOURCES, "python", check=True)
    yield "first"
    cluster.run("rm", "--forced", "first")


@pytest.fixture(scope="module")
def model(cluster: Cluster) -> str:
    """The name of a folder with a model that can be served."""
    cluster.run("vfolder", "create", "endless-chat", check=True)
    files = [str(path) for path in MODEL.iterdir()]
    cluster.run("vfolder", "upload", "endless-chat", *files, "-b", str(MODEL), check=True)
    return "endless-chat"


@pytest.fixture
def hub() -> Iterator[str]:
    """The URL of a hub that has the model ``acme/tiny``."""
    with hub_with_tiny() as hub:
        yield hub.url


@pytest.fixture(scope="module")
def hostile_session(cluster: Cluster) -> str:
    """The id of a session whose log is full of script; the administrator's, who sees every page."""
    cluster.run("start", "-t", "hostile", *RESOURCES, "python", check=True)
    cluster.run("run", "-t", "hostile", "-c", f"print({HOSTILE_TEXT!r})", "python", check=True)
    found: str = cluster.json("info", "hostile")["id"]
    return found


@pytest.fixture(scope="module")
def hostile_folder(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of a folder whose entries are named by script."""
    cluster.run("vfolder", "create", "hostile", check=True)
    cluster.run("vfolder", "mkdir", "hostile", HOSTILE_DIRECTORY, check=True)
    file = tmp_path_factory.mktemp("hostile") / HOSTILE_TEXT
    file.write_text("1")
    cluster.run("vfolder", "upload", "hostile", str(file), "--base-dir", str(file.parent), check=True)
    found: str = next(folder["id"] for folder in cluster.json("vfolder", "list") if folder["name"] == "hostile")
    return found
