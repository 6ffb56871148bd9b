"""Reads Harbor 2 by its own API, which reports labels and architectures without fetching manifests."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec

from ai.backend.common.errors import RegistryUnavailable
from ai.backend.common.images import architecture_name, is_digest, is_path, is_tag
from ai.backend.infra.bounded import bounded
from ai.backend.infra.http.registry import CONCURRENCY, RegistryHttp
from ai.backend.manager.images.client.manifests import MAX_TAGS, Tag, UnreadableImage, clean_labels
from ai.backend.manager.images.model import ContainerRegistry, ScannedImage

_PAGE_ITEMS = 100
_MAX_PAGES = 10_000
_API_PATH = "/api/v2.0"


class _NamedItem(msgspec.Struct):
    name: str


class _ChildReference(msgspec.Struct):
    child_digest: str = ""
    platform: dict[str, Any] | None = None


class _Artifact(msgspec.Struct):
    digest: str
    type: str = "IMAGE"
    size: int = 0
    tags: list[_NamedItem] | None = None
    references: list[_ChildReference] | None = None
    extra_attrs: dict[str, Any] | None = None


class HarborTags(msgspec.Struct, frozen=True):
    """Lists the tags of a registry and reads their images."""

    registry: ContainerRegistry
    http: RegistryHttp

    async def tags(self) -> list[Tag]:
        """Returns all tags of the registry. Raises BackendError."""
        projects = list(self.registry.projects) or [
            listed_project.name for listed_project in await self._pages(f"{_API_PATH}/projects", _NamedItem)
        ]
        repositories: list[tuple[str, str]] = []
        for project in projects:
            listed_repositories = await self._pages(
                f"{_API_PATH}/projects/{quote(project, safe='')}/repositories", _NamedItem
            )
            names = {
                listed_repository.name.removeprefix(f"{project}/")
                for listed_repository in listed_repositories
                if listed_repository.name.startswith(f"{project}/")
            }
            repositories += [(project, name) for name in sorted(names) if is_path(f"{project}/{name}")]
        tags: list[Tag] = []
        async for project, name, artifacts in bounded(repositories, self._artifacts, CONCURRENCY):
            tags += [
                Tag(f"{project}/{name}:{tag.name}", partial(self._images, project, name, tag.name, artifact))
                for artifact in artifacts
                for tag in artifact.tags or ()
                if is_tag(tag.name)
            ]
            if len(tags) > MAX_TAGS:
                raise RegistryUnavailable(f"{self.registry.name} has more than {MAX_TAGS} tags.")
        return tags

    async def _pages(self, path: str, item_type: type[Any]) -> list[Any]:
        items: list[Any] = []
        for page_number in range(1, _MAX_PAGES + 1):
            query_separator = "&" if "?" in path else "?"
            reply = await self.http.get(
                f"{path}{query_separator}page={page_number}&page_size={_PAGE_ITEMS}", basic=True
            )
            page = reply.json(list[item_type])  # type: ignore[valid-type]  # built at run time
            items += page
            if len(page) < _PAGE_ITEMS:
                return items
            if len(items) > MAX_TAGS:
                break
        raise RegistryUnavailable(f"{self.registry.name} lists without end.")

    def _repository(self, project: str, name: str) -> str:
        # A slash in a name is encoded twice: the servers before Harbor decode it once.
        return f"{_API_PATH}/projects/{quote(project, safe='')}/repositories/{quote(quote(name, safe=''), safe='')}"

    async def _artifacts(self, repository: tuple[str, str]) -> tuple[str, str, list[_Artifact]]:
        path = f"{self._repository(*repository)}/artifacts?with_tag=true"
        return *repository, await self._pages(path, _Artifact)

    async def _images(self, project: str, name: str, tag: str, artifact: _Artifact) -> list[ScannedImage]:
        if artifact.type != "IMAGE":
            raise UnreadableImage(f"it is no image but {artifact.type[:32]}")
        if not artifact.references:
            return [self._image(project, name, tag, artifact, artifact.digest)]
        children = [
            reference.child_digest
            for reference in artifact.references[:256]
            if (reference.platform or {}).get("os") == "linux" and is_digest(reference.child_digest)
        ]
        images: dict[str, ScannedImage] = {}
        for digest in children:
            path = f"{self._repository(project, name)}/artifacts/{quote(digest, safe='')}"
            child = (await self.http.get(path, basic=True)).json(_Artifact)
            image = self._image(project, name, tag, child, artifact.digest)
            images.setdefault(image.architecture, image)
        if not images:
            raise UnreadableImage("it has nothing for Linux")
        return list(images.values())

    def _image(self, project: str, name: str, tag: str, artifact: _Artifact, digest: str) -> ScannedImage:
        extra_attributes = artifact.extra_attrs or {}
        config = extra_attributes.get("config")
        labels = config.get("Labels") if isinstance(config, dict) else None
        if extra_attributes.get("os", "linux") != "linux":
            raise UnreadableImage(f"it is for {str(extra_attributes.get('os'))[:32]}")
        if not is_digest(digest) or artifact.size < 0:
            raise UnreadableImage("its description is not readable")
        return ScannedImage(
            name=f"{self.registry.name}/{project}/{name}:{tag}",
            architecture=architecture_name(str(extra_attributes.get("architecture") or "x86_64"))[:32],
            project=project,
            digest=digest,
            size_bytes=artifact.size,
            labels=clean_labels(labels if isinstance(labels, dict) else {}),
        )
