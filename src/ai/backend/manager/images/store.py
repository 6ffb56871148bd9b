"""What the manager keeps of images, and where it learns of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from ai.backend.manager.images.model import FoundImage, ImageAlias, RegisteredImage


class ImageStore(Protocol):
    """Images of registries by name and architecture, and aliases. Every method is one transaction."""

    async def record(self, registry: str, found: Sequence[FoundImage], *, at: datetime) -> int:
        """Add them, or bring them up to date; how many are new."""
        ...

    async def sweep(self, registry: str, *, before: datetime, keep: Collection[str] = ()) -> int:
        """Forget what no scan has met since, but not the names in ``keep``; how many."""
        ...

    async def all(self, registry: str | None = None) -> list[RegisteredImage]:
        """By name and architecture."""
        ...

    async def lookup(self, reference: str) -> list[RegisteredImage]:
        """Those with that name, or all tags of the repository of that name, or what the alias stands for."""
        ...

    async def named(self, names: Collection[str]) -> list[RegisteredImage]: ...

    async def forget(self, name: str, architecture: str | None = None) -> int:
        """With the aliases of a name that is gone altogether; how many images."""
        ...

    async def clear(self, registry: str) -> int:
        """Forget all images of a registry, with their aliases; how many."""
        ...

    async def aliases(self) -> list[ImageAlias]: ...
    async def alias(self, alias: str) -> ImageAlias | None: ...
    async def put_alias(self, alias: ImageAlias) -> None:
        """Raises Conflict: it stands for another image."""

    async def drop_alias(self, alias: str) -> bool:
        """Whether there was one."""
        ...
