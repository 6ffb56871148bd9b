"""Writes CDI specifications for engines and runtimes, and removes those that are not used any more."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ai.backend.node.cdi.specification import minimum_version, parse

_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9_.-]")


def file_prefix(agent_id: str) -> str:
    """Returns the beginning of the names of an agent's files."""
    digest = hashlib.sha256(agent_id.encode()).hexdigest()[:8]  # two ids may differ in unsafe characters alone
    return f"backend.ai-{_UNSAFE_CHARACTER.sub('_', agent_id)}-{digest}-"


def write_specification(directory: Path, agent_id: str, plugin_key: str, content: Mapping[str, Any]) -> frozenset[str]:
    """Writes the specification of a plugin with the lowest version that its fields need, unless the file says so
    already, and returns the full names of its devices. Raises InvalidInput, and OSError if it cannot be written."""
    content = {**content, "cdiVersion": minimum_version(content)}
    specification = parse(content)
    path = _path_of(directory, agent_id, plugin_key)
    json_text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    is_written = False
    with contextlib.suppress(OSError, UnicodeDecodeError):
        is_written = not path.is_symlink() and path.read_text(encoding="utf-8") == json_text
    if not is_written:
        temporary_path = path.with_name(path.name + ".tmp")  # engines read .json and .yaml alone
        with contextlib.suppress(FileNotFoundError):
            temporary_path.unlink()
        descriptor = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json_text)
        temporary_path.replace(path)
    return frozenset(f"{specification.kind}={device.name}" for device in specification.devices)


def remove_specification(directory: Path, agent_id: str, plugin_key: str) -> None:
    """Removes one specification; safe if it is gone. Raises OSError."""
    _path_of(directory, agent_id, plugin_key).unlink(missing_ok=True)


def _path_of(directory: Path, agent_id: str, plugin_key: str) -> Path:
    return directory / f"{file_prefix(agent_id)}{_UNSAFE_CHARACTER.sub('_', plugin_key)}.json"


def remove_others(directory: Path, agent_id: str, kept_keys: Collection[str]) -> list[Path]:
    """Removes the agent's specifications of all plugins but ``kept_keys``, and returns the removed files."""
    name_prefix = file_prefix(agent_id)
    kept_names = {f"{name_prefix}{_UNSAFE_CHARACTER.sub('_', key)}.json" for key in kept_keys}
    removed_files = []
    try:
        own_files = [path for path in directory.iterdir() if path.name.startswith(name_prefix)]
    except OSError:
        return []
    for path in own_files:
        if path.name not in kept_names:
            with contextlib.suppress(OSError):
                path.unlink()
                removed_files.append(path)
    return removed_files
