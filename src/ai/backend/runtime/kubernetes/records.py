"""Reads and names the labels and annotations of pods: the durable record of a workload is its pod.

The name is made of kernel and attempt, so that a creation whose answer was lost finds its pod. Labels hold what
selectors need and nothing that differs between sessions; see decision 0383.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.kube_api.objects import Pod
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec

INSTANCE_LABEL = "backend.ai/instance"
SESSION_LABEL = "backend.ai/session"
"""Only on pods of cluster sessions, whose network policy selects it."""
NODE_ANNOTATION = "backend.ai/node"
"""On homes and networks, which are no part of a pod."""
RECORD_ANNOTATION = "backend.ai/workload"
FINALIZER = "backend.ai/observed"
"""Falls when the end of the workload was acknowledged."""
MAIN_CONTAINER, RELAY_CONTAINER, PREPARE_CONTAINER = "main", "relay", "prepare"
RECORD_VERSION = 1


class PodRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the facts about a workload that the runtime needs after a restart. It has no data of users."""

    kernel_id: UUID
    attempt: int
    session_id: UUID
    node: str
    hostname: str = ""
    network: str = ""
    memory_bytes: int | None = None
    cpu_limit: float | None = None
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    version: int = RECORD_VERSION

    @property
    def key(self) -> WorkloadKey:
        return WorkloadKey(kernel_id=KernelId(self.kernel_id), attempt=self.attempt)

    @property
    def session(self) -> SessionId:
        return SessionId(self.session_id)


def record_of(spec: WorkloadSpec, node: str) -> PodRecord:
    return PodRecord(
        kernel_id=spec.key.kernel_id,
        attempt=spec.key.attempt,
        session_id=spec.session_id,
        node=node,
        hostname=spec.hostname,
        network=spec.network.network_id if spec.network is not None else "",
        memory_bytes=spec.config.memory_limit_bytes,
        cpu_limit=spec.config.cpu_limit,
        labels=dict(spec.labels),
    )


def encode_record(record: PodRecord) -> str:
    return msgspec.json.encode(record).decode()


def read_record(pod: Pod) -> PodRecord | None:
    """Returns the record of a pod; None for a pod that is not ours, or of another version."""
    record_json = pod.metadata.annotations.get(RECORD_ANNOTATION, "")
    try:
        record = msgspec.json.decode(record_json, type=PodRecord)
    except msgspec.MsgspecError:
        return None
    return record if record.version == RECORD_VERSION and pod.metadata.name == pod_name(record.key) else None


def pod_name(key: WorkloadKey) -> str:
    return f"k-{key.kernel_id.hex}-{key.attempt}"


def policy_name(session_id: SessionId) -> str:
    return f"s-{session_id.hex}"
