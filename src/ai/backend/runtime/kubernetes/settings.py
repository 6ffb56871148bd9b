"""Settings of the Kubernetes runtime, the ``[runtime]`` part of a cluster agent's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from ai.backend.plugin.settings import Settings

MIB = 1024 * 1024
GIB = 1024 * MIB
_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"


class FolderClaim(Settings):
    """A volume of virtual folders as pods mount it."""

    claim: str = Field(
        pattern=_NAME_PATTERN, description="Name of the PersistentVolumeClaim in the namespace of sessions."
    )
    sub_path: str = Field("", description="Folder of the claim's volume that `path` is; default: its top.")


class KubernetesRuntimeSettings(Settings):
    """The settings of the Kubernetes runtime."""

    namespace: str = Field("backendai-sessions", pattern=_NAME_PATTERN, description="Namespace of the sessions' pods.")
    instance: str = Field(
        "default",
        pattern=_NAME_PATTERN,
        description="Name of this installation: two in one cluster never touch each other's pods.",
    )
    service_account: str = Field(
        "default", description="Service account of sessions' pods. It needs no permission; its tokens name the pods."
    )
    runner_image: str = Field(description="Image with the runner, the relay and their interpreter (deploy/runner).")
    runner_volume: Literal["auto", "image", "copy"] = Field(
        "auto",
        description="How the runner gets into sessions: as an image volume, or copied by an init container; `auto` is"
        " the former where the cluster accepts it.",
    )
    relay_listen: str = Field("0.0.0.0:6020", description="Address and port at which this agent awaits relays of pods.")
    relay_target: str = Field(description="Host and port at which pods reach this agent: of its Service.")
    relay_certificate: Path | None = Field(
        None,
        description="Certificate of the relays' listener in PEM, for the name `relay.backend.ai`; default: one is made"
        " and kept in the data directory. All agents of a cluster share one.",
    )
    relay_key: Path | None = Field(None, description="Its key in PEM.")
    relay_memory_bytes: int = Field(64 * MIB, ge=32 * MIB, description="Memory limit of the relay of one session.")
    relay_cpu: float = Field(0.01, ge=0, description="Cores that are requested for the relay of one session.")
    kernel_uid: int = Field(59500, ge=1, le=2**31 - 2, description="User id of all sessions; never 0.")
    kernel_gid: int = Field(59500, ge=1, le=2**31 - 2, description="Group id likewise.")
    tmp_bytes: int = Field(1 * GIB, ge=MIB, description="Size of the private /tmp, on the node's disk.")
    shmem_bytes: int = Field(64 * MIB, ge=MIB, description="Size of /dev/shm where the workload asks for none.")
    home_bytes: int = Field(10 * GIB, ge=MIB, description="Size of a home where the workload asks for none.")
    home_volume: Literal["empty-dir", "claim"] = Field(
        "empty-dir",
        description="Where homes are: `empty-dir` on the disk of the node, which ends with the pod; `claim` is a"
        " PersistentVolumeClaim for each kernel, with which a home outlives a restart.",
    )
    home_storage_class: str = Field(
        "", description="Storage class of the claims of homes; default: the cluster's default class."
    )
    replay_bytes: int = Field(8 * MIB, ge=65536, description="Unacknowledged runner messages kept for the agent.")
    root_filesystem: Literal["read-only", "writable"] = Field(
        "read-only", description="Whether a session may write outside of its home and /tmp."
    )
    schedule_timeout_s: float = Field(
        10.0, gt=0, description="How long the cluster may take to bind a pod; then its session is planned anew."
    )
    pull_timeout_s: float = Field(900.0, gt=0, description="How long a node may take to pull an image.")
    start_timeout_s: float = Field(
        60.0, gt=0, description="How long the processes of a bound pod may take to appear, beside the pull."
    )
    relay_timeout_s: float = Field(
        20.0, gt=0, description="How long a call waits for the relay of a session to dial in after a failure."
    )
    end_grace_s: int = Field(
        120,
        ge=1,
        description="How long the relay of an ended session keeps what no agent has read yet, unless it is removed.",
    )
    stats_interval_s: float = Field(10.0, ge=1.0, description="How often sessions report what they use.")
    lost_node_s: int = Field(
        300, ge=0, description="How long pods stay on a node that is not reachable before the cluster deletes them."
    )
    removed_node_s: int = Field(
        24 * 3600,
        ge=0,
        description="How long homes and pods of sessions stay whose node was removed from the cluster.",
    )
    image_pull_policy: Literal["if-not-present", "always", "never"] = Field(
        "if-not-present", description="When nodes pull images of sessions."
    )
    image_pull_secrets: tuple[str, ...] = Field(
        (), description="Names of Secrets with registry credentials in the namespace of sessions."
    )
    registry_credentials: Literal["pull-secret", "none"] = Field(
        "pull-secret",
        description="How kubelets get the credentials that the manager has for the registry of a session's image: by a"
        " Secret of the session's pod, which ends with the pod; or not at all.",
    )
    priority_class: str = Field(
        "", description="Priority class of sessions' pods; one with `preemptionPolicy: Never` is advised."
    )
    taint_key: str = Field(
        "backend.ai/dedicated", description="Taint of nodes that are for sessions alone, which the pods tolerate."
    )
    folders: dict[str, FolderClaim] = Field(
        {}, description="Volumes of virtual folders, by their mount point as the storage proxy and manager name it."
    )
    device_classes: dict[str, str] = Field(
        {}, description="DeviceClass of each driver of devices; default: one of the driver's own name."
    )
    network_policy: Literal["default-deny", "none"] = Field(
        "default-deny",
        description="Whether the agent keeps a policy in the namespace that lets sessions reach the agents, names and"
        " `egress` only.",
    )
    network_probe: bool = Field(
        True,
        description="Whether three short pods find out, after each start, if the cluster enforces network policies.",
    )
    egress: tuple[str, ...] = Field(
        ("0.0.0.0/0",), description="Networks that sessions may reach, beside the addresses of cloud metadata."
    )
    blocked_egress: tuple[str, ...] = Field(
        ("169.254.0.0/16",), description="Networks that they may not reach within those."
    )
