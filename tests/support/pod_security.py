"""Checks a pod against the restricted Pod Security Standard (kubernetes.io/docs, "Pod Security Standards")."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ALLOWED_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_HOST_FIELDS = ("hostNetwork", "hostPID", "hostIPC")


def violations(pod: Mapping[str, Any]) -> list[str]:
    """Returns what the standard forbids; nothing for a restricted pod."""
    return list(_violations(pod["spec"]))


def _violations(spec: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{name} is set" for name in _HOST_FIELDS if spec.get(name))
    for volume in spec.get("volumes") or ():
        yield from (f"volume {volume['name']}: {kind}" for kind in set(volume) - {"name"} - ALLOWED_VOLUMES)
    shared = spec.get("securityContext") or {}
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        own = container.get("securityContext") or {}
        name = container["name"]
        if own.get("privileged"):
            yield f"{name} is privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name} may escalate"
        capabilities = own.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or ()) or set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
            yield f"{name} has capabilities"
        if not own.get("runAsNonRoot", shared.get("runAsNonRoot")):
            yield f"{name} may be root"
        if own.get("runAsUser", shared.get("runAsUser")) == 0:
            yield f"{name} is root"
        seccomp = own.get("seccompProfile") or shared.get("seccompProfile") or {}
        if seccomp.get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name} has no filter of system calls"
        yield from (f"{name} has the host's port" for port in container.get("ports") or () if port.get("hostPort"))
