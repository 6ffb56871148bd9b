"""Manages the container registries in the shared configuration (spec 03-02, 03-06).

``config/docker/registry/NAME`` is the URL of a registry's API; below it are ``type``, ``project``, ``username``,
``password`` and ``ssl_verify``. A NAME is quoted as in URLs where it has a colon. ``config/docker/image/auto_pull``
is the policy by which agents fetch images.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal
from urllib.parse import quote, unquote, urlsplit

import msgspec

from ai.backend.common.errors import Conflict, InvalidInput, NotFound
from ai.backend.common.images import LABEL_PREFIX, check_registry_name, registry_of
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import CreateKernels, KernelSpec, RegistryAccess
from ai.backend.infra.config_store import ConfigStore
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.images.model import AutoPull, ContainerRegistry, ContainerRegistryType, RegisteredImage
from ai.backend.manager.images.store import ImageStore

REGISTRIES_PREFIX = "config/docker/registry"
AUTO_PULL_KEY = "config/docker/image/auto_pull"
_MAX_TEXT_LENGTH = 4096


def _registry_key(name: str) -> str:
    return f"{REGISTRIES_PREFIX}/{quote(name, safe='')}"


def check_registry(registry: ContainerRegistry) -> ContainerRegistry:
    """Checks the name, URL and texts of a registry and returns the registry. Raises InvalidInput for a malformed name
    or URL, or unprintable text.
    """
    check_registry_name(registry.name)
    try:
        url = urlsplit(registry.url)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and not url.username and not url.query
    except ValueError:
        is_valid = False
    registry_texts = (registry.url, registry.username, registry.password, *registry.projects)
    if not is_valid or not all(
        registry_text.isprintable() and len(registry_text) <= _MAX_TEXT_LENGTH for registry_text in registry_texts
    ):
        raise InvalidInput(
            "A registry has a URL such as https://cr.example.org, and names without control characters.",
            data={"url": "malformed"},
        )
    return registry


class ContainerRegistries:
    """Reads and writes the registries of the shared configuration."""

    def __init__(self, config: ConfigStore, *, verifies_tls: bool = True) -> None:
        self._config = config
        self._verifies_tls = verifies_tls

    async def all(self) -> Mapping[str, ContainerRegistry]:
        """Returns the registries by name, without malformed entries."""
        values_by_name: dict[str, dict[str, str]] = {}
        for path, value in (await self._config.get_prefix(REGISTRIES_PREFIX)).items():
            name, _, field = path.removeprefix(REGISTRIES_PREFIX).lstrip("/").partition("/")
            if name:
                values_by_name.setdefault(unquote(name), {})[field] = value
        return {
            name: registry
            for name in sorted(values_by_name)
            if (registry := self._read(name, values_by_name[name])) is not None
        }

    def _read(self, name: str, values: Mapping[str, str]) -> ContainerRegistry | None:
        type_name = values.get("type", "").strip().lower()
        is_harbor = type_name in ("harbor", "harbor2")
        ssl_verify = values.get("ssl_verify", values.get("ssl-verify", str(self._verifies_tls)))
        try:
            return check_registry(
                ContainerRegistry(
                    name=name,
                    url=values.get("", "").strip(),
                    type=ContainerRegistryType.HARBOR2 if is_harbor else ContainerRegistryType.DOCKER,
                    projects=tuple(
                        project.strip() for project in values.get("project", "").split(",") if project.strip()
                    ),
                    username=values.get("username", ""),
                    password=values.get("password", ""),
                    ssl_verify=ssl_verify.strip().lower() not in ("false", "0", "no", "off"),
                )
            )
        except InvalidInput:
            return None

    async def get(self, name: str) -> ContainerRegistry:
        """Returns a registry. Raises NotFound."""
        registry = (await self.all()).get(name)
        if registry is None:
            raise NotFound(f"There is no registry {name[:128]!r} in the configuration.", data={"registry": "unknown"})
        return registry

    async def add(self, caller: Caller, registry: ContainerRegistry) -> ContainerRegistry:
        """Adds a registry. Raises Forbidden, InvalidInput, or Conflict if the name is taken."""
        require(caller, Operation.CONFIGURE_REGISTRIES)
        check_registry(registry)
        if registry.name in await self.all():
            raise Conflict(f"There is a registry {registry.name!r} already.", data={"hostname": "taken"})
        await self._write(registry)
        return registry

    async def change(self, caller: Caller, registry: ContainerRegistry) -> ContainerRegistry:
        """Changes a registry. Raises Forbidden, InvalidInput, NotFound."""
        require(caller, Operation.CONFIGURE_REGISTRIES)
        await self.get(registry.name)
        await self._write(check_registry(registry))
        return registry

    async def remove(self, caller: Caller, name: str) -> ContainerRegistry:
        """Removes a registry; the images of the registry stay until they are cleared. Raises Forbidden, NotFound."""
        require(caller, Operation.CONFIGURE_REGISTRIES)
        registry = await self.get(name)
        for key in {_registry_key(name), f"{REGISTRIES_PREFIX}/{name}"}:
            await self._config.delete(key, prefix=True)
        return registry

    async def _write(self, registry: ContainerRegistry) -> None:
        key = _registry_key(registry.name)
        await self._config.put_many(
            {
                key: registry.url,
                f"{key}/type": registry.type.value,
                f"{key}/project": ",".join(registry.projects),
                f"{key}/username": registry.username,
                f"{key}/password": registry.password,
                f"{key}/ssl_verify": "true" if registry.ssl_verify else "false",
            }
        )

    async def auto_pull(self) -> AutoPull:
        """Returns the policy by which agents fetch images, which is DIGEST by default."""
        policy_text = (await self._config.get(AUTO_PULL_KEY) or "").strip().lower()
        return AutoPull(policy_text) if policy_text in set(AutoPull) else AutoPull.DIGEST


class ImagePulls(msgspec.Struct, frozen=True):
    """Builds the commands with which agents fetch the images of kernels. Credentials are sent with each command and not
    stored by agents.
    """

    store: ImageStore
    registries: ContainerRegistries

    async def creation_command(self, kernels: Iterable[KernelSpec]) -> CreateKernels:
        """Returns the command to create kernels, with the digests of images and the credentials of registries. An image
        that no registry has is not fetched: the creation fails unless the agent has it.
        """
        specs = list(kernels)
        images = {
            (image.name, image.architecture): image
            for image in await self.store.by_names({spec.image for spec in specs})
        }
        if not images:
            return CreateKernels(kernels=specs)
        policy = await self.registries.auto_pull()
        specs_with_images = [_add_image(spec, images.get((spec.image, spec.architecture)), policy) for spec in specs]
        access = await self.registry_access(spec.image for spec in specs_with_images if spec.auto_pull)
        return CreateKernels(kernels=specs_with_images, registries=access)

    async def registry_access(self, names: Iterable[str]) -> list[RegistryAccess]:
        """Returns the credentials of the registries from which the named images come."""
        registry_names = {registry_of(name) for name in names}
        return [
            RegistryAccess(registry=registry.name, username=registry.username, password=registry.password)
            for registry in (await self.registries.all()).values()
            if registry.name in registry_names and registry.username
        ]


_AUTO_PULL_ON_WIRE: Mapping[AutoPull, Literal["", "tag", "digest"]] = {
    AutoPull.NONE: "",
    AutoPull.TAG: "tag",
    AutoPull.DIGEST: "digest",
}


def _add_image(spec: KernelSpec, image: RegisteredImage | None, policy: AutoPull) -> KernelSpec:
    if image is None:
        return spec
    return replace(
        spec,
        image_digest=image.digest,
        image_config_digest=image.config_digest,
        image_labels={name: label_value for name, label_value in image.labels.items() if name.startswith(LABEL_PREFIX)},
        auto_pull=_AUTO_PULL_ON_WIRE[policy],
    )
