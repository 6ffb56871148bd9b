"""Adds to commands for agents the digests of images and the credentials of their registries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from ai.backend.common.images import registry_of
from ai.backend.common.wire.agent import CreateKernels, KernelSpec, RegistryAccess
from ai.backend.manager.images.model import AutoPull, RegisteredImage
from ai.backend.manager.images.registries import ContainerRegistries
from ai.backend.manager.images.store import ImageStore


@dataclass(frozen=True, slots=True)
class ImagePulls:
    """Builds commands that let agents fetch images. Credentials are sent with each command and not stored by agents."""

    store: ImageStore
    registries: ContainerRegistries

    async def request(self, kernels: Iterable[KernelSpec]) -> CreateKernels:
        """Returns the command to create kernels, with digests of their images and credentials of their registries. An
        image that no registry has is not fetched: the creation fails unless the agent has it."""
        specs = list(kernels)
        images = {(i.name, i.architecture): i for i in await self.store.named({spec.image for spec in specs})}
        if not images:
            return CreateKernels(kernels=specs)
        policy = await self.registries.auto_pull()
        complete = [_with_image(spec, images.get((spec.image, spec.architecture)), policy) for spec in specs]
        access = await self.access(spec.image for spec in complete if spec.auto_pull)
        return CreateKernels(kernels=complete, registries=access)

    async def access(self, names: Iterable[str]) -> list[RegistryAccess]:
        """Returns the credentials of the registries of images."""
        registry_names = {registry_of(name) for name in names}
        return [
            RegistryAccess(registry=r.name, username=r.username, password=r.password)
            for r in (await self.registries.all()).values()
            if r.name in registry_names and r.username
        ]


def _with_image(spec: KernelSpec, image: RegisteredImage | None, policy: AutoPull) -> KernelSpec:
    if image is None:
        return spec
    return msgspec.structs.replace(
        spec,
        image_digest=image.digest,
        image_config_digest=image.config_digest,
        auto_pull="" if policy is AutoPull.NONE else policy.value,
    )
