"""Scans a registry with the client for its type, counts its tags, and stops if the registry is down."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ai.backend.common.errors import BackendError, NotFound, RegistryUnavailable
from ai.backend.common.images import label_problem
from ai.backend.infra.bounded import bounded
from ai.backend.infra.http.registry import CONCURRENCY, RegistryHttp
from ai.backend.manager.images.client.docker_v2 import DockerTags
from ai.backend.manager.images.client.harbor_v2 import HarborTags
from ai.backend.manager.images.client.manifests import Tag, Unreadable
from ai.backend.manager.images.model import ContainerRegistry, ContainerRegistryType, ScannedImage, ScanStep

_MAX_CONSECUTIVE_FAILURES = 10
"""The number of failures in a row after which a registry counts as down."""


async def scan_registry(registry: ContainerRegistry) -> AsyncIterator[ScanStep]:
    """Yields one step for every tag of a registry, in no particular order. Raises RegistryRefused: the registry rejects
    the credentials or the request; RegistryUnavailable: it does not answer, or not as specified.
    """
    kind = HarborTags if registry.type is ContainerRegistryType.HARBOR2 else DockerTags
    async with RegistryHttp(registry) as http:
        tags = await kind(registry, http).tags()
        done = failures = 0

        def step(
            tag: Tag, images: tuple[ScannedImage, ...] = (), *, skipped: str | None = None, failed: str | None = None
        ) -> ScanStep:
            nonlocal done
            done += 1
            return ScanStep(done=done, total=len(tags), current=tag.name, images=images, skipped=skipped, failed=failed)

        async def read(tag: Tag) -> ScanStep:
            nonlocal failures
            try:
                images = await tag.read()
            except RegistryUnavailable as e:
                failures += 1
                if failures >= _MAX_CONSECUTIVE_FAILURES:
                    raise
                return step(tag, failed=e.message)
            except (Unreadable, BackendError) as e:
                failures = 0
                if isinstance(e, Unreadable):
                    return step(tag, skipped=str(e))
                return step(tag, failed="it has vanished" if isinstance(e, NotFound) else e.message)
            failures = 0
            problems = [label_problem(image.labels) for image in images]
            usable = tuple(image for image, problem in zip(images, problems, strict=True) if problem is None)
            return step(tag, usable, skipped=next(filter(None, problems), None) if not usable else None)

        async for result in bounded(tags, read, CONCURRENCY):
            yield result
