"""Refuses to run next to the published packages, which own the same modules and the same command name.

Whichever of the two was installed last has overwritten files of the other: neither can be trusted then.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable

_RIVAL = re.compile(
    r"(backend[._-]ai[._-](?:client|common|cli|manager|agent|storage[._-]proxy|web|webserver|kernel[^-]*|plugin|logging|"
    r"accelerator[^-]*))-([^-]+)\.(?:dist|egg)-info",
    re.IGNORECASE,
)


def find_conflicting_packages(folders: Iterable[str]) -> list[str]:
    """Returns the names and versions of published packages that are installed in these folders."""
    packages: set[str] = set()
    for folder in folders:
        try:
            entries = os.scandir(folder or ".")
        except OSError:
            continue
        with entries:
            for entry in entries:
                match = _RIVAL.fullmatch(entry.name) if entry.name[:7].lower() == "backend" else None
                if match:
                    name = re.sub(r"[._-]+", "-", match[1].lower()).replace("backend-ai", "backend.ai", 1)
                    packages.add(f"{name} {match[2]}")
    return sorted(packages)


def refusal() -> str | None:
    """Returns the error for conflicting packages, or None if there are none."""
    rivals = find_conflicting_packages(path for path in dict.fromkeys(sys.path) if "-packages" in path)
    if not rivals:
        return None
    names = " ".join(rival.split()[0] for rival in rivals)
    return (
        f"this environment also holds {', '.join(rivals)}, whose files and ours overwrite each other: "
        f"remove it with `pip uninstall {names}`, reinstall backendai, and keep the two in separate environments"
    )
