"""Volumes for claims of a storage class, as a provisioner of local folders makes them: folders of this machine."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tools.kube.cluster import ApiError, Cluster

STORAGE_CLASS = "local-homes"
_PERIOD_S = 0.1


@contextmanager
def provisioned(cluster: Cluster, namespace: str) -> Iterator[Path]:
    """Serves the claims of :data:`STORAGE_CLASS` in a namespace meanwhile; yields the folder of the volumes."""
    top = cluster.folder / "homes"
    top.mkdir(exist_ok=True)
    end = threading.Event()
    thread = threading.Thread(target=_serve, args=(cluster, namespace, top, end), daemon=True)
    thread.start()
    try:
        yield top
    finally:
        end.set()
        thread.join()


def _serve(cluster: Cluster, namespace: str, top: Path, end: threading.Event) -> None:
    while not end.wait(_PERIOD_S):
        with suppress(ApiError, OSError):
            for claim in cluster.request("GET", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims")["items"]:
                if claim["spec"].get("storageClassName") == STORAGE_CLASS and claim["status"].get("phase") == "Pending":
                    _make(cluster, claim, top)
            for volume in cluster.request("GET", "/api/v1/persistentvolumes")["items"]:
                if volume["spec"].get("storageClassName") == STORAGE_CLASS and volume["status"]["phase"] == "Released":
                    cluster.request("DELETE", f"/api/v1/persistentvolumes/{volume['metadata']['name']}")
                    shutil.rmtree(volume["spec"]["hostPath"]["path"], ignore_errors=True)


def _make(cluster: Cluster, claim: dict[str, Any], top: Path) -> None:
    name = f"pv-{claim['metadata']['uid']}"
    folder = top / name
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # such volumes are not given to the pod's group, as those with a file system of their own are
    metadata = claim["metadata"]
    reference = {"namespace": metadata["namespace"], "name": metadata["name"], "uid": metadata["uid"]}
    spec = {
        "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(folder)},
        "storageClassName": STORAGE_CLASS,
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
    }
    body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    with suppress(ApiError):  # it is there already
        cluster.request("POST", "/api/v1/persistentvolumes", body)
