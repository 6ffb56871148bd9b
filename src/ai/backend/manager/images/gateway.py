"""Port to container registries."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from ai.backend.manager.images.model import ContainerRegistry, ScanStep


class RegistryScanner(Protocol):
    """Lists the images of registries."""

    def scan(self, registry: ContainerRegistry) -> AsyncIterator[ScanStep]:
        """Yields a step for every tag, in no particular order.

        Raises:
            RegistryRefused: the registry rejects the credentials or the request.
            RegistryUnavailable: it does not answer, or not as specified.
        """
        ...

    async def close(self) -> None: ...
