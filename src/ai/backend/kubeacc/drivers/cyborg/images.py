"""Uploads verified images to Glance, from where Cyborg loads them, and reads images of ``glance:ID``.

Cyborg is given ids of images of our own project only, whose content Glance itself has hashed at the upload: the bits
that a device gets are those whose digest and signature were checked, whoever else may write to Glance.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote
from uuid import UUID

from ai.backend.common.errors import BackendError, InvalidInput, NotFound
from ai.backend.kubeacc.crd.operations import Artifact
from ai.backend.kubeacc.drivers.cyborg.connection import Cloud, CloudUnavailable
from ai.backend.kubeacc.drivers.cyborg.model import GlanceImage, GlanceImages

_ACTIVE = "active"


class ImageLibrary:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    async def put(self, path: Path) -> str:
        """Returns the id of an image with the content of a file. The file is uploaded if there is no such image.

        Raises NotFound: there is no such file; and as :meth:`Cloud.request` does."""
        try:
            name, hash_value = await asyncio.to_thread(_hashes, path)
        except OSError as e:
            raise NotFound(f"the image {path.name} cannot be read: {e.strerror}") from None
        project, _ = await self._cloud.project_and_user()
        for image in await self._list(f"owner={quote(project)}&os_hash_value={hash_value}"):
            if _holds(image, project, hash_value):
                return image.id
        name = f"kube-acc-{name}"
        for image in await self._list(f"owner={quote(project)}&name={name}"):
            if image.owner == project and image.status != _ACTIVE:  # an upload that was interrupted
                await self._delete(image.id)
        return await self._upload(path, name, project, hash_value)

    async def fetch(self, artifact: Artifact, target: BinaryIO, limit: int) -> None:
        """Writes an image ``glance:ID`` to a file, from the image's beginning.

        Raises InvalidInput: the id is none, or the image is too large; and as :meth:`Cloud.request` does.
        """
        image_id = artifact.uri.removeprefix("glance:")
        try:
            image_id = str(UUID(image_id))
        except ValueError:
            raise InvalidInput(f"{image_id[:64]!r} is no id of an image of Glance") from None
        target.seek(0)
        target.truncate()
        await self._cloud.download(f"/images/{image_id}/file", target, limit)

    async def _upload(self, path: Path, name: str, project: str, hash_value: str) -> str:
        body = {"name": name, "disk_format": "raw", "container_format": "bare", "visibility": "private"}
        image = await self._cloud.request("image", "POST", "/images", GlanceImage, body=body)
        try:
            await self._cloud.upload(f"/images/{image.id}/file", path)
            uploaded_image = await self._cloud.request("image", "GET", f"/images/{image.id}", GlanceImage)
            if not _holds(uploaded_image, project, hash_value):
                raise CloudUnavailable(f"Glance has stored other bytes than those of {path.name}")
        except BaseException:
            with suppress(BackendError):
                await self._delete(image.id)
            raise
        return image.id

    async def _list(self, query: str) -> list[GlanceImage]:
        return (await self._cloud.request("image", "GET", f"/images?{query}", GlanceImages)).images

    async def _delete(self, image_id: str) -> None:
        with suppress(NotFound):
            await self._cloud.request("image", "DELETE", f"/images/{quote(image_id, safe='')}", type(None))


def _holds(image: GlanceImage, project: str, hash_value: str) -> bool:
    """Returns True if an image in Glance belongs to our project, is active, and has the given SHA-512 hash.

    Images of others may state any hash.
    """
    return (image.status, image.owner, image.os_hash_algo, image.os_hash_value) == (
        _ACTIVE,
        project,
        "sha512",
        hash_value,
    )


def _hashes(path: Path) -> tuple[str, str]:
    sha256, sha512 = hashlib.sha256(), hashlib.sha512()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            sha256.update(chunk)
            sha512.update(chunk)
    return sha256.hexdigest(), sha512.hexdigest()
