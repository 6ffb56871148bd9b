"""The chart of the manager: what it renders, and an installation of it that runs a session, is upgraded with it, rolled
back and removed."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.kube.cluster import Cluster
from tools.runner_image import RUNNER_IMAGE

from ai.backend.infra.rpc.zmq.keys import load_or_generate_keypair
from ai.backend.manager.secrets.sealer import load_or_make_keys
from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, Site, free_port
from tests.kubernetes.shard.installation import helm
from tests.support.daemon_image import IMAGE, write_daemon_image
from tests.support.forked import ForkedPopen

pytestmark = [pytest.mark.slow, pytest.mark.needs("kubernetes")]
CHART = Path(__file__).parents[3] / "deploy" / "helm" / "backendai"
VALUES = Path(__file__).parents[2] / "data" / "helm" / "backendai.values.yaml"
GOLDEN = VALUES.with_name("backendai.golden.yaml")
OWN, NAME, CLUSTER = "control", "rel", "charted"
UID = 59501
MANAGER = ("exec", "-n", OWN, f"deploy/{NAME}-manager", "--", "backend.ai", "mgr", "-f", "/etc/backendai/manager.toml")
CHECKS = {
    "manager.toml": "mgr",
    "webserver.toml": "web",
    "storage-proxy.toml": "storage",
    "proxy-coordinator.toml": "app-proxy-coordinator",
    "proxy-worker.toml": "app-proxy-worker",
}


def render(cluster: Cluster, *options: str) -> subprocess.CompletedProcess[str]:
    words = ("template", NAME, str(CHART), "--kube-version=1.36.0", "-n", OWN, "-f", str(VALUES))
    return helm(cluster, *words, *options)


def test_the_chart_renders_as_recorded(kubernetes_cluster: Cluster) -> None:
    rendered = render(kubernetes_cluster)
    assert rendered.returncode == 0, rendered.stderr
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(rendered.stdout)
    assert rendered.stdout == GOLDEN.read_text(), "UPDATE_GOLDEN=1 writes the new record, if the change is meant"


def test_a_real_api_server_takes_the_objects(kubernetes_cluster: Cluster) -> None:
    kubernetes_cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN}})
    rendered = render(kubernetes_cluster).stdout
    answer = kubernetes_cluster.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=rendered)
    assert answer.count("(server dry run)") == rendered.count("\nkind: ")


def test_every_daemon_takes_its_settings(kubernetes_cluster: Cluster, tmp_path: Path) -> None:
    """A table that the chart misspells would be found by the first installation only."""
    checked = []
    for item in yaml.safe_load_all(render(kubernetes_cluster).stdout):
        for name, text in (item.get("data") or {}).items() if item["kind"] == "ConfigMap" else ():
            if name not in CHECKS:
                continue
            (tmp_path / name).write_text(_with_environment(name, text))
            command = [sys.executable, "-m", "ai.backend.cli.main", CHECKS[name], "config", "check"]
            done = subprocess.run([*command, str(tmp_path / name)], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
            checked.append(name)
    assert sorted(checked) == sorted(CHECKS)


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ("keysSecret=", "keysSecret"),
        ("agents.x=short", "agents"),
        ("manager.replicas=-1", "replicas"),
        ("web.service.type=Public", "service"),
        ("storageProxy.volumes.relative=claim", "relative"),
        ("web.unknown=1", "unknown"),
        # Written into YAML as they are, these would add fields to the pod.
        ("web.environmentSecret=x}", "environmentSecret"),
        ("storageProxy.existingClaim=x}", "existingClaim"),
        ("storageProxy.volumes./data: x=claim", "/data: x"),
        ("keysSecret=x: y", "keysSecret"),
    ],
)
def test_wrong_values_are_named(kubernetes_cluster: Cluster, option: str, problem: str) -> None:
    done = render(kubernetes_cluster, "--set", option)
    assert done.returncode != 0
    assert problem in done.stderr


def _with_environment(name: str, text: str) -> str:
    """Returns settings with what a daemon gets from its environment: passwords, and the names under which it serves."""
    secrets = f'[secrets]\napi-secret = "{"a" * 40}"\n'
    if name == "storage-proxy.toml":
        text = text.replace("[storage-proxy]", f'[storage-proxy]\nsecret = "{"s" * 40}"')
        return text.replace("[api.manager]", f'[api.manager]\nsecret = "{"m" * 40}"')
    if name == "proxy-worker.toml":
        return f'{text}\n[proxy_worker.wildcard_domain]\ndomain = ".example.org"\n{secrets}'
    return f"{text}\n{secrets}" if name == "proxy-coordinator.toml" else text


def _secrets(prefix: str) -> dict[str, str]:
    """Returns the passwords of a daemon as its environment has them."""
    if prefix == "BACKEND_STORAGE_":
        return {f"{prefix}STORAGE_PROXY__SECRET": "s" * 40, f"{prefix}API__MANAGER__SECRET": "m" * 40}
    return {f"{prefix}SECRETS__API_SECRET": "a" * 40}


class Control:
    """A namespace with the chart, and a shard beside the cluster that serves its node to the manager in it."""

    def __init__(self, site: Site, root: Path) -> None:
        self.cluster = site.cluster
        self.root = root
        self.shard: ForkedPopen | None = None
        self.user: dict[str, str] = {}
        archive = root / "daemons.tar"
        write_daemon_image(archive)
        self.cluster.import_image(archive)
        archive.unlink()
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": OWN}})
        self.manager_key = load_or_generate_keypair(root / "manager.key_secret").public
        self.shard_key = load_or_generate_keypair(root / "shard.key").public
        load_or_make_keys(root / "secrets.key")
        files = {name: (root / name).read_bytes() for name in ("manager.key_secret", "secrets.key")}
        self._secret("keys", {name: content.decode() for name, content in files.items()})
        self._volume()

    def _secret(self, name: str, values: dict[str, str]) -> None:
        data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
        metadata = {"name": name, "namespace": OWN}
        self.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    def _volume(self) -> None:
        """Makes the claim of the manager's data, a folder of this machine."""
        folder = self.cluster.folder / "manager-data"
        folder.mkdir(mode=0o700)
        os.chown(folder, UID, UID)
        size = {"storage": "1Gi"}
        modes: dict[str, Any] = {"accessModes": ["ReadWriteOnce"]}
        volume = {"capacity": size, "hostPath": {"path": str(folder)}, **modes}
        claim = {"resources": {"requests": size}, "storageClassName": "", "volumeName": "manager-data", **modes}
        self.cluster.apply(
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "manager-data"}, "spec": volume},
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data", "namespace": OWN},
                "spec": claim,
            },
        )

    def values(self, **changes: Any) -> Path:
        small = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}}
        values = {
            "image": IMAGE,
            "keysSecret": "keys",
            "agents": {f"{CLUSTER}.*": self.shard_key},
            "manager": {"existingClaim": "data", "resources": small},
            "web": {"enabled": False},
            **changes,
        }
        path = self.root / "values.json"
        path.write_text(json.dumps(values))
        return path

    def helm(self, *words: str) -> None:
        done = helm(self.cluster, *words, "-n", OWN)
        assert done.returncode == 0, f"{done.stderr}\n{self.what_happens()}"

    def what_happens(self) -> str:
        pods = json.loads(self.cluster.kubectl("get", "pods", "-n", OWN, "-o", "json"))["items"]
        texts = [self.cluster.kubectl("get", "events", "-n", OWN), self._log()]
        for pod in pods:
            name = pod["metadata"]["name"]
            texts.append(f"{name}: {json.dumps(pod['status'])[:2000]}")
            done = subprocess.run(
                [
                    self.cluster.program("kubectl"),
                    f"--kubeconfig={self.cluster.kubeconfig}",
                    *("logs", "-n", OWN, name, "--tail=30"),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            texts.append(done.stdout + done.stderr)
        return "\n".join(texts)[-12_000:]

    def _log(self) -> str:
        path = self.root / "shard.log"
        return path.read_text()[-3000:] if path.exists() else ""

    def address(self, daemon: str) -> str:
        service = self.cluster.request("GET", f"/api/v1/namespaces/{OWN}/services/{NAME}-{daemon}")
        return str(service["spec"]["clusterIP"])

    def bootstrap(self) -> None:
        """Makes the first accounts, in the manager's pod."""
        who, printed = "", self.cluster.kubectl(*MANAGER, "bootstrap")
        for line in printed.splitlines():
            who = line.removeprefix("# ") if line.startswith("# ") else who
            key, _, value = line.partition("=")
            if key.startswith("BACKEND") and who == "user":
                self.user[key] = value
        self.user["BACKEND_ENDPOINT"] = f"http://{self.address('manager')}:8081"

    def start_shard(self) -> None:
        port = free_port()
        (self.root / "agent.toml").write_text(
            f'[agent]\nruntime = "kubernetes"\ndata-dir = "{self.root}/shard"\n'
            f'[link]\nmanager-addr = "tcp://{self.address("manager")}:6011"\nmanager-key = "{self.manager_key}"\n'
            f'keypair-file = "{self.root}/shard.key"\n'
            f'[kubernetes]\ncluster = "{CLUSTER}"\nkubeconfig = "{self.cluster.kubeconfig}"\npool = "shared"\n'
            f'namespace = "{OWN}"\n'
            f'[runtime]\nnamespace = "{NAMESPACE}"\ninstance = "{CLUSTER}"\nrunner-image = "{RUNNER_IMAGE}"\n'
            f'image-pull-policy = "never"\nnetwork-probe = false\nnetwork-policy = "none"\n'
            f'relay-listen = "0.0.0.0:{port}"\nrelay-target = "{self.cluster.host_address}:{port}"\n'
        )
        with (self.root / "shard.log").open("ab") as output:
            words = ("ag", "start-server", "-f", str(self.root / "agent.toml"))
            self.shard = self._start(*words, stdout=output, stderr=output, start_new_session=True)

    def _start(self, *words: str, **options: Any) -> ForkedPopen:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("BACKEND")}
        env = {**kept, "HOME": str(self.root), "NO_COLOR": "1", "COLUMNS": "200", **self.user}
        return ForkedPopen(
            [sys.executable, "-m", "ai.backend.cli.main", *words], stdin=subprocess.DEVNULL, env=env, **options
        )

    def run(self, *words: str) -> str:
        with self._start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            out, err = process.communicate(timeout=120)
        assert process.returncode == 0, f"{words}\n{out}\n{err}\n{self.what_happens()}"
        return str(out)

    def until_it_prints(self, text: str, *words: str) -> None:
        """Repeats a command while the manager and the link of the shard come back."""

        def prints() -> bool:
            with self._start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                out, _ = process.communicate(timeout=120)
            return text in out

        self.cluster.wait_for(prints, f"{words} to print {text!r}: {self.what_happens()}", 120)

    def close(self) -> None:
        if self.shard is not None:
            self.shard.terminate()
            self.shard.wait(timeout=30)


@pytest.fixture
def control(site: Site, tmp_path: Path) -> Iterator[Control]:
    control = Control(site, tmp_path)
    try:
        yield control
    finally:
        control.close()
        helm(site.cluster, "uninstall", NAME, "-n", OWN)
        site.cluster.kubectl("delete", "namespace", OWN, "--wait=false")
        site.cluster.kubectl("delete", "pv", "manager-data", "--wait=false")


@pytest.mark.timeout(800)
def test_a_session_outlives_upgrade_and_rollback_of_its_manager(control: Control) -> None:
    create = ("run", "--name", "stays", "-r", "cpu=1", "-r", "mem=128m", "-c", "x = 'kept'; print(x)", PYTHON_IMAGE)
    look = ("run", "--name", "stays", "-c", "print(x)", PYTHON_IMAGE)
    control.helm("install", NAME, str(CHART), "-f", str(control.values()), "--wait", "--timeout=240s")
    control.bootstrap()
    control.start_shard()
    control.until_it_prints("kept", *create)
    pod = control.cluster.kubectl("get", "pods", "-n", OWN, "-o", "name")

    # Everything that the chart has; names of services are not resolved in this cluster.
    small = {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}}
    endpoint = f"http://{control.address('manager')}:8081"
    control._secret("web", {"BACKEND_WEB_API__ENDPOINT": endpoint})
    control._secret("storage", _secrets("BACKEND_STORAGE_"))
    control._secret("coordinator", _secrets("BACKEND_PROXY_COORDINATOR_"))
    volume = '[storage-proxy]\nnode-id = "i-1"\n[volume.local]\nbackend = "vfs"\npath = "/var/lib/backendai"\n'
    more = control.values(
        web={"environmentSecret": "web", **small},
        storageProxy={"enabled": True, "environmentSecret": "storage", "settings": volume, **small},
        appProxyCoordinator={"enabled": True, "environmentSecret": "coordinator", **small},
    )
    changed = ("--set", 'manager.settings=[logging]\nlevel = "DEBUG"\n')
    control.helm("upgrade", NAME, str(CHART), "-f", str(more), *changed, "--wait", "--timeout=240s")
    assert control.cluster.kubectl("get", "pods", "-n", OWN, "-o", "name") != pod
    control.until_it_prints("kept", *look)

    control.helm("rollback", NAME, "1", "--wait", "--timeout=240s")
    control.until_it_prints("kept", *look)
    names = control.cluster.kubectl("get", "deployments", "-n", OWN, "-o", "name").split()
    assert names == [f"deployment.apps/{NAME}-manager"]

    control.run("rm", "stays")
    control.helm("uninstall", NAME, "--wait", "--timeout=120s")
    selector = f"app.kubernetes.io/instance={NAME}"
    kinds = "deployments,services,configmaps,pods"
    names_left = ("get", kinds, "-n", OWN, "-l", selector, "-o", "name")
    control.cluster.wait_for(lambda: not control.cluster.kubectl(*names_left).strip(), "the end of the daemons")
    assert "data" in control.cluster.kubectl("get", "pvc", "-n", OWN, "-o", "name"), "users' data stay"
