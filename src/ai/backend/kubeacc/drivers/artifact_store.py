"""Stores images of operations by digest. Images are fetched once, verified, and removed when there are too many.

Nothing under its final name has another digest than the name says. What an attempt has fetched stays as a hidden
partial file, from which the next one goes on. One process uses a folder.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from ai.backend.common.errors import ArtifactDamaged, ArtifactRejected, InvalidInput, StorageFull, Unavailable
from ai.backend.kubeacc.crd.operations import Artifact
from ai.backend.kubeacc.drivers.artifact_settings import ArtifactSettings
from ai.backend.kubeacc.drivers.spi import ImageSource

log = logging.getLogger(__name__)
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,16}")
_IMAGE_NAME = re.compile(r"[0-9a-f]{64}(\.[A-Za-z0-9]{1,16})?")
_PARTIAL_NAME = re.compile(r"\.[0-9a-f]{64}\.partial")
_PARTIAL_LIFE_S = 86_400.0
_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class ArtifactStore:
    """Stores images of operations on this machine.

    ``sources`` are those of the schemes of URIs. The folder is made when it is needed, for its owner alone.
    """

    def __init__(self, folder: Path, settings: ArtifactSettings, sources: Mapping[str, ImageSource]) -> None:
        self._folder, self._settings, self._sources = folder, settings, dict(sources)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.in_use: Callable[[], Iterable[str]] = lambda: ()
        """Returns paths of images that devices have loaded now: a rollback needs them, so they are not removed."""

    async def fetch(self, artifact: Artifact) -> Path:
        """Returns an image with the digest of the artifact. The caller must have verified the signature.

        Raises ArtifactRejected: another digest, or too large; StorageFull; InvalidInput: no source for its scheme;
        Unavailable: not in time; and as its source raises.
        """
        scheme = urlsplit(artifact.uri).scheme
        source = self._sources.get(scheme)
        if source is None:
            known_schemes = ", ".join(sorted(self._sources)) or "none"
            raise InvalidInput(f"images of {scheme}: are not fetched here; the schemes are: {known_schemes}")
        if (digest_lock := self._locks.get(artifact.sha256)) is None:
            digest_lock = self._locks[artifact.sha256] = asyncio.Lock()
        try:
            async with digest_lock:
                return await self._fetch(artifact, source)
        except OSError as e:
            if e.errno in _DISK_FULL_ERRORS:
                self._partial_path(artifact).unlink(missing_ok=True)
                raise StorageFull(f"the disk of {self._folder} has no room for the image") from None
            raise Unavailable(f"the image cannot be stored in {self._folder}: {e.strerror}") from None

    async def _fetch(self, artifact: Artifact, source: ImageSource) -> Path:
        target = self._folder / f"{artifact.sha256}{_suffix_of(artifact.uri)}"
        if await asyncio.to_thread(self._has_image, target, artifact.sha256):
            return target
        partial_path = self._partial_path(artifact)
        await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        was_continued = await self._download(artifact, source, partial_path)
        if not await asyncio.to_thread(_has_digest, partial_path, artifact.sha256):
            await asyncio.to_thread(partial_path.unlink, missing_ok=True)
            if was_continued:  # the earlier attempt may have had other bytes than this one
                raise ArtifactDamaged("the image was not the same at a second attempt; it is fetched anew")
            raise ArtifactRejected(f"the image has another digest than {artifact.sha256}")
        await asyncio.to_thread(partial_path.replace, target)
        kept_names = {target.name, *(PurePosixPath(path).name for path in self.in_use())}
        await asyncio.to_thread(self._evict_images, kept_names)
        return target

    async def _download(self, artifact: Artifact, source: ImageSource, partial_path: Path) -> bool:
        """Downloads the missing rest of an image into a partial file.

        Returns True if the file already had a beginning.
        """
        limit = self._settings.max_size
        file: BinaryIO = await asyncio.to_thread(_open_partial, partial_path)
        try:
            was_continued = file.seek(0, os.SEEK_END) > 0
            async with asyncio.timeout(self._settings.timeout):
                await source(artifact, file, limit)
            await asyncio.to_thread(_flush, file)
            if file.tell() > limit:
                raise ArtifactRejected(f"the image is larger than {limit} bytes")
        except TimeoutError:
            raise Unavailable(f"the image is not here after {self._settings.timeout:g} s") from None
        except InvalidInput:  # more of it does not make it better
            await asyncio.to_thread(partial_path.unlink, missing_ok=True)
            raise
        finally:
            await asyncio.to_thread(file.close)
        return was_continued

    def _partial_path(self, artifact: Artifact) -> Path:
        return self._folder / f".{artifact.sha256}.partial"

    def _has_image(self, target: Path, sha256: str) -> bool:
        """Returns True if the image is stored. An image with another suffix is also stored with this suffix."""
        if not target.is_file():
            other_path = next((path for path in self._folder.glob(f"{sha256}*") if path.is_file()), None)
            if other_path is None:
                return False
            os.link(other_path, target)
        if not _has_digest(target, sha256):
            log.error("%s was changed by somebody else, and is fetched anew", target)
            target.unlink()
            return False
        os.utime(target)
        return True

    def _evict_images(self, kept_names: Collection[str]) -> None:
        """Removes the longest unused images until the store is small enough, and old partial files.

        Files whose names are in ``kept`` are not removed.
        """
        images: list[tuple[float, int, Path]] = []
        total_bytes = 0
        for path in self._folder.iterdir():
            file_status = path.lstat()
            if _IMAGE_NAME.fullmatch(path.name):
                total_bytes += file_status.st_size
                if path.name not in kept_names:
                    images.append((file_status.st_mtime, file_status.st_size, path))
            elif _PARTIAL_NAME.fullmatch(path.name) and file_status.st_mtime < time.time() - _PARTIAL_LIFE_S:
                path.unlink(missing_ok=True)
        for _, size, path in sorted(images):
            if total_bytes <= self._settings.cache_size:
                return
            path.unlink(missing_ok=True)
            total_bytes -= size


def _suffix_of(uri: str) -> str:
    """Returns the suffix of the file that a URI names, because plugins may choose a format by the suffix."""
    uri_parts = urlsplit(uri)
    suffix = PurePosixPath(unquote(uri_parts.fragment or uri_parts.path)).suffix
    return suffix if uri_parts.scheme != "glance" and _SUFFIX.fullmatch(suffix) else ""


def _open_partial(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+b")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.seek(0, os.SEEK_END)


def _has_digest(path: Path, sha256: str) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256
