"""Reads registries that serve the OCI distribution API (Docker Registry version 2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from urllib.parse import quote

import msgspec
from yarl import URL

from ai.backend.common.errors import NotFound, RegistryRefused, RegistryUnavailable
from ai.backend.common.images import is_path, is_tag
from ai.backend.infra.bounded import bounded
from ai.backend.infra.http.registry import CONCURRENCY, RegistryHttp
from ai.backend.manager.images.client import manifests
from ai.backend.manager.images.client.manifests import MAX_TAGS, Tag
from ai.backend.manager.images.model import ContainerRegistry, ScannedImage

_PAGE_ITEMS = 500
_MAX_PAGES = 10_000
_NEXT_LINK = re.compile(r"<([^>]*)>\s*;\s*rel=\"?next\"?")


class _Catalog(msgspec.Struct):
    repositories: list[str] | None = None


class _Tags(msgspec.Struct):
    tags: list[str] | None = None


class DockerTags(msgspec.Struct, frozen=True):
    """Lists the tags of a registry and reads their images."""

    registry: ContainerRegistry
    http: RegistryHttp

    async def tags(self) -> list[Tag]:
        """Returns all tags of the registry. Raises BackendError."""
        tags: list[Tag] = []
        async for repository, names in bounded(await self._repositories(), self._tags_of, CONCURRENCY):
            tags += [Tag(f"{repository}:{name}", partial(self._images, repository, name)) for name in names]
            if len(tags) > MAX_TAGS:
                raise RegistryUnavailable(f"{self.registry.name} has more than {MAX_TAGS} tags.")
        return tags

    def _is_selected(self, repository: str) -> bool:
        projects = self.registry.projects
        return not projects or any(
            repository == project or repository.startswith(f"{project}/") for project in projects
        )

    async def _repositories(self) -> list[str]:
        """Returns the sorted names of the repositories that belong to the projects of the registry.

        Returns the projects themselves if the registry cannot list its repositories.
        """
        try:
            listed_names = await self._pages(f"/v2/_catalog?n={_PAGE_ITEMS}", "registry:catalog:*")
        except (NotFound, RegistryRefused):
            if not self.registry.projects:
                raise
            return sorted(name for name in self.registry.projects if is_path(name))
        return sorted({name for name in listed_names if is_path(name) and self._is_selected(name)})

    async def _pages(self, path: str, scope: str) -> Sequence[str]:
        names: list[str] = []
        url: str | URL = path
        seen_urls: set[str] = set()
        for _ in range(_MAX_PAGES):
            reply = await self.http.get(url, scope=scope)
            page = reply.json(_Catalog if "_catalog" in path else _Tags)
            names += (page.repositories if isinstance(page, _Catalog) else page.tags) or ()
            link = _NEXT_LINK.search(reply.headers.get("Link", ""))
            if link is None:
                return names
            url = self._next_url(link[1], reply.url)
            if str(url) in seen_urls or len(names) > MAX_TAGS:
                break
            seen_urls.add(str(url))
        raise RegistryUnavailable(f"{self.registry.name} lists without end.")

    def _next_url(self, link: str, current_url: URL) -> URL:
        """Returns the URL of the next page, on the host of this registry even if the link names another host."""
        try:
            next_url = current_url.join(URL(link))
        except ValueError:
            raise RegistryUnavailable(f"{self.registry.name} names no usable next page.") from None
        return self.http.base.join(next_url.relative()) if next_url.is_absolute() else next_url

    async def _tags_of(self, repository: str) -> tuple[str, list[str]]:
        try:
            listed_tags = await self._pages(
                f"/v2/{quote(repository)}/tags/list?n={_PAGE_ITEMS}", f"repository:{repository}:pull"
            )
        except NotFound:
            return repository, []
        return repository, sorted({tag for tag in listed_tags if is_tag(tag)})

    async def _images(self, repository: str, tag: str) -> list[ScannedImage]:
        tag_manifest = await self._manifest(repository, tag)
        digest = manifests.digest_of(tag_manifest)
        manifest_or_children = manifests.read_manifest(tag_manifest)
        if isinstance(manifest_or_children, manifests.Manifest):
            return [await self._image(repository, tag, digest, manifest_or_children)]
        images: list[ScannedImage] = []
        problem: Exception = manifests.UnreadableImage("it has nothing for Linux")
        for child in manifest_or_children:
            try:
                child_body = await self._manifest(repository, child.digest)
                manifests.check_digest(child_body, child.digest)
                child_manifest = manifests.read_manifest(child_body)
                if isinstance(child_manifest, manifests.Manifest):
                    images.append(await self._image(repository, tag, digest, child_manifest, child.architecture))
            except (manifests.UnreadableImage, NotFound) as e:
                problem = e  # a registry may hold an index without all that it names
        if not images:
            raise problem
        return images

    async def _manifest(self, repository: str, reference: str) -> bytes:
        path = f"/v2/{quote(repository)}/manifests/{quote(reference, safe=':')}"
        scope = f"repository:{repository}:pull"
        return (
            await self.http.get(path, accept=manifests.ACCEPTED_TYPES, scope=scope, limit=manifests.MAX_MANIFEST_BYTES)
        ).body

    async def _image(
        self, repository: str, tag: str, digest: str, manifest: manifests.Manifest, architecture: str | None = None
    ) -> ScannedImage:
        path = f"/v2/{quote(repository)}/blobs/{quote(manifest.config_digest, safe=':')}"
        config_body = (await self.http.get(path, accept="*/*", scope=f"repository:{repository}:pull")).body
        manifests.check_digest(config_body, manifest.config_digest)
        config_architecture, labels = manifests.read_config(config_body)
        return ScannedImage(
            name=f"{self.registry.name}/{repository}:{tag}",
            architecture=config_architecture or architecture or "x86_64",
            project=repository.rpartition("/")[0].partition("/")[0],
            digest=digest,
            config_digest=manifest.config_digest,
            size_bytes=manifest.size_bytes,
            labels=labels,
        )
