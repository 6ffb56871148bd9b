"""Storages of artifacts, which are object storages and volumes, by name.

On a volume artifacts lie in ``.artifacts`` at its top, beside the quota scopes: see docs/decisions/0094.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack

from ai.backend.common.errors import InvalidInput, VolumeNotFound
from ai.backend.plugin.object_storage import ObjectStorage, StorageContext
from ai.backend.storage.config.settings import ArtifactSettings, ObjectStorageSettings
from ai.backend.storage.volumes.backends import load_class
from ai.backend.storage.volumes.registry import Volumes
from ai.backend.volume.object import DirectoryStorage

ON_VOLUMES = ".artifacts"
_BUILT_IN = {
    "directory": "ai.backend.volume.object:DirectoryStorage",
    "s3": "ai.backend.volume.object:S3Storage",
}


def load_backend(name: str) -> type[ObjectStorage]:
    """Returns a storage class by the name of a built-in backend or ``package.module:Class``.

    Raises:
        InvalidInput: the backend does not exist.
        PluginError: it is no object storage, or for another version of the SPI.
    """
    backend: type[ObjectStorage] = load_class(name, ObjectStorage, _BUILT_IN, kind="object storage")
    return backend


class Storages:
    """Starts and stops object storages, and finds storages by name or stage.

    Raises:
        InvalidInput: a name stands for two storages, or a stage names none.
    """

    def __init__(
        self,
        settings: Mapping[str, ObjectStorageSettings],
        stages: ArtifactSettings,
        volumes: Volumes,
        *,
        owner: tuple[int, int] | None,
    ) -> None:
        context = StorageContext(owner=owner)
        self._storages: dict[str, ObjectStorage] = {
            volume.name: DirectoryStorage(volume.name, {"path": volume.path / ON_VOLUMES}, context)
            for volume in volumes
        }
        self._own = frozenset(settings)
        for name, storage in settings.items():
            if name in self._storages:
                raise InvalidInput(f"{name!r} names both a volume and an object storage.")
            self._storages[name] = load_backend(storage.backend)(name, storage.options, context)
        first = next(iter(self._storages), "")
        archive = stages.archive or first
        self.defaults = {
            "download": stages.download or archive,
            "verify": stages.verify or stages.download or archive,
            "archive": archive,
        }
        self.mount_cache = stages.mount_cache
        for name in {*self.defaults.values(), self.mount_cache} - {""}:
            if name not in self._storages:
                raise InvalidInput(f"artifacts: there is no storage {name!r}.")
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Starts the object storages; volumes need nothing. Raises InvalidInput if one is unusable."""
        for storage in self:
            self._stack.push_async_callback(storage.stop)
            if storage.name in self._own:
                await storage.start()

    async def stop(self) -> None:
        await self._stack.aclose()

    def __iter__(self) -> Iterator[ObjectStorage]:
        return iter(self._storages.values())

    def get(self, name: str) -> ObjectStorage:
        """Returns a storage. Raises VolumeNotFound."""
        try:
            return self._storages[name]
        except KeyError:
            raise VolumeNotFound(
                f"There is no storage {name[:64]!r}." if name else "This proxy has no storage for artifacts.",
                data={"storage": name[:64]},
            ) from None

    def of_stage(self, stage: str, name: str) -> ObjectStorage:
        """Returns the named storage, or the default of a stage. Raises VolumeNotFound."""
        return self.get(name or self.defaults[stage])
