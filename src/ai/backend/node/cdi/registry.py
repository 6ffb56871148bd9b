"""Finds the devices that the CDI specifications in directories of this node describe."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import yaml

from ai.backend.common.errors import InvalidInput
from ai.backend.node.cdi.specification import CdiSpecification, ContainerEdits, parse

log = logging.getLogger(__name__)
SYSTEM_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")
_SUFFIXES = (".json", ".yaml", ".yml")
_MAX_FILES = 512
_MAX_BYTES = 8 << 20
_YamlLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DescribedDevice(msgspec.Struct, frozen=True):
    """Holds the edits that a CDI file describes for one device, with the path of the file.

    ``common`` are the edits of the file, once for all its devices.
    """

    path: Path
    edits: ContainerEdits
    common: ContainerEdits


class CdiRegistry(msgspec.Struct, frozen=True):
    """Reads the CDI specifications in directories, the directory of lowest priority first, as engines do. Nothing is
    cached but files that have not changed. Files whose names begin with ``without_prefix`` are left out, if it is not
    empty.
    """

    directories: Sequence[str | Path]
    without_prefix: str = ""

    def devices(self) -> Mapping[str, DescribedDevice]:
        """Returns the devices by their full names, ``vendor.com/class=name``.

        A directory wins over those before it. A name in two files of one directory is in conflict, and so in neither. A
        file that cannot be used is logged and left out.
        """
        devices: dict[str, DescribedDevice] = {}
        for directory in self.directories:
            devices_of_directory: dict[str, DescribedDevice] = {}
            conflicting_names: set[str] = set()
            for path in _specification_files(Path(directory)):
                if self.without_prefix and path.name.startswith(self.without_prefix):
                    continue
                specification = _read_cached(path)
                for device in specification.devices if specification is not None else ():
                    assert specification is not None
                    name = f"{specification.kind}={device.name}"
                    if name in devices_of_directory:
                        conflicting_names.add(name)
                        log.warning(
                            "%s and %s both describe the CDI device %s", devices_of_directory[name].path, path, name
                        )
                    devices_of_directory[name] = DescribedDevice(
                        path, device.container_edits, specification.container_edits
                    )
            devices |= devices_of_directory
            for name in conflicting_names:
                del devices[name]
        return devices


def _specification_files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)[:_MAX_FILES]
    except OSError:
        return []


def _read_cached(path: Path) -> CdiSpecification | None:
    try:
        status = path.stat()
    except OSError:
        return None  # removed meanwhile
    return _read_version(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=_MAX_FILES)
def _read_version(path: Path, modified_ns: int, size: int, inode: int) -> CdiSpecification | None:
    try:
        if not path.is_file() or size > _MAX_BYTES:
            raise InvalidInput(f"it is no regular file of at most {_MAX_BYTES >> 20} MiB")
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.load(text, Loader=_YamlLoader)  # a safe loader
        return parse(content)
    except (OSError, ValueError, RecursionError, yaml.YAMLError, InvalidInput) as e:
        log.warning("the CDI specification %s is not used: %s", path, str(e)[:300])
        return None
