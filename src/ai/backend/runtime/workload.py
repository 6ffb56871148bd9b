"""Provides the records on disk and device checks of the process and Docker runtimes, and the runners' environment."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import SessionId
from ai.backend.node.linux.cgroups import Groups
from ai.backend.node.workload.directory import read_json, write_json
from ai.backend.plugin.accelerator import DeviceMapping
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.settings import RuntimeSettings

RECORD_VERSION = 1
SESSION_PREFIX = "BACKENDAI_SESSION_ENVIRON_"
"""The prefix of the session's variables, which the loader ignores until the runner removes it (``process.py``)."""
OOM_SCORE_ADJ = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """Holds the durable record of a workload.

    ``made_home``: this attempt created the home. ``writable_sources``: what it mounts besides, and may write.
    """

    key: WorkloadKey
    session_id: SessionId
    image: str
    home: str
    memory_bytes: int | None
    cpu_limit: float | None
    home_bytes: int | None
    labels: Mapping[str, str] = field(default_factory=dict)
    made_home: bool = False
    writable_sources: tuple[str, ...] = ()
    cgroups: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cgroups", Groups(self.cgroups))

    def own_directories(self) -> Sequence[str]:
        """Returns the directories that only this workload writes."""
        return (self.home,)


def record_values(spec: WorkloadSpec, settings: RuntimeSettings, home: Path) -> dict[str, Any]:
    """Returns the fields of a new workload's record that its specification determines."""
    return {
        "key": spec.key,
        "session_id": spec.session_id,
        "image": spec.image,
        "home": str(home),
        "memory_bytes": spec.config.memory_limit_bytes,
        "cpu_limit": spec.config.cpu_limit,
        "home_bytes": spec.home_bytes or settings.home_bytes,
        "labels": dict(spec.labels),
        "made_home": not home.exists(),
        "writable_sources": tuple(
            os.path.normpath(mount.source) for mount in spec.config.mounts if not mount.read_only
        ),
    }


AnyRecord = TypeVar("AnyRecord", bound=WorkloadRecord)


def read_record(directory: Path, record_type: type[AnyRecord]) -> AnyRecord | None:
    """Returns the record in a workload's directory; None if the record is absent or invalid."""
    content = read_json(directory / "record.json")
    if content is None or content.get("version") != RECORD_VERSION:
        return None
    try:
        return msgspec.convert(content, record_type)
    except msgspec.ValidationError:
        return None


def write_record(directory: Path, record: WorkloadRecord) -> None:
    """Replaces a workload's record atomically: a crash or a full disk leaves the former one. Raises OSError."""
    content = msgspec.to_builtins(record, enc_hook=list)  # of the control groups
    write_json(directory / "record.json", {**content, "version": RECORD_VERSION})


def environment(
    spec: WorkloadSpec,
    defaults: Mapping[str, str],
    identity_variables: Mapping[str, str],
    reserved_names: Collection[str] = (),
    image_variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Returns the environment variables of a workload's runner, merged from defaults, image, session and identity.

    The session's variables override those of the image, and these the defaults, but never the identity.

    Those of session and image are prefixed: none of them (``LD_PRELOAD``, ``GCONV_PATH`` ...) may mean anything to the
    loader of the sandbox, or of the process that holds the channel.
    """
    identity_variables = {
        "USER": "work",
        "LOGNAME": "work",
        "BACKENDAI_KERNEL_ID": str(spec.key.kernel_id),
        "BACKENDAI_SESSION_ID": str(spec.session_id),
        "BACKENDAI_ATTEMPT": str(spec.key.attempt),
        **identity_variables,
    }
    session_variables = {**image_variables, **spec.config.env_vars, **spec.environ}
    protected_names = {*identity_variables, *reserved_names}
    return {
        **defaults,
        **{
            SESSION_PREFIX + variable: value
            for variable, value in session_variables.items()
            if variable not in protected_names
        },
        **identity_variables,
    }


def device_node(device: DeviceMapping) -> tuple[os.stat_result, str]:
    """Returns the status of a device's node, and the permissions to it. Raises CreationDenied if it is no device."""
    error_data = {"field": "devices", "key": device.cdi_name or device.target or device.source}
    try:
        node_status = Path(device.source).stat()
    except OSError as error:
        raise CreationDenied(f"the device {device.source!r} does not exist on this node", data=error_data) from error
    if not (stat.S_ISCHR(node_status.st_mode) or stat.S_ISBLK(node_status.st_mode)):
        raise CreationDenied(f"{device.source!r} is no device", data=error_data)
    return node_status, "".join(permission for permission in "rwm" if permission in device.permissions) or "rw"
