"""Builds the use cases and the loop of artifacts, and holds them in one object."""

from __future__ import annotations

from typing import Any

import msgspec

from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.artifacts.gateway import ArtifactGateway, Reservoirs
from ai.backend.manager.artifacts.imports import ImportService, UploadService
from ai.backend.manager.artifacts.loop import ArtifactLoop, RevisionWriter
from ai.backend.manager.artifacts.model import ArtifactSettings
from ai.backend.manager.artifacts.mounts import ArtifactMounts
from ai.backend.manager.artifacts.registries import RegistryService, ScanService
from ai.backend.manager.artifacts.service import ArtifactService
from ai.backend.manager.artifacts.store import ArtifactStore
from ai.backend.manager.artifacts.user_imports import UserImportService
from ai.backend.manager.tasks.service import TaskService


class Artifacts(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the services of artifacts, and the loop that imports artifacts and removes their files."""

    registries: RegistryService
    scans: ScanService
    service: ArtifactService
    imports: ImportService
    uploads: UploadService
    user_imports: UserImportService
    mounts: ArtifactMounts
    loop: ArtifactLoop

    @classmethod
    def build(
        cls,
        store: ArtifactStore,
        gateway: ArtifactGateway,
        reservoirs: Reservoirs,
        tasks: TaskService,
        settings: ArtifactSettings,
        clock: Clock,
        id_generator: IdGenerator,
    ) -> Artifacts:
        """Builds the services of artifacts from a store, the gateway to storage proxies, and other installations."""
        registries = RegistryService(
            store=store, gateway=gateway, settings=settings, clock=clock, id_generator=id_generator
        )
        writer = RevisionWriter(store, clock)
        service = ArtifactService(store=store, gateway=gateway, registries=registries)
        loop = ArtifactLoop(
            store=store,
            writer=writer,
            gateway=gateway,
            reservoirs=reservoirs,
            registries=registries,
            settings=settings,
            clock=clock,
        )
        imports = ImportService(
            store=store, artifacts=service, registries=registries, writer=writer, loop=loop, clock=clock
        )
        common_arguments: dict[str, Any] = {
            "store": store,
            "gateway": gateway,
            "registries": registries,
            "clock": clock,
        }
        common_arguments["id_generator"] = id_generator
        scans = ScanService(**common_arguments, reservoirs=reservoirs, tasks=tasks)
        return cls(
            registries=registries,
            scans=scans,
            service=service,
            imports=imports,
            uploads=UploadService(**common_arguments, imports=imports),
            user_imports=UserImportService(store=store, scans=scans, imports=imports, tasks=tasks),
            mounts=ArtifactMounts(gateway=gateway, artifacts=service, wait_s=settings.mount_wait_s),
            loop=loop,
        )
