"""Builds the manifest of the pod that runs a workload.

The pod is pinned to its node, meets the restricted pod security standard, and contains no data of users.

Environment and files of a session go over its relay (:mod:`creation`); the pod names only what the cluster must know.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from ai.backend.common.errors import CreationDenied
from ai.backend.node.linux.open_beneath import BENEATH
from ai.backend.node.workload.file_trees import FORBIDDEN_TARGETS, RUNNER, SU_EXEC
from ai.backend.plugin.accelerator import Mount
from ai.backend.plugin.runtime import HOME, WorkloadSpec
from ai.backend.runtime.kubernetes.claims import counted_resources, devices_for_claim
from ai.backend.runtime.kubernetes.homes import home_name
from ai.backend.runtime.kubernetes.pull_secrets import PULL_SECRET_GATE, needs_pull_secret
from ai.backend.runtime.kubernetes.records import (
    FINALIZER,
    INSTANCE_LABEL,
    MAIN_CONTAINER,
    PREPARE_CONTAINER,
    RECORD_ANNOTATION,
    RELAY_CONTAINER,
    SESSION_LABEL,
    encode_record,
    pod_name,
    record_of,
)
from ai.backend.runtime.kubernetes.settings import KubernetesRuntimeSettings

PLATFORM_FOLDER = "/opt/backend.ai"
CHANNEL_FOLDER = "/run/backend.ai/channel"
TOKEN_FOLDER = "/run/backend.ai/token"
FILES_FOLDER = "/run/backend.ai/files"
HOSTS_FOLDER = "/run/backend.ai/hosts"
TOKEN_AUDIENCE = "backend.ai/relay"
TOKEN_SECONDS = 600
START_COMMAND = (
    f"{PLATFORM_FOLDER}/libc/ld.so",
    "--library-path",
    f"{PLATFORM_FOLDER}/libc:{PLATFORM_FOLDER}/python/lib",
    f"{PLATFORM_FOLDER}/python/bin/python3",
    "-I",
    "-S",
    f"{RUNNER}/relay/main.py",
)
"""Starts a program of ours in any image: with our interpreter, by our loader, whatever C library the image has."""
IDENTITY_ANNOTATION_PREFIX = "backend.ai/etc-"
_IDENTITY_FILES = ("passwd", "group")
_TOOLS_FOLDER = SU_EXEC.rpartition("/")[0]
FILES_PLACE, HOSTS_PLACE = "files", "hosts"
SINGLE_FILES = ("/etc/ssh/ssh_config",)
"""Files that are mounted one by one, as /etc/hosts is, since their directories belong to the image."""
MAX_FILES_BYTES = 4 * 1024 * 1024
_CHANNEL_BYTES = 1024 * 1024
_MIN_SIDECAR_BYTES = 32 * 1024 * 1024
_SANDBOX_SHARED_CONTEXT = {
    "dev.gvisor.spec.mount.channel.share": "pod",
    "dev.gvisor.spec.mount.channel.type": "tmpfs",
    "dev.gvisor.spec.mount.channel.options": "rw",
}
"""The annotations by which gVisor shares the volume of the channel between the containers of a pod. Without them each
container has a view of its own, without the other's sockets (gvisor.dev/docs, "Shared mounts"). Plain files go by the
node, and need no mark.
"""
_GROUP_OWNERSHIP = {"fsGroupChangePolicy": "OnRootMismatch"}
"""The security context that gives new volumes to the session's group. Only volumes of one node (ReadWriteOnce) change,
never the volumes of virtual folders.
"""
_HOSTNAME_PATTERN = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about the cluster that decide how pods are made.

    ``authority`` is the certificate of the relays' listener in PEM. ``has_image_volumes``: the runner's image can be
    mounted. ``device_classes`` are names of DeviceClasses by driver, ``overhead_cores`` what the cluster adds to a pod
    by its runtime class.
    """

    authority: str
    has_image_volumes: bool
    device_classes: Mapping[str, str]
    overhead_cores: Mapping[str, float] = msgspec.field(default_factory=dict)


def compose_pod(
    spec: WorkloadSpec, settings: KubernetesRuntimeSettings, facts: ClusterFacts, node: str
) -> dict[str, Any]:
    """Returns the body of the pod. Raises CreationDenied with the field and key that a pod does not support."""
    if not _HOSTNAME_PATTERN.match(spec.hostname):
        raise CreationDenied(f"{spec.hostname!r} is no host name of a pod", data={"field": "hostname"})
    _refuse_unsupported(spec)
    directories = file_directories(spec.files)
    folder_volumes, folder_mounts = _folder_volumes(spec.config.mounts, settings)
    name = pod_name(spec.key)
    labels = {INSTANCE_LABEL: settings.instance, "app.kubernetes.io/managed-by": "backend.ai"}
    if spec.network is not None:
        labels[SESSION_LABEL] = str(spec.session_id)
    body: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": settings.service_account,
        "restartPolicy": "Never",
        "schedulerName": "default-scheduler",
        "hostname": spec.hostname,
        "terminationGracePeriodSeconds": settings.end_grace_s,
        "affinity": {"nodeAffinity": _pin_to_node(node)},
        "tolerations": _tolerations(settings),
        "securityContext": {
            **security_of_pod(settings),
            **(_GROUP_OWNERSHIP | {"fsGroup": settings.kernel_gid} if settings.home_volume == "claim" else {}),
            **({"supplementalGroups": list(spec.config.extra_gids)} if spec.config.extra_gids else {}),
        },
        "initContainers": _prepare_container(spec, settings, facts),
        "containers": [
            _relay_container(spec, settings, facts, name, bool(directories)),
            _main_container(spec, settings, facts, directories, folder_mounts),
        ],
        "volumes": [*_volumes(spec, settings, facts, directories, node), *folder_volumes],
        **({"runtimeClassName": spec.runtime_class} if spec.runtime_class else {}),
        **({"priorityClassName": settings.priority_class} if settings.priority_class else {}),
    }
    pull_secrets = list(settings.image_pull_secrets)
    if needs_pull_secret(spec, settings):
        pull_secrets.append(name)
        body["schedulingGates"] = [{"name": PULL_SECRET_GATE}]
    if pull_secrets:
        body["imagePullSecrets"] = [{"name": secret} for secret in pull_secrets]
    if devices_for_claim(spec.config.devices):
        body["resourceClaims"] = [{"name": "devices", "resourceClaimName": name}]
    metadata = {
        "name": name,
        "labels": labels,
        "annotations": {
            RECORD_ANNOTATION: encode_record(record_of(spec, node)),
            **_identity_annotations(settings),
            **(_SANDBOX_SHARED_CONTEXT if spec.runtime_class else {}),
            # Nothing but the manager ends a session.
            "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
            "karpenter.sh/do-not-disrupt": "true",
            "sidecar.istio.io/inject": "false",
        },
        "finalizers": [FINALIZER],
    }
    return {"metadata": metadata, "spec": body}


def digest(manifest: Mapping[str, Any]) -> str:
    """Returns a short hash of a manifest, by which two creation requests are compared.

    The created objects are not compared, since admission may change them.
    """
    return sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]


def file_directories(files: Mapping[str, bytes]) -> dict[str, str]:
    """Returns the directories outside of the home into which files are placed, each with its sub-path in a volume.

    Raises CreationDenied for a path that is not plain, for directories that would hide the image's, and for too much.
    """
    directories: dict[str, str] = {}
    for target, content in files.items():
        if not target.startswith("/") or os.path.normpath(target) != target:
            raise CreationDenied(f"{target!r} is not a plain absolute path", data={"field": "files", "key": target})
        if len(content) > MAX_FILES_BYTES:
            raise CreationDenied(f"{target!r} is larger than 4 MiB", data={"field": "files", "key": target})
        if target.startswith(HOME + "/") or target in SINGLE_FILES:
            continue
        top_directory = "/".join(target.split("/")[:3]) if target.count("/") > 2 else target.rpartition("/")[0] or "/"
        if top_directory in (*FORBIDDEN_TARGETS, "/home") or top_directory.startswith(
            tuple(f"{path}/" for path in FORBIDDEN_TARGETS[1:])
        ):
            message = f"{target!r} cannot be placed in a pod: its directory would hide the image's"
            raise CreationDenied(message, data={"field": "files", "key": target})
        directories.setdefault(top_directory, f"d{len(directories)}")
    return directories


def single_files(spec: WorkloadSpec) -> dict[str, str]:
    """Returns the files that are mounted one by one, as a map of paths to file names in the volume ``hosts``."""
    volume_names = {"/etc/hosts": "hosts"} if spec.network is not None else {}
    return volume_names | {target: f"s{number}" for number, target in enumerate(SINGLE_FILES) if target in spec.files}


def _refuse_unsupported(spec: WorkloadSpec) -> None:
    if spec.config.ipc is not None:
        data = {"field": "ipc", "key": spec.config.ipc}
        raise CreationDenied("pods of sessions show no folder of the node as their shared memory", data=data)
    if spec.config.networks:
        network = spec.config.networks[0]
        data = {"field": "networks", "key": network}
        raise CreationDenied(f"the network {network!r} cannot be attached to a pod", data=data)
    if spec.config.extra_syscalls:
        syscall_name = spec.config.extra_syscalls[0]
        message = f"the filter of a pod (RuntimeDefault) cannot be opened for {syscall_name!r}"
        raise CreationDenied(message, data={"field": "extra_syscalls", "key": syscall_name})


def _pin_to_node(node: str) -> dict[str, Any]:
    node_term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [node_term]}}


def _tolerations(settings: KubernetesRuntimeSettings) -> list[dict[str, Any]]:
    return [
        {"key": settings.taint_key, "operator": "Exists", "effect": "NoSchedule"},
        *(
            {
                "key": f"node.kubernetes.io/{node_state}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": settings.lost_node_s,
            }
            for node_state in ("not-ready", "unreachable")
        ),
    ]


def security_of_pod(settings: KubernetesRuntimeSettings) -> dict[str, Any]:
    """Returns the security context of a pod by the restricted pod security standard."""
    return {
        "runAsNonRoot": True,
        "runAsUser": settings.kernel_uid,
        "runAsGroup": settings.kernel_gid,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def security_of_container(settings: KubernetesRuntimeSettings, *, is_main: bool) -> dict[str, Any]:
    """Returns the security context of a container by the restricted standard.

    Only a session's container may write its root file system.
    """
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": not is_main or settings.root_filesystem == "read-only",
    }


def _prepare_container(
    spec: WorkloadSpec, settings: KubernetesRuntimeSettings, facts: ClusterFacts
) -> list[dict[str, Any]]:
    """Returns the init container that copies the runner and creates empty files, in a list.

    It runs before the other containers are made. The list is empty if nothing has to be prepared.
    """
    arguments: list[str] = []
    mounts: list[dict[str, Any]] = []
    if not facts.has_image_volumes:
        arguments += ["--copy", PLATFORM_FOLDER, "/target"]
        mounts.append({"name": "platform", "mountPath": "/target"})
    if names_of_single_files := single_files(spec):
        arguments += [
            argument for name in names_of_single_files.values() for argument in ("--touch", f"{HOSTS_FOLDER}/{name}")
        ]
        mounts.append({"name": "hosts", "mountPath": HOSTS_FOLDER})
    if not arguments:
        return []
    limits = {"cpu": "1", "memory": str(_MIN_SIDECAR_BYTES)}
    return [
        {
            "name": PREPARE_CONTAINER,
            "image": settings.runner_image,
            "imagePullPolicy": pull_policy(settings),
            "command": [*START_COMMAND, "prepare", *arguments],
            "securityContext": security_of_container(settings, is_main=False),
            "resources": {"requests": {"cpu": "0", "memory": "0"}, "limits": limits},
            "volumeMounts": mounts,
        }
    ]


def _relay_container(
    spec: WorkloadSpec, settings: KubernetesRuntimeSettings, facts: ClusterFacts, name: str, has_files: bool
) -> dict[str, Any]:
    folders_by_place: dict[str, str] = {}
    mounts = [
        {"name": "channel", "mountPath": CHANNEL_FOLDER},
        {"name": "token", "mountPath": TOKEN_FOLDER, "readOnly": True},
    ]
    if has_files:
        folders_by_place[FILES_PLACE] = FILES_FOLDER
        mounts.append({"name": "files", "mountPath": FILES_FOLDER})
    if single_files(spec):
        folders_by_place[HOSTS_PLACE] = HOSTS_FOLDER
        mounts.append({"name": "hosts", "mountPath": HOSTS_FOLDER})
    relay_setup = {
        "channel": CHANNEL_FOLDER,
        "token": f"{TOKEN_FOLDER}/token",
        "places": folders_by_place,
        "replay_bytes": settings.replay_bytes,
        "keep_s": settings.end_grace_s,
    }
    environ = {
        "RELAY_TARGET": settings.relay_target,
        "RELAY_AUTHORITY": facts.authority,
        "RELAY_POD": f"{settings.namespace}/{name}",
        "RELAY_SETUP": json.dumps(relay_setup),
    }
    memory = str(settings.relay_memory_bytes)
    return {
        "name": RELAY_CONTAINER,
        "image": settings.runner_image,
        "imagePullPolicy": pull_policy(settings),
        "command": [*START_COMMAND, "pod"],
        "env": [{"name": variable, "value": value} for variable, value in environ.items()],
        "securityContext": security_of_container(settings, is_main=False),
        "resources": {
            "requests": {"cpu": _millicores(settings.relay_cpu), "memory": memory},
            "limits": {"memory": memory},
        },
        "volumeMounts": mounts,
    }


def _main_container(
    spec: WorkloadSpec,
    settings: KubernetesRuntimeSettings,
    facts: ClusterFacts,
    directories: Mapping[str, str],
    folder_mounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    reaper_setup = json.dumps({"channel": CHANNEL_FOLDER, "home": HOME})
    mounts: list[dict[str, Any]] = [
        {"name": "platform", "mountPath": PLATFORM_FOLDER, "readOnly": True, **_sub_path(facts, PLATFORM_FOLDER)},
        {
            "name": "platform",
            "mountPath": _TOOLS_FOLDER,
            "readOnly": True,
            **_sub_path(facts, f"{PLATFORM_FOLDER}/tools"),
        },
        {"name": "channel", "mountPath": CHANNEL_FOLDER, "readOnly": True},
        {"name": "home", "mountPath": HOME},
        {"name": "tmp", "mountPath": "/tmp", "subPath": "tmp"},
        {"name": "tmp", "mountPath": "/var/tmp", "subPath": "var-tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    mounts += [
        {"name": "identity", "mountPath": f"/etc/{name}", "subPath": name, "readOnly": True} for name in _IDENTITY_FILES
    ]
    mounts += [
        {"name": "files", "mountPath": directory, "subPath": sub_path, "readOnly": True}
        for directory, sub_path in directories.items()
    ]
    mounts += [
        {"name": "hosts", "mountPath": target, "subPath": name, "readOnly": True}
        for target, name in single_files(spec).items()
    ]
    container: dict[str, Any] = {
        "name": MAIN_CONTAINER,
        "image": spec.image,
        "imagePullPolicy": pull_policy(settings),
        "command": [*START_COMMAND, "reaper", "--setup", reaper_setup],
        "workingDir": HOME,
        "securityContext": security_of_container(settings, is_main=True),
        "resources": _resources(spec, settings, facts),
        "volumeMounts": [*mounts, *folder_mounts],
    }
    if devices_for_claim(spec.config.devices):
        container["resources"]["claims"] = [{"name": "devices"}]
    return container


def _sub_path(facts: ClusterFacts, path: str) -> dict[str, str]:
    """Returns the ``subPath`` entry of a mount that shows one path of the runner's image from the volume ``platform``.

    The volume is that image, or a copy of its folder.
    """
    if facts.has_image_volumes:
        return {"subPath": path.lstrip("/")}
    path_below = path.removeprefix(PLATFORM_FOLDER).lstrip("/")
    return {"subPath": path_below} if path_below else {}


def _resources(spec: WorkloadSpec, settings: KubernetesRuntimeSettings, facts: ClusterFacts) -> dict[str, Any]:
    """Returns the resource requests and limits of the session's container.

    The pod asks for exactly what the plan gives it, of which the relay and the runtime class have their parts (memory
    of the class is in the plan, and not in ``memory_limit_bytes``): otherwise the scheduler's books would fill before
    the manager's, and the last sessions of a node would never be bound. What is in /dev/shm counts as memory of the
    container, and is added to its limit.
    """
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    cores, memory_bytes = spec.config.cpu_limit, spec.config.memory_limit_bytes
    if cores is not None:
        requests["cpu"] = _millicores(
            max(0.0, cores - settings.relay_cpu - facts.overhead_cores.get(spec.runtime_class, 0.0))
        )
        limits["cpu"] = _millicores(cores)
    if memory_bytes is not None:
        requests["memory"] = str(max(0, memory_bytes - settings.relay_memory_bytes))
        limits["memory"] = str(memory_bytes + shmem_bytes(spec, settings))
    counted_amounts = counted_resources(spec.config.devices)
    return {"requests": {**requests, **counted_amounts}, "limits": {**limits, **counted_amounts}}


def shmem_bytes(spec: WorkloadSpec, settings: KubernetesRuntimeSettings) -> int:
    return spec.shmem_bytes or settings.shmem_bytes


def _millicores(cores: float) -> str:
    return f"{round(cores * 1000)}m"


def pull_policy(settings: KubernetesRuntimeSettings) -> str:
    """Returns the Kubernetes name of the image pull policy that the settings choose."""
    return {"if-not-present": "IfNotPresent", "always": "Always", "never": "Never"}[settings.image_pull_policy]


def _volumes(
    spec: WorkloadSpec,
    settings: KubernetesRuntimeSettings,
    facts: ClusterFacts,
    directories: Mapping[str, str],
    node: str,
) -> list[dict[str, Any]]:
    image = {"reference": settings.runner_image, "pullPolicy": pull_policy(settings)}
    token = {"path": "token", "audience": TOKEN_AUDIENCE, "expirationSeconds": TOKEN_SECONDS}
    volumes: list[dict[str, Any]] = [
        {"name": "platform", **({"image": image} if facts.has_image_volumes else {"emptyDir": {}})},
        {"name": "channel", "emptyDir": {"medium": "Memory", "sizeLimit": str(_CHANNEL_BYTES)}},
        {"name": "token", "projected": {"sources": [{"serviceAccountToken": token}]}},
        {"name": "identity", "downwardAPI": {"items": [_annotation_file(name) for name in _IDENTITY_FILES]}},
        {"name": "home", **_home_volume(spec, settings, node)},
        {"name": "tmp", "emptyDir": {"sizeLimit": str(settings.tmp_bytes)}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(shmem_bytes(spec, settings))}},
    ]
    if directories:
        volumes.append({"name": "files", "emptyDir": {"medium": "Memory", "sizeLimit": str(2 * MAX_FILES_BYTES)}})
    if single_files(spec):
        volumes.append({"name": "hosts", "emptyDir": {"medium": "Memory", "sizeLimit": str(_CHANNEL_BYTES)}})
    return volumes


def _home_volume(spec: WorkloadSpec, settings: KubernetesRuntimeSettings, node: str) -> dict[str, Any]:
    if settings.home_volume == "claim":
        return {"persistentVolumeClaim": {"claimName": home_name(spec.key.kernel_id, node)}}
    return {"emptyDir": {"sizeLimit": str(spec.home_bytes or settings.home_bytes)}}


def _annotation_file(name: str) -> dict[str, Any]:
    """Returns the entry of a volume for a file that has the value of a pod annotation as its content.

    Such files exist before any container is made.
    """
    return {"path": name, "fieldRef": {"fieldPath": f"metadata.annotations['{IDENTITY_ANNOTATION_PREFIX}{name}']"}}


def _identity_annotations(settings: KubernetesRuntimeSettings) -> dict[str, str]:
    """Returns the annotations that hold the /etc/passwd and /etc/group of a pod, which replace the image's files."""
    uid, gid = settings.kernel_uid, settings.kernel_gid
    passwd_text = f"root:x:0:0:root:/root:/bin/sh\nwork:x:{uid}:{gid}:work:{HOME}:/bin/sh\n"
    group_text = f"root:x:0:\nwork:x:{gid}:\n"
    nobody_line = "nobody:x:65534:65534:nobody:/:/bin/false\n"
    return {
        f"{IDENTITY_ANNOTATION_PREFIX}passwd": passwd_text + nobody_line,
        f"{IDENTITY_ANNOTATION_PREFIX}group": group_text + "nogroup:x:65534:\n",
    }


def _folder_volumes(
    mounts: Sequence[Mount], settings: KubernetesRuntimeSettings
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the volumes and the mounts of virtual folders. Mounts of the same claim share one volume."""
    volumes: dict[str, dict[str, Any]] = {}
    volume_mounts: list[dict[str, Any]] = []
    for mount in mounts:
        claim, sub_path = _claim_of(mount, settings)
        name = f"folder-{len(volumes)}"
        volume = volumes.setdefault(claim, {"name": name, "persistentVolumeClaim": {"claimName": claim}})
        volume_mount: dict[str, Any] = {"name": volume["name"], "mountPath": mount.target}
        if sub_path:
            volume_mount["subPath"] = sub_path
        if mount.read_only:
            volume_mount["readOnly"] = True
        volume_mounts.append(volume_mount)
    return list(volumes.values()), volume_mounts


def _claim_of(mount: Mount, settings: KubernetesRuntimeSettings) -> tuple[str, str]:
    """Returns the PersistentVolumeClaim and the sub-path of a mount.

    The kubelet opens sub-paths through no link that leaves them.
    """
    data = {"field": "mounts", "key": mount.target}
    if os.path.normpath(mount.target) != mount.target or mount.target in FORBIDDEN_TARGETS:
        raise CreationDenied(f"nothing can be mounted at {mount.target!r}", data=data)
    source = mount.source.replace(BENEATH, "/")
    if not source.startswith("/") or ".." in source.split("/"):
        raise CreationDenied(f"{mount.source!r} is not a plain absolute path", data=data)
    source = os.path.normpath(source)
    for mount_point, folder in sorted(settings.folders.items(), key=lambda item: -len(item[0])):
        mount_folder = mount_point.rstrip("/")
        if source == mount_folder or source.startswith(f"{mount_folder}/"):
            path_below = source[len(mount_folder) :].lstrip("/")
            return folder.claim, "/".join(part for part in (folder.sub_path.strip("/"), path_below) if part)
    message = f"no PersistentVolumeClaim of this cluster has {mount.source!r} (setting `folders`)"
    raise CreationDenied(message, data=data)
