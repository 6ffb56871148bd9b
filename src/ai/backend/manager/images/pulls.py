"""What an agent has to know to fetch the images of kernels; told with each creation, and kept by no record."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from ai.backend.common.images import registry_of
from ai.backend.common.wire.agent import CreateKernels, KernelSpec, RegistryAccess
from ai.backend.manager.images.model import AutoPull, RegisteredImage
from ai.backend.manager.images.registries import ContainerRegistries
from ai.backend.manager.images.store import ImageStore


class ImagePulls:
    def __init__(self, store: ImageStore, registries: ContainerRegistries) -> None:
        self._store = store
        self._registries = registries

    async def request(self, kernels: Iterable[KernelSpec]) -> CreateKernels:
        """The command to create these kernels, with digests of their images and what opens their registries.

        An image that no registry has, or has any more, is not fetched: it is on the agent, or the creation fails.
        """
        specs = list(kernels)
        found = {(i.name, i.architecture): i for i in await self._store.named({spec.image for spec in specs})}
        if not found:
            return CreateKernels(kernels=specs)
        policy = await self._registries.auto_pull()
        told = [_told(spec, found.get((spec.image, spec.architecture)), policy) for spec in specs]
        return CreateKernels(kernels=told, registries=await self.access(spec.image for spec in told if spec.auto_pull))

    async def access(self, names: Iterable[str]) -> list[RegistryAccess]:
        """What opens the registries of images."""
        wanted: Collection[str] = {registry_of(name) for name in names}
        registries = await self._registries.all()
        return [
            RegistryAccess(registry=r.name, username=r.username, password=r.password)
            for name, r in registries.items()
            if name in wanted and r.username
        ]


def _told(spec: KernelSpec, image: RegisteredImage | None, policy: AutoPull) -> KernelSpec:
    if image is None:
        return spec
    return msgspec.structs.replace(
        spec,
        image_digest=image.digest,
        image_config_digest=image.config_digest,
        auto_pull="" if policy is AutoPull.NONE else policy.value,
    )
