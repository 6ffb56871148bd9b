"""Rewrites archives of ``docker save`` with another configuration."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.errors import WorkloadError

_KEPT_CONFIG_KEYS = ("architecture", "os", "os.version", "variant", "created", "rootfs", "history", "author")
_MAX_JSON_BYTES = 16 << 20


class RewrittenArchive(msgspec.Struct, frozen=True):
    """Describes a rewritten archive by the digest of its configuration, the size of its layers, and its labels.

    ``digest``: also the image's id; ``size_bytes``: the layers'.
    """

    digest: str
    size_bytes: int
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


def rewrite(
    source_archive: Path, target_archive: Path, image_name: str, config: Mapping[str, Any], is_compressed: bool
) -> RewrittenArchive:
    """Writes a new image archive with the layers of ``source_archive``, another name, and the configuration ``config``.

    The source has only one image. The container's own configuration is not copied. Raises WorkloadError if it is no
    archive of an image, OSError.
    """
    try:
        return _rewrite_archive(source_archive, target_archive, image_name, config, is_compressed)
    except (ValueError, LookupError, TypeError, AttributeError, tarfile.TarError) as error:
        raise WorkloadError(f"the engine's archive cannot be read: {error!r:.200}") from None


def _rewrite_archive(
    source_archive: Path, target_archive: Path, image_name: str, config: Mapping[str, Any], is_compressed: bool
) -> RewrittenArchive:
    with tarfile.open(source_archive) as source_tar:
        (image_entry,) = _read_json(source_tar, "manifest.json")
        old_config = _read_json(source_tar, str(image_entry["Config"]))
        new_config = {key: old_config[key] for key in _KEPT_CONFIG_KEYS if key in old_config}
        new_config["config"] = dict(config)
        for history_step in (new_config.get("history") or [])[-1:]:
            history_step["created_by"] = "commit of a session"
            history_step.pop("comment", None)
        config_json = json.dumps(new_config, separators=(",", ":")).encode()
        config_digest = sha256(config_json).hexdigest()
        manifest = [
            {"Config": f"{config_digest}.json", "RepoTags": [image_name], "Layers": list(image_entry["Layers"])}
        ]
        layer_bytes = 0
        with (
            tarfile.open(target_archive, "w:gz", compresslevel=1)
            if is_compressed
            else tarfile.open(target_archive, "w") as target_tar
        ):
            _add_file(target_tar, f"{config_digest}.json", config_json)
            for layer in dict.fromkeys(str(layer_path) for layer_path in image_entry["Layers"]):
                layer_member = _find_member(source_tar, layer)
                target_member = tarfile.TarInfo(layer)
                target_member.size, target_member.mtime = layer_member.size, int(time.time())
                target_tar.addfile(target_member, source_tar.extractfile(layer_member))
                layer_bytes += layer_member.size
            _add_file(target_tar, "manifest.json", json.dumps(manifest).encode())
    return RewrittenArchive(f"sha256:{config_digest}", layer_bytes, dict(config.get("Labels") or {}))


def _find_member(tar: tarfile.TarFile, member_name: str) -> tarfile.TarInfo:
    """Returns the archive entry of a file, and follows a link to the entry that has the content.

    Engines write a repeated layer as a link to its first place.
    """
    try:
        member = tar.getmember(member_name)
        if member.issym() or member.islnk():
            folder = member_name.rpartition("/")[0]
            link_parts = [*(folder.split("/") if member.issym() and folder else []), *member.linkname.split("/")]
            resolved_parts: list[str] = []
            for link_part in link_parts:
                if link_part == "..":
                    resolved_parts.pop()
                elif link_part not in ("", "."):
                    resolved_parts.append(link_part)
            member = tar.getmember("/".join(resolved_parts))
    except (KeyError, IndexError):
        raise WorkloadError(f"the engine's archive lacks {member_name[:100]!r}") from None
    if not member.isfile():
        raise WorkloadError(f"the engine's archive has {member_name[:100]!r} as something else than a file")
    return member


def _read_json(tar: tarfile.TarFile, member_name: str) -> Any:
    member = _find_member(tar, member_name)
    member_file = tar.extractfile(member)
    if member_file is None or member.size > _MAX_JSON_BYTES:
        raise WorkloadError(f"the engine's archive has an unusable {member_name[:100]!r}")
    try:
        return json.loads(member_file.read())
    except (ValueError, RecursionError):
        raise WorkloadError(f"the engine's archive has no JSON in {member_name[:100]!r}") from None


def _add_file(tar: tarfile.TarFile, member_name: str, content: bytes) -> None:
    member = tarfile.TarInfo(member_name)
    member.size, member.mtime = len(content), int(time.time())
    tar.addfile(member, io.BytesIO(content))
