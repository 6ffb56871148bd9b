"""Copies the public part of the host's /etc into one folder, so that a single bind mount shows it to a session.

See decision 0550. bubblewrap reads the whole table of mounts after each bind; two dozen binds of small files were half
of its time.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from ai.backend.node.linux.proc import boot_id
from ai.backend.node.workload.file_trees import remove_tree

REFRESH_INTERVAL_S = 5.0
MAX_BYTES = 32 * 1024 * 1024
MAX_ENTRIES = 20_000
_PREFIX = "etc-"
_Entry = tuple[str, str, os.stat_result]


class EtcFolder:
    """Copies entries of the host's /etc into a folder of the runtime, anew when they have changed.

    Args:
        parent: where the folders lie, one for each state of the host's /etc.
        entry_names: the entries of /etc, with their folders (``ssl/certs``).
        contents: the files that replace the host's.
        host: the folder to copy from.
    """

    def __init__(
        self, parent: Path, entry_names: Sequence[str], contents: Mapping[str, str], host: Path = Path("/etc")
    ) -> None:
        self._parent = parent
        self._names = entry_names
        self._contents = contents
        self._host = host
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._next_refresh_at = 0.0

    def current(self) -> Path | None:
        """Returns the copy, at most ``REFRESH_INTERVAL_S`` older than the host's; None if it is too large or fails."""
        with self._lock:
            now = time.monotonic()
            if now >= self._next_refresh_at:
                self._next_refresh_at = now + REFRESH_INTERVAL_S
                try:
                    self._folder = self._make_copy()
                except OSError:
                    self._folder = None
            return self._folder

    def remove_unused(self, workload_plans: Collection[str]) -> None:
        """Removes earlier copies of /etc whose paths occur in none of the workloads' plans; the current copy stays."""
        with self._lock:
            current_name = self._folder.name if self._folder is not None else ""
            for folder in self._parent.glob(f"{_PREFIX}*"):
                if folder.name != current_name and not any(folder.name in plan for plan in workload_plans):
                    with suppress(OSError):  # the next start tries again
                        remove_tree(folder)

    def _make_copy(self) -> Path | None:
        entries = list(self._public_entries())
        total_bytes = sum(status.st_size for _, _, status in entries)
        if len(entries) > MAX_ENTRIES or total_bytes > MAX_BYTES:
            return None
        # Of this boot: after a power loss, files that were not written to the disk may be empty.
        file_signatures = [
            (name, entry_status.st_ino, entry_status.st_mtime_ns, entry_status.st_size, entry_status.st_mode)
            for name, _, entry_status in entries
        ]
        digest = sha256(repr((boot_id(), file_signatures, sorted(self._contents.items()))).encode()).hexdigest()[:16]
        folder = self._parent / f"{_PREFIX}{digest}"
        if not folder.is_dir():
            unfinished_folder = self._parent / f"{_PREFIX}{digest}.new"
            remove_tree(unfinished_folder)
            self._copy(entries, unfinished_folder)
            unfinished_folder.rename(folder)
        return folder

    def _public_entries(self) -> Iterator[_Entry]:
        """Yields the files, folders and links of /etc that every user may read, and that are therefore copied."""
        for name in self._names:
            path = f"{self._host}/{name}"
            with suppress(OSError):
                yield from self._walk_tree(name, path, os.stat(path))  # noqa: PTH116  # hundreds of files at each look: pathlib doubles its cost

    def _walk_tree(self, name: str, path: str, status: os.stat_result) -> Iterator[_Entry]:
        if stat.S_ISLNK(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH):
            yield name, path, status
        elif stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IROTH and status.st_mode & stat.S_IXOTH:
            yield name, path, status
            with os.scandir(path) as children:
                for child in sorted(children, key=lambda child: child.name):
                    with suppress(OSError):  # removed meanwhile
                        child_status = child.stat(follow_symlinks=False)
                        yield from self._walk_tree(f"{name}/{child.name}", child.path, child_status)

    def _copy(self, entries: Sequence[_Entry], folder: Path) -> None:
        folder.mkdir()
        folder.chmod(0o755)  # whatever the umask of the agent is
        for name, path, status in entries:
            target = folder / name
            for parent in reversed(Path(name).parents[:-1]):
                if not (folder / parent).is_dir():
                    (folder / parent).mkdir()
                    (folder / parent).chmod(0o755)
            if stat.S_ISDIR(status.st_mode):
                target.mkdir(exist_ok=True)
                target.chmod(0o755)
            elif stat.S_ISLNK(status.st_mode):
                target.symlink_to(os.readlink(path))  # noqa: PTH115  # paths are text here, for their cost
            else:
                shutil.copyfile(path, target)
                target.chmod(stat.S_IMODE(status.st_mode) & 0o755)
        for name, content in self._contents.items():
            (folder / name).write_text(content)
            (folder / name).chmod(0o644)
