"""Rewrites archives of ``docker save`` with another configuration."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from ai.backend.common.errors import WorkloadError

_KEPT = ("architecture", "os", "os.version", "variant", "created", "rootfs", "history", "author")
_MAX_DOCUMENT = 16 << 20


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result. ``digest`` is of the configuration, which is the image's id; ``size_bytes`` is of the layers."""

    digest: str
    size_bytes: int
    labels: Mapping[str, str] = field(default_factory=dict)


def rewrite(source: Path, target: Path, name: str, config: Mapping[str, Any], compressed: bool) -> Rewritten:
    """Copies the layers of the only image of an archive, and gives it a name and ``config``, into which nothing of the
    container's own configuration gets. Raises WorkloadError if it is no archive of an image, OSError."""
    try:
        return _rewrite(source, target, name, config, compressed)
    except (ValueError, LookupError, TypeError, AttributeError, tarfile.TarError) as error:
        raise WorkloadError(f"the engine's archive cannot be read: {error!r:.200}") from None


def _rewrite(source: Path, target: Path, name: str, config: Mapping[str, Any], compressed: bool) -> Rewritten:
    with tarfile.open(source) as tar:
        (entry,) = _read(tar, "manifest.json")
        old = _read(tar, str(entry["Config"]))
        new = {key: old[key] for key in _KEPT if key in old}
        new["config"] = dict(config)
        for step in (new.get("history") or [])[-1:]:
            step["created_by"] = "commit of a session"
            step.pop("comment", None)
        document = json.dumps(new, separators=(",", ":")).encode()
        digest = sha256(document).hexdigest()
        manifest = [{"Config": f"{digest}.json", "RepoTags": [name], "Layers": list(entry["Layers"])}]
        size = 0
        with tarfile.open(target, "w:gz", compresslevel=1) if compressed else tarfile.open(target, "w") as made:
            _add(made, f"{digest}.json", document)
            for layer in dict.fromkeys(str(path) for path in entry["Layers"]):
                member = _member(tar, layer)
                plain = tarfile.TarInfo(layer)
                plain.size, plain.mtime = member.size, int(time.time())
                made.addfile(plain, tar.extractfile(member))
                size += member.size
            _add(made, "manifest.json", json.dumps(manifest).encode())
    return Rewritten(f"sha256:{digest}", size, dict(config.get("Labels") or {}))


def _member(tar: tarfile.TarFile, name: str) -> tarfile.TarInfo:
    """Opens a file of the archive. Engines write a repeated layer as a link to its first place."""
    try:
        member = tar.getmember(name)
        if member.issym() or member.islnk():
            base = name.rpartition("/")[0]
            parts = [*(base.split("/") if member.issym() and base else []), *member.linkname.split("/")]
            path: list[str] = []
            for part in parts:
                if part == "..":
                    path.pop()
                elif part not in ("", "."):
                    path.append(part)
            member = tar.getmember("/".join(path))
    except (KeyError, IndexError):
        raise WorkloadError(f"the engine's archive lacks {name[:100]!r}") from None
    if not member.isfile():
        raise WorkloadError(f"the engine's archive has {name[:100]!r} as something else than a file")
    return member


def _read(tar: tarfile.TarFile, name: str) -> Any:
    member = _member(tar, name)
    file = tar.extractfile(member)
    if file is None or member.size > _MAX_DOCUMENT:
        raise WorkloadError(f"the engine's archive has an unusable {name[:100]!r}")
    try:
        return json.loads(file.read())
    except (ValueError, RecursionError):
        raise WorkloadError(f"the engine's archive has no JSON in {name[:100]!r}") from None


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime = len(content), int(time.time())
    tar.addfile(entry, io.BytesIO(content))
