"""A namespace of sessions on the cluster of the tests, and runtimes in it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.kube.cluster import NODE_NAME, Cluster
from tools.kube.daemon import SLOWNESS
from tools.kube.images import pack_image
from tools.runner_image import RUNNER_IMAGE, write_runner_image

from ai.backend.infra.retry import Backoff
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.configuration import read_kubeconfig
from ai.backend.runtime.kubernetes.cluster import ClusterConnection
from ai.backend.runtime.kubernetes.runtime import KubernetesRuntime
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings
from tests.support import docker_engine

PYTHON_IMAGE = "docker.io/base/python:1"
NAMESPACE = "sessions"
ARCHIVES = ("runner.tar", "python.tar")
IMAGES_VARIABLE = "BACKENDAI_KUBE_IMAGES"
"""Names a folder with the images, where they were made on a faster machine."""


@dataclass
class OpenRuntime:
    """A runtime with what it is made of."""

    settings: KubernetesRuntimeSettings
    cluster: Cluster
    directory: Path
    api: KubeApi
    connection: ClusterConnection
    runtime: KubernetesRuntime

    def again(self) -> OpenRuntime:
        """What the next agent would make; at another port where this one has not ended yet."""
        host, _, port = self.settings.relay_listen.rpartition(":")
        listen = self.settings.relay_listen if is_free(int(port)) else f"{host}:{free_port()}"
        settings = self.settings.model_copy(update={"relay_listen": listen})
        return open_runtime(settings, self.cluster, self.directory)


def open_runtime(settings: KubernetesRuntimeSettings, cluster: Cluster, directory: Path) -> OpenRuntime:
    api = KubeApi(read_kubeconfig(cluster.kubeconfig), lambda: Backoff(0.1, 2.0, jitter=0.5))
    connection = ClusterConnection(settings, api, directory)
    return OpenRuntime(settings, cluster, directory, api, connection, KubernetesRuntime(connection, NODE_NAME))


@dataclass
class Site:
    """A cluster with the images, and a namespace that takes restricted pods only."""

    cluster: Cluster

    def prepare(self, folder: Path) -> None:
        if (made := os.environ.get(IMAGES_VARIABLE)) is not None:
            archives = [Path(made) / name for name in ARCHIVES]
        else:
            archives = write_archives(folder)
        for archive in archives:
            self.cluster.import_image(archive)
            if made is None:
                archive.unlink()
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        self.cluster.wait_for(lambda: bool(self.cluster.request("GET", account)), "the namespace's account")

    def settings(self, **changes: Any) -> KubernetesRuntimeSettings:
        port = free_port()
        values = {
            "namespace": NAMESPACE,
            "runner_image": RUNNER_IMAGE,
            "relay_listen": f"0.0.0.0:{port}",
            "relay_target": f"{self.cluster.host_address}:{port}",
            "image_pull_policy": "never",
            "stats_interval_s": 1.0,
            "network_probe": False,
            "schedule_timeout_s": 10.0 * SLOWNESS,
            "start_timeout_s": 60.0 * SLOWNESS,
            "relay_timeout_s": 20.0 * SLOWNESS,
        }
        return KubernetesRuntimeSettings(**{**values, **changes})

    def open(self, directory: Path, **changes: Any) -> OpenRuntime:
        return open_runtime(self.settings(**changes), self.cluster, directory)

    def pods(self) -> list[dict[str, Any]]:
        listed: dict[str, Any] = self.cluster.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")
        pods: list[dict[str, Any]] = listed["items"]
        return pods

    def require_nothing_left(self, timeout_s: float = 30.0) -> None:
        """Fails if a pod stays that was removed."""
        deadline = time.monotonic() + timeout_s * SLOWNESS
        while (left := self.pods()) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left, json.dumps([pod["metadata"]["name"] for pod in left])


def write_archives(folder: Path) -> list[Path]:
    """Makes the images of the runner and of the sessions."""
    runner, python = (folder / name for name in ARCHIVES)
    write_runner_image(runner)
    pack_image(python, PYTHON_IMAGE, docker_engine.archive(docker_engine.PYTHON_IMAGE))
    return [runner, python]


def is_free(port: int) -> bool:
    try:
        socket.create_server(("0.0.0.0", port)).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("0.0.0.0", 0)) as server:
        return int(server.getsockname()[1])


if __name__ == "__main__":
    write_archives(Path(sys.argv[1]))
