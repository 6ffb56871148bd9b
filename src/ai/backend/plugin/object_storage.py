"""Defines the SPI of object storages for artifacts (spec 03-17).

An object is a named byte string that appears as a whole. A storage proxy decides which keys there are and who may read
them; the storage keeps bytes. :mod:`ai.backend.plugin.testing.object_storage` tests what it promises. A key is a
relative path: parts joined by slashes, UTF-8, none empty, ``.`` or ``..``, no control characters, at most
:data:`MAX_KEY` bytes, and 255 in each part. No key is the beginning of another one's path (``a`` and ``a/b``).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from ai.backend.common.errors import BackendError, InvalidPath, NotSupported
from ai.backend.common.volume_paths import FolderPath
from ai.backend.plugin.volume import OpenFile

SPI_VERSION = 1
ENTRY_POINT_GROUP = "backendai_object_storage_v1"
MAX_KEY = 1024
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f]")
CHUNK_BYTES = 1 << 18
"""About as much as :meth:`ObjectStorage.read` gives at a time."""


class ObjectCapability(StrEnum):
    """Lists the optional features of an object storage.

    ``mount``: hosts see objects as files, so :meth:`ObjectStorage.mount_path` and :meth:`ObjectStorage.open_file` work.
    ``presign``: it makes URLs that work without us, :meth:`ObjectStorage.presign`.
    """

    MOUNT = "mount"
    PRESIGN = "presign"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Describes a stored object: ``size`` in bytes, ``modified`` in seconds since 1970."""

    key: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """Holds a part of a listing, sorted by the UTF-8 bytes of the key.

    ``cursor`` leads to the next one; None: the last.
    """

    objects: Sequence[ObjectInfo]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageContext:
    """Holds the values that the storage proxy passes to an object storage, such as the owner of new files.

    ``owner``: uid and gid of all files that the storage makes, where the process may give files away.
    """

    owner: tuple[int, int] | None = None


def check_key(key: str) -> str:
    """Checks and returns the key of an object. Raises InvalidPath if the text is no valid key of an object."""
    path = FolderPath.parse(key)
    if not key or "/".join(path.parts) != key or len(key.encode()) > MAX_KEY or _CONTROL_CHARACTERS.search(key):
        raise InvalidPath("A key is a relative path without '.', '//' and control characters.", data={"key": key[:256]})
    return key


def check_prefix(prefix: str) -> str:
    """Checks and returns a prefix, which is a key and a slash. The empty prefix means every key. Raises InvalidPath."""
    if prefix:
        check_key(prefix.removesuffix("/"))
        if not prefix.endswith("/"):
            raise InvalidPath("A prefix ends with a slash.", data={"key": prefix[:256]})
    return prefix


class ObjectUpload(ABC):
    """Represents an unfinished upload of an object, which nobody sees before :meth:`publish`.

    ``offset`` counts the bytes that are there; after the process died, an upload of the same key goes on at most at
    that place.
    """

    offset: int

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Appends bytes. The memory in use does not grow with the object. Raises StorageFull."""

    @abstractmethod
    async def publish(self) -> None:
        """Makes the upload the object of its key, durably and as a whole. An existing object is replaced."""

    @abstractmethod
    async def close(self) -> None:
        """Closes the upload. The upload can be continued later. Does nothing after :meth:`publish` or :meth:`abort`."""

    @abstractmethod
    async def abort(self) -> None:
        """Discards the upload with all bytes written so far."""


class ObjectStorage(ABC):
    """Stores the objects of one bucket, directory or volume.

    Every call raises ObjectStorageUnavailable, ObjectStorageRefused or BucketNotFound where the server is down, does
    not take our credentials, or lacks the bucket, each within about a minute; InvalidPath for an invalid key. Deleting
    may be repeated. ``name`` and ``options`` are from the settings; the constructor raises InvalidInput for a missing,
    unknown or wrong option, and for a library that is not installed.
    """

    spi_version: ClassVar[int] = SPI_VERSION
    backend: ClassVar[str]

    def __init__(self, name: str, options: Mapping[str, Any], context: StorageContext) -> None:
        self.name = name

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[ObjectCapability]: ...

    @abstractmethod
    async def start(self) -> None:
        """Opens the storage. Raises InvalidInput: the place cannot be used. A server that is down is no error."""

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def check(self) -> str | None:
        """Returns the present fault of the storage. Returns None if there is no fault."""

    @abstractmethod
    async def stat(self, key: str) -> ObjectInfo:
        """Describes an object. Raises NoSuchFile."""

    @abstractmethod
    def read(self, key: str, *, offset: int = 0, count: int | None = None) -> AsyncGenerator[bytes, None]:
        """Yields at most ``count`` bytes of an object from ``offset`` on.

        Bytes beyond the end are left out. Close it. Raises NoSuchFile: before the first part.
        """

    @abstractmethod
    async def open_upload(self, key: str, *, size: int | None = None) -> ObjectUpload:
        """Begins an upload, or continues the upload of this key.

        A known ``size`` may decide the size of parts. Raises UploadIsBeingWritten where the storage notices it;
        elsewhere the last publisher wins.
        """

    @abstractmethod
    async def list(self, prefix: str = "", *, limit: int = 1000, cursor: str | None = None) -> ObjectPage: ...

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Deletes objects. A missing object is no error."""

    @abstractmethod
    async def abort_uploads(self, prefix: str) -> None:
        """Discards the uploads of objects below ``prefix``. Nobody may be writing to these uploads."""

    @abstractmethod
    async def move(self, source: str, target: str) -> None:
        """Renames an object.

        An existing ``target`` is replaced, and the target appears as a whole. Raises NoSuchFile.
        """

    async def presign(self, key: str, *, expires_s: int, put_size: int | None = None) -> str:
        """Returns a URL that permits to GET an object, or to PUT an object of ``put_size`` bytes.

        With ``presign``; else raises NotSupported.
        """
        raise NotSupported(f"The object storage {self.name} makes no URLs.")

    async def mount_path(self, prefix: str) -> Path:
        """Returns the absolute path at which hosts that mount the storage see the objects below ``prefix``.

        The path is the same on all hosts. With the capability ``mount``. Raises NoSuchFile.
        """
        raise NotSupported(f"The object storage {self.name} is not mounted.")

    async def open_file(self, key: str) -> OpenFile:
        """Opens an object as a file, if the storage has the capability ``mount``. Raises NoSuchFile."""
        raise NotSupported(f"The object storage {self.name} is not mounted.")

    async def put(self, key: str, parts: bytes | AsyncIterable[bytes], *, size: int | None = None) -> None:
        """Stores a new object from parts. After a failure, nothing of the object remains."""
        upload = await self.open_upload(key, size=len(parts) if isinstance(parts, bytes) else size)
        try:
            if upload.offset:
                await upload.abort()
                upload = await self.open_upload(key, size=size)
            if isinstance(parts, bytes):
                await upload.write(parts)
            else:
                async for data in parts:
                    await upload.write(data)
            await upload.publish()
        except BaseException:
            try:
                await upload.abort()
            except BackendError:
                await upload.close()
            raise

    async def get(self, key: str, *, limit: int) -> bytes:
        """Returns the content of a small object. Raises NoSuchFile; InvalidPath if it has more than ``limit`` bytes."""
        content = bytearray()
        async for data in self.read(key):
            content += data
            if len(content) > limit:
                raise InvalidPath(f"The object has more than {limit} bytes.", data={"key": key})
        return bytes(content)

    async def delete_prefix(self, prefix: str) -> None:
        """Removes all objects and unfinished uploads below ``prefix``."""
        await self.abort_uploads(prefix)
        while (page := await self.list(prefix)).objects:
            await self.delete([object_info.key for object_info in page.objects])
