"""Refuses to run next to the published packages, which own the same modules and the same command name.

Whichever of the two was installed last has overwritten files of the other: neither can be trusted then.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

_CONFLICTING_ENTRY = (
    r"(backend[._-]ai[._-](?:client|common|cli|manager|agent|storage[._-]proxy|web|webserver|kernel[^-]*|plugin|logging|"
    r"accelerator[^-]*))-([^-]+)\.(?:dist|egg)-info"
)


def find_conflicting_packages(folders: Iterable[str]) -> list[str]:
    """Returns the names and versions of published packages that are installed in these folders."""
    packages: set[str] = set()
    for folder in folders:
        try:
            folder_entries = os.scandir(folder or ".")
        except OSError:
            continue
        with folder_entries:
            for entry in folder_entries:
                if entry.name[:7].lower() != "backend" or entry.name[7:8] not in (".", "_", "-"):
                    continue
                entry_match = re.fullmatch(_CONFLICTING_ENTRY, entry.name, re.IGNORECASE)
                if entry_match:
                    package_name = re.sub(r"[._-]+", "-", entry_match[1].lower()).replace("backend-ai", "backend.ai", 1)
                    packages.add(f"{package_name} {entry_match[2]}")
    return sorted(packages)


def find_conflict_error() -> str | None:
    """Returns the error for conflicting packages, or None if there are none."""
    conflicts = find_conflicting_packages(path for path in dict.fromkeys(sys.path) if "-packages" in path)
    if not conflicts:
        return None
    package_names = " ".join(conflict.split()[0] for conflict in conflicts)
    return (
        f"this environment also holds {', '.join(conflicts)}, whose files and ours overwrite each other: "
        f"remove it with `pip uninstall {package_names}`, reinstall backendai, and keep "
        "the two in separate environments"
    )
