"""The licence key of a model server: its replicas have it, and nobody is shown it (issue 15 B.6)."""

from __future__ import annotations

import hashlib
import json
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_model_service import RESOURCES, session_of
from tests.support.cluster import Cluster, free_port, running_cluster, wait_until

KEY, SECOND_KEY = "nvapi-planted-0815-0815", "nvapi-planted-4711-4711"
SERVER = """
import hashlib, http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = hashlib.sha256(os.environ.get("NGC_API_KEY", "").encode()).hexdigest().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["BACKEND_SERVICE_PORT"])), Handler).serve_forever()
"""
DEFINITION = """models:
  - name: licensed
    model_path: /models
    service:
      start_command: [python3, /models/server.py]
      health_check: {path: /health, interval: 1, max_retries: 3, initial_delay: 30}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    first, folder = free_port(then=9), tmp_path_factory.mktemp("licensed")
    (folder / "agent.toml").write_text("[services]\nshared-network = true\n")
    (folder / "server.py").write_text(SERVER)
    (folder / "model-definition.yaml").write_text(DEFINITION)
    options = ("--app-ports", f"{first}-{first + 9}", "--agent-config", str(folder / "agent.toml"))
    with running_cluster(folder / "data", *options) as cluster:
        cluster.run("vfolder", "create", "licensed-model", check=True)
        files = [str(folder / name) for name in ("server.py", "model-definition.yaml")]
        cluster.run("vfolder", "upload", "licensed-model", *files, "-b", str(folder), check=True)
        yield cluster


def holders(folder: Path, secret: str) -> list[str]:
    """The files below a folder that hold a text, also in the log of SQLite."""
    return [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes()
    ]


def command_lines() -> str:
    """What `ps` shows of every process."""
    texts = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            texts.append(path.read_text(errors="replace"))
        except OSError:  # it has ended
            continue
    return "\n".join(texts)


@pytest.mark.timeout(180)
def test_a_licence_key_is_sealed_and_shown_to_nobody(cluster: Cluster, tmp_path: Path) -> None:
    with session_of(cluster) as api:
        service = api.Service.create(
            "python",
            "licensed-model",
            1,
            service_name="licensed-service",
            resources=RESOURCES,
            open_to_public=True,
            envs={"NGC_API_KEY": KEY, "SHOWN": "shown-0815"},
            runtime_variant="nim",
        )

        def answers(key: str) -> bool:
            url = service.info()["url"]
            if not url:
                return False
            try:
                with urllib.request.urlopen(f"{url}/", timeout=5) as response:
                    return bool(response.read().decode() == hashlib.sha256(key.encode()).hexdigest())
            except OSError:
                return False

        wait_until(lambda: answers(KEY), timeout_s=90, what="the key in the replica")
        route = service.describe()["active_routes"][0]
        told = [json.dumps(service.info()), json.dumps(service.describe()), json.dumps(service.history())]
        # Another revision has the key still, and a new key takes the place of the old one.
        service.modify(environ={"SHOWN": "shown-4711"})
        wait_until(lambda: "shown-4711" in _environ(cluster), timeout_s=90, what="the second revision")
        assert answers(KEY)
        service.modify(environ={"NGC_API_KEY": SECOND_KEY, "SHOWN": "shown-last"})
        wait_until(lambda: answers(SECOND_KEY), timeout_s=90, what="the new key in the replica")
        told.append(json.dumps(service.history()))
    ref = str(route["session_id"])
    for words in (
        ("service", "info", "licensed-service"),
        ("service", "history", "licensed-service"),
        ("service", "why", "licensed-service"),
        ("session", "info", ref),
        ("session", "events", ref),
        ("ps",),
        ("admin", "explain", ref),
    ):
        done = cluster.run(*words, check=True, admin=words[0] == "admin")
        told.append(f"{words}: {done.stdout}{done.stderr}")
    told += [_environ(cluster), command_lines(), cluster.log()]
    bundle = tmp_path / "support.tar.gz"
    config = tmp_path / "manager.toml"
    config.write_text(
        f'data-dir = "{cluster.data_dir / "manager"}"\n[logging]\ndrivers = ["file"]\n'
        f'[logging.file]\npath = "{cluster.data_dir / "logs"}"\n'
    )
    cluster.run("mgr", "--config", str(config), "diagnose", str(bundle), check=True)
    with tarfile.open(bundle) as archive:
        told += [file.read().decode(errors="replace") for each in archive if (file := archive.extractfile(each))]
    assert "shown-last" in "".join(told)
    assert [text[:200] for text in told if "gcm1:" in text] == [], "not even the sealed text is shown"
    for secret in (KEY, SECOND_KEY):
        assert [text[:200] for text in told if secret in text] == []
        # The agent starts the replica, and has what it starts it with; the rest of the cluster has a sealed text.
        assert [name for name in holders(cluster.data_dir, secret) if not name.startswith("agents/")] == []


def _environ(cluster: Cluster) -> str:
    """What GraphQL says of the environment."""
    with session_of(cluster) as api:
        query = "query { endpoint_list(limit: 10, offset: 0) { items { name environ } } }"
        return json.dumps(api.Admin.query(query))
