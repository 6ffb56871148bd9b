"""Collects the licences of the npm packages that a bundle is made from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE_NAME = "THIRD-PARTY.txt"
_MAX_LICENCE_BYTES = 256 << 10


def write_licences(project: Path, target: Path) -> None:
    """Writes name, version and licence of every package of the lock that is not for building alone. Raises OSError."""
    packages: dict[str, dict[str, Any]] = json.loads((project / "package-lock.json").read_text()).get("packages", {})
    parts = ["Packages in the web console, each under its own licence.\n"]
    for place, package in sorted(packages.items()):
        if place and not package.get("dev") and (project / place).is_dir():
            name = place.rpartition("node_modules/")[2]
            heading = f"{name} {package.get('version', '')} ({package.get('license', 'no licence named')})"
            parts.append(f"{heading}\n{'-' * len(heading)}\n{_licence_text(project / place)}")
    target.write_text("\n".join(parts), encoding="utf-8")


def _licence_text(package: Path) -> str:
    for path in sorted(package.iterdir()):
        if path.name.lower().startswith(("license", "licence", "copying")) and path.is_file():
            return path.read_bytes()[:_MAX_LICENCE_BYTES].decode(errors="replace").strip() + "\n"
    return "The package has no file with its licence.\n"
