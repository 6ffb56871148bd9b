"""Writes and reads files of a workload and checks its mounts, never through a path that the session's user controls."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from ai.backend.common.errors import CreationDenied
from ai.backend.node.linux.open_beneath import BENEATH, make_directories
from ai.backend.node.linux.syscalls import unlock
from ai.backend.plugin.accelerator import Mount
from ai.backend.plugin.runtime import HOME

RUNNER = "/opt/backend.ai/kernel"
"""The path of the runner's files in every workload."""
SU_EXEC = "/opt/kernel/su-exec"
"""The path at which start scripts of images call `su-exec` (spec 03-05:310)."""
FORBIDDEN_TARGETS = ("/", "/proc", "/dev", "/sys", "/etc", "/usr", "/bin", "/lib", "/lib64", "/sbin")


def place_files(
    files: dict[str, bytes],
    directory: Path,
    home: Path,
    owner: tuple[int, int] | None,
    private: frozenset[str] = frozenset(),
) -> dict[str, Path]:
    """Writes a workload's files to disk, and returns those that must be bind-mounted, by their paths in the workload.

    Files under the home are written there for the session's user, who alone may read ``private`` ones; others lie
    beside the workload's record. Raises CreationDenied for a path that is not plain and absolute.
    """
    bound_files: dict[str, Path] = {}
    for file_index, (target, content) in enumerate(files.items()):
        if not target.startswith("/") or os.path.normpath(target) != target:
            raise CreationDenied(f"{target!r} is not a plain absolute path")
        if target.startswith(HOME + "/"):
            mode = 0o600 if target in private else 0o644
            write_in_home(home, target.removeprefix(HOME + "/"), content, owner, mode)
        else:
            path = directory / "files" / str(file_index)
            path.parent.mkdir(mode=0o755, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(content)
            path.chmod(0o400 if target in private else 0o644)
            if target in private and owner is not None:
                os.chown(path, *owner)
            bound_files[target] = path
    return bound_files


def write_in_home(
    home: Path, relative_path: str, content: bytes, owner: tuple[int, int] | None, mode: int = 0o644
) -> None:
    """Writes a file in a home without following links, which the owner may have placed. Raises CreationDenied."""
    *parent_names, file_name = relative_path.split("/")
    directory_fd = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        directory_fd, home_fd = make_directories(directory_fd, parent_names, owner), directory_fd
        os.close(home_fd)
        try:
            os.unlink(file_name, dir_fd=directory_fd)
        except FileNotFoundError:
            pass
        fd = os.open(
            file_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory_fd
        )
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            if owner is not None:
                os.fchown(fd, *owner)
    except OSError as error:
        raise CreationDenied(f"{relative_path!r} cannot be written in the home: {error.strerror}") from error
    finally:
        os.close(directory_fd)


def give_home(home: Path, owner: tuple[int, int]) -> None:
    """Changes the owner of a home directory to ``owner``, without following links.

    A home that was kept while `kernel-uid` was changed is given with the files of its former owner in it.
    """
    former_uid = home.lstat().st_uid
    if former_uid not in (0, owner[0]):
        with suppress(RecursionError):  # deeper than any program goes: what is there stays as it is
            for _, directory_names, file_names, directory_fd in os.fwalk(home, follow_symlinks=False):
                for name in (*directory_names, *file_names):
                    if os.stat(name, dir_fd=directory_fd, follow_symlinks=False).st_uid == former_uid:
                        os.chown(name, *owner, dir_fd=directory_fd, follow_symlinks=False)
    os.chown(home, *owner)


def tree_size(path: Path, entry_limit: int = 1_000_000) -> int:
    """Returns the bytes on disk of a directory tree, without following links."""
    total_bytes = 0
    pending_directories = [str(path)]
    while pending_directories and entry_limit > 0:
        try:
            with os.scandir(pending_directories.pop()) as entries:
                for entry in entries:
                    entry_limit -= 1
                    try:
                        total_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            pending_directories.append(entry.path)
                    except OSError:
                        continue
        except OSError:
            continue
    return total_bytes


def remove_tree(path: Path) -> None:
    """Removes a hostile user's directory tree: any depth, closed directories, links; crosses no mount.

    Raises OSError if something stays.
    """
    try:
        top_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _remove_entry(top_fd, path.name)
    finally:
        os.close(top_fd)


def _remove_entry(top_fd: int, name: str) -> None:
    """Removes the file or the directory tree ``name`` in an open directory, however deep the tree is.

    Moves the subdirectories of each subdirectory up to the root of the tree, so that the depth never grows.
    """
    try:
        status = os.stat(name, dir_fd=top_fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=top_fd)
        return
    root_fd = _open_directory(top_fd, name)
    try:
        lifted_count = 0
        while True:
            subdirectories = _unlink_files(root_fd)
            if not subdirectories:
                break
            for subdirectory in subdirectories:
                lifted_count = _lift_subdirectories(root_fd, subdirectory, lifted_count)
    finally:
        os.close(root_fd)
    os.rmdir(name, dir_fd=top_fd)


def _open_directory(parent_fd: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent_fd)
    except PermissionError:
        unlock(parent_fd, name)
        return os.open(name, flags, dir_fd=parent_fd)


def _unlink_files(directory_fd: int) -> list[str]:
    with os.scandir(directory_fd) as entries:
        listed_entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    if any(not is_directory for _, is_directory in listed_entries):
        _make_writable(directory_fd)
    for name, is_directory in listed_entries:
        if not is_directory:
            os.unlink(name, dir_fd=directory_fd)
    return [name for name, is_directory in listed_entries if is_directory]


def _make_writable(directory_fd: int) -> None:
    if not os.fstat(directory_fd).st_mode & stat.S_IWUSR:
        os.fchmod(directory_fd, 0o700)


def _lift_subdirectories(root_fd: int, name: str, lifted_count: int) -> int:
    """Removes a directory below the root, and moves its subdirectories up to the root."""
    directory_fd = _open_directory(root_fd, name)
    try:
        _make_writable(root_fd)
        for subdirectory in _unlink_files(directory_fd):
            _make_writable(directory_fd)
            while True:
                lifted_count += 1
                try:
                    os.stat(f".lifted-{lifted_count}", dir_fd=root_fd, follow_symlinks=False)
                except FileNotFoundError:
                    break
            unlock(directory_fd, subdirectory)
            os.rename(subdirectory, f".lifted-{lifted_count}", src_dir_fd=directory_fd, dst_dir_fd=root_fd)
    finally:
        os.close(directory_fd)
    os.rmdir(name, dir_fd=root_fd)
    return lifted_count


def check_mount(mount: Mount, *, is_staged: bool = False) -> None:
    """Checks the source and the target of a mount. Raises CreationDenied for a mount that is not allowed.

    Only staged sources may contain ``BENEATH``.
    """
    target = os.path.normpath(mount.target)
    if not mount.target.startswith("/") or target != mount.target.rstrip("/"):
        raise _mount_error(mount, "is not a plain absolute path")
    covered_paths = (RUNNER + "/", HOME + "/")
    if (
        target in FORBIDDEN_TARGETS
        or target.startswith(("/proc/", "/dev/", "/sys/", RUNNER + "/"))
        or any(path.startswith(target + "/") for path in covered_paths)
    ):
        raise _mount_error(mount, "is a place where nothing can be mounted")
    if BENEATH in mount.source and not is_staged:
        raise _mount_error(
            mount, "shows a path in a folder, which this node cannot open safely: mount the whole folder"
        )
    if not os.path.exists(mount.source):  # noqa: PTH110  # a source is a text, tested as it is mounted
        raise _mount_error(mount, "has a source that does not exist on this node")


def check_ipc(folder: str) -> None:
    """Checks the host folder that becomes the ``/dev/shm`` of a workload. Raises CreationDenied.

    Raises unless the folder exists and has mode 1777: everybody may make files in it, which nobody else may remove.
    """
    try:
        status = os.stat(folder)  # noqa: PTH116  # a text, tested as it is mounted
    except OSError:
        status = None
    if status is None or not stat.S_ISDIR(status.st_mode) or stat.S_IMODE(status.st_mode) != 0o1777:
        message = f"{folder!r} cannot be the shared memory of a session: it is no folder of mode 1777"
        raise CreationDenied(message, data={"field": "ipc", "key": folder})


def _mount_error(mount: Mount, problem: str) -> CreationDenied:
    return CreationDenied(f"the mount target {mount.target!r} {problem}", data={"field": "mounts", "key": mount.target})
