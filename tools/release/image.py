"""Writes the container image of all daemons: a small Debian, and the environment that the packages install.

The archive is an image layout of OCI that ``docker load`` (25 or newer), ``ctr images import``, ``podman load`` and
``skopeo`` read. Source: OCI image-spec 1.1 (image-layout, manifest, config).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.release.debian import ARCHITECTURES, LIBRARIES, PREFIX

IMAGE = "docker.io/backendai/daemons"
"""The image's repository; its tag is the version."""
USER = 900
"""User and group of the daemons in the image, which is ``backendai`` there."""
_MIRROR = "http://deb.debian.org/debian"
_PACKAGES = ("python3", "ca-certificates", *LIBRARIES)
_LEFT_OUT = ("/usr/share/locale/*", "/usr/share/man/*", "/usr/share/doc/*")
_OCI = "application/vnd.oci.image"


def write_base(target: Path, run: Callable[..., str]) -> None:
    """Writes the root of a Debian of this machine's release: its essential packages, Python, certificates.

    The bytes are the same as long as the archive of Debian is. Raises subprocess.CalledProcessError.
    """
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    options += ["--dpkgopt=path-include=/usr/share/doc/*/copyright"]
    for line, file in (
        (f"backendai:x:{USER}:{USER}::/var/lib/backend.ai:/usr/sbin/nologin", "passwd"),
        (f"backendai:x:{USER}:", "group"),
    ):
        options.append(f'--customize-hook=echo "{line}" >> "$1/etc/{file}"')
    options.append(f'--customize-hook=mkdir -p "$1/var/lib/backend.ai" && chown {USER}:{USER} "$1/var/lib/backend.ai"')
    suite = _release_name()
    include = f"--include={','.join(_PACKAGES)}"
    run("mmdebstrap", "--quiet", "--variant=essential", "--format=tar", include, *options, suite, str(target), _MIRROR)


def _release_name() -> str:
    lines = Path("/etc/os-release").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("VERSION_CODENAME="))


def write_image(archive: Path, base: Path, environment: Path, name: str, epoch: int) -> None:
    """Writes the archive of an image named ``name`` (``HOST/REPOSITORY:TAG``).

    ``base`` is the archive of a root file system, ``environment`` a folder that becomes ``/opt/backend.ai``; ``epoch``
    is the time of everything that is made here, in seconds. Any daemon starts by the words after ``backend.ai``, as the
    user ``backendai``.
    """
    layers = [_layer(base.read_bytes()), _layer(_environment_layer(environment, epoch))]
    moment = datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    config = _document(
        {
            "architecture": ARCHITECTURES[os.uname().machine],
            "os": "linux",
            "created": moment,
            "config": {
                "User": f"{USER}:{USER}",
                "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/var/lib/backend.ai"],
                "Entrypoint": ["/usr/bin/backend.ai"],
                "Cmd": ["--help"],
                "WorkingDir": "/var/lib/backend.ai",
                "StopSignal": "SIGTERM",
            },
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{"created": moment, "created_by": word} for word in ("debian", "backendai")],
        },
        f"{_OCI}.config.v1+json",
    )
    manifest = _document(
        {
            "schemaVersion": 2,
            "mediaType": f"{_OCI}.manifest.v1+json",
            "config": config.descriptor(),
            "layers": [layer.descriptor() for layer in layers],
        },
        f"{_OCI}.manifest.v1+json",
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = {"schemaVersion": 2, "manifests": [{**manifest.descriptor(), "annotations": names}]}
    blobs = [config, manifest, *layers]
    files = {blob.path: blob.content for blob in blobs}
    files["oci-layout"] = json.dumps({"imageLayoutVersion": "1.0.0"}).encode()
    files["index.json"] = json.dumps(index).encode()
    loaded = {"Config": config.path, "RepoTags": [name], "Layers": [layer.path for layer in layers]}
    files["manifest.json"] = json.dumps([loaded]).encode()
    with tarfile.open(archive, "w") as tar:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            tar.addfile(entry, io.BytesIO(content))


@dataclass(frozen=True, slots=True)
class _Blob:
    """A file of the archive, named by its digest; ``diff_id`` is the digest of a layer before it was compressed."""

    content: bytes
    media_type: str
    diff_id: str = ""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def path(self) -> str:
        return f"blobs/sha256/{self.digest}"

    def descriptor(self) -> dict[str, Any]:
        return {"mediaType": self.media_type, "digest": f"sha256:{self.digest}", "size": len(self.content)}


def _document(content: dict[str, Any], media_type: str) -> _Blob:
    return _Blob(json.dumps(content, sort_keys=True).encode(), media_type)


def _layer(tar: bytes) -> _Blob:
    compressed = gzip.compress(tar, compresslevel=6, mtime=0)
    return _Blob(compressed, f"{_OCI}.layer.v1.tar+gzip", f"sha256:{hashlib.sha256(tar).hexdigest()}")


def _environment_layer(environment: Path, epoch: int) -> bytes:
    def normalized(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = epoch
        return entry

    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path in (environment, *sorted(environment.rglob("*"))):
            tar.add(path, str(PREFIX / path.relative_to(environment)), recursive=False, filter=normalized)
        link = tarfile.TarInfo("usr/bin/backend.ai")
        link.type, link.linkname, link.mtime = tarfile.SYMTYPE, f"/{PREFIX}/bin/backend.ai", epoch
        tar.addfile(link)
    return output.getvalue()
