"""Finds the files that a run created or changed in `.output` by comparing snapshots of limited size."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple

    Snapshot = Dict[str, Tuple[int, int, int]]

MAX_SEEN = 10_000
MAX_DEPTH = 16
MAX_REPORTED = 1_000


def snapshot(folder: str) -> Snapshot:
    """Returns the regular files under `folder` by relative path: (inode, size, time of change in ns)."""
    found: Snapshot = {}
    if os.path.islink(folder):
        return found
    pending = [("", 0)]
    while pending:
        relative, depth = pending.pop()
        try:
            with os.scandir(os.path.join(folder, relative)) as entries:
                for entry in entries:
                    if len(found) >= MAX_SEEN:
                        return found
                    path = relative + entry.name
                    try:
                        if entry.is_dir(follow_symlinks=False):
                            if depth < MAX_DEPTH:
                                pending.append((path + "/", depth + 1))
                        elif entry.is_file(follow_symlinks=False):
                            facts = entry.stat(follow_symlinks=False)
                            found[path] = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
                    except OSError:
                        continue  # removed meanwhile
        except OSError:
            continue
    return found


def changes(before: Snapshot, after: Snapshot) -> List[Dict[str, Any]]:
    """Returns the new or changed files as `{"name", "size"}` sorted by name; at most `MAX_REPORTED`."""
    names = sorted(name for name, facts in after.items() if before.get(name) != facts)
    return [{"name": name, "size": after[name][1]} for name in names[:MAX_REPORTED]]
