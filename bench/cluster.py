"""A cluster of its own for a benchmark, and the cheapest client that can sign."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ai.backend.common.signing import SignedParts, authorization, sign
from bench.processes import BACKENDAI

VERSION = "v7.20230615"


@dataclass(slots=True)
class Api:
    """A kept-alive connection that signs each request. Not for use by several threads."""

    endpoint: str
    access_key: str
    secret_key: str
    _connection: http.client.HTTPConnection | None = field(default=None, init=False)

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).netloc

    def headers(self, method: str, target: str, content_type: str) -> dict[str, str]:
        """Return the headers that make this request a signed one."""
        date = datetime.now(UTC).isoformat()
        parts = SignedParts(
            method=method, raw_target=target, date=date, host=self.host, content_type=content_type, version=VERSION
        )
        return {
            "Date": date,
            "Content-Type": content_type,
            "X-BackendAI-Version": VERSION,
            "Authorization": authorization(self.access_key, sign(parts, self.secret_key)),
        }

    def call(self, method: str, target: str, body: Mapping[str, Any] | None = None) -> Any:
        """Make one request and return the decoded answer.

        Raises:
            RuntimeError: the status is not 2xx; the message holds the answer.
        """
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self.host, timeout=120)
        content = b"" if body is None else json.dumps(body).encode()
        kind = "text/plain" if body is None else "application/json"
        self._connection.request(method, target, body=content, headers=self.headers(method, target, kind))
        answer = self._connection.getresponse()
        text = answer.read()
        if not 200 <= answer.status < 300:
            raise RuntimeError(f"{method} {target} was answered with {answer.status}: {text[:500]!r}")
        return json.loads(text) if text else {}

    def close(self) -> None:
        """Closes the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def create(self, name: str = "", *, image: str = "python", cpu: str = "1", mem: str = "64m", **more: Any) -> str:
        """Create a session, by default waiting until it runs; return its name.

        Raises:
            RuntimeError: it does not run.
        """
        name = name or f"bench-{uuid.uuid4().hex[:12]}"
        body = {"image": image, "clientSessionToken": name, "config": {"resources": {"cpu": cpu, "mem": mem}}}
        answer = self.call("POST", "/session", body | more)
        if not more.get("enqueueOnly") and answer.get("status") != "RUNNING":
            raise RuntimeError(f"session {name} does not run: {answer}")
        return name

    def destroy(self, name: str) -> None:
        self.call("DELETE", f"/session/{name}?forced=true")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running embedded cluster: where it lives, the process that serves it, and its two keypairs' environments."""

    data_dir: Path
    pid: int
    user_env: Mapping[str, str]
    admin_env: Mapping[str, str]

    @property
    def user(self) -> Api:
        return _api(self.user_env)

    @property
    def admin(self) -> Api:
        return _api(self.admin_env)


def _api(env: Mapping[str, str]) -> Api:
    return Api(env["BACKEND_ENDPOINT"], env["BACKEND_ACCESS_KEY"], env["BACKEND_SECRET_KEY"])


def read_exports(path: Path) -> dict[str, str]:
    """Return what a file of `export NAME=VALUE` lines sets."""
    words = [shlex.split(line)[1] for line in path.read_text().splitlines() if line.startswith("export ")]
    return dict(word.split("=", 1) for word in words)


def up(data_dir: Path, *options: str, **env: str) -> Cluster:
    """Start a cluster on a folder, with these variables besides, and return when it serves."""
    command = [BACKENDAI, "up", "--data-dir", str(data_dir), "--port", str(free_port()), "--detach", *options]
    subprocess.run(command, check=True, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    pid = int((data_dir / "up.lock").read_text())
    return Cluster(data_dir, pid, read_exports(data_dir / "env.sh"), read_exports(data_dir / "env-admin.sh"))


@contextmanager
def small_image_cluster(folder: Path | None = None, **env: str) -> Iterator[Cluster]:
    """Yield a cluster on which hundreds of sessions fit, and stop it at the end; see bench/small_images.py.

    Args:
        folder: its data directory, which stays; None for a fresh one.
        env: variables of its process.
    """
    if folder is None:
        with temporary_folder() as fresh, small_image_cluster(fresh, **env) as cluster:
            yield cluster
        return
    command = [sys.executable, "-m", "bench.small_images", "up", "--data-dir", str(folder)]
    command += ["--port", str(free_port())]
    with (folder / "up.out").open("w") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **env})
    try:
        yield wait_until_serving(folder, server)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


def wait_until_serving(folder: Path, server: subprocess.Popen[bytes], *, timeout_s: float = 60) -> Cluster:
    """Returns the cluster that ``server`` runs in the foreground. Raises RuntimeError if it does not start."""
    deadline = time.monotonic() + timeout_s
    while "The cluster serves" not in (folder / "up.out").read_text():
        if server.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the cluster did not start: {(folder / 'up.out').read_text()}")
        time.sleep(0.1)
    return Cluster(folder, server.pid, read_exports(folder / "env.sh"), read_exports(folder / "env-admin.sh"))


def lift_rate_limits(cluster: Cluster) -> None:
    """Give every keypair a limit that no benchmark reaches; the limiter goes on counting."""
    with closing(sqlite3.connect(cluster.data_dir / "manager" / "backendai.db", timeout=10)) as database:
        database.execute("UPDATE keypairs SET rate_limit = 1000000000")
        database.commit()


def down(data_dir: Path) -> None:
    subprocess.run(
        [BACKENDAI, "down", "--data-dir", str(data_dir)],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder with a short path: unix sockets live below it, and their paths end at 108 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="bai-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_cluster(*options: str, **env: str) -> Iterator[Cluster]:
    """Yield a fresh cluster, with these variables besides, and stop it at the end."""
    with temporary_folder() as folder:
        cluster = up(folder, *options, **env)
        try:
            yield cluster
        finally:
            down(folder)
