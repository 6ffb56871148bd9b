"""Defines the SPI of storage volumes, which are trees of files with virtual folders (spec 03-01, peer facts 5).

The storage proxy checks spelling of paths, tokens and accounted quotas; the volume takes care that nothing it does
leaves a folder. :mod:`ai.backend.plugin.testing.volume.contract` tests what a volume promises.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from ai.backend.common.errors import InvalidInput, PluginError
from ai.backend.common.volume_paths import FolderPath, QuotaScopeId, VFolderId

SPI_VERSION = 11
ENTRY_POINT_GROUP = "backendai_volume_v1"
_READ_BYTES = 1 << 18


class VolumeCapability(StrEnum):
    """Lists the optional features of a volume. The storage proxy uses only the features that the volume declares.

    See peer facts 5, "Capabilities". ``quota``: it enforces the limits of quota scopes itself; without it the proxy
    accounts, which is soft. ``fast-*``: the answer costs no walk over all files.
    """

    VFOLDER = "vfolder"
    METRIC = "metric"
    QUOTA = "quota"
    FAST_FS_SIZE = "fast-fs-size"
    FAST_SCAN = "fast-scan"
    FAST_SIZE = "fast-size"


class FileKind(StrEnum):
    FILE = "FILE"
    DIRECTORY = "DIRECTORY"
    SYMBOLIC_LINK = "SYMBOLIC_LINK"
    OTHER = "OTHER"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """Describes an entry of a directory. ``size`` is in bytes, times are seconds since 1970, ``mode`` as of stat(2)."""

    name: str
    kind: FileKind
    mode: int
    size: int
    created: float
    modified: float
    symlink_target: str = ""
    accessed: float = 0.0


@dataclass(frozen=True, slots=True)
class Page:
    """Holds a part of a directory, sorted by name. ``cursor`` leads to the next one; None: this was the last."""

    entries: Sequence[FileEntry]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class FolderUsage:
    """Describes the usage of a folder.

    ``used_bytes`` are allocated bytes, and a file with several names counts once. ``file_count`` counts everything but
    directories where it comes from a walk; where the file system keeps the count, it is what that counts (xfs: every
    inode).
    """

    file_count: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    capacity_bytes: int
    used_bytes: int


@dataclass(frozen=True, slots=True)
class VolumeMetric:
    """Holds the counts of reads and writes of a volume since the machine started, as far as the volume knows them."""

    iops_read: int = 0
    iops_write: int = 0
    io_bytes_read: int = 0
    io_bytes_write: int = 0
    io_usec_read: int = 0
    io_usec_write: int = 0


@dataclass(frozen=True, slots=True)
class Mount:
    """Describes the mount under a volume. ``options`` are those of the mount and of the file system."""

    mount_point: str
    source: str
    fstype: str
    options: Sequence[str]


class OpenFile:
    """Represents a regular file that is open for reading. The receiver must close the file."""

    __slots__ = ("fd", "modified_ns", "size")

    def __init__(self, fd: int) -> None:
        stat = os.fstat(fd)
        self.fd = fd
        self.size = stat.st_size
        self.modified_ns = stat.st_mtime_ns

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()  # whoever asked for it may have been cancelled before it came


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """Describes an entry of a tree of files.

    ``open`` reads a file; called before the iterator goes on, and its result closed.
    """

    path: FolderPath
    entry: FileEntry
    open: Callable[[], OpenFile]


class UploadState(StrEnum):
    OPEN = "open"
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadRecord:
    """Describes a requested upload: ``size`` bytes that become the file ``path``."""

    session: str
    folder: VFolderId
    path: FolderPath
    size: int
    state: UploadState = UploadState.OPEN


class Upload(ABC):
    """Represents an upload that is open for writing.

    No other process or task can open the upload meanwhile. Blocking: called in threads, one call at a time. What was
    written is kept when the process dies at any point.
    """

    record: UploadRecord
    offset: int
    """Bytes that are there; all of them are once the upload is done."""

    @abstractmethod
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Appends bytes to the upload. Raises StorageFull: ``offset`` tells how many bytes are there."""

    def receive(self, fd: int, count: int) -> int:
        """Reads at most ``count`` bytes from a socket and appends them to the upload, in the cheapest way.

        Returns the number of bytes, 0 if the socket has ended. Raises BlockingIOError if it holds nothing now,
        StorageFull as :meth:`write`; what was taken from the socket is lost.
        """
        data = os.read(fd, min(count, _READ_BYTES))
        self.write(data)
        return len(data)

    @abstractmethod
    def hold(self) -> None:
        """Makes further writes provisional: they are lost at a crash or a close, unless :meth:`count` follows."""

    @abstractmethod
    def count(self) -> None: ...

    @abstractmethod
    def publish(self, path: FolderPath) -> None:
        """Makes the complete upload the file ``path``, durably and as a whole.

        Missing directories are created. Raises FolderNotFound, InvalidPath, WrongKindOfFile, StorageFull.
        """

    @abstractmethod
    def close(self) -> None: ...


class Progress:
    """Holds the progress of a long operation, and requests to end the operation early.

    Written by its thread, read by others. ``cancel`` makes it end early with nothing left of it, ``abandon`` where it
    is, to be taken up by the next process.
    """

    def __init__(self) -> None:
        self.current = 0
        self.total = 0
        self.files = 0
        self.skipped = 0
        self.is_abandoned = False
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def abandon(self) -> None:
        self.is_abandoned = True
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()


@dataclass(frozen=True, slots=True)
class UnfinishedClone:
    """Describes a clone that the proxy began before its restart.

    ``source_volume`` is the name of the source's volume.
    """

    source_volume: str
    source: VFolderId
    target: VFolderId


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeContext:
    """Holds the values that the storage proxy passes to a volume: the owner of new files, and a function for tests.

    ``owner``: uid and gid of all that the volume makes where the process may give files away; ``waypoint``: called at
    named points of operations, where kill tests can end the process.
    """

    owner: tuple[int, int] | None = None
    waypoint: Callable[[str], None] = field(default=lambda _: None)


class AbstractVolume(ABC):
    """Stores the folders of one volume; ``name``, ``path`` and ``options`` are from the settings.

    Every coroutine may be cancelled: a change that has begun goes on to its end in its thread. Paths of what is changed
    are never followed in their last part; links on the way only inside of the folder, or not at all. All methods that
    take a folder raise FolderNotFound if there is none; those that take a path InvalidPath if it leaves the folder,
    NoSuchFile, WrongKindOfFile; and StorageFull where something grows. The constructor raises InvalidInput for a wrong
    option.
    """

    spi_version: ClassVar[int] = SPI_VERSION
    backend: ClassVar[str]

    def __init__(self, name: str, path: Path, options: Mapping[str, Any], context: VolumeContext) -> None:
        self.name = name
        self.path = path

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[VolumeCapability]: ...

    @abstractmethod
    async def start(self) -> None:
        """Prepares the volume for use.

        Raises InvalidInput: the place cannot be used, or holds something else.
        """

    async def migrate(self, folders: Sequence[VFolderId]) -> Sequence[str]:
        """Converts files of an older layout to the present layout, before ``start``.

        It may be repeated. ``folders`` are all that there should be. Returns the found ones that are not named; while
        there is any, the layout stays the old one. Raises InvalidInput if there is nothing that could be migrated.
        """
        raise InvalidInput(f"The backend {self.backend} has no older layout.")

    @abstractmethod
    async def stop(self) -> None: ...

    @abstractmethod
    async def check(self) -> str | None:
        """Returns the present fault of the volume. Returns None if there is no fault."""

    @abstractmethod
    async def usage(self) -> VolumeUsage: ...

    async def metric(self) -> VolumeMetric:
        """Returns the counts of reads and writes of the volume, with the capability ``metric``.

        Raises PluginError if the volume promises the capability and does not measure.
        """
        raise PluginError("the volume promises metrics and does not measure any")

    async def mount(self) -> Mount | None:
        """Returns the mount that contains the volume. Returns None if no file system of this machine contains it."""
        return None

    # Quota scopes

    @abstractmethod
    async def create_scope(self, scope: QuotaScopeId) -> None:
        """Creates a quota scope. Safe if it exists."""

    @abstractmethod
    async def scope_limit(self, scope: QuotaScopeId) -> int | None:
        """Returns the limit of a quota scope in bytes. Returns None if there is no limit. Raises QuotaScopeNotFound."""

    @abstractmethod
    async def set_scope_limit(self, scope: QuotaScopeId, limit: int | None) -> None:
        """Sets the limit of a quota scope durably. Raises QuotaScopeNotFound."""

    @abstractmethod
    async def scope_usage(self, scope: QuotaScopeId) -> FolderUsage:
        """Returns the usage of all folders of the scope. Raises QuotaScopeNotFound."""

    # Folders

    @abstractmethod
    async def create_folder(self, folder: VFolderId, *, mode: int = 0o755) -> None:
        """Creates a folder with its quota scope. An existing folder is left as it is."""

    @abstractmethod
    async def delete_folder(self, folder: VFolderId) -> None:
        """Hides a folder at once and removes it later. A clone into the folder ends. Safe if there is none."""

    @abstractmethod
    async def has_folder(self, folder: VFolderId) -> bool: ...

    @abstractmethod
    async def clone_folder(
        self, source: VFolderId, target_volume: AbstractVolume, target: VFolderId, progress: Progress
    ) -> None:
        """Copies a folder.

        The copy appears as a whole. Does nothing if the target exists. Raises FolderNotFound if there is no source or
        the target was deleted meanwhile, InvalidInput if this volume cannot copy to that one, StorageFull. After a
        failure or a cancelled progress nothing is left of the copy.
        """

    @abstractmethod
    async def unfinished_clones(self) -> Sequence[UnfinishedClone]:
        """Lists unfinished clones into this volume. The proxy starts them again by :meth:`clone_folder`."""

    @abstractmethod
    async def mount_path(self, folder: VFolderId, subpath: FolderPath) -> Path:
        """Returns the absolute path of a folder's subpath on hosts that mount this volume at the same place."""

    @abstractmethod
    async def folder_usage(self, folder: VFolderId) -> FolderUsage: ...

    # Files

    @abstractmethod
    async def list_directory(
        self, folder: VFolderId, path: FolderPath, *, limit: int, cursor: str | None = None
    ) -> Page:
        """Returns a page of a directory.

        The memory in use is bounded by ``limit``. What stays in the directory meanwhile is on exactly one page.
        """

    @abstractmethod
    async def stat(self, folder: VFolderId, path: FolderPath) -> FileEntry:
        """Describes the file or directory at a path of a folder."""

    @abstractmethod
    async def make_directory(self, folder: VFolderId, path: FolderPath, *, parents: bool, exist_ok: bool) -> None:
        """Makes a directory. Raises FileAlreadyExists: the path exists, as something else or without ``exist_ok``."""

    @abstractmethod
    async def rename(self, folder: VFolderId, path: FolderPath, new_name: str) -> None:
        """Renames a file or directory within its directory. Raises FileAlreadyExists."""

    @abstractmethod
    async def move(self, folder: VFolderId, source: FolderPath, target: FolderPath) -> None:
        """Moves a file or directory as mv(1) does, but never replaces an existing one. Raises FileAlreadyExists."""

    @abstractmethod
    async def delete_files(self, folder: VFolderId, paths: Sequence[FolderPath], *, recursive: bool) -> None:
        """Deletes files, and with ``recursive`` also directories.

        Without ``recursive``, a directory raises WrongKindOfFile and nothing is deleted. Raises NoSuchFile for the
        missing paths; the others are gone.
        """

    @abstractmethod
    async def open_file(self, folder: VFolderId, path: FolderPath) -> OpenFile:
        """Opens a regular file for reading. Raises WrongKindOfFile for anything else."""

    @abstractmethod
    def open_tree(
        self, folder: VFolderId, paths: Sequence[FolderPath]
    ) -> AbstractContextManager[Iterator[ArchiveEntry]]:
        """Yields all entries at and below the paths, parents before children.

        Blocking: used in one thread.
        """

    # Uploads

    @abstractmethod
    async def create_upload(self, record: UploadRecord) -> None:
        """Begins an upload. Raises FolderNotFound, and WrongKindOfFile if the path is a directory."""

    @abstractmethod
    async def find_upload(self, folder: VFolderId, session: str) -> tuple[UploadRecord, int]:
        """Returns the record of an upload, and the number of bytes that have arrived. Raises UploadNotFound."""

    @abstractmethod
    def open_upload(self, folder: VFolderId, session: str) -> Upload:
        """Opens an upload for writing. Raises UploadNotFound, UploadIsBeingWritten.

        Blocking, as are the calls of the upload.
        """

    @abstractmethod
    async def drop_upload(self, folder: VFolderId, session: str) -> None:
        """Discards an upload. Raises UploadNotFound, UploadIsBeingWritten."""

    @abstractmethod
    async def uploads(self, scope: QuotaScopeId) -> Sequence[UploadRecord]:
        """Lists the uploads of a scope."""

    @abstractmethod
    async def expire_uploads(self, before: float) -> int:
        """Removes the uploads that have not grown since ``before``, of all scopes, and returns the number of them."""
