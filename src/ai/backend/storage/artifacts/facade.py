"""The services of artifacts in one value."""

from __future__ import annotations

from ai.backend.storage.artifacts.archive import Archive
from ai.backend.storage.artifacts.fetcher import Fetcher
from ai.backend.storage.artifacts.imports import Imports
from ai.backend.storage.artifacts.model import Limits
from ai.backend.storage.artifacts.storages import Storages
from ai.backend.storage.config.settings import StorageSettings
from ai.backend.storage.volumes.registry import Volumes


class Artifacts:
    """Builds, starts and stops the services. Raises InvalidInput for wrong storages or stages in the settings."""

    def __init__(self, settings: StorageSettings, volumes: Volumes) -> None:
        own = settings.artifacts
        limits = Limits(files=own.max_files, file_size=own.max_file_size, size=own.max_size)
        self.storages = Storages(settings.object_storage, own, volumes, owner=settings.storage_proxy.owner)
        self.fetcher = Fetcher(own.allowed_hosts)
        self.kept = Archive(self.storages)
        self.imports = Imports(self.storages, self.kept, self.fetcher, limits=limits, parallel=own.parallel)

    async def start(self) -> None:
        """Starts the storages. Raises InvalidInput if one is unusable."""
        await self.storages.start()

    async def stop(self) -> None:
        """Stops all services; the next process resumes imports."""
        await self.imports.stop()
        await self.kept.stop()
        await self.fetcher.stop()
        await self.storages.stop()
