"""The files of the Docker runtime beside the containers, and the labels of its containers.

<state>/workloads/<kernel id>.<attempt>/   0700
    record.json   what the workload is. Written first, and again once its runner was begun
    exit.json     how it ended, as soon as we know
    removing      removal has begun and must be completed
    files/        small files that are mounted
    channel/      shim.sock and left: the runner's side (``plugin.relay.container``), mounted
<state>/homes/<kernel id>/                 /home/work of every attempt
<state>/images/                            what images turned out to be (``images``)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

from ai.backend.common.ids import KernelId, SessionId
from ai.backend.node.workload.directory import StateFolder, WorkloadFolder, read_json, write_json
from ai.backend.plugin.runtime import WorkloadKey

RECORD_VERSION = 1
INSTANCE_LABEL = "ai.backend.instance"
"""The label of the owning agent: two agents on one engine never touch each other's containers."""
KEY_LABEL = "ai.backend.workload"
PURPOSE_LABEL = "ai.backend.purpose"


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerRecord:
    """The durable record of a workload.

    ``begun``: its runner was told to start, so that programs of the user may have run. ``made_home``: the home is not
    that of an earlier attempt. ``cgroups`` are those of the container, known once it runs. ``network`` is
    the session's.
    """

    key: WorkloadKey
    session_id: SessionId
    image: str
    home: str
    memory_bytes: int | None
    cpu_limit: float | None
    home_bytes: int | None
    labels: Mapping[str, str] = field(default_factory=dict)
    made_home: bool = False
    begun: bool = False
    container_id: str = ""
    cgroups: tuple[Mapping[str, Any], ...] = ()
    pid: int = 0
    writable: str = ""
    network: str = ""

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        key = plain.pop("key")
        return {
            **plain,
            "version": RECORD_VERSION,
            "kernel_id": str(key["kernel_id"]),
            "attempt": key["attempt"],
            "session_id": str(self.session_id),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DockerRecord:
        """Decode a record. Raises KeyError, TypeError or ValueError if it is invalid."""
        own = ("image", "home", "memory_bytes", "cpu_limit", "home_bytes", "labels", "made_home", "begun")
        return cls(
            key=WorkloadKey(kernel_id=KernelId(UUID(data["kernel_id"])), attempt=int(data["attempt"])),
            session_id=SessionId(UUID(data["session_id"])),
            **{name: data[name] for name in (*own, "container_id", "pid", "writable")},
            cgroups=tuple(data["cgroups"]),
            network=str(data.get("network", "")),
        )


class DockerFolder(WorkloadFolder):
    """One workload's directory."""

    @property
    def channel(self) -> Path:
        return self.path / "channel"

    def record(self) -> DockerRecord | None:
        content = read_json(self.path / "record.json")
        if content is None or content.get("version") != RECORD_VERSION:
            return None
        try:
            return DockerRecord.from_json(content)
        except (KeyError, TypeError, ValueError):
            return None

    def write_record(self, record: DockerRecord) -> None:
        write_json(self.path / "record.json", record.to_json())


class DockerState(StateFolder):
    """The runtime's root directory."""

    @property
    def instance(self) -> str:
        """The id of this directory, computed from its path, so that it survives the loss of the content."""
        return sha256(str(self.path).encode()).hexdigest()[:16]

    @property
    def images(self) -> Path:
        return self.path / "images"

    def workload(self, key: WorkloadKey) -> DockerFolder:
        return DockerFolder(self.folder(key).path)

    def all_workloads(self) -> list[DockerFolder]:
        return [DockerFolder(folder.path) for folder in self.all_folders()]

    def container_name(self, key: WorkloadKey) -> str:
        return f"backendai-{self.instance[:8]}-{key}"


def key_of(labels: Mapping[str, str]) -> WorkloadKey | None:
    """Return the workload that a container's labels name; None if there is none."""
    kernel_id, _, attempt = labels.get(KEY_LABEL, "").partition(".")
    try:
        return WorkloadKey(kernel_id=KernelId(UUID(kernel_id)), attempt=int(attempt))
    except ValueError:
        return None
