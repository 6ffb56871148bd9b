"""Commits sessions as images (spec 03-18): the container's file system with the configuration of its original image.

The engine keeps a container's own configuration (environment, labels, the relay as first process), so its archive is
written anew. Homes, mounts and control files are mounts, which no engine commits.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from ai.backend.common.errors import (
    BackendError,
    Conflict,
    InvalidInput,
    LimitExceeded,
    StorageFull,
    Unavailable,
    WorkloadError,
)
from ai.backend.common.images import ImageName
from ai.backend.node.workload.file_trees import remove_tree
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import CommitRequest, CommittedImage, ImageRequest, TellProgress, WorkloadKey
from ai.backend.runtime.docker.archives import Rewritten, rewrite
from ai.backend.runtime.docker.engine import Engine, EngineRefusal
from ai.backend.runtime.docker.images import COMMITTING
from ai.backend.runtime.docker.pulls import error_of
from ai.backend.runtime.docker.records import DockerState

_WORD = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9_@+.-]{0,199}", re.ASCII)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_ARCHIVES = 16


def _check_word(word: str) -> str:
    if not _WORD.fullmatch(word):
        raise InvalidInput(f"{word[:64]!r} cannot be the name of a file here")
    return word


class Commits:
    """Makes commits, one at a time, into archives in ``directory`` or a registry, and keeps some bytes of disk free."""

    def __init__(self, engine: Engine, state: DockerState, directory: Path, reserved_bytes: int) -> None:
        self._engine = engine
        self._state = state
        self._directory = directory
        self._reserved_bytes = reserved_bytes
        self._busy: set[WorkloadKey] = set()
        self._writing = asyncio.Lock()

    @property
    def _repository(self) -> str:
        """Returns the repository of images that exist only while an archive is written."""
        return f"{COMMITTING}{self._state.instance[:16].lower()}"

    @property
    def _workplace(self) -> Path:
        return self._directory / ".unfinished"

    async def clean(self) -> None:
        """Removes what interrupted commits left."""
        await asyncio.to_thread(remove_tree, self._workplace)
        for image in await self._engine.images():
            for tag in image.get("RepoTags") or ():
                if tag.startswith(f"{self._repository}:"):
                    with suppress(EngineRefusal):
                        await self._engine.remove_image(tag)

    async def commit(
        self, key: WorkloadKey, container: str, image_id: str, request: CommitRequest, tell: TellProgress
    ) -> CommittedImage:
        """Commits. Raises Conflict if one of this workload is under way; else see :meth:`AbstractRuntime.commit`."""
        if key in self._busy:
            raise Conflict("a commit of this session is under way")
        self._busy.add(key)
        try:
            async with self._writing:
                return await self._commit(key, container, image_id, request, tell)
        except EngineRefusal as refusal:
            if "no space left" in refusal.message.lower():
                raise StorageFull(f"the disk of the engine is full: {refusal.message[-200:]}") from None
            raise WorkloadError(f"the engine cannot commit it: {refusal.message[-200:]}") from None
        except aiohttp.ClientError as error:
            raise Unavailable(f"the Docker engine does not answer: {type(error).__name__}") from None
        except OSError as error:
            if error.errno in _FULL:
                raise StorageFull("the disk of the archives is full") from None
            raise WorkloadError(f"the archive cannot be written: {error.strerror}") from None
        finally:
            self._busy.discard(key)

    async def _commit(
        self, key: WorkloadKey, container: str, image_id: str, request: CommitRequest, tell: TellProgress
    ) -> CommittedImage:
        target = self._directory / _check_word(request.folder) / _check_word(request.filename)
        base = await self._engine.image(image_id)
        if base is None:
            raise WorkloadError("the image of this session was removed from the engine, and its configuration with it")
        if request.push is None:
            await asyncio.to_thread(_check_count, target)
        size = int(base.get("Size") or 0) + await self._engine.written_bytes(container)
        work = self._workplace / f"{key}"
        await asyncio.to_thread(_make_room, work, self._reserved_bytes + 2 * size)
        tag = f"{key.kernel_id.hex}-{key.attempt}"
        temporary = f"{self._repository}:{tag}"
        try:
            await self._engine.commit(container, self._repository, tag)
            crash_point("commit.made")
            await self._engine.save(temporary, work / "saved.tar")
            tell(size, 2 * size)
            crash_point("commit.saved")
            name = request.push.name if request.push is not None else _archive_name(base, request.filename)
            config = {**(base.get("Config") or {})}
            config["Labels"] = {**(config.get("Labels") or {}), **request.labels}
            made = await asyncio.to_thread(
                rewrite, work / "saved.tar", work / "archive", name, config, request.push is None
            )
            crash_point("commit.written")
            if request.push is not None:
                return await self._push(request.push, work / "archive", made)
            await asyncio.to_thread(_place, work / "archive", target)
            tell(2 * size, 2 * size)
            return CommittedImage(
                place=str(target), size_bytes=target.stat().st_size, config_digest=made.digest, labels=config["Labels"]
            )
        finally:
            await asyncio.shield(self._clear(temporary, work))

    async def _clear(self, temporary: str, work: Path) -> None:
        await asyncio.to_thread(remove_tree, work)
        with suppress(BackendError):  # the next start removes it
            await self._engine.remove_image(temporary)

    async def _push(self, request: ImageRequest, archive: Path, made: Rewritten) -> CommittedImage:
        name = ImageName.parse(request.name)
        digest = ""
        login = (request.username, request.password) if request.username else None
        try:
            async for line in self._engine.load(archive):
                if problem := line.get("error"):
                    raise WorkloadError(f"the engine does not take the archive: {str(problem)[-200:]}")
            try:
                async for line in self._engine.push(name.repository, name.tag, login, name.registry):
                    if problem := line.get("error"):
                        raise error_of(request.name, str(problem))
                    digest = str((line.get("aux") or {}).get("Digest") or digest)
            except EngineRefusal as refusal:
                raise error_of(request.name, refusal.message, refusal.status) from None
        except BaseException:
            with suppress(BackendError):
                await asyncio.shield(self._engine.remove_image(request.name))
            raise
        return CommittedImage(
            place=request.name, size_bytes=made.size_bytes, digest=digest, config_digest=made.digest, labels=made.labels
        )


def _check_count(target: Path) -> None:
    """Checks the number of archives in the folder. Raises LimitExceeded."""
    with suppress(FileNotFoundError):
        if sum(1 for file in target.parent.iterdir() if file.name != target.name) >= _MOST_ARCHIVES:
            raise LimitExceeded(
                f"the agent keeps {_MOST_ARCHIVES} archives of {target.parent.name}, and no more: have its operator "
                "move or remove some, or make an image of the session in a registry instead"
            )


def _make_room(work: Path, needed: int) -> None:
    """Checks the free space. Raises StorageFull if what will be written does not fit."""
    work.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_tree(work)
    work.mkdir(mode=0o700)
    free = shutil.disk_usage(work).free
    if free < needed:
        remove_tree(work)
        raise StorageFull(f"the archive may need {needed} bytes, and the disk of the archives has {free}")


def _place(archive: Path, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with archive.open("rb") as file:
        os.fsync(file.fileno())
    archive.replace(target)


def _archive_name(base: Mapping[str, Any], filename: str) -> str:
    """Returns the name for ``docker load``: the session's image, with the name of the archive as tag."""
    tag = re.sub(r"[^\w.-]", "-", filename.removesuffix(".tar.gz"))[:128].lstrip(".-") or "commit"
    for known in base.get("RepoTags") or ():
        with suppress(InvalidInput):
            return f"{ImageName.parse(known).repository}:{tag}"
    return f"backendai-committed:{tag}"
