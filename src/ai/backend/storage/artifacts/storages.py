"""Storages of artifacts, which are object storages and volumes, by name.

On a volume artifacts lie in ``.artifacts`` at its top, beside the quota scopes: see docs/decisions/0094.
"""

from __future__ import annotations

from ai.backend.common.errors import InvalidInput, VolumeNotFound
from ai.backend.plugin.object_storage import ObjectStorage, StorageContext
from ai.backend.storage.config.settings import StorageSettings
from ai.backend.storage.volumes.registry import Backends, Volumes, load_backend
from ai.backend.volume.object.directory import DirectoryStorage

ON_VOLUMES = ".artifacts"


class Storages(Backends[ObjectStorage]):
    """Starts and stops object storages, and finds storages by name or stage. Raises InvalidInput: a name stands for two
    storages, or a stage names none."""

    def __init__(self, settings: StorageSettings, volumes: Volumes) -> None:
        context = StorageContext(owner=settings.storage_proxy.owner)
        storages: dict[str, ObjectStorage] = {
            volume.name: DirectoryStorage(volume.name, {"path": volume.path / ON_VOLUMES}, context)
            for volume in volumes
        }
        self._own = settings.object_storage
        for name, storage in self._own.items():
            if name in storages:
                raise InvalidInput(f"{name!r} names both a volume and an object storage.")
            storages[name] = load_backend(storage.backend, ObjectStorage)(name, storage.options, context)
        super().__init__(storages)
        stages = settings.artifacts
        archive = stages.archive or next(iter(storages), "")
        download = stages.download or archive
        self.defaults = {"download": download, "verify": stages.verify or download, "archive": archive}
        self.mount_cache = stages.mount_cache
        for name in {*self.defaults.values(), self.mount_cache} - {""}:
            if name not in storages:
                raise InvalidInput(f"artifacts: there is no storage {name!r}.")

    async def start(self) -> None:
        """Starts the object storages; volumes need nothing. Raises InvalidInput if one is unusable."""
        for storage in self:
            self._stack.push_async_callback(storage.stop)
            if storage.name in self._own:
                await storage.start()

    def get(self, name: str) -> ObjectStorage:
        """Returns a storage. Raises VolumeNotFound."""
        try:
            return self._backends[name]
        except KeyError:
            raise VolumeNotFound(
                f"There is no storage {name[:64]!r}." if name else "This proxy has no storage for artifacts.",
                data={"storage": name[:64]},
            ) from None

    def of_stage(self, stage: str, name: str) -> ObjectStorage:
        """Returns the named storage, or the default of a stage. Raises VolumeNotFound."""
        return self.get(name or self.defaults[stage])
