"""The use cases and the loop of artifacts in one value."""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.artifacts.gateway import ArtifactGateway, Reservoirs
from ai.backend.manager.artifacts.imports import ImportService
from ai.backend.manager.artifacts.loop import ArtifactLoop
from ai.backend.manager.artifacts.mounts import ArtifactMounts
from ai.backend.manager.artifacts.registries import RegistryService
from ai.backend.manager.artifacts.scans import ScanService
from ai.backend.manager.artifacts.service import ArtifactService
from ai.backend.manager.artifacts.settings import ArtifactSettings
from ai.backend.manager.artifacts.store import ArtifactStore
from ai.backend.manager.artifacts.uploads import UploadService
from ai.backend.manager.artifacts.writer import RevisionWriter
from ai.backend.manager.tasks.service import TaskService


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """Holds the use cases and the loop that imports and cleans up."""

    registries: RegistryService
    scans: ScanService
    catalogue: ArtifactService
    imports: ImportService
    uploads: UploadService
    mounts: ArtifactMounts
    loop: ArtifactLoop

    @classmethod
    def build(
        cls,
        store: ArtifactStore,
        depot: ArtifactGateway,
        reservoirs: Reservoirs,
        tasks: TaskService,
        settings: ArtifactSettings,
        clock: Clock,
        id_generator: IdGenerator,
    ) -> Artifacts:
        """Builds the use cases on one store, its storage proxies and the other installations."""
        registries = RegistryService(store, depot, settings, clock, id_generator)
        writer = RevisionWriter(store, clock)
        catalogue = ArtifactService(store, depot)
        loop = ArtifactLoop(
            store=store,
            writer=writer,
            depot=depot,
            reservoirs=reservoirs,
            registries=registries,
            settings=settings,
            clock=clock,
        )
        imports = ImportService(
            store=store, catalogue=catalogue, registries=registries, writer=writer, loop=loop, clock=clock
        )
        return cls(
            registries=registries,
            scans=ScanService(store, depot, reservoirs, registries, tasks, clock, id_generator),
            catalogue=catalogue,
            imports=imports,
            uploads=UploadService(
                store=store,
                depot=depot,
                catalogue=catalogue,
                registries=registries,
                imports=imports,
                clock=clock,
                id_generator=id_generator,
            ),
            mounts=ArtifactMounts(depot, catalogue, wait_s=settings.mount_wait_s),
            loop=loop,
        )
