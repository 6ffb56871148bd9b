"""Declares the store of images and aliases."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from ai.backend.manager.images.model import ImageAlias, RegisteredImage, ScannedImage


class ImageStore(Protocol):
    """Stores images of registries, keyed by name and architecture, and aliases. Every method is one transaction."""

    async def record(self, registry: str, scanned_images: Sequence[ScannedImage], *, at: datetime) -> int:
        """Inserts or updates images, and returns the number of new images."""

    async def sweep(self, registry: str, *, before: datetime, kept_names: Collection[str] = ()) -> int:
        """Deletes a registry's images that no scan since ``before`` has reported; returns the number of deleted images.

        Images of ``kept_names`` stay.
        """

    async def all(self, registry: str | None = None) -> list[RegisteredImage]:
        """Returns all images, or the images of one registry, sorted by name and architecture."""

    async def lookup(self, reference: str) -> list[RegisteredImage]:
        """Returns the images whose name, repository or alias is ``reference``."""

    async def by_names(self, names: Collection[str]) -> list[RegisteredImage]: ...

    async def forget(self, name: str, architecture: str | None = None) -> int:
        """Deletes images, and aliases that have no image left, and returns the number of images."""

    async def clear(self, registry: str) -> int:
        """Deletes all images of a registry with their aliases, and returns the number of images."""

    async def aliases(self) -> list[ImageAlias]: ...
    async def alias(self, alias: str) -> ImageAlias | None: ...
    async def put_alias(self, alias: ImageAlias) -> None:
        """Stores an alias. Raises Conflict if it stands for another image."""

    async def drop_alias(self, alias: str) -> bool:
        """Deletes an alias and returns True if the alias existed."""
