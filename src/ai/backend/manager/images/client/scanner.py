"""Scans a registry by the client of its type."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ai.backend.manager.images.client.docker_v2 import DockerScan
from ai.backend.manager.images.client.harbor_v2 import HarborScan
from ai.backend.manager.images.client.http import RegistryHttp
from ai.backend.manager.images.model import ContainerRegistry, ContainerRegistryType, ScanStep


class HttpRegistryScanner:
    """Implements :class:`ai.backend.manager.images.gateway.RegistryScanner`."""

    async def scan(self, registry: ContainerRegistry) -> AsyncIterator[ScanStep]:
        kind = HarborScan if registry.type is ContainerRegistryType.HARBOR2 else DockerScan
        async with RegistryHttp(registry) as http:
            async for step in kind(registry, http).run():
                yield step

    async def close(self) -> None:
        """Does nothing: each scan closes its own connections."""
