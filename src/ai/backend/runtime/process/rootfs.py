"""Imports a directory or an archive with a root file system as an image of this runtime.

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
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ai.backend.common.errors import InvalidInput, LimitExceeded
from ai.backend.common.names import check_env_name
from ai.backend.node.workload.file_trees import remove_tree, tree_size
from ai.backend.runtime.process.images import MIN_PYTHON, ProcessImage

_IMAGE_NAME_PATTERN = re.compile(r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?$")
_BIN_FOLDERS = ("usr/local/bin", "usr/bin", "opt/conda/bin", "bin")
_PYTHON_NAME_PATTERN = re.compile(r"^python3\.(\d+)$")
MAX_UNPACKED_BYTES = 64 * 1024**3
MAX_ENTRIES = 2_000_000
MAX_JSON_BYTES = 8 * 1024**2
_WHITEOUT_PREFIX = ".wh."
_JAIL_POLICY_PATH = "etc/backend.ai/jail/policy.yml"
_UNUSED_KEYS = ("User", "WorkingDir", "Entrypoint", "Cmd")
"""Keys of an image's configuration that have no effect: a session runs the runner as the user ``work`` in its home."""


@dataclass(slots=True)
class ImportBudget:
    """Counts the bytes and entries that the import of one image may still unpack."""

    bytes_left: int = MAX_UNPACKED_BYTES
    entries_left: int = MAX_ENTRIES

    def count_entry(self, file_bytes: int) -> None:
        self.bytes_left -= file_bytes
        self.entries_left -= 1
        if self.bytes_left < 0 or self.entries_left < 0:
            raise LimitExceeded("the image unpacks to more than an image may hold")


@dataclass(slots=True)
class _UnpackedImage:
    labels: dict[str, str] = field(default_factory=dict)
    digest: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)


def import_image(
    source: Path, image_name: str, images_directory: Path, budget: ImportBudget | None = None
) -> ProcessImage:
    """Unpacks a directory or archive as an image of the process runtime, in place of an image of the same name.

    Blocks.

    Raises InvalidInput (a bad name, no such source, not an image, no Python in it) or LimitExceeded.
    """
    if not _IMAGE_NAME_PATTERN.match(image_name) or len(image_name) > 200:
        raise InvalidInput("an image name is lower case, like 'team/tool:1.0'", data={"name": image_name})
    full_name = image_name if ":" in image_name.rsplit("/", 1)[-1] else f"{image_name}:latest"
    image_slot = images_directory / hashlib.sha256(full_name.encode()).hexdigest()[:24]
    unfinished_slot = images_directory / f".{image_slot.name}.new-{os.getpid()}"
    images_directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    remove_tree(unfinished_slot)
    root_directory = unfinished_slot / "rootfs"
    try:
        root_directory.mkdir(parents=True, mode=0o755)
        unfinished_slot.chmod(0o755)
        status = _unpack_source(source, root_directory, budget or ImportBudget())
        if os.path.lexists(root_directory / _JAIL_POLICY_PATH):
            status.unused["jail policy"] = f"/{_JAIL_POLICY_PATH}"
        _prepare_root(root_directory)
        python_path = find_python(root_directory, status.labels.get("ai.backend.runtime-path", ""))
        if python_path is None:
            raise InvalidInput(
                f"the image has no python3.N, N >= {MIN_PYTHON[1]}, in {', '.join(_BIN_FOLDERS)}: it runs the runner",
                data={"source": str(source)},
            )
        size_bytes = tree_size(root_directory)
        content = {"version": 1, "name": full_name, "python": python_path, "size_bytes": size_bytes, **asdict(status)}
        (unfinished_slot / "image.json").write_text(json.dumps(content), encoding="utf-8")
        remove_tree(image_slot)
        unfinished_slot.rename(image_slot)
    except BaseException:
        remove_tree(unfinished_slot)
        raise
    image = _load_image(image_slot)
    assert image is not None
    return image


def remove_image(image_name: str, images_directory: Path) -> bool:
    """Removes an imported image; returns False if there is no such image. Running sessions keep their mounts."""
    for image_slot in _image_slots(images_directory):
        image = _load_image(image_slot)
        if image is not None and image_name in (image.name, *image.aliases):
            remove_tree(image_slot)
            return True
    return False


def list_images(images_directory: Path) -> list[ProcessImage]:
    """Returns the imported images that are complete."""
    return [image for image_slot in _image_slots(images_directory) if (image := _load_image(image_slot)) is not None]


def _image_slots(images_directory: Path) -> list[Path]:
    try:
        return sorted(image_slot for image_slot in images_directory.iterdir() if not image_slot.name.startswith("."))
    except OSError:
        return []


def _load_image(image_slot: Path) -> ProcessImage | None:
    try:
        content: dict[str, Any] = json.loads((image_slot / "image.json").read_bytes())
        labels = dict(content["labels"])
        name = str(content["name"])
        python_path = str(content["python"])
        return ProcessImage(
            name=name,
            runtime=labels.get("ai.backend.runtime-type", "python"),
            version="",
            interpreter=python_path,
            runtime_path=labels.get("ai.backend.runtime-path", python_path),
            rootfs=image_slot / "rootfs",
            digest=str(content["digest"]),
            size_bytes=int(content["size_bytes"]),
            aliases=(name.removesuffix(":latest"),) if name.endswith(":latest") else (),
            labels={**labels, "ai.backend.base-distro": labels.get("ai.backend.base-distro", "unknown")},
            environ=dict(content.get("environ", {})),
            unused=dict(content.get("unused", {})),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_python(root_directory: Path, labelled_path: str = "") -> str | None:
    """Returns the path of a Python 3.8 or newer inside a root directory: the labelled one, else the newest.

    Returns None if there is none.
    """
    folder, _, labelled_name = labelled_path.rpartition("/")
    if folder.startswith("/") and _is_python(root_directory / folder.lstrip("/"), labelled_name):
        return labelled_path
    newest_python: tuple[int, str] | None = None
    for folder in _BIN_FOLDERS:
        try:
            entry_names = [entry.name for entry in (root_directory / folder).iterdir()]
        except OSError:
            continue
        for name in entry_names:
            match = _PYTHON_NAME_PATTERN.match(name)
            if match and int(match[1]) >= MIN_PYTHON[1] and (newest_python is None or int(match[1]) > newest_python[0]):
                newest_python = (int(match[1]), f"/{folder}/{name}")
    return None if newest_python is None else newest_python[1]


def _is_python(folder: Path, name: str) -> bool:
    """Returns True for a Python >= 3.8, also behind links to names of the same folder (`python -> python3.11`)."""
    for _ in range(4):
        path = folder / name
        if not path.is_symlink():
            match = _PYTHON_NAME_PATTERN.match(name)
            return match is not None and int(match[1]) >= MIN_PYTHON[1] and path.is_file()
        name = str(path.readlink())
        if "/" in name:
            return False
    return False


def _prepare_root(root: Path) -> None:
    """Makes the mount points that the sandbox needs, and empty files in place of missing files and links in /etc."""
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


def _unpack_source(source: Path, root_directory: Path, budget: ImportBudget) -> _UnpackedImage:
    if source.is_dir():
        if (source / "index.json").is_file() and (source / "blobs").is_dir():
            return _unpack_layers(_DirectoryBlobs(source), root_directory, budget)
        _copy_directory(source, root_directory, budget)
        return _UnpackedImage()
    if not source.is_file():
        raise InvalidInput("there is no such file or directory", data={"source": str(source)})
    try:
        with tarfile.open(source) as archive:
            blobs = _TarBlobs(archive, budget)
            if blobs.has("manifest.json") or blobs.has("index.json"):
                return _unpack_layers(blobs, root_directory, budget)
        with source.open("rb") as archive_file:
            digest = hashlib.file_digest(archive_file, "sha256")
        with tarfile.open(source) as archive:
            _extract_layer(archive, root_directory, budget)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise InvalidInput(f"this is no archive: {error}", data={"source": str(source)}) from error
    return _UnpackedImage(digest=f"sha256:{digest.hexdigest()}")


class _DirectoryBlobs:
    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()

    def open(self, name: str) -> IO[bytes]:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise InvalidInput(f"the image names {name!r}, which is outside of it")
        path = self._path / name
        if path.is_symlink() or not path.is_file():
            raise InvalidInput(f"the image lacks {name!r}")
        return path.open("rb")


class _TarBlobs:
    def __init__(self, archive: tarfile.TarFile, budget: ImportBudget) -> None:
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


def _read_json(blobs: _DirectoryBlobs | _TarBlobs, name: str) -> Any:
    with blobs.open(name) as file:
        try:
            return json.loads(file.read(MAX_JSON_BYTES))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"the image's {name!r} is not JSON") from error


def _blob_name(digest: str) -> str:
    algorithm, _, hex_digest = digest.partition(":")
    if algorithm != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", hex_digest):
        raise InvalidInput(f"the image has an odd digest {digest!r}")
    return f"blobs/{algorithm}/{hex_digest}"


def _unpack_layers(blobs: _DirectoryBlobs | _TarBlobs, root_directory: Path, budget: ImportBudget) -> _UnpackedImage:
    try:
        config_name, layer_names, digest = _read_manifest(blobs)
        config = _read_json(blobs, config_name).get("config") or {}
        labels = {str(key): str(value) for key, value in (config.get("Labels") or {}).items()}
        environ = dict(_parse_variable(str(entry)) for entry in config.get("Env") or ())
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"the image's manifest is malformed: {error!r}") from error
    for layer_name in layer_names:
        with blobs.open(layer_name) as layer_file, tarfile.open(fileobj=layer_file, mode="r:*") as archive:
            _extract_layer(archive, root_directory, budget)
    unused_by_key = {key: unused_value for key in _UNUSED_KEYS if (unused_value := _joined_words(config.get(key)))}
    return _UnpackedImage(labels, digest, environ, unused_by_key)


def _parse_variable(entry: str) -> tuple[str, str]:
    name, _, value = entry.partition("=")
    if "\0" in entry:
        raise ValueError(f"{name!r} contains a NUL")
    return check_env_name(name), value


def _joined_words(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _read_manifest(blobs: _DirectoryBlobs | _TarBlobs) -> tuple[str, list[str], str]:
    if blobs.has("manifest.json"):
        image_entry = _read_json(blobs, "manifest.json")[0]
        config_name = str(image_entry["Config"])
        return config_name, [str(layer) for layer in image_entry["Layers"]], "sha256:" + PurePosixPath(config_name).stem
    index_entry = _read_json(blobs, "index.json")["manifests"][0]
    manifest = _read_json(blobs, _blob_name(index_entry["digest"]))
    if "manifests" in manifest:
        manifest = _read_json(blobs, _blob_name(manifest["manifests"][0]["digest"]))
    layer_names = [_blob_name(layer["digest"]) for layer in manifest["layers"]]
    return _blob_name(manifest["config"]["digest"]), layer_names, str(manifest["config"]["digest"])


def _extract_layer(archive: tarfile.TarFile, root_directory: Path, budget: ImportBudget) -> None:
    """Extracts a layer's archive into the root directory and applies its whiteouts. Drops the files' owners."""
    root_fd = os.open(root_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for member in archive:
            budget.count_entry(member.size if member.isfile() else 0)
            path_names = [path_name for path_name in PurePosixPath(member.name).parts if path_name not in {"/", "."}]
            if ".." in path_names:
                raise InvalidInput(f"the archive names {member.name!r}, which is outside of it")
            if path_names:
                _place_member(archive, member, root_fd, root_directory, path_names)
    finally:
        os.close(root_fd)


def _place_member(
    archive: tarfile.TarFile, member: tarfile.TarInfo, root_fd: int, root_directory: Path, path_names: list[str]
) -> None:
    folder_fd = _open_folder(root_fd, path_names[:-1])
    name = path_names[-1]
    try:
        if name.startswith(_WHITEOUT_PREFIX):
            _apply_whiteout(folder_fd, name)
        elif member.isdir():
            _make_directory(folder_fd, name, member.mode)
        elif member.isfile():
            _remove_entry(folder_fd, name)
            file_fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder_fd)
            with os.fdopen(file_fd, "wb") as file:
                member_file = archive.extractfile(member)
                assert member_file is not None
                shutil.copyfileobj(member_file, file, 1 << 20)
                os.fchmod(file.fileno(), member.mode & 0o755 | 0o400)
        elif member.issym():
            _remove_entry(folder_fd, name)
            os.symlink(member.linkname, name, dir_fd=folder_fd)
        elif member.islnk():
            _remove_entry(folder_fd, name)
            link_names = [
                path_name for path_name in PurePosixPath(member.linkname).parts if path_name not in {"/", "."}
            ]
            if ".." in link_names or not link_names:
                raise InvalidInput(f"the archive links to {member.linkname!r}, which is outside of it")
            link_folder_fd = _open_folder(root_fd, link_names[:-1])
            try:
                os.link(link_names[-1], name, src_dir_fd=link_folder_fd, dst_dir_fd=folder_fd, follow_symlinks=False)
            finally:
                os.close(link_folder_fd)
    except OSError as error:
        raise InvalidInput(f"the archive's {member.name!r} cannot be unpacked: {error.strerror}") from error
    finally:
        os.close(folder_fd)


def _open_folder(root_fd: int, path_names: list[str]) -> int:
    """Opens a folder below the root directory, makes missing folders, and follows links inside the root."""
    pending_names = list(reversed(path_names))
    open_fds: list[int] = [os.dup(root_fd)]
    link_count = 0
    try:
        while pending_names:
            path_name = pending_names.pop()
            if path_name == "..":
                if len(open_fds) > 1:
                    os.close(open_fds.pop())
                continue
            try:
                status = os.stat(path_name, dir_fd=open_fds[-1], follow_symlinks=False)
            except FileNotFoundError:
                os.mkdir(path_name, 0o755, dir_fd=open_fds[-1])
                status = os.stat(path_name, dir_fd=open_fds[-1], follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                link_count += 1
                if link_count > 40:
                    raise InvalidInput("the archive's links go round in a circle")
                link_target = PurePosixPath(os.readlink(path_name, dir_fd=open_fds[-1]))
                if link_target.is_absolute():
                    while len(open_fds) > 1:
                        os.close(open_fds.pop())
                pending_names += reversed([link_part for link_part in link_target.parts if link_part not in {"/", "."}])
                continue
            open_flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            open_fds.append(os.open(path_name, open_flags, dir_fd=open_fds[-1]))
        return os.dup(open_fds[-1])
    finally:
        for open_fd in open_fds:
            os.close(open_fd)


def _make_directory(parent_fd: int, name: str, permissions: int) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=parent_fd)
    except FileExistsError:
        status = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return
        if not stat.S_ISDIR(status.st_mode):
            _remove_entry(parent_fd, name)
            os.mkdir(name, 0o755, dir_fd=parent_fd)
    os.chmod(name, permissions & 0o755 | 0o700, dir_fd=parent_fd)


def _apply_whiteout(parent_fd: int, name: str) -> None:
    if name == ".wh..wh..opq":
        for entry in os.listdir(parent_fd):
            _remove_entry(parent_fd, entry)
    else:
        _remove_entry(parent_fd, name.removeprefix(_WHITEOUT_PREFIX))


def _remove_entry(parent_fd: int, name: str) -> None:
    """Removes the file or directory tree ``name`` of a folder, if it exists."""
    try:
        os.unlink(name, dir_fd=parent_fd)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):
        remove_tree(Path(f"/proc/self/fd/{parent_fd}") / name)


def _copy_directory(source: Path, root_directory: Path, budget: ImportBudget) -> None:
    for relative_path, entry in _walk_tree(source):
        target_path = root_directory / relative_path
        status = entry.stat(follow_symlinks=False)
        budget.count_entry(status.st_size if stat.S_ISREG(status.st_mode) else 0)
        if stat.S_ISLNK(status.st_mode):
            target_path.symlink_to(Path(entry.path).readlink())
        elif stat.S_ISDIR(status.st_mode):
            target_path.mkdir(mode=0o755)
        elif stat.S_ISREG(status.st_mode):
            with Path(entry.path).open("rb") as source_file, target_path.open("xb") as target_file:
                shutil.copyfileobj(source_file, target_file, 1 << 20)
            target_path.chmod(stat.S_IMODE(status.st_mode) & 0o755 | 0o400)


def _walk_tree(source: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yields (relative path, entry) for each entry below a directory, folders before their entries."""
    pending_folders = [str(source)]
    while pending_folders:
        with os.scandir(pending_folders.pop()) as entries:
            for entry in entries:
                yield os.path.relpath(entry.path, source), entry
                if entry.is_dir(follow_symlinks=False):
                    pending_folders.append(entry.path)
