"""Clones and deletes whole folders.

A clone is copied into ``<scope>/.clones/<hex>`` and renamed to its place when it is complete. A marker beside it lets
the next process of the proxy resume it. Deleting a folder removes the marker first, under the lock that the clone holds
while it checks the marker and publishes: a folder that was deleted during its clone does not come back. See
docs/decisions/0082.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ai.backend.common.errors import FolderNotFound
from ai.backend.common.volume_paths import VFolderId
from ai.backend.node.linux.syscalls import syncfs, unlock
from ai.backend.plugin.volume import Progress, UnfinishedClone
from ai.backend.volume.vfs import trees
from ai.backend.volume.vfs.layout import Layout
from ai.backend.volume.vfs.open_directory import OpenDirectory, open_fd, translated_os_errors


class _CloneMarker(msgspec.Struct, frozen=True):
    source_volume: str
    source: str
    target: str


class CopyPlace(msgspec.Struct, frozen=True):
    """Describes the source or target of a folder's copy: the volume's layout and name, and the folder's id."""

    layout: Layout
    volume: str
    folder: VFolderId


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open_fd(path, os.O_RDONLY | os.O_CLOEXEC) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield


def discard(trash: Path, name: str, parent_fd: int | None = None) -> None:
    """Moves a directory into the trash by one rename; its content is removed later."""
    path_in_trash = trash / secrets.token_hex(16)
    try:
        os.rename(name, path_in_trash, src_dir_fd=parent_fd)
    except PermissionError:  # its own mode forbids it to change its parent
        unlock(parent_fd, name)
        os.rename(name, path_in_trash, src_dir_fd=parent_fd)


def delete_folder(layout: Layout, folder: VFolderId, waypoint: Callable[[str], None]) -> None:
    """Moves a folder into the trash, and ends a clone that copies into the folder."""
    if not layout.scope(folder.scope).is_dir():
        layout.check_presence()
        return
    path = layout.folder(folder)
    with translated_os_errors():
        clones_dir, trash = layout.hidden_directory(folder.scope, ".clones"), layout.trash(layout.scope(folder.scope))
        with _locked(clones_dir):
            (clones_dir / f"{folder.id.hex}.json").unlink(missing_ok=True)
            waypoint("delete.unmarked")
            with suppress(FileNotFoundError):
                discard(trash, str(path))
    waypoint("delete.renamed")
    for parent in (path.parent, path.parent.parent):
        with suppress(OSError):
            parent.rmdir()


def unfinished(layout: Layout) -> list[UnfinishedClone]:
    """Returns the clones that have not ended, as the markers of all scopes describe them."""
    unfinished_clones = []
    for scope in layout.scopes():
        for path in (scope / ".clones").glob("*.json"):
            with suppress(FileNotFoundError, msgspec.MsgspecError):
                marker = msgspec.json.decode(path.read_bytes(), type=_CloneMarker)
                source, target = VFolderId.parse(marker.source), VFolderId.parse(marker.target)
                unfinished_clones.append(UnfinishedClone(marker.source_volume, source, target))
    return unfinished_clones


def clone(source: CopyPlace, target: CopyPlace, progress: Progress, waypoint: Callable[[str], None]) -> None:
    """Copies a folder from one place to another, see :meth:`AbstractVolume.clone_folder`."""
    layout, folder = target.layout, target.folder
    final_path = layout.folder(folder)
    if final_path.is_dir():
        return
    with translated_os_errors():
        clones_dir = layout.hidden_directory(folder.scope, ".clones")
        marker_path, copy_path = clones_dir / f"{folder.id.hex}.json", clones_dir / folder.id.hex
        trash = layout.trash(layout.scope(folder.scope))
        try:
            original_directory = OpenDirectory.at(source.layout.folder(source.folder))
        except FileNotFoundError:
            source.layout.check_presence()
            marker_path.unlink(missing_ok=True)
            raise FolderNotFound(data={"vfid": str(source.folder)}) from None
        with original_directory:
            _write_marker(marker_path, _CloneMarker(source.volume, str(source.folder), str(folder)))
            waypoint("clone.marked")
            with _locked(marker_path):  # another proxy that resumes the same clone waits here, and finds it done
                if final_path.is_dir():
                    marker_path.unlink(missing_ok=True)
                    return
                try:
                    with suppress(FileNotFoundError):
                        discard(trash, str(copy_path))  # of an earlier process
                    _copy_folder(original_directory, copy_path, layout, progress, waypoint)
                    _publish_copy(marker_path, copy_path, final_path, clones_dir)
                except BaseException as e:
                    if progress.is_abandoned and isinstance(e, trees.Cancelled):
                        return
                    marker_path.unlink(missing_ok=True)
                    with suppress(FileNotFoundError):
                        discard(trash, str(copy_path))
                    if isinstance(e, trees.Cancelled):
                        return
                    raise
    waypoint("clone.published")


def _write_marker(path: Path, marker: _CloneMarker) -> None:
    """Creates the marker file of a clone, or leaves an existing marker as it is.

    Another process may hold the lock of an existing marker.
    """
    temporary_path = path.with_name(f"{path.stem}.{secrets.token_hex(4)}.tmp")
    temporary_path.write_bytes(msgspec.json.encode(marker))
    with suppress(FileExistsError):
        os.link(temporary_path, path)
    temporary_path.unlink()


def sweep(layout: Layout) -> None:
    """Discards unfinished copies of folders that have no marker file, and removes temporary files of markers.

    The process of such a copy died after removing the marker.
    """
    for scope in layout.scopes():
        clones_dir = scope / ".clones"
        if not clones_dir.is_dir():
            continue
        with _locked(clones_dir):
            for path in clones_dir.iterdir():
                if path.suffix == ".tmp":
                    path.unlink(missing_ok=True)
                elif path.is_dir() and not path.with_suffix(".json").exists():
                    with suppress(FileNotFoundError):
                        discard(layout.trash(scope), str(path))


def _copy_folder(
    original_directory: OpenDirectory,
    copy_path: Path,
    layout: Layout,
    progress: Progress,
    waypoint: Callable[[str], None],
) -> None:
    progress.total = trees.measure(original_directory.fd).used_bytes
    copy_path.mkdir(mode=0o700)
    with OpenDirectory.at(copy_path) as copy_directory:
        trees.copy(
            original_directory.fd, copy_directory.fd, progress, give_to_owner=layout.give_to_owner, waypoint=waypoint
        )
        layout.give_to_owner(copy_directory.fd)
        os.fchmod(copy_directory.fd, os.fstat(original_directory.fd).st_mode & 0o777)
        syncfs(copy_directory.fd)
    waypoint("clone.copied")


def _publish_copy(marker_path: Path, copy_path: Path, final_path: Path, clones_dir: Path) -> None:
    with _locked(clones_dir):
        if not marker_path.exists():
            raise FolderNotFound("The folder was deleted while it was cloned.")
        final_path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        copy_path.rename(final_path)
        marker_path.unlink()
