"""A storage proxy as it fetches artifacts, and another installation, without HTTP: the manager's ports in memory.

Knobs: ``down`` makes every call Unavailable, ``down_after`` a scan after so many models; ``gate`` holds imports in the
phase that ``hold`` names; ``failure`` is what an import ends with.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from ai.backend.common.artifacts import ArtifactType, RevisionStatus
from ai.backend.common.errors import ArtifactNotFound, BackendError, StaleAttempt, Unavailable
from ai.backend.common.wire.artifacts import ImportPhase, ImportState, MountState, UploadFile
from ai.backend.infra.http.errors import problem
from ai.backend.manager.artifacts.gateway import Pages, Progress, RemoteRevision, ScanRequest
from ai.backend.manager.artifacts.model import (
    ArtifactFile,
    ArtifactRegistry,
    ArtifactStorage,
    RevisionRow,
    ScannedArtifact,
    ScannedRevision,
)

CONTENT = b"weights of a small model\n"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def model(name: str, *versions: str, digest: str = COMMIT, restricted: bool = False) -> ScannedArtifact:
    return ScannedArtifact(
        type=ArtifactType.MODEL,
        name=name,
        description=f"The model {name}.",
        readme=f"# {name}\n",
        extra={"author": name.partition("/")[0]},
        restricted=restricted,
        revisions=[
            ScannedRevision(version=v, size=len(CONTENT), file_count=1, digest=digest) for v in versions or ("main",)
        ],
    )


@dataclass
class FakeDepot:
    """Implements :class:`ai.backend.manager.artifacts.gateway.ArtifactGateway` below ``root``."""

    root: Path
    models: list[ScannedArtifact] = field(default_factory=list)
    page: int = 2
    down: bool = False
    down_after: int | None = None
    hold: ImportPhase | None = None
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    failure: BackendError | None = None
    begun: list[tuple[UUID, int, str | None]] = field(default_factory=list)
    removed: list[UUID] = field(default_factory=list)
    states: dict[UUID, tuple[int, ImportPhase]] = field(default_factory=dict)

    def _up(self) -> None:
        if self.down:
            raise Unavailable("The storage proxy local does not answer.")

    def _archived(self, row: RevisionRow) -> None:
        self._up()
        if not self.directory(row).exists():
            raise ArtifactNotFound("The revision is not archived here.")

    def directory(self, row: RevisionRow) -> Path:
        return self.root / str(row.revision.id)

    async def storages(self) -> Mapping[str, ArtifactStorage]:
        if self.down:
            return {}
        return {
            host: ArtifactStorage(host=host, backend=kind, capabilities=can, stages=stages)
            for host, kind, can, stages in [
                ("local:volume1", "vfs", ("mount", "presign"), ("download", "verify", "archive")),
                ("local:volume2", "vfs", ("mount", "presign"), ()),
                ("local:bucket", "s3", ("presign",), ()),
                ("far:away", "vfs", ("mount", "presign"), ("download", "verify", "archive")),
            ]
        }

    async def scan(self, proxy: str, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        missing = [name for name in request.names if name not in {m.name for m in self.models}]
        if missing:
            raise ArtifactNotFound(f"{registry.name} has no {', '.join(missing)}.")
        found = [m for m in self.models if not request.names or m.name in request.names]
        found = [m for m in found if (request.search or "") in m.name][: request.limit]
        for start in range(0, len(found), self.page):
            self.down = self.down or start == self.down_after
            self._up()
            yield found[start : start + self.page]

    async def begin_import(self, row: RevisionRow, *, ticket: str | None = None) -> ImportState:
        self._up()
        known, _ = self.states.get(row.revision.id, (0, ImportPhase.DONE))
        if known > row.revision.attempt:
            raise StaleAttempt
        self.begun.append((row.revision.id, row.revision.attempt, ticket))
        if (self.directory(row) / "weights").exists():
            return self._state(row, ImportPhase.DONE)
        return self._state(row, ImportPhase.DOWNLOADING)

    async def upload(self, row: RevisionRow, files: Sequence[UploadFile]) -> Sequence[tuple[str, str]]:
        self._up()
        return [(file.path, f"http://local.example/put/{row.revision.id}/{file.path}") for file in files]

    async def import_state(self, row: RevisionRow) -> ImportState | None:
        self._up()
        attempt, phase = self.states.get(row.revision.id, (-1, ImportPhase.FAILED))
        if attempt != row.revision.attempt:
            return None
        if self.failure is not None:
            return self._state(row, ImportPhase.FAILED, self.failure)
        order = [ImportPhase.DOWNLOADING, ImportPhase.VERIFYING, ImportPhase.ARCHIVING, ImportPhase.DONE]
        if phase is not ImportPhase.DONE and not (phase is self.hold and not self.gate.is_set()):
            phase = order[order.index(phase) + 1]
        if phase is ImportPhase.DONE:
            self.directory(row).mkdir(parents=True, exist_ok=True)
            (self.directory(row) / "weights").write_bytes(CONTENT)
        return self._state(row, phase)

    def _state(self, row: RevisionRow, phase: ImportPhase, error: BackendError | None = None) -> ImportState:
        self.states[row.revision.id] = row.revision.attempt, phase
        is_done = phase is ImportPhase.DONE
        return ImportState(
            revision_id=row.revision.id,
            attempt=row.revision.attempt,
            phase=phase,
            current=len(CONTENT) if is_done else 3,
            total=len(CONTENT),
            files=1,
            storage="volume1",
            size=len(CONTENT) if is_done else None,
            digest=COMMIT,
            error=problem(error) if error is not None else None,
        )

    async def remove(self, row: RevisionRow) -> None:
        self._up()
        self.removed.append(row.revision.id)
        self.states.pop(row.revision.id, None)
        shutil.rmtree(self.directory(row), ignore_errors=True)

    async def files(self, row: RevisionRow) -> Sequence[ArtifactFile]:
        self._archived(row)
        digest = hashlib.sha256(CONTENT).hexdigest()
        return [ArtifactFile(path="weights", size=len(CONTENT), sha256=digest)]

    async def presign(self, row: RevisionRow, path: str) -> str:
        return f"http://local.example/{row.revision.id}/{path}?signature=x"

    async def ticket(self, row: RevisionRow) -> str:
        return f"http://local.example/ticket?token={row.revision.id}"

    async def mount(self, row: RevisionRow) -> MountState:
        self._archived(row)
        return MountState(path=str(self.directory(row)))


@dataclass
class FakeReservoirs:
    """Implements :class:`ai.backend.manager.artifacts.gateway.Reservoirs`."""

    status: RevisionStatus = RevisionStatus.AVAILABLE
    status_info: str | None = None
    models: list[ScannedArtifact] = field(default_factory=list)
    delegated: list[UUID] = field(default_factory=list)
    scans: list[str] = field(default_factory=list)

    async def scan(self, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        yield self.models

    async def delegate_scan(
        self, registry: ArtifactRegistry, remote_registry: str, request: ScanRequest, progress: Progress
    ) -> None:
        self.scans.append(remote_registry)
        await progress(1, 2)

    async def revision(self, row: RevisionRow) -> RemoteRevision:
        return RemoteRevision(status=self.status, status_info=self.status_info)

    async def delegate_import(self, row: RevisionRow) -> None:
        self.delegated.append(row.revision.id)
        self.status = RevisionStatus.PULLING

    async def ticket(self, row: RevisionRow) -> str:
        if self.status is not RevisionStatus.AVAILABLE:
            raise ArtifactNotFound("It is not available.")
        return f"http://far.example/artifacts/manifest?token={row.revision.id}"
