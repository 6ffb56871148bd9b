"""Starts the volumes of this proxy and finds them by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack

from ai.backend.common.errors import VolumeNotFound
from ai.backend.common.volume_paths import VFolderId
from ai.backend.plugin.volume import AbstractVolume, VolumeContext
from ai.backend.storage.config.settings import VolumeSettings
from ai.backend.storage.volumes.backends import load_class

_BUILT_IN = {
    "vfs": "ai.backend.volume.vfs:VfsVolume",
    "xfs": "ai.backend.volume.xfs:XfsVolume",
}


def load_backend(name: str) -> type[AbstractVolume]:
    """Returns a volume class by the name of a built-in backend or ``package.module:Class``.

    Raises:
        InvalidInput: the backend does not exist.
        PluginError: it is no volume class, or for another version of the SPI.
    """
    backend: type[AbstractVolume] = load_class(name, AbstractVolume, _BUILT_IN, kind="volume")
    return backend


class Volumes:
    """Starts, stops and finds volumes."""

    def __init__(
        self,
        settings: Mapping[str, VolumeSettings],
        *,
        owner: tuple[int, int] | None,
        waypoint: Callable[[str], None],
    ) -> None:
        context = VolumeContext(owner=owner, waypoint=waypoint)
        self._volumes = {
            name: load_backend(volume.backend)(name, volume.path.expanduser().absolute(), volume.options, context)
            for name, volume in settings.items()
        }
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Starts the volumes. Raises InvalidInput if the path of one is unusable."""
        for volume in self:
            self._stack.push_async_callback(volume.stop)
            await volume.start()

    async def stop(self) -> None:
        await self._stack.aclose()

    def __iter__(self) -> Iterator[AbstractVolume]:
        return iter(self._volumes.values())

    def get(self, name: str) -> AbstractVolume:
        """Returns a volume. Raises VolumeNotFound."""
        try:
            return self._volumes[name]
        except KeyError:
            raise VolumeNotFound(data={"volume": name[:64]}) from None

    def locate(self, volume: str, vfid: str) -> tuple[AbstractVolume, VFolderId]:
        """Returns a volume and the parsed id of a folder on it. Raises VolumeNotFound, InvalidInput."""
        return self.get(volume), VFolderId.parse(vfid)
