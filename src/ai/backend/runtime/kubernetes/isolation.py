"""Determines with three short pods if the cluster's network plug-in enforces network policies.

Nothing in the API tells: a policy is accepted by every cluster, and has no effect in many.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.node.kube_api.client import KubeApi
from ai.backend.node.kube_api.errors import ObjectConflict
from ai.backend.node.kube_api.objects import Pod
from ai.backend.node.kube_api.resources import PODS
from ai.backend.node.relay.probe import ENFORCED, NOT_ENFORCED
from ai.backend.runtime.kubernetes.manifest import START_COMMAND, pull_policy, security_of_container, security_of_pod
from ai.backend.runtime.kubernetes.records import INSTANCE_LABEL
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

log = logging.getLogger(__name__)
PORT = 6021
PROBE_LABEL = "backend.ai/probe"
PROBE_TIMEOUT_S = 120.0
_CHECK_S = 0.5


async def remove_left_probes(api: KubeApi, settings: KubernetesRuntimeSettings, *, after_s: float) -> None:
    """Removes the pods of a probe whose agent was killed during the probe.

    Those that are there now are left for ``after_s``: a probe of another agent of this installation may be under way,
    and ends within :data:`PROBE_TIMEOUT_S`. Raises BackendError.
    """
    left_pods, _ = await api.list(PODS, settings.namespace, label_selector=f"{PROBE_LABEL}={settings.instance}")
    if not left_pods:
        return
    await asyncio.sleep(after_s)
    for pod in left_pods:
        with suppress(ObjectConflict):  # another one has the name by now
            await api.delete(PODS, pod.metadata.name, settings.namespace, uid=pod.metadata.uid, grace_s=0)


async def are_policies_enforced(api: KubeApi, settings: KubernetesRuntimeSettings) -> bool | None:
    """Returns True if the cluster enforces network policies, None if that cannot be determined.

    A pod under the default policy is then not reached, and another pod is. The pods are removed.
    """
    name = f"probe-{secrets.token_hex(4)}"
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            closed_address = await _run_listener(api, settings, f"{name}-closed", is_closed=True)
            open_address = await _run_listener(api, settings, f"{name}-open", is_closed=False)
            exit_code = await _run_caller(api, settings, name, (closed_address, open_address))
    except (BackendError, TimeoutError) as error:
        log.warning("it cannot be found out whether network policies are enforced: %s", str(error) or "no pod starts")
        return None
    finally:
        await asyncio.shield(_remove_probe_pods(api, settings, name))
    return {ENFORCED: True, NOT_ENFORCED: False}.get(exit_code)


async def _run_listener(api: KubeApi, settings: KubernetesRuntimeSettings, name: str, *, is_closed: bool) -> str:
    """Makes a pod that listens at a port, and returns the pod's address."""
    await api.create(PODS, _probe_pod(settings, name, ("listen", str(PORT)), is_closed=is_closed), settings.namespace)
    return (await _await_pod(api, settings, name, "Running")).status.pod_ip


async def _run_caller(api: KubeApi, settings: KubernetesRuntimeSettings, name: str, addresses: Sequence[str]) -> int:
    await api.create(
        PODS, _probe_pod(settings, name, ("call", str(PORT), *addresses), is_closed=False), settings.namespace
    )
    pod = await _await_pod(api, settings, name, "Succeeded", "Failed")
    terminated_state = pod.status.container_statuses[0].state.terminated if pod.status.container_statuses else None
    if terminated_state is None:
        raise Unavailable(f"the pod {name} did not run: {pod.status.reason}")
    return terminated_state.exit_code


async def _await_pod(api: KubeApi, settings: KubernetesRuntimeSettings, name: str, *accepted_phases: str) -> Pod:
    while True:
        pod = await api.get(PODS, name, settings.namespace)
        if pod.status.phase in accepted_phases:
            return pod
        await asyncio.sleep(_CHECK_S)


async def _remove_probe_pods(api: KubeApi, settings: KubernetesRuntimeSettings, name: str) -> None:
    for suffix in ("", "-closed", "-open"):
        with suppress(BackendError):
            await api.delete(PODS, name + suffix, settings.namespace, grace_s=0)


def _probe_pod(
    settings: KubernetesRuntimeSettings, name: str, arguments: Sequence[str], *, is_closed: bool
) -> dict[str, Any]:
    labels = {PROBE_LABEL: settings.instance}
    if is_closed:
        labels[INSTANCE_LABEL] = settings.instance
    container = {
        "name": "probe",
        "image": settings.runner_image,
        "imagePullPolicy": pull_policy(settings),
        "command": [*START_COMMAND, "probe", *arguments],
        "securityContext": security_of_container(settings, is_main=False),
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "64Mi"}},
    }
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": round(2 * PROBE_TIMEOUT_S),
        "securityContext": security_of_pod(settings),
        "tolerations": [{"key": settings.taint_key, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
    }
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in settings.image_pull_secrets]
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}
