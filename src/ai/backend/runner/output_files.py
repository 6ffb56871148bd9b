"""Finds the files that a run created or changed in `.output` by comparing snapshots of limited size."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    Snapshot = Dict[str, Tuple[int, int, int]]

MAX_SNAPSHOT_FILES = 10_000
MAX_FOLDER_DEPTH = 16
MAX_REPORTED_FILES = 1_000


def snapshot(folder: str) -> Snapshot:
    """Returns (inode, size, time of change in ns) of each regular file under `folder`, by relative path."""
    facts_by_path: Snapshot = {}
    pending_folders = [] if os.path.islink(folder) else [("", 0)]
    while pending_folders:
        folder_path, depth = pending_folders.pop()
        try:
            with os.scandir(os.path.join(folder, folder_path)) as entries:
                for entry in entries:
                    if len(facts_by_path) >= MAX_SNAPSHOT_FILES:
                        return facts_by_path
                    file_path = folder_path + entry.name
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            if depth < MAX_FOLDER_DEPTH:
                                pending_folders.append((file_path + "/", depth + 1))
                        elif entry.is_file(follow_symlinks=False):
                            status = entry.stat(follow_symlinks=False)
                            facts_by_path[file_path] = (status.st_ino, status.st_size, status.st_mtime_ns)
                    except OSError:
                        continue  # removed meanwhile
        except OSError:
            continue
    return facts_by_path


def changes(snapshot_before: Snapshot, snapshot_after: Snapshot) -> List[Dict[str, Any]]:
    """Returns the files that are new or changed in the second snapshot, as `{"name", "size"}`, sorted.

    At most `MAX_REPORTED_FILES`.
    """
    changed_names = sorted(
        name for name, file_facts in snapshot_after.items() if snapshot_before.get(name) != file_facts
    )
    return [{"name": name, "size": snapshot_after[name][1]} for name in changed_names[:MAX_REPORTED_FILES]]
