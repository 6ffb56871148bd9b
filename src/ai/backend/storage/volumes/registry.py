"""Loads the backends of volumes and object storages, starts them, and finds them by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Generic, TypeVar

from ai.backend.common.errors import InvalidInput, VolumeNotFound
from ai.backend.common.volume_paths import VFolderId
from ai.backend.plugin import object_storage, volume
from ai.backend.plugin.entries import check_class, installed, load_class
from ai.backend.plugin.object_storage import ObjectStorage
from ai.backend.plugin.volume import AbstractVolume, VolumeContext
from ai.backend.storage.config.settings import VolumeSettings

BackendT = TypeVar("BackendT", bound=AbstractVolume | ObjectStorage)
_BUILT_IN_BACKENDS: Mapping[Any, tuple[str, str, Mapping[str, str]]] = {
    AbstractVolume: (
        "volume",
        volume.ENTRY_POINT_GROUP,
        {"vfs": "ai.backend.volume.vfs.volume:VfsVolume", "xfs": "ai.backend.volume.xfs.volume:XfsVolume"},
    ),
    ObjectStorage: (
        "object storage",
        object_storage.ENTRY_POINT_GROUP,
        {
            "directory": "ai.backend.volume.object.directory:DirectoryStorage",
            "s3": "ai.backend.volume.object.s3:S3Storage",
        },
    ),
}
"""Maps each base class to its name in messages, its entry points, and the built-in backends."""


def load_backend(name: str, base: Any) -> Any:
    """Returns the backend class that a name denotes, which must be a subclass of ``base``.

    The name is that of a built-in backend or of an entry point, or ``package.module:Class``.

    Raises InvalidInput: the backend does not exist; PluginError: it is no subclass of ``base``, or written for another
    ``spi_version``.
    """
    kind_name, entry_point_group, built_in_backends = _BUILT_IN_BACKENDS[base]
    module_name, colon, class_name = built_in_backends.get(name, name).partition(":")
    if not colon:
        if name in installed(entry_point_group):
            return load_class(entry_point_group, name, base)
        backend_names = ", ".join([*built_in_backends, *installed(entry_point_group)])
        raise InvalidInput(f"There is no {kind_name} backend {name!r}; built in are {backend_names}.")
    try:
        backend: Any = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as e:
        raise InvalidInput(f"The {kind_name} backend {name!r} cannot be loaded: {e}.") from None
    return check_class(backend, name, base)


class Backends(Generic[BackendT]):
    """Starts, stops and finds backends by name."""

    def __init__(self, backends: Mapping[str, BackendT]) -> None:
        self._backends = backends
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Starts the backends. Raises InvalidInput if one is unusable."""
        for backend in self:
            self._stack.push_async_callback(backend.stop)
            await backend.start()

    async def stop(self) -> None:
        await self._stack.aclose()

    def __iter__(self) -> Iterator[BackendT]:
        return iter(self._backends.values())

    def get(self, name: str) -> BackendT:
        """Returns a backend. Raises VolumeNotFound."""
        try:
            return self._backends[name]
        except KeyError:
            raise VolumeNotFound(data={"volume": name[:64]}) from None


class Volumes(Backends[AbstractVolume]):
    """Holds the volumes that the settings of the storage proxy name.

    ``owner`` and ``waypoint`` as in :class:`VolumeContext`.
    """

    def __init__(
        self, settings: Mapping[str, VolumeSettings], *, owner: tuple[int, int] | None, waypoint: Callable[[str], None]
    ) -> None:
        context = VolumeContext(owner=owner, waypoint=waypoint)
        super().__init__(
            {
                name: load_backend(volume_settings.backend, AbstractVolume)(
                    name, volume_settings.path.expanduser().absolute(), volume_settings.options, context
                )
                for name, volume_settings in settings.items()
            }
        )

    def locate(self, volume: str, vfid: str) -> tuple[AbstractVolume, VFolderId]:
        """Returns a volume and the parsed id of a folder on it. Raises VolumeNotFound, InvalidInput."""
        return self.get(volume), VFolderId.parse(vfid)
