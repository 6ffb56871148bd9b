"""Serves resumable uploads by tus 1.0 (https://tus.io/protocols/resumable-upload), which append bytes in order.

Bytes received before a connection broke are stored. The file appears when its last byte is on the disk. See
docs/decisions/0081.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from ai.backend.common.errors import (
    BackendError,
    ChecksumMismatch,
    InvalidInput,
    StorageFull,
    UploadIsBeingWritten,
    UploadNotFound,
    UploadOffsetMismatch,
)
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.infra.http.errors import PayloadTooLarge
from ai.backend.plugin.volume import AbstractVolume, Upload, UploadRecord, UploadState
from ai.backend.storage.transfers.tokens import UploadClaims
from ai.backend.storage.volumes.quotas import QuotaAccounting
from ai.backend.storage.volumes.registry import Volumes

log = logging.getLogger(__name__)
R = TypeVar("R")
CHECKSUM_ALGORITHMS = ("sha1", "sha256", "md5")
_THREAD_COUNT = 8
_EXPIRY_PERIOD_S = 600.0
_READ_CHUNK_BYTES = 1 << 18


class Body(Protocol):
    """Reads the body of one upload request, whole or in parts."""

    async def whole(self) -> bytes | None:
        """Returns all bytes of a small body, or None if :meth:`pour` must be called."""

    async def pour(self, sink: Sink, threads: Executor) -> None:
        """Passes the bytes to the sink in threads, one call at a time; no call is running when this returns."""


class _Digest(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


class Sink:
    """Writes the bytes of a body to an upload."""

    def __init__(self, upload: Upload, digest: _Digest | None) -> None:
        self._upload = upload
        self._digest = digest

    def put(self, data: bytes) -> None:
        """Writes bytes. Raises PayloadTooLarge, StorageFull."""
        size = self._upload.record.size
        if len(data) > size - self._upload.offset:
            raise PayloadTooLarge(f"The upload has {size} bytes.")
        if self._digest is not None:
            self._digest.update(data)
        self._upload.write(data)

    def take(self, connection: socket.socket, max_bytes: int) -> int:
        """Writes up to ``max_bytes`` bytes from a connection and returns their number.

        Raises BlockingIOError: no bytes are available now; ConnectionError: the connection has ended; StorageFull.
        """
        if self._digest is None:
            taken_bytes = self._upload.receive(connection.fileno(), max_bytes)
        else:
            data = connection.recv(min(max_bytes, _READ_CHUNK_BYTES))
            self.put(data)
            taken_bytes = len(data)
        if not taken_bytes:
            raise ConnectionResetError
        return taken_bytes


class Checksum(msgspec.Struct, frozen=True):
    """Holds the announced checksum of a chunk; ``algorithm`` is one of :data:`CHECKSUM_ALGORITHMS`."""

    algorithm: str
    value: bytes


class Chunk(msgspec.Struct, frozen=True):
    """Describes one upload request: the offset, the length, the body and the checksum of its bytes.

    ``length`` is None if the request does not announce it.
    """

    offset: int
    length: int | None
    body: Body | None
    checksum: Checksum | None = None


class Uploads:
    """Manages uploads; ``max_size`` is the largest size of a file in bytes."""

    def __init__(self, volumes: Volumes, quota: QuotaAccounting, *, max_size: int) -> None:
        self._volumes = volumes
        self._quota = quota
        self.max_size = max_size
        self._threads = ThreadPoolExecutor(_THREAD_COUNT, "upload")

    async def request(self, volume: AbstractVolume, folder: VFolderId, path: FolderPath, size: int) -> UploadClaims:
        """Reserves space for an upload and returns its claims; an empty file is published at once.

        Raises PayloadTooLarge, QuotaExceeded, StorageFull, FolderNotFound, InvalidPath, WrongKindOfFile.
        """
        if size > self.max_size:
            raise PayloadTooLarge(f"At most {self.max_size} bytes are taken.", data={"limit": self.max_size})
        record = UploadRecord(session=secrets.token_hex(16), folder=folder, path=path, size=size)
        await self._quota.reserve(volume, folder.scope, size)
        try:
            await volume.create_upload(record)
        except BaseException:
            self._quota.end_reservation(volume, folder.scope, size, is_published=False)
            raise
        claims = UploadClaims(
            volume=volume.name, vfid=str(folder), relpath=str(path), size=size, session=record.session
        )
        if size == 0:
            await self.receive(claims, Chunk(0, 0, None))
        return claims

    async def request_all(
        self, volume: AbstractVolume, folder: VFolderId, sizes: Sequence[tuple[FolderPath, int]]
    ) -> list[UploadClaims]:
        """Reserves space for several uploads as :meth:`request` does, for all of them or none, and returns their
        claims. Empty files that were published before a failure stay.
        """
        claims: list[UploadClaims] = []
        try:
            for path, size in sizes:
                claims.append(await self.request(volume, folder, path, size))
        except BaseException:
            for claims_of_file in claims:
                with suppress(BackendError):
                    await self.drop(claims_of_file)
            raise
        return claims

    async def progress(self, claims: UploadClaims, *, directory: FolderPath | None = None) -> int:
        """Returns the offset of an upload, the number of bytes received so far.

        Publishes the file if the proxy was killed between the last byte and the publication, since the client sends
        nothing more. Raises UploadNotFound and the errors of :meth:`receive`.
        """
        volume, folder = self._locate_folder(claims)
        record, offset = await volume.find_upload(folder, claims.session)
        if offset == record.size and record.state != UploadState.DONE:
            with suppress(UploadIsBeingWritten):
                return await self.receive(claims, Chunk(offset, 0, None), directory=directory)
        return offset

    async def drop(self, claims: UploadClaims) -> None:
        """Discards an upload. Raises UploadNotFound, UploadIsBeingWritten."""
        volume, folder = self._locate_folder(claims)
        record, _ = await volume.find_upload(folder, claims.session)
        await volume.drop_upload(folder, claims.session)
        if record.state != UploadState.DONE:
            self._quota.end_reservation(volume, folder.scope, record.size, is_published=False)

    async def receive(self, claims: UploadClaims, chunk: Chunk, *, directory: FolderPath | None = None) -> int:
        """Appends a chunk, publishes the file after the last one, and returns the new offset.

        ``directory``: directory of the folder to which the path of the token is relative. Raises UploadNotFound,
        UploadIsBeingWritten, UploadOffsetMismatch, PayloadTooLarge, ChecksumMismatch, StorageFull, FolderNotFound,
        InvalidPath, WrongKindOfFile, ConnectionError, BodyTooSlow: received bytes are stored unless the checksum is
        wrong.
        """
        volume, folder = self._locate_folder(claims)
        path = FolderPath.parse(claims.relpath)
        if directory is not None:
            path = FolderPath.parse(str(FolderPath((*directory.parts, *path.parts))))
        data = b"" if chunk.body is None else await chunk.body.whole()
        open_upload = partial(volume.open_upload, folder, claims.session)
        try:
            if data is not None:
                offset, is_published = await self._run(_receive_at_once, open_upload, chunk, data, path)
            else:
                offset, is_published = await self._receive_slowly(open_upload, chunk, path)
        except StorageFull as e:
            raise await self._quota.error_of_full_volume(volume, folder.scope, e) from None
        if is_published:
            self._quota.end_reservation(volume, folder.scope, claims.size, is_published=True)
        return offset

    async def _receive_slowly(
        self, open_upload: Callable[[], Upload], chunk: Chunk, path: FolderPath
    ) -> tuple[int, bool]:
        upload = await self._run(_open_for_chunk, open_upload, chunk)
        try:
            if upload.offset < upload.record.size:
                await self._append(upload, chunk)
            if upload.offset < upload.record.size:
                return upload.offset, False
            return upload.offset, await self._run(_publish_if_complete, upload, path)
        finally:
            upload.close()

    async def _append(self, upload: Upload, chunk: Chunk) -> None:
        if chunk.body is None:
            return
        if chunk.checksum is None:
            await chunk.body.pour(Sink(upload, None), self._threads)
            return
        digest = hashlib.new(chunk.checksum.algorithm, usedforsecurity=False)
        await self._run(upload.hold)
        await chunk.body.pour(Sink(upload, digest), self._threads)
        _check_digest(digest, chunk.checksum)
        await self._run(upload.count)

    async def _run(self, function: Callable[..., R], *arguments: Any) -> R:
        """Runs a function in a thread, and waits for its end even if the caller is cancelled.

        The upload is closed afterwards.
        """
        return await await_despite_cancel(
            asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        )

    def _locate_folder(self, claims: UploadClaims) -> tuple[AbstractVolume, VFolderId]:
        try:
            return self._volumes.get(claims.volume), VFolderId.parse(claims.vfid)
        except InvalidInput:
            raise UploadNotFound from None

    async def expire_periodically(self, *, after_s: float) -> None:
        """Removes uploads without progress for ``after_s`` seconds from all volumes periodically, until cancelled."""
        while True:
            for volume in self._volumes:
                try:
                    removed_count = await volume.expire_uploads(time.time() - after_s)
                except Exception:
                    log.exception("cannot expire the uploads of the volume %s", volume.name)
                    continue
                if removed_count:
                    self._quota.recount()
                    log.info("removed %d expired uploads on the volume %s", removed_count, volume.name)
            await asyncio.sleep(min(_EXPIRY_PERIOD_S, after_s))

    def stop(self) -> None:
        self._threads.shutdown(wait=False)


async def await_despite_cancel(work_future: asyncio.Future[R]) -> R:
    """Returns the result of a thread's future, and waits for the thread's end even if the caller is cancelled."""
    try:
        return await asyncio.shield(work_future)
    except asyncio.CancelledError:
        await asyncio.wait({work_future})
        raise


def _check_digest(digest: _Digest, checksum: Checksum) -> None:
    if digest.digest() != checksum.value:
        raise ChecksumMismatch


def _open_for_chunk(open_upload: Callable[[], Upload], chunk: Chunk) -> Upload:
    upload = open_upload()
    try:
        size = upload.record.size
        if chunk.offset != upload.offset:
            raise UploadOffsetMismatch(
                f"The upload goes on at {upload.offset}, not at {chunk.offset}.", data={"offset": upload.offset}
            )
        if chunk.length is not None and chunk.length > size - upload.offset:
            raise PayloadTooLarge(f"The upload has {size} bytes.", data={"limit": size})
    except BaseException:
        upload.close()
        raise
    return upload


def _publish_if_complete(upload: Upload, path: FolderPath) -> bool:
    if upload.offset < upload.record.size or upload.record.state == UploadState.DONE:
        return False
    upload.publish(path)
    return True


def _receive_at_once(
    open_upload: Callable[[], Upload], chunk: Chunk, data: bytes, path: FolderPath
) -> tuple[int, bool]:
    upload = _open_for_chunk(open_upload, chunk)
    try:
        if chunk.checksum is not None:
            _check_digest(hashlib.new(chunk.checksum.algorithm, data, usedforsecurity=False), chunk.checksum)
        if data:
            upload.write(data)
        return upload.offset, _publish_if_complete(upload, path)
    finally:
        upload.close()
