"""Implements the ``xfs`` backend: a vfs volume whose quota scopes are projects of the file system.

Beside the layout of vfs, ``.projects/`` has a link for each assigned project id, which leads to its scope. The lock of
this directory is held while a scope is created.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.common.volume_paths import QuotaScopeId, VFolderId
from ai.backend.plugin.volume import FolderUsage, VolumeCapability, VolumeContext
from ai.backend.volume.vfs.layout import Layout
from ai.backend.volume.vfs.mounts import mount_of
from ai.backend.volume.vfs.open_directory import READ_DIRECTORY_FLAGS, OpenDirectory
from ai.backend.volume.vfs.volume import VfsVolume
from ai.backend.volume.xfs.projects import Quotas, adopt, project_of, set_project

_FIRST_PROJECT_ID = 1 << 30  # below are the ids that people choose
_PROJECT_ID_COUNT = 1 << 30
_HEADROOM_BYTES = 1 << 20


class XfsVolume(VfsVolume):
    """Serves a volume on xfs, without options. Needs root, and a file system that is mounted with project quotas."""

    backend: ClassVar[str] = "xfs"

    def __init__(self, name: str, path: Path, options: Mapping[str, Any], context: VolumeContext) -> None:
        super().__init__(name, path, options, context)
        self.layout = Layout(path, context.owner, make_scope=self._make_scope)
        self._claims = path / ".projects"
        self._quotas = Quotas(-1, "")
        self._counting = threading.Lock()
        self._deleting: Counter[Path] = Counter()

    @property
    def capabilities(self) -> frozenset[VolumeCapability]:
        return super().capabilities | {VolumeCapability.QUOTA}

    async def start(self) -> None:
        """Starts the volume, and assigns projects to scopes that the vfs backend created, walking over their files."""
        await self._run(self._open_quotas)
        await super().start()
        await self._run_long(self._adopt_all)

    async def migrate(self, folders: Sequence[VFolderId]) -> Sequence[str]:
        """Migrates the folders. Folders that move into a scope get its project at the next start."""
        await self._run(self._open_quotas)
        return await super().migrate(folders)

    async def stop(self) -> None:
        await super().stop()
        if self._quotas.fd >= 0:
            os.close(self._quotas.fd)
            self._quotas = Quotas(-1, "")

    def _open_quotas(self) -> None:
        needs_text = f"the backend {self.backend} needs {self.backend} mounted with 'prjquota'"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            mount = mount_of(self.path)
            if mount is None or mount.fstype != self.backend or "prjquota" not in mount.options:
                mount_text = "something unknown" if mount is None else f"{mount.fstype}, {','.join(mount.options)}"
                raise InvalidInput(
                    f"{self.path} lies on {mount_text}; {needs_text}. The backend vfs has soft limits on any."
                )
            fd = os.open(self.path, READ_DIRECTORY_FLAGS)
            self._quotas = Quotas(fd, mount.source)
            self._quotas.usage(_FIRST_PROJECT_ID)
        except PermissionError:
            raise InvalidInput(f"The backend {self.backend} needs root: limits take CAP_SYS_ADMIN.") from None
        except OSError as e:
            raise InvalidInput(f"The quotas of {self.path} cannot be used ({e.strerror}); {needs_text}.") from None

    def _claim_project_id(self, scope: str) -> int:
        first_offset = int.from_bytes(hashlib.sha256(scope.encode()).digest()[:4])
        for attempt in range(_PROJECT_ID_COUNT):
            project_id = _FIRST_PROJECT_ID + (first_offset + attempt) % _PROJECT_ID_COUNT
            link = self._claims / str(project_id)
            try:
                link.symlink_to(f"../{scope}")
            except FileExistsError:
                if link.readlink().name != scope:
                    continue
            return project_id
        raise AssertionError("there are fewer scopes than project ids")

    def _make_scope(self, path: Path) -> None:
        """Creates the scope's directory with its project, so that every byte is counted."""
        with self._claims_lock():
            if path.is_dir():
                return
            temporary_path = self._claims / ".new"
            temporary_path.mkdir(mode=0o755, exist_ok=True)
            with OpenDirectory.at(temporary_path) as scope_directory:
                set_project(scope_directory.fd, self._claim_project_id(path.name))
            temporary_path.rename(path)

    @contextmanager
    def _claims_lock(self) -> Iterator[None]:
        self._claims.mkdir(mode=0o700, exist_ok=True)
        with OpenDirectory.at(self._claims) as claims_directory:
            fcntl.flock(claims_directory.fd, fcntl.LOCK_EX)
            yield

    def _adopt_all(self) -> None:
        """Gives each scope's files the scope's own project where they have another, and sets the scope's limit."""
        with self._claims_lock():
            for path in self.layout.scopes():
                with OpenDirectory.at(path) as scope:
                    project_id = self._claim_project_id(path.name)
                    try:
                        if project_of(scope.fd) != project_id:
                            adopt(scope.fd, project_id)
                    except Conflict as e:
                        raise InvalidInput(f"The quota scope {path} cannot be given a project: {e.message}") from None
                    self._enforce_limit(path, project_id)

    def _enforce_limit(self, scope: Path, project_id: int) -> None:
        """Sets the limit of a scope in the file system to the limit that is stored in the scope.

        During deletions the limit is higher.
        """
        limit: int | None = None
        with suppress(FileNotFoundError):
            limit = int((scope / ".limit").read_text())
        if limit is not None and self._deleting[scope]:
            limit = max(limit, self._quotas.usage(project_id).used_bytes) + _HEADROOM_BYTES
        self._quotas.limit(project_id, limit)

    def _write_limit(self, scope: QuotaScopeId, limit: int | None) -> None:
        with self._headroom(self.layout.existing_scope(scope)):  # the limit is a file in the scope
            super()._write_limit(scope, limit)

    @contextmanager
    def _headroom(self, scope: Path) -> Iterator[None]:
        """Raises the limit of a scope a little for the duration of a block, so that deleting works in a full scope.

        After a crash the next start lowers it again.
        """
        self._change_deletion_count(scope, 1)
        try:
            yield
        finally:
            self._change_deletion_count(scope, -1)

    def _change_deletion_count(self, scope: Path, change: int) -> None:
        with self._counting:
            self._deleting[scope] += change
            if not self._deleting[scope]:
                del self._deleting[scope]
            if scope.is_dir():
                self._enforce_limit(scope, self._claim_project_id(scope.name))

    def _measure_scope(self, scope: QuotaScopeId) -> FolderUsage:
        path = self.layout.existing_scope(scope)
        try:
            return self._quotas.usage(self._claim_project_id(path.name))
        except OSError as e:
            if e.errno not in (errno.ESRCH, errno.EBADF):
                raise
            raise InvalidInput(f"The quotas of {self.path} were switched off.") from None
