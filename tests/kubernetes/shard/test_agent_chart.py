"""An installation of the agent's chart: its session goes on through upgrade, rollback and removal of the shard."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tools.runner_image import RUNNER_IMAGE

from ai.backend.infra.rpc.zmq.keys import load_or_generate_keypair
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL
from tests.kubernetes.runtime.sites import NAMESPACE, PYTHON_IMAGE, Site
from tests.kubernetes.shard.installation import CHART, Installation, helm
from tests.support.daemon_image import IMAGE, write_daemon_image
from tests.support.service_names import resolved

pytestmark = [pytest.mark.slow, pytest.mark.needs("kubernetes")]
CLUSTER, RELEASE, SHARD = "upgraded", "live", "live-shard"
UID = 59501
RUN = ("run", "--name", "stays", "-r", "cpu=1", "-r", "mem=128m")
SETTINGS = f'instance = "{CLUSTER}"\nnetwork-probe = false\nnetwork-policy = "none"\nimage-pull-policy = "never"\n'
"""Further lines of the table `[runtime]`."""


class Shard:
    """A manager beside the cluster, and what the chart needs in a namespace of its own."""

    def __init__(self, site: Site, root: Path) -> None:
        self.cluster = site.cluster
        self.site = site
        self.installation = Installation(root, site, CLUSTER)
        self.namespace = self.installation.namespace
        archive = root / "daemons.tar"
        write_daemon_image(archive)
        self.cluster.import_image(archive)
        archive.unlink()
        key = base64.b64encode((root / "shard.key").read_bytes()).decode()
        metadata = {"name": "shard-key", "namespace": self.namespace}
        self.cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"agent.key": key}})
        self._volume()
        self.values = root / "values.json"

    def _volume(self) -> None:
        """Makes the claim of the shard's records, a folder of this machine."""
        folder = self.cluster.folder / "shard-records"
        folder.mkdir(mode=0o700, exist_ok=True)
        os.chown(folder, UID, UID)
        size = {"storage": "1Gi"}
        modes: dict[str, Any] = {"accessModes": ["ReadWriteMany"]}
        volume = {"capacity": size, "hostPath": {"path": str(folder)}, **modes}
        claim = {"resources": {"requests": size}, "storageClassName": "", "volumeName": "shard-records", **modes}
        metadata = {"name": "records", "namespace": self.namespace}
        self.cluster.apply(
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "shard-records"}, "spec": volume},
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": claim},
        )

    def install(self) -> None:
        self._write_values(SETTINGS)
        self.helm("install", RELEASE, str(CHART), "-f", str(self.values), "--wait", "--timeout=240s")

    def upgrade(self) -> None:
        """Changes the settings, and the number of processes."""
        self._write_values(f'{SETTINGS}[logging]\nlevel = "DEBUG"\n')
        words = ("upgrade", RELEASE, str(CHART), "-f", str(self.values), "--set=replicas=1")
        self.helm(*words, "--wait", "--timeout=240s")

    def roll_back(self) -> None:
        self.helm("rollback", RELEASE, "1", "--wait", "--timeout=240s")

    def helm(self, *words: str) -> None:
        done = helm(self.cluster, *words, "-n", self.namespace)
        assert done.returncode == 0, f"{words}: {done.stderr}\n{self.what_happens()}"

    @property
    def service(self) -> str:
        """The name by which relays of pods dial the shard."""
        return f"{SHARD}.{self.namespace}.svc"

    def service_address(self) -> str:
        service = self.cluster.request("GET", f"/api/v1/namespaces/{self.namespace}/services/{SHARD}")
        return str(service["spec"]["clusterIP"])

    def _write_values(self, settings: str) -> None:
        """Writes the values of this installation; ``settings`` are lines of agent.toml."""
        installation = self.installation
        manager_key = load_or_generate_keypair(installation.root / "manager.key_secret").public
        values = {
            "image": IMAGE,
            "runnerImage": RUNNER_IMAGE,
            "cluster": CLUSTER,
            "nodes": {"pool": "shared"},
            "managers": {
                "address": f"tcp://{self.cluster.host_address}:{installation.link_port}",
                "publicKey": manager_key,
            },
            "keypairSecret": "shard-key",
            "sessions": {"namespace": NAMESPACE},
            "records": {"existingClaim": "records"},
            "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}},
            "extraSettings": settings,
        }
        self.values.write_text(json.dumps(values))

    def pods(self) -> set[str]:
        listed = self.cluster.kubectl("get", "pods", "-n", self.namespace, "-o", "name")
        return set(listed.split())

    def is_replaced(self, earlier: set[str]) -> bool:
        """Returns True once none of the earlier processes is there, and one that is serves."""
        ready = self.cluster.kubectl(
            *("get", "endpoints", SHARD, "-n", self.namespace),
            *("-o", "jsonpath={.subsets[*].addresses[*].targetRef.name}"),
        )
        return bool(ready.strip()) and not (self.pods() & earlier)

    def session_pods(self) -> dict[str, str]:
        """Returns the uids of the pods of this installation's sessions by name."""
        mine = {INSTANCE_LABEL: CLUSTER}.items()
        return {
            pod["metadata"]["name"]: pod["metadata"]["uid"]
            for pod in self.site.pods()
            if mine <= pod["metadata"]["labels"].items()
        }

    def what_happens(self) -> str:
        texts = [self.cluster.kubectl("get", "events", "-n", self.namespace), self.installation.log()]
        for pod in self.pods():
            words = ("logs", "-n", self.namespace, pod, "--all-containers", "--tail=30", "--ignore-errors")
            texts.append(f"{pod}\n{self.cluster.kubectl(*words)}")
        return "\n".join(texts)[-12_000:]

    def until_it_prints(self, text: str, *words: str) -> None:
        """Repeats a user's command while the shard and its link come back."""

        def prints() -> bool:
            return text in self.installation.attempt(*words, who="user")[1]

        self.cluster.wait_for(prints, f"{words} to print {text!r}: {self.what_happens()}", 120)


@contextmanager
def shard_of_chart(site: Site, root: Path) -> Iterator[Shard]:
    """Runs the manager until the end of the block; then nothing of the release stays in the cluster."""
    shard = Shard(site, root)
    try:
        shard.installation.start()
        yield shard
    finally:
        shard.installation.stop()
        helm(site.cluster, "uninstall", RELEASE, "-n", shard.namespace)
        site.cluster.kubectl("delete", "namespace", shard.namespace, "--wait=false")
        site.cluster.kubectl("delete", "pv", "shard-records", "--wait=false")


@pytest.mark.timeout(800)
def test_a_session_outlives_upgrade_rollback_and_removal_of_its_shard(site: Site, tmp_path: Path) -> None:
    names: dict[str, str] = {}
    with shard_of_chart(site, tmp_path) as shard, resolved(site.cluster, names):
        session = _started(shard, names)
        look = ("run", "--name", "stays", "-c", "print(x)", PYTHON_IMAGE)
        for change in (shard.upgrade, shard.roll_back):
            before = shard.pods()
            change()
            site.cluster.wait_for(lambda: shard.is_replaced(before), "the processes of the next revision")  # noqa: B023  # called within this round of the loop
            shard.until_it_prints("kept", *look)
            assert shard.session_pods() == session

        shard.helm("uninstall", RELEASE, "--wait", "--timeout=120s")
        site.cluster.wait_for(lambda: not shard.pods(), "the end of the processes")
        assert shard.session_pods() == session, "sessions go on without their shard"
        claims = site.cluster.kubectl("get", "pvc", "-n", shard.namespace, "-o", "name")
        assert "records" in claims, "their records stay"

        shard.install()
        names[shard.service] = shard.service_address()
        shard.until_it_prints("kept", *look)
        assert shard.session_pods() == session, "the next installation has them again"
        shard.installation.run("rm", "stays", who="user")
        site.cluster.wait_for(lambda: not shard.session_pods(), f"the end of the session: {shard.what_happens()}")


def _started(shard: Shard, names: dict[str, str]) -> dict[str, str]:
    """Installs the chart and starts a session with it; returns the session's pod."""
    shard.install()
    names[shard.service] = shard.service_address()
    is_alive = "SELECT count(*) FROM agents WHERE status = 'ALIVE' AND images LIKE '%base/python%'"
    try:
        shard.installation.until(lambda: shard.installation.rows(is_alive) == [(1,)], "the agent of the node")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{shard.what_happens()}") from error
    shard.until_it_prints("kept", *RUN, "-c", "x = 'kept'; print(x)", PYTHON_IMAGE)
    session = shard.session_pods()
    assert len(session) == 1
    return session
