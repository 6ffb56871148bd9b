"""Scans a registry with the client for its type, counts its tags, and stops if the registry is down."""

from __future__ import annotations

from collections.abc import AsyncIterator

from ai.backend.common.errors import BackendError, NotFound, RegistryUnavailable
from ai.backend.common.images import label_problem
from ai.backend.infra.bounded import bounded
from ai.backend.infra.http.registry import CONCURRENCY, RegistryHttp
from ai.backend.manager.images.client.docker_v2 import DockerTags
from ai.backend.manager.images.client.harbor_v2 import HarborTags
from ai.backend.manager.images.client.manifests import Tag, UnreadableImage
from ai.backend.manager.images.model import ContainerRegistry, ContainerRegistryType, ScannedImage, ScanStep

_MAX_CONSECUTIVE_FAILURES = 10
"""The number of failures in a row after which a registry counts as down."""


async def scan_registry(registry: ContainerRegistry) -> AsyncIterator[ScanStep]:
    """Yields one step for every tag of a registry, in no particular order. Raises RegistryRefused: the registry rejects
    the credentials or the request; RegistryUnavailable: it does not answer, or not as specified.
    """
    client_class = HarborTags if registry.type is ContainerRegistryType.HARBOR2 else DockerTags
    async with RegistryHttp(registry) as http_client:
        tags = await client_class(registry, http_client).tags()
        scanned_count = failure_count = 0

        def make_step(
            tag: Tag, images: tuple[ScannedImage, ...] = (), *, skipped: str | None = None, failed: str | None = None
        ) -> ScanStep:
            nonlocal scanned_count
            scanned_count += 1
            return ScanStep(
                done=scanned_count, total=len(tags), current=tag.name, images=images, skipped=skipped, failed=failed
            )

        async def read_tag(tag: Tag) -> ScanStep:
            nonlocal failure_count
            try:
                images = await tag.read()
            except RegistryUnavailable as e:
                failure_count += 1
                if failure_count >= _MAX_CONSECUTIVE_FAILURES:
                    raise
                return make_step(tag, failed=e.message)
            except (UnreadableImage, BackendError) as e:
                failure_count = 0
                if isinstance(e, UnreadableImage):
                    return make_step(tag, skipped=str(e))
                return make_step(tag, failed="it has vanished" if isinstance(e, NotFound) else e.message)
            failure_count = 0
            label_problems = [label_problem(image.labels) for image in images]
            usable_images = tuple(
                image for image, problem in zip(images, label_problems, strict=True) if problem is None
            )
            return make_step(
                tag, usable_images, skipped=next(filter(None, label_problems), None) if not usable_images else None
            )

        async for scan_step in bounded(tags, read_tag, CONCURRENCY):
            yield scan_step
