"""Stores the files of the Docker runtime beside the containers, and names the labels of its containers.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from uuid import UUID

from ai.backend.common.ids import KernelId
from ai.backend.node.workload.directory import StateFolder, WorkloadFolder
from ai.backend.plugin.runtime import WorkloadKey
from ai.backend.runtime.workload import WorkloadRecord, read_record, write_record

INSTANCE_LABEL = "ai.backend.instance"
"""The label of the owning agent: two agents on one engine never touch each other's containers."""
KEY_LABEL = "ai.backend.workload"
PURPOSE_LABEL = "ai.backend.purpose"


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerRecord(WorkloadRecord):
    """Holds the facts about a workload that the Docker runtime stores on disk.

    ``begun``: the workload's runner was told to start, so that the user's programs may have run. ``cgroups`` are known
    once the workload runs. ``network`` is the session's.
    """

    begun: bool = False
    container_id: str = ""
    pid: int = 0
    writable: str = ""
    network: str = ""

    def own_directories(self) -> Sequence[str]:
        return (self.home, self.writable) if self.writable else (self.home,)


class DockerFolder(WorkloadFolder, frozen=True):
    """Reads and writes the files of a workload's directory."""

    @property
    def channel(self) -> Path:
        return self.path / "channel"

    def record(self) -> DockerRecord | None:
        return read_record(self.path, DockerRecord)

    def write_record(self, record: DockerRecord) -> None:
        write_record(self.path, record)


class DockerState(StateFolder, frozen=True):
    """Finds the paths in the Docker runtime's state directory."""

    @property
    def instance(self) -> str:
        """The id of the runtime's state directory, computed from its path alone.

        The id is the same after the content of the directory is lost.
        """
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
    """Returns the workload that a container's labels name; None if the labels name no workload."""
    kernel_id, _, attempt = labels.get(KEY_LABEL, "").partition(".")
    try:
        return WorkloadKey(kernel_id=KernelId(UUID(kernel_id)), attempt=int(attempt))
    except ValueError:
        return None
