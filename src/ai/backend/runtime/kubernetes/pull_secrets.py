"""Makes the Secret by which the kubelet pulls a session's image from a registry that asks for a login.

The pod waits behind a scheduling gate until its Secret is there, and owns it: so the cluster removes it with the pod,
and the agent needs no right but to create.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from ai.backend.common.images import registry_of
from ai.backend.node.kube_api.objects import Pod
from ai.backend.plugin.runtime import ImageRequest, WorkloadSpec
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

PULL_SECRET_GATE = "backend.ai/pull-secret"
_SECRET_TYPE = "kubernetes.io/dockerconfigjson"
_SECRET_KEY = ".dockerconfigjson"


def needs_pull_secret(spec: WorkloadSpec, settings: KubernetesRuntimeSettings) -> bool:
    """Returns True if the kubelet may have to log in to the registry of a workload's image."""
    request = spec.image_request
    uses_pull_secrets = settings.registry_credentials == "pull-secret" and settings.image_pull_policy != "never"
    return uses_pull_secrets and request is not None and bool(request.username) and bool(registry_of(request.name))


def has_pull_secret_gate(pod: Pod) -> bool:
    """Returns True if a pod waits for its Secret."""
    return any(gate.name == PULL_SECRET_GATE for gate in pod.spec.scheduling_gates)


def open_gate(pod: Pod) -> dict[str, Any]:
    """Returns the strategic merge patch that removes the scheduling gate of pull secrets from a pod.

    Gates of other programs, such as Kueue, stay.
    """
    gate = {"$patch": "delete", "name": PULL_SECRET_GATE}
    return {"metadata": {"uid": pod.metadata.uid}, "spec": {"schedulingGates": [gate]}}


def compose_pull_secret(pod: Pod, request: ImageRequest, instance: str) -> dict[str, Any]:
    """Returns the Secret of a pod, with the login to the registry of its image and of no other."""
    login = {"username": request.username, "password": request.password}
    content = json.dumps({"auths": {registry_of(request.name): login}}).encode()
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
    return {
        "metadata": {
            "name": pod.metadata.name,
            "labels": {INSTANCE_LABEL: instance, "app.kubernetes.io/managed-by": "backend.ai"},
            "ownerReferences": [owner],
        },
        "type": _SECRET_TYPE,
        "immutable": True,
        "data": {_SECRET_KEY: base64.b64encode(content).decode()},
    }
