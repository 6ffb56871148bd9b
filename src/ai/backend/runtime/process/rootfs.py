"""Imported root file systems: a directory or an archive becomes an image of this runtime.

Accepted: a directory, a tar of a root directory, an archive of ``docker save``, an OCI image layout (as a tar or a
directory). The image is unpacked beside its place and renamed into it. Nothing in an archive can write outside of its
image: names are resolved entry by entry without following links, device nodes are skipped, sizes and numbers are
limited.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ai.backend.common.errors import InvalidInput, LimitExceeded
from ai.backend.node.workload.file_trees import remove_tree, tree_size
from ai.backend.runtime.process.images import MIN_PYTHON, ProcessImage

_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$")
_BINARIES = ("usr/local/bin", "usr/bin", "opt/conda/bin", "bin")
_PYTHONS = re.compile(r"^python3\.(\d+)$")
MAX_BYTES = 64 * 1024**3
MAX_ENTRIES = 2_000_000
MAX_JSON = 8 * 1024**2
_WHITEOUT = ".wh."


@dataclass(slots=True)
class Budget:
    """What is left of the limits of one import."""

    bytes_left: int = MAX_BYTES
    entries_left: int = MAX_ENTRIES

    def take(self, size: int) -> None:
        self.bytes_left -= size
        self.entries_left -= 1
        if self.bytes_left < 0 or self.entries_left < 0:
            raise LimitExceeded("the image unpacks to more than an image may hold")


@dataclass(slots=True)
class _Unpacked:
    labels: dict[str, str] = field(default_factory=dict)
    digest: str = ""


def import_image(source: Path, name: str, images: Path, budget: Budget | None = None) -> ProcessImage:
    """Unpacks ``source`` as the image ``name`` in the images directory, replacing one of the same name. Blocks.

    Raises InvalidInput (a bad name, no such source, not an image, no Python in it) or LimitExceeded.
    """
    if not _NAME.match(name) or len(name) > 200:
        raise InvalidInput("an image name is lower case, like 'team/tool:1.0'", data={"name": name})
    full = name if ":" in name.rsplit("/", 1)[-1] else f"{name}:latest"
    slot = images / hashlib.sha256(full.encode()).hexdigest()[:24]
    fresh = images / f".{slot.name}.new-{os.getpid()}"
    images.mkdir(mode=0o755, parents=True, exist_ok=True)
    remove_tree(fresh)
    root = fresh / "rootfs"
    try:
        root.mkdir(parents=True, mode=0o755)
        fresh.chmod(0o755)
        status = _unpack(source, root, budget or Budget())
        _prepare_root(root)
        python = find_python(root)
        if python is None:
            raise InvalidInput(
                f"the image has no python3.N, N >= {MIN_PYTHON[1]}, in {', '.join(_BINARIES)}: it runs the runner",
                data={"source": str(source)},
            )
        content = {"version": 1, "name": full, "digest": status.digest, "labels": status.labels, "python": python}
        content["size_bytes"] = tree_size(root)
        (fresh / "image.json").write_text(json.dumps(content), encoding="utf-8")
        remove_tree(slot)
        fresh.rename(slot)
    except BaseException:
        remove_tree(fresh)
        raise
    image = _load(slot)
    assert image is not None
    return image


def remove_image(name: str, images: Path) -> bool:
    """Removes an imported image; False if there is none. Running sessions keep what they have mounted."""
    for slot in _slots(images):
        image = _load(slot)
        if image is not None and name in (image.name, *image.aliases):
            remove_tree(slot)
            return True
    return False


def list_images(images: Path) -> list[ProcessImage]:
    """Completes images only."""
    return [image for slot in _slots(images) if (image := _load(slot)) is not None]


def _slots(images: Path) -> list[Path]:
    try:
        return sorted(path for path in images.iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def _load(slot: Path) -> ProcessImage | None:
    try:
        content: dict[str, Any] = json.loads((slot / "image.json").read_bytes())
        labels = dict(content["labels"])
        name = str(content["name"])
        python = str(content["python"])
        return ProcessImage(
            name=name,
            runtime=labels.get("ai.backend.runtime-type", "python"),
            version="",
            interpreter=python,
            runtime_path=labels.get("ai.backend.runtime-path", python),
            rootfs=slot / "rootfs",
            digest=str(content["digest"]),
            size_bytes=int(content["size_bytes"]),
            aliases=(name.removesuffix(":latest"),) if name.endswith(":latest") else (),
            labels={**labels, "ai.backend.base-distro": labels.get("ai.backend.base-distro", "unknown")},
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_python(root: Path) -> str | None:
    """The newest Python >= 3.8 of a root directory, by its path inside."""
    best: tuple[int, str] | None = None
    for folder in _BINARIES:
        try:
            names = [entry.name for entry in (root / folder).iterdir()]
        except OSError:
            continue
        for name in names:
            match = _PYTHONS.match(name)
            if match and int(match[1]) >= MIN_PYTHON[1] and (best is None or int(match[1]) > best[0]):
                best = (int(match[1]), f"/{folder}/{name}")
    return None if best is None else best[1]


def _prepare_root(root: Path) -> None:
    """Mount points that the sandbox needs, and no foreign names of hosts."""
    for name in ("etc", "opt", "var", "usr", "tmp", "proc", "dev", "sys"):
        path = root / name
        if not path.is_symlink():
            path.mkdir(mode=0o755, exist_ok=True)
    if (root / "etc").is_symlink():
        raise InvalidInput("the image's /etc is a link")
    for name in ("resolv.conf", "hosts", "hostname", "passwd", "group"):
        path = root / "etc" / name
        if path.is_symlink() or not path.exists():
            path.unlink(missing_ok=True)
            path.touch(mode=0o644)


def _unpack(source: Path, root: Path, budget: Budget) -> _Unpacked:
    if source.is_dir():
        if (source / "index.json").is_file() and (source / "blobs").is_dir():
            return _unpack_layers(_DirectoryBlobs(source), root, budget)
        _copy_directory(source, root, budget)
        return _Unpacked()
    if not source.is_file():
        raise InvalidInput("there is no such file or directory", data={"source": str(source)})
    try:
        with tarfile.open(source) as archive:
            blobs = _TarBlobs(archive, budget)
            if blobs.has("manifest.json") or blobs.has("index.json"):
                return _unpack_layers(blobs, root, budget)
        digest = hashlib.sha256()
        with source.open("rb") as raw:
            while chunk := raw.read(1 << 20):
                digest.update(chunk)
        with tarfile.open(source) as archive:
            _extract(archive, root, budget)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise InvalidInput(f"this is no archive: {error}", data={"source": str(source)}) from error
    return _Unpacked(digest=f"sha256:{digest.hexdigest()}")


class _DirectoryBlobs:
    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        path = self._path / _plain(name)
        if path.is_symlink() or not path.is_file():
            raise InvalidInput(f"the image lacks {name!r}")
        return path.open("rb")


class _TarBlobs:
    def __init__(self, archive: tarfile.TarFile, budget: Budget) -> None:
        self._archive = archive
        self._members: dict[str, tarfile.TarInfo] = {}
        for member in archive:
            if len(self._members) > budget.entries_left:
                raise LimitExceeded("the archive has more entries than an image may hold")
            self._members[os.path.normpath(member.name)] = member

    def has(self, name: str) -> bool:
        return name in self._members

    def open(self, name: str) -> IO[bytes]:
        member = self._members.get(os.path.normpath(name))
        if member is not None and member.issym():
            # `docker save` links equal layers to one another.
            member = self._members.get(os.path.normpath(f"{PurePosixPath(name).parent}/{member.linkname}"))
        content = None if member is None or not member.isfile() else self._archive.extractfile(member)
        if content is None:
            raise InvalidInput(f"the image lacks {name!r}")
        return content


def _plain(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise InvalidInput(f"the image names {name!r}, which is outside of it")
    return name


def _json(blobs: _DirectoryBlobs | _TarBlobs, name: str) -> Any:
    with blobs.open(name) as file:
        try:
            return json.loads(file.read(MAX_JSON))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"the image's {name!r} is not JSON") from error


def _blob_name(digest: str) -> str:
    algorithm, _, value = digest.partition(":")
    if algorithm != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", value):
        raise InvalidInput(f"the image has an odd digest {digest!r}")
    return f"blobs/{algorithm}/{value}"


def _unpack_layers(blobs: _DirectoryBlobs | _TarBlobs, root: Path, budget: Budget) -> _Unpacked:
    try:
        config_name, layers, digest = _manifest(blobs)
        config = _json(blobs, config_name)
        labels = {str(key): str(value) for key, value in (config.get("config", {}).get("Labels") or {}).items()}
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise InvalidInput(f"the image's manifest is malformed: {error!r}") from error
    for layer in layers:
        with blobs.open(layer) as raw, tarfile.open(fileobj=raw, mode="r:*") as archive:
            _extract(archive, root, budget)
    return _Unpacked(labels, digest)


def _manifest(blobs: _DirectoryBlobs | _TarBlobs) -> tuple[str, list[str], str]:
    if blobs.has("manifest.json"):
        entry = _json(blobs, "manifest.json")[0]
        config = str(entry["Config"])
        return config, [str(layer) for layer in entry["Layers"]], "sha256:" + PurePosixPath(config).stem
    described = _json(blobs, "index.json")["manifests"][0]
    manifest = _json(blobs, _blob_name(described["digest"]))
    if "manifests" in manifest:
        manifest = _json(blobs, _blob_name(manifest["manifests"][0]["digest"]))
    layers = [_blob_name(layer["digest"]) for layer in manifest["layers"]]
    return _blob_name(manifest["config"]["digest"]), layers, str(manifest["config"]["digest"])


def _extract(archive: tarfile.TarFile, root: Path, budget: Budget) -> None:
    """One layer over what is there, with its whiteouts. Owners are not kept: sessions run as one user."""
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for member in archive:
            budget.take(member.size if member.isfile() else 0)
            parts = [part for part in PurePosixPath(member.name).parts if part not in {"/", "."}]
            if ".." in parts:
                raise InvalidInput(f"the archive names {member.name!r}, which is outside of it")
            if parts:
                _place(archive, member, top, root, parts)
    finally:
        os.close(top)


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, top: int, root: Path, parts: list[str]) -> None:
    directory = _descend(top, parts[:-1])
    name = parts[-1]
    try:
        if name.startswith(_WHITEOUT):
            _white_out(directory, name)
        elif member.isdir():
            _make_directory(directory, name, member.mode)
        elif member.isfile():
            _clear(directory, name)
            fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory)
            with os.fdopen(fd, "wb") as file:
                _copy_content(archive, member, file)
                os.fchmod(file.fileno(), member.mode & 0o755 | 0o400)
        elif member.issym():
            _clear(directory, name)
            os.symlink(member.linkname, name, dir_fd=directory)
        elif member.islnk():
            _clear(directory, name)
            target = [part for part in PurePosixPath(member.linkname).parts if part not in {"/", "."}]
            if ".." in target or not target:
                raise InvalidInput(f"the archive links to {member.linkname!r}, which is outside of it")
            source = _descend(top, target[:-1])
            try:
                os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=directory, follow_symlinks=False)
            finally:
                os.close(source)
    except OSError as error:
        raise InvalidInput(f"the archive's {member.name!r} cannot be unpacked: {error.strerror}") from error
    finally:
        os.close(directory)


def _copy_content(archive: tarfile.TarFile, member: tarfile.TarInfo, file: IO[bytes]) -> None:
    content = archive.extractfile(member)
    assert content is not None
    while chunk := content.read(1 << 20):
        file.write(chunk)


def _descend(top: int, parts: list[str]) -> int:
    """Opens a directory, made where missing, and follows links among its parents (``bin -> usr/bin``) inside root."""
    pending = list(reversed(parts))
    trail: list[int] = [os.dup(top)]
    hops = 0
    try:
        while pending:
            part = pending.pop()
            if part == "..":
                if len(trail) > 1:
                    os.close(trail.pop())
                continue
            try:
                status = os.stat(part, dir_fd=trail[-1], follow_symlinks=False)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=trail[-1])
                status = os.stat(part, dir_fd=trail[-1], follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                hops += 1
                if hops > 40:
                    raise InvalidInput("the archive's links go round in a circle")
                target = PurePosixPath(os.readlink(part, dir_fd=trail[-1]))
                if target.is_absolute():
                    while len(trail) > 1:
                        os.close(trail.pop())
                pending += reversed([piece for piece in target.parts if piece not in {"/", "."}])
                continue
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            trail.append(os.open(part, flags, dir_fd=trail[-1]))
        return os.dup(trail[-1])
    finally:
        for fd in trail:
            os.close(fd)


def _make_directory(directory: int, name: str, mode: int) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=directory)
    except FileExistsError:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return
        if not stat.S_ISDIR(status.st_mode):
            _clear(directory, name)
            os.mkdir(name, 0o755, dir_fd=directory)
    os.chmod(name, mode & 0o755 | 0o700, dir_fd=directory)


def _white_out(directory: int, name: str) -> None:
    if name == ".wh..wh..opq":
        for entry in os.listdir(directory):
            _clear(directory, entry)
    else:
        _clear(directory, name.removeprefix(_WHITEOUT))


def _clear(directory: int, name: str) -> None:
    """Whatever is there by that name goes."""
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        remove_tree(Path(f"/proc/self/fd/{directory}") / name)


def _copy_directory(source: Path, root: Path, budget: Budget) -> None:
    for relative, entry in _walk(source):
        target = root / relative
        status = entry.stat(follow_symlinks=False)
        budget.take(status.st_size if stat.S_ISREG(status.st_mode) else 0)
        if stat.S_ISLNK(status.st_mode):
            target.symlink_to(Path(entry.path).readlink())
        elif stat.S_ISDIR(status.st_mode):
            target.mkdir(mode=0o755)
        elif stat.S_ISREG(status.st_mode):
            with Path(entry.path).open("rb") as origin, target.open("xb") as copy:
                while chunk := origin.read(1 << 20):
                    copy.write(chunk)
            target.chmod(stat.S_IMODE(status.st_mode) & 0o755 | 0o400)


def _walk(source: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Parents before their entries."""
    pending = [str(source)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                yield os.path.relpath(entry.path, source), entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
