"""Gateways of images: the ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from ai.backend.manager.images.model import ContainerRegistry, ScanStep


class RegistryScanner(Protocol):
    """Reads registries."""

    def scan(self, registry: ContainerRegistry) -> AsyncIterator[ScanStep]:
        """Every tag, one step each, in no particular order.

        Raises:
            RegistryRefused: the credentials are not taken, or the registry serves no such thing.
            RegistryUnavailable: it does not answer, or not sensibly.
        """
        ...

    async def close(self) -> None: ...
