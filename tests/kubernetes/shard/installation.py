"""A manager beside the cluster, and shards of it: real processes on a real kubelet."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.kube.cluster import Cluster
from tools.runner_image import RUNNER_IMAGE

from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, load_or_generate_keypair
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


class Installation:
    """The daemons of an installation, in a folder of their own; another ``cluster`` than the first has a namespace and
    an instance of its own."""

    def __init__(self, root: Path, site: Site, cluster: str = CLUSTER) -> None:
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
            f'[agent-link]\nbind = "tcp://127.0.0.1:{self.link_port}"\nagent-keys = "{root}/agents"\n'
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
            f'runner-image = "{RUNNER_IMAGE}"\nimage-pull-policy = "never"\n'
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

    def until(self, condition: Callable[[], bool], what: str, timeout_s: float = 150) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what}\n{self.log()}"
            time.sleep(0.1)

    def log(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in self.root.glob("*.log"))
