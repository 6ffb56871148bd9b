"""Scans registries and stores their artifacts. Scans are idempotent and may be repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from ai.backend.common.artifacts import ArtifactType, RegistryType
from ai.backend.common.errors import InvalidInput
from ai.backend.common.ids import TaskId
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.artifacts.gateway import ArtifactGateway, Reservoirs, ScanRequest
from ai.backend.manager.artifacts.model import MAX_WORD, ArtifactRegistry, FoundArtifact
from ai.backend.manager.artifacts.registries import RegistryService
from ai.backend.manager.artifacts.store import ArtifactStore
from ai.backend.manager.tasks.service import TaskProgress, TaskService
from ai.backend.plugin.crash_points import crash_point

_AT_ONCE = 100
"""Artifacts per transaction; small, so that other writers need not wait."""


def _is_valid(word: str) -> bool:
    return 1 <= len(word) <= MAX_WORD and word.isprintable()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanService:
    """Scans registries in the background."""

    store: ArtifactStore
    gateway: ArtifactGateway
    reservoirs: Reservoirs
    registries: RegistryService
    tasks: TaskService
    clock: Clock
    id_generator: IdGenerator

    async def scan(self, caller: Caller, ref: str, request: ScanRequest, *, delegate_to: str | None = None) -> TaskId:
        """Starts a scan as a background task. ``delegate_to``: a registry of the other installation that it scans first
        (spec 03-17, "Delegate Scan"). Raises InvalidInput: a hub cannot scan for us."""
        require(caller, Operation.CHANGE_ARTIFACTS)
        registry = await self.registries.find(ref)
        if delegate_to is not None and registry.type is not RegistryType.RESERVOIR:
            raise InvalidInput(
                f"Only another installation can scan for us, and {registry.name!r} is of type {registry.type.value}.",
                data={"registry": "no reservoir"},
            )
        if registry.type is RegistryType.LOCAL:
            raise InvalidInput(f"{registry.name!r} has what was uploaded; there is nothing to scan.")
        if registry.type is RegistryType.HUGGINGFACE:
            await self.registries.stages(registry)  # fail now rather than in the background

        async def work(progress: TaskProgress) -> str:
            if delegate_to is not None:

                async def report(done: float, total: float) -> None:
                    await progress.update(done, total, f"{registry.name} scans {delegate_to}")

                await self.reservoirs.delegate_scan(registry, delegate_to, request, report)
            return await self._record(registry, request, progress)

        return await self.tasks.start(caller, f"scan the artifact registry {registry.name}", work)

    async def _pages(self, registry: ArtifactRegistry, request: ScanRequest) -> AsyncIterator[Sequence[FoundArtifact]]:
        if registry.type is RegistryType.RESERVOIR:
            source = self.reservoirs.scan(registry, request)
        else:
            proxy = (await self.registries.stages(registry)).proxy
            source = self.gateway.scan(proxy, registry, request)
        async for page in source:
            yield page

    async def _record(self, registry: ArtifactRegistry, request: ScanRequest, progress: TaskProgress) -> str:
        seen: set[tuple[ArtifactType, str, str | None]] = set()
        new_artifacts = new_revisions = 0
        async for batch in self._pages(registry, request):
            page = [
                replace(artifact, revisions=[r for r in artifact.revisions if _is_valid(r.version)])
                for artifact in batch
                if _is_valid(artifact.name)
            ]
            for start in range(0, len(page), _AT_ONCE):
                chunk = page[start : start + _AT_ONCE]
                now, new_id = self.clock.now(), self.id_generator.uuid
                artifact_count, revision_count = await self.store.record(registry.id, chunk, at=now, new_id=new_id)
                crash_point("after-artifact-scan-page")
                new_artifacts, new_revisions = new_artifacts + artifact_count, new_revisions + revision_count
            # Artifacts of a hub come twice, listed and then in detail, and count once.
            seen |= {(a.type, a.name, version) for a in page for version in (None, *(r.version for r in a.revisions))}
            artifacts = sum(version is None for _, _, version in seen)
            await progress.update(artifacts, 0, f"scanning {registry.name}")
        artifacts = sum(version is None for _, _, version in seen)
        return (
            f"{registry.name} has {artifacts} artifacts with {len(seen) - artifacts} revisions; "
            f"{new_artifacts} artifacts and {new_revisions} revisions are new"
        )
