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
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


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
        """Returns an image with the digest of the artifact. Whether its signature is needed, the caller has checked.

        Raises ArtifactRejected: another digest, or too large; StorageFull; InvalidInput: no source for its scheme;
        Unavailable: not in time; and as its source raises.
        """
        scheme = urlsplit(artifact.uri).scheme
        source = self._sources.get(scheme)
        if source is None:
            schemes = ", ".join(sorted(self._sources)) or "none"
            raise InvalidInput(f"images of {scheme}: are not fetched here; the schemes are: {schemes}")
        if (lock := self._locks.get(artifact.sha256)) is None:
            lock = self._locks[artifact.sha256] = asyncio.Lock()
        try:
            async with lock:
                return await self._fetch(artifact, source)
        except OSError as e:
            if e.errno in _FULL:
                self._partial(artifact).unlink(missing_ok=True)
                raise StorageFull(f"the disk of {self._folder} has no room for the image") from None
            raise Unavailable(f"the image cannot be stored in {self._folder}: {e.strerror}") from None

    async def _fetch(self, artifact: Artifact, source: ImageSource) -> Path:
        target = self._folder / f"{artifact.sha256}{_suffix_of(artifact.uri)}"
        if await asyncio.to_thread(self._has, target, artifact.sha256):
            return target
        partial = self._partial(artifact)
        await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        had_beginning = await self._download(artifact, source, partial)
        if not await asyncio.to_thread(_has_digest, partial, artifact.sha256):
            await asyncio.to_thread(partial.unlink, missing_ok=True)
            if had_beginning:  # the earlier attempt may have had other bytes than this one
                raise ArtifactDamaged("the image was not the same at a second attempt; it is fetched anew")
            raise ArtifactRejected(f"the image has another digest than {artifact.sha256}")
        await asyncio.to_thread(partial.replace, target)
        kept = {target.name, *(PurePosixPath(path).name for path in self.in_use())}
        await asyncio.to_thread(self._evict, kept)
        return target

    async def _download(self, artifact: Artifact, source: ImageSource, partial: Path) -> bool:
        """Completes a partial file. Returns True if the file had a beginning."""
        limit = self._settings.max_size
        file: BinaryIO = await asyncio.to_thread(_open_partial, partial)
        try:
            had_beginning = file.seek(0, os.SEEK_END) > 0
            async with asyncio.timeout(self._settings.timeout):
                await source(artifact, file, limit)
            await asyncio.to_thread(_flush, file)
            if file.tell() > limit:
                raise ArtifactRejected(f"the image is larger than {limit} bytes")
        except TimeoutError:
            raise Unavailable(f"the image is not here after {self._settings.timeout:g} s") from None
        except InvalidInput:  # more of it does not make it better
            await asyncio.to_thread(partial.unlink, missing_ok=True)
            raise
        finally:
            await asyncio.to_thread(file.close)
        return had_beginning

    def _partial(self, artifact: Artifact) -> Path:
        return self._folder / f".{artifact.sha256}.partial"

    def _has(self, target: Path, sha256: str) -> bool:
        """Returns True if the image is stored. An image with another suffix is also stored with this suffix."""
        if not target.is_file():
            other = next((path for path in self._folder.glob(f"{sha256}*") if path.is_file()), None)
            if other is None:
                return False
            os.link(other, target)
        if not _has_digest(target, sha256):
            log.error("%s was changed by somebody else, and is fetched anew", target)
            target.unlink()
            return False
        os.utime(target)
        return True

    def _evict(self, kept: Collection[str]) -> None:
        """Removes the longest unused images until the store is small enough, and old partial files.

        Files whose names are in ``kept`` are not removed.
        """
        images: list[tuple[float, int, Path]] = []
        total = 0
        for path in self._folder.iterdir():
            state = path.lstat()
            if _IMAGE_NAME.fullmatch(path.name):
                total += state.st_size
                if path.name not in kept:
                    images.append((state.st_mtime, state.st_size, path))
            elif _PARTIAL_NAME.fullmatch(path.name) and state.st_mtime < time.time() - _PARTIAL_LIFE_S:
                path.unlink(missing_ok=True)
        for _, size, path in sorted(images):
            if total <= self._settings.cache_size:
                return
            path.unlink(missing_ok=True)
            total -= size


def _suffix_of(uri: str) -> str:
    """Returns the suffix of the file that a URI names, because plugins may choose a format by the suffix."""
    parts = urlsplit(uri)
    suffix = PurePosixPath(unquote(parts.fragment or parts.path)).suffix
    return suffix if parts.scheme != "glance" and _SUFFIX.fullmatch(suffix) else ""


def _open_partial(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+b")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.seek(0, os.SEEK_END)


def _has_digest(path: Path, sha256: str) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256
