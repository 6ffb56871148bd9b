"""Defines the values of CDI specifications, validates them, and computes the version that a specification needs.

Source: the CDI specification 1.1.0 (SPEC.md, "Version History") and its JSON schema. Engines refuse a file with unknown
fields, and one with a lower version than its fields need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ai.backend.common.errors import InvalidInput

_KIND = re.compile(
    r"(?P<vendor>[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)/(?P<class>[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
)
_NAME_PATTERN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})")
NEWEST_VERSION = (1, 1, 0)
_MAX_TEXT = 300


class _SpecificationPart(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True
):
    pass


class DeviceNode(_SpecificationPart, frozen=True, kw_only=True):
    """Describes a device file at ``path`` in the container. It is made from ``host_path``, by default the same path."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class BindMount(_SpecificationPart, frozen=True, kw_only=True):
    host_path: str
    container_path: str
    type: str = ""
    options: tuple[str, ...] = ()


class Hook(_SpecificationPart, frozen=True, kw_only=True):
    """Describes a program that an OCI runtime executes around the start of a container."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class IntelRdt(_SpecificationPart, frozen=True, kw_only=True):
    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False
    enable_cmt: bool = msgspec.field(default=False, name="enableCMT")
    enable_mbm: bool = msgspec.field(default=False, name="enableMBM")


class NetDevice(_SpecificationPart, frozen=True, kw_only=True):
    host_interface_name: str
    name: str


class ContainerEdits(_SpecificationPart, frozen=True, kw_only=True):
    """Holds the changes that a device makes to a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[BindMount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()
    intel_rdt: IntelRdt | None = None
    net_devices: tuple[NetDevice, ...] = ()


class CdiDevice(_SpecificationPart, frozen=True, kw_only=True):
    name: str
    annotations: Mapping[str, str] = {}
    container_edits: ContainerEdits


class CdiSpecification(_SpecificationPart, frozen=True, kw_only=True):
    """Holds one specification file: the devices of one kind, and the edits that all of them share."""

    cdi_version: str
    kind: str
    annotations: Mapping[str, str] = {}
    devices: tuple[CdiDevice, ...] = ()
    container_edits: ContainerEdits = ContainerEdits()

    def all_edits(self) -> Iterator[ContainerEdits]:
        yield self.container_edits
        for device in self.devices:
            yield device.container_edits


def parse(content: Any) -> CdiSpecification:
    """Returns a decoded file as a specification. Raises InvalidInput naming the field: an unknown or malformed one, a
    wrong kind or name, a name twice, or a version that is unknown or too low for the fields."""
    try:
        specification = msgspec.convert(content, CdiSpecification)
    except msgspec.ValidationError as e:
        raise _invalid_error(str(e)) from None
    if not _KIND.fullmatch(specification.kind):
        raise _invalid_error(f"kind {specification.kind!r} is not vendor.com/class")
    device_names = [device.name for device in specification.devices]
    for name in device_names:
        if not _NAME_PATTERN.fullmatch(name):
            raise _invalid_error(f"{name!r} cannot be the name of a device")
    if len(set(device_names)) != len(device_names):
        raise _invalid_error("a device is there twice")
    version, needed_version = _version_of(specification.cdi_version), _needed_version(specification)
    if version > NEWEST_VERSION:
        raise _invalid_error(f"cdiVersion {specification.cdi_version} is newer than {_version_text(NEWEST_VERSION)}")
    if version < needed_version:
        raise _invalid_error(
            f"cdiVersion {specification.cdi_version} is too low: its fields need {_version_text(needed_version)}"
        )
    return specification


def minimum_version(content: Mapping[str, Any]) -> str:
    """Returns the lowest version that has all fields of a decoded specification, whatever it says of its version.
    Raises InvalidInput as :func:`parse`."""
    newest_content = {**content, "cdiVersion": _version_text(NEWEST_VERSION)}
    return _version_text(_needed_version(parse(newest_content)))


def _needed_version(specification: CdiSpecification) -> tuple[int, ...]:
    edits = list(specification.all_edits())
    device_class = specification.kind.partition("/")[2]
    need_of_version = {
        (1, 1, 0): any(
            edit.net_devices
            or (edit.intel_rdt is not None and (edit.intel_rdt.schemata or edit.intel_rdt.enable_monitoring))
            for edit in edits
        ),
        (0, 7, 0): any(edit.additional_gids or edit.intel_rdt is not None for edit in edits),
        (0, 6, 0): bool(specification.annotations or any(device.annotations for device in specification.devices))
        or "." in device_class,
        (0, 5, 0): any(not device.name[0].isalpha() for device in specification.devices)
        or any(node.host_path for edit in edits for node in edit.device_nodes),
        (0, 4, 0): any(mount.type for edit in edits for mount in edit.mounts),
    }
    return next((version for version, is_needed in need_of_version.items() if is_needed), (0, 3, 0))


def _version_of(text: str) -> tuple[int, ...]:
    match = _VERSION.fullmatch(text)
    if match is None:
        raise _invalid_error(f"cdiVersion {text!r} is not MAJOR.MINOR.PATCH")
    return tuple(int(number_text) for number_text in match.groups())


def _version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _invalid_error(problem: str) -> InvalidInput:
    return InvalidInput(f"no valid CDI specification: {problem[:_MAX_TEXT]}")
