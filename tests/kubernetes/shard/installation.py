"""A manager beside the cluster, and shards of it: real processes on a real kubelet."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.kube.cluster import Cluster
from tools.runner_image import RUNNER_IMAGE

from ai.backend.infra.database import Database
from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, load_or_generate_keypair
from ai.backend.manager.images.model import ScannedImage
from ai.backend.manager.images.sql import SqlImageStore
from tests.kubernetes.runtime.sites import NAMESPACE, Site, free_port
from tests.support.forked import ForkedPopen
from tests.support.kube_volumes import STORAGE_CLASS
from tests.support.migrated import migrated

CLUSTER = "test"
OWN_NAMESPACE, RELEASE = "backendai", "rel"
CHART = Path(__file__).parents[3] / "deploy" / "helm" / "backendai-agent"
CHART_VALUES = Path(__file__).parents[2] / "data" / "helm" / "backendai-agent.values.yaml"
DRIVER = "gpu.example.com"


def render_chart(cluster: Cluster, namespace: str, *options: str, release: str = RELEASE) -> str:
    """Returns the objects of the chart."""
    helm = [str(cluster.program("helm")), "template", release, str(CHART), "--kube-version=1.36.0"]
    done = subprocess.run(
        [*helm, "-n", namespace, "-f", str(CHART_VALUES), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def helm(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs helm against the cluster, and returns how it ended."""
    command = [str(cluster.program("helm")), f"--kubeconfig={cluster.kubeconfig}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)


class Installation:
    """The daemons of an installation, in a folder of their own; another ``cluster`` than the first has a namespace and
    an instance of its own."""

    def __init__(self, root: Path, site: Site, cluster: str = CLUSTER, *, pull_policy: str = "never") -> None:
        is_first = cluster == CLUSTER
        self.namespace = OWN_NAMESPACE if is_first else f"{OWN_NAMESPACE}-{cluster}"
        instance = "default" if is_first else cluster
        self.release = RELEASE if is_first else f"{RELEASE}-{cluster}"
        self.root = root
        self.site = site
        self.daemons: dict[str, ForkedPopen] = {}
        self.api_port, self.link_port, relay_port = free_port(), free_port(), free_port()
        (root / "manager.toml").write_text(
            f'data-dir = "{root}/manager"\n'
            f'[manager]\nservice-addr = {{ host = "127.0.0.1", port = {self.api_port} }}\n'
            f'[agent-link]\nbind = "tcp://0.0.0.0:{self.link_port}"\nagent-keys = "{root}/agents"\n'
            f'key-file = "{root}/manager.key_secret"\n[database]\nurl = "sqlite:///{root}/manager.db"\n'
        )
        migrated(root / "manager.db")
        kubeconfig = self._account()
        manager_key = load_or_generate_keypair(root / "manager.key_secret").public
        shard_key = load_or_generate_keypair(root / "shard.key").public
        AgentKeyDirectory(root / "agents").allow(f"{cluster}.*", shard_key)
        (root / "agent.toml").write_text(
            f'[agent]\nruntime = "kubernetes"\ndata-dir = "{root}/shard"\n'
            f'[link]\nmanager-addr = "tcp://127.0.0.1:{self.link_port}"\nmanager-key = "{manager_key}"\n'
            f'keypair-file = "{root}/shard.key"\n'
            f'[kubernetes]\ncluster = "{cluster}"\nkubeconfig = "{kubeconfig}"\npool = "shared"\n'
            f'namespace = "{self.namespace}"\n'
            f'[kubernetes.drivers."{DRIVER}"]\ndevice-name = "cuda"\n'
            f'[runtime]\nnamespace = "{NAMESPACE}"\ninstance = "{instance}"\n'
            f'runner-image = "{RUNNER_IMAGE}"\nimage-pull-policy = "{pull_policy}"\n'
            f'home-volume = "claim"\nhome-storage-class = "{STORAGE_CLASS}"\n'
            f'relay-listen = "0.0.0.0:{relay_port}"\nrelay-target = "{site.cluster.host_address}:{relay_port}"\n'
        )
        self.users: dict[str, dict[str, str]] = {}

    def _account(self) -> Path:
        """Makes the service account of the chart with exactly its roles, and returns a kubeconfig of it."""
        cluster = self.site.cluster
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        roles = render_chart(
            cluster,
            self.namespace,
            "-s",
            "templates/rbac.yaml",
            f"--set=sessions.namespace={NAMESPACE},sessions.keepHomes=true",
            release=self.release,
        )
        cluster.kubectl("apply", "-f", "-", text=roles)
        token = cluster.kubectl("create", "token", f"{self.release}-shard", "-n", self.namespace, "--duration=4h")
        (self.root / "token").write_text(token)
        path = self.root / "kubeconfig"
        address = {"server": cluster.url, "certificate-authority": str(cluster.certificate_authority)}
        config = {
            "clusters": [{"name": "c", "cluster": address}],
            "users": [{"name": "u", "user": {"tokenFile": "token"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(config))
        return path

    def _start(self, *words: str, env: dict[str, str] | None = None, **options: Any) -> ForkedPopen:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("BACKEND")}
        return ForkedPopen(
            [sys.executable, "-m", "ai.backend.cli.main", *words],
            stdin=subprocess.DEVNULL,
            env={**kept, "HOME": str(self.root), "NO_COLOR": "1", "COLUMNS": "200", **(env or {})},
            **options,
        )

    def run(self, *words: str, who: str = "", timeout_s: float = 90) -> str:
        """Runs a command, of a user against the manager, and returns what it prints."""
        env = self.users[who] if who else None
        with self._start(*words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            out, err = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, f"{words}\n{out}\n{err}\n{self.log()}"
        return str(out)

    def attempt(self, *words: str, who: str, timeout_s: float = 90) -> tuple[int, str]:
        """Runs a command of a user, and returns its exit code and all that it prints."""
        kept: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with self._start(*words, env=self.users[who], **kept) as process:
            out, _ = process.communicate(timeout=timeout_s)
        return process.returncode, str(out)

    def fail(self, *words: str, who: str) -> str:
        """Runs a command of a user that is to fail, and returns what it prints."""
        code, out = self.attempt(*words, who=who)
        assert code != 0, f"{words}\n{out}\n{self.log()}"
        return out

    def daemon(self, name: str, *words: str) -> None:
        with (self.root / f"{name}.log").open("ab") as output:
            self.daemons[name] = self._start(*words, stdout=output, stderr=output, start_new_session=True)

    def start(self) -> None:
        manager = ("mgr", "-f", str(self.root / "manager.toml"))
        who = ""
        for line in self.run(*manager, "bootstrap").splitlines():
            who = line.removeprefix("# ") if line.startswith("# ") else who
            key, _, value = line.partition("=")
            if key.startswith("BACKEND"):
                endpoint = {"BACKEND_ENDPOINT": f"http://127.0.0.1:{self.api_port}"}
                self.users.setdefault(who, endpoint)[key] = value
        self.daemon("manager", *manager, "start-server")

    def start_shard(self, name: str) -> None:
        self.daemon(name, "ag", "start-server", "-f", str(self.root / "agent.toml"))

    def kill(self, name: str) -> None:
        process = self.daemons.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for process in self.daemons.values():
            process.terminate()
        for process in self.daemons.values():
            process.wait(timeout=30)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(f"file:{self.root}/manager.db?mode=ro", uri=True) as database:
            return database.execute(query).fetchall()

    def register_images(self, *names: str, labels: Mapping[str, str], registry: str = "docker.io") -> None:
        """Records images as a scan of their registry does: no kubelet tells the labels of an image."""
        images = [
            ScannedImage(
                name=name, architecture="x86_64", digest="", config_digest="", size_bytes=1, labels=dict(labels)
            )
            for name in names
        ]

        async def register() -> None:
            database = Database(f"sqlite:///{self.root}/manager.db")
            await SqlImageStore(database).record(registry, images, at=datetime.now(UTC))
            await database.close()

        asyncio.run(register())

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 150) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.log()}"
            time.sleep(0.1)

    def log(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in self.root.glob("*.log"))
