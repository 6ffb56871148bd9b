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
from ai.backend.runtime.docker.archives import RewrittenArchive, rewrite
from ai.backend.runtime.docker.engine import Engine, EngineRefusal
from ai.backend.runtime.docker.images import COMMIT_PREFIX
from ai.backend.runtime.docker.pulls import registry_error
from ai.backend.runtime.docker.records import DockerState

_FILE_NAME_PATTERN = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9_@+.-]{0,199}", re.ASCII)
_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)
_MAX_ARCHIVES = 16


class Commits:
    """Commits sessions as images, one at a time, into archives or a registry; keeps ``reserved_bytes`` of disk free."""

    def __init__(self, engine: Engine, state: DockerState, archives_directory: Path, reserved_bytes: int) -> None:
        self._engine = engine
        self._state = state
        self._directory = archives_directory
        self._reserved_bytes = reserved_bytes
        self._committing: set[WorkloadKey] = set()
        self._write_lock = asyncio.Lock()

    @property
    def _repository(self) -> str:
        """Returns the repository name for temporary images, which exist only while an archive is written."""
        return f"{COMMIT_PREFIX}{self._state.instance[:16].lower()}"

    @property
    def _work_directory(self) -> Path:
        return self._directory / ".unfinished"

    async def clean(self) -> None:
        """Removes the files and temporary images of interrupted commits."""
        await asyncio.to_thread(remove_tree, self._work_directory)
        for image in await self._engine.images():
            for tag in image.get("RepoTags") or ():
                if tag.startswith(f"{self._repository}:"):
                    with suppress(EngineRefusal):
                        await self._engine.remove_image(tag)

    async def commit(
        self, key: WorkloadKey, container_id: str, image_id: str, request: CommitRequest, tell_progress: TellProgress
    ) -> CommittedImage:
        """Commits a workload's root file system as an image or an archive, as :meth:`AbstractRuntime.commit` says.

        Raises Conflict while another commit of the workload is in progress.
        """
        if key in self._committing:
            raise Conflict("a commit of this session is under way")
        self._committing.add(key)
        try:
            async with self._write_lock:
                return await self._commit(key, container_id, image_id, request, tell_progress)
        except EngineRefusal as refusal:
            if "no space left" in refusal.message.lower():
                raise StorageFull(f"the disk of the engine is full: {refusal.message[-200:]}") from None
            raise WorkloadError(f"the engine cannot commit it: {refusal.message[-200:]}") from None
        except aiohttp.ClientError as error:
            raise Unavailable(f"the Docker engine does not answer: {type(error).__name__}") from None
        except OSError as error:
            if error.errno in _DISK_FULL_ERRNOS:
                raise StorageFull("the disk of the archives is full") from None
            raise WorkloadError(f"the archive cannot be written: {error.strerror}") from None
        finally:
            self._committing.discard(key)

    async def _commit(
        self, key: WorkloadKey, container_id: str, image_id: str, request: CommitRequest, tell_progress: TellProgress
    ) -> CommittedImage:
        for file_name in (request.folder, request.filename):
            if not _FILE_NAME_PATTERN.fullmatch(file_name):
                raise InvalidInput(f"{file_name[:64]!r} cannot be the name of a file here")
        target_path = self._directory / request.folder / request.filename
        base_image = await self._engine.image(image_id)
        if base_image is None:
            raise WorkloadError("the image of this session was removed from the engine, and its configuration with it")
        if request.push is None:
            await asyncio.to_thread(_check_archive_count, target_path)
        image_bytes = int(base_image.get("Size") or 0) + await self._engine.written_bytes(container_id)
        work_folder = self._work_directory / f"{key}"
        await asyncio.to_thread(_make_work_folder, work_folder, self._reserved_bytes + 2 * image_bytes)
        tag = f"{key.kernel_id.hex}-{key.attempt}"
        temporary_image = f"{self._repository}:{tag}"
        try:
            await self._engine.commit(container_id, self._repository, tag)
            crash_point("commit.made")
            await self._engine.save(temporary_image, work_folder / "saved.tar")
            tell_progress(image_bytes, 2 * image_bytes)
            crash_point("commit.saved")
            image_name = request.push.name if request.push is not None else _archive_name(base_image, request.filename)
            image_config = {**(base_image.get("Config") or {})}
            image_config["Labels"] = {**(image_config.get("Labels") or {}), **request.labels}
            rewritten_archive = await asyncio.to_thread(
                rewrite,
                work_folder / "saved.tar",
                work_folder / "archive",
                image_name,
                image_config,
                request.push is None,
            )
            crash_point("commit.written")
            if request.push is not None:
                return await self._push(request.push, work_folder / "archive", rewritten_archive)
            await asyncio.to_thread(_publish_archive, work_folder / "archive", target_path)
            tell_progress(2 * image_bytes, 2 * image_bytes)
            return CommittedImage(
                place=str(target_path),
                size_bytes=target_path.stat().st_size,
                config_digest=rewritten_archive.digest,
                labels=image_config["Labels"],
            )
        finally:
            await asyncio.shield(self._remove_temporary(temporary_image, work_folder))

    async def _remove_temporary(self, temporary_image: str, work_folder: Path) -> None:
        await asyncio.to_thread(remove_tree, work_folder)
        with suppress(BackendError):  # the next start removes it
            await self._engine.remove_image(temporary_image)

    async def _push(
        self, image_request: ImageRequest, archive: Path, rewritten_archive: RewrittenArchive
    ) -> CommittedImage:
        image_name = ImageName.parse(image_request.name)
        manifest_digest = ""
        credentials = (image_request.username, image_request.password) if image_request.username else None
        try:
            async for engine_message in self._engine.load(archive):
                if error_text := engine_message.get("error"):
                    raise WorkloadError(f"the engine does not take the archive: {str(error_text)[-200:]}")
            try:
                async for engine_message in self._engine.push(
                    image_name.repository, image_name.tag, credentials, image_name.registry
                ):
                    if error_text := engine_message.get("error"):
                        raise registry_error(image_request.name, str(error_text))
                    manifest_digest = str((engine_message.get("aux") or {}).get("Digest") or manifest_digest)
            except EngineRefusal as refusal:
                raise registry_error(image_request.name, refusal.message, refusal.status) from None
        except BaseException:
            with suppress(BackendError):
                await asyncio.shield(self._engine.remove_image(image_request.name))
            raise
        return CommittedImage(
            place=image_request.name,
            size_bytes=rewritten_archive.size_bytes,
            digest=manifest_digest,
            config_digest=rewritten_archive.digest,
            labels=rewritten_archive.labels,
        )


def _check_archive_count(archive_path: Path) -> None:
    """Checks the number of archives in the folder of ``archive_path``. Raises LimitExceeded."""
    with suppress(FileNotFoundError):
        if sum(1 for file in archive_path.parent.iterdir() if file.name != archive_path.name) >= _MAX_ARCHIVES:
            raise LimitExceeded(
                f"the agent keeps {_MAX_ARCHIVES} archives of {archive_path.parent.name}, and no more: have its "
                "operator move or remove some, or make an image of the session in a registry instead"
            )


def _make_work_folder(work_folder: Path, needed_bytes: int) -> None:
    """Makes an empty work folder. Raises StorageFull if its disk has less than ``needed_bytes`` free."""
    work_folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_tree(work_folder)
    work_folder.mkdir(mode=0o700)
    free_bytes = shutil.disk_usage(work_folder).free
    if free_bytes < needed_bytes:
        remove_tree(work_folder)
        raise StorageFull(f"the archive may need {needed_bytes} bytes, and the disk of the archives has {free_bytes}")


def _publish_archive(archive: Path, target_path: Path) -> None:
    target_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with archive.open("rb") as file:
        os.fsync(file.fileno())
    archive.replace(target_path)


def _archive_name(base_image: Mapping[str, Any], archive_filename: str) -> str:
    """Returns the image name inside a committed archive, for ``docker load``.

    It is the session's image, with the name of the archive as tag.
    """
    tag = re.sub(r"[^\w.-]", "-", archive_filename.removesuffix(".tar.gz"))[:128].lstrip(".-") or "commit"
    for name in base_image.get("RepoTags") or ():
        with suppress(InvalidInput):  # another name may be valid
            return f"{ImageName.parse(name).repository}:{tag}"
    return f"backendai-committed:{tag}"
