"""Writes container images as archives of `docker save`, from files of this machine: nothing is downloaded."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PAUSE_IMAGE = "registry.test/pause:1"
BUSYBOX_IMAGE = "registry.test/busybox:1"
_APPLETS = (
    *("sh", "ash", "cat", "cp", "chmod", "date", "dd", "dmesg", "echo", "env", "false", "grep", "head", "hostname"),
    *("httpd", "id", "ip", "kill", "ls", "mkdir", "mount", "nc", "ping", "ps", "pwd", "rm", "sed", "seq", "sleep"),
    *("stat", "sync", "tail", "tee", "test", "touch", "true", "umount", "uname", "vi", "wc", "wget", "which", "yes"),
)


def write_busybox_image(target: Path) -> None:
    """Write an image with this machine's static busybox and a link for each of its usual programs.

    Raises:
        FileNotFoundError: busybox is not installed.
    """
    program = shutil.which("busybox")
    if program is None:
        raise FileNotFoundError("busybox is not installed (package busybox-static)")
    links = {f"bin/{name}": "busybox" for name in _APPLETS}
    write_image(target, BUSYBOX_IMAGE, {"bin/busybox": Path(program)}, links=links, command=["sh"])


def write_pause_image(target: Path, program: Path) -> None:
    """Write the image of a pod's sandbox, which consists of one static program."""
    write_image(target, PAUSE_IMAGE, {"pause": program}, command=["/pause"])


def write_image(
    target: Path,
    name: str,
    files: Mapping[str, Path],
    *,
    links: Mapping[str, str] | None = None,
    command: Sequence[str] = (),
) -> None:
    """Write an image of one layer with these files, owned by root and executable."""
    layer = target.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        for folder in ("bin", "dev", "etc", "home", "proc", "root", "sys", "tmp", "usr", "usr/bin", "var"):
            _add_folder(tar, folder, 0o1777 if folder == "tmp" else 0o755)
        _add_text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\nwork:x:59500:59500:work:/home:/bin/sh\n")
        _add_text(tar, "etc/group", "root:x:0:\nwork:x:59500:\n")
        for place, source in sorted(files.items()):
            entry = tarfile.TarInfo(place)
            entry.mode, entry.size = 0o755, source.stat().st_size
            with source.open("rb") as content:
                tar.addfile(entry, content)
        for place, destination in sorted((links or {}).items()):
            entry = tarfile.TarInfo(place)
            entry.type, entry.linkname = tarfile.SYMTYPE, destination
            tar.addfile(entry)
    pack_image(target, name, layer, command=command)
    layer.unlink()


def pack_image(
    target: Path,
    name: str,
    layer: Path,
    *,
    command: Sequence[str] = (),
    environment: Sequence[str] = ("PATH=/bin:/usr/bin:/usr/local/bin",),
) -> None:
    """Write an image whose only layer is the uncompressed archive ``layer`` of a root file system."""
    with layer.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine),
        "os": "linux",
        "config": {"Env": list(environment), "Cmd": list(command)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    unfinished = target.with_suffix(".unfinished")
    with tarfile.open(unfinished, "w") as tar:
        _add_text(tar, "config.json", json.dumps(config))
        tar.add(layer, "layer.tar")
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        _add_text(tar, "manifest.json", json.dumps(manifest))
    unfinished.rename(target)


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _add_text(tar: tarfile.TarFile, name: str, text: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(text.encode()), 0o644
    tar.addfile(entry, io.BytesIO(text.encode()))
