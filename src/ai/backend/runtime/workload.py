"""Functions for workloads that both runtimes share: records on disk, environment, devices, and the guard of homes."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ai.backend.common.errors import CreationDenied
from ai.backend.common.ids import SessionId
from ai.backend.node.linux import disk_space
from ai.backend.node.linux.cgroups import Groups
from ai.backend.node.workload.directory import read_json, write_json
from ai.backend.node.workload.statistics import Meter
from ai.backend.plugin.accelerator import DeviceMapping
from ai.backend.plugin.runtime import WorkloadKey, WorkloadSpec
from ai.backend.runtime.settings import RuntimeSettings

log = logging.getLogger(__name__)
RECORD_VERSION = 1
SESSION_PREFIX = "BACKENDAI_SESSION_ENVIRON_"
"""The prefix of the session's variables, which the loader ignores until the runner removes it (``process.py``)."""
OOM_SCORE_ADJ = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRecord:
    """The durable record of a workload. ``made_home``: the home is not that of an earlier attempt."""

    key: WorkloadKey
    session_id: SessionId
    image: str
    home: str
    memory_bytes: int | None
    cpu_limit: float | None
    home_bytes: int | None
    labels: Mapping[str, str] = field(default_factory=dict)
    made_home: bool = False
    cgroups: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cgroups", Groups(self.cgroups))


R = TypeVar("R", bound=WorkloadRecord)


def read_record(directory: Path, kind: type[R]) -> R | None:
    """Returns the record in a workload's directory; None if there is none or it is invalid."""
    content = read_json(directory / "record.json")
    if content is None or content.get("version") != RECORD_VERSION:
        return None
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError:
        return None


def write_record(directory: Path, record: WorkloadRecord) -> None:
    content = msgspec.to_builtins(record, enc_hook=list)  # of the control groups
    write_json(directory / "record.json", {**content, "version": RECORD_VERSION})


def environment(
    spec: WorkloadSpec, defaults: Mapping[str, str], identity: Mapping[str, str], reserved: Collection[str] = ()
) -> dict[str, str]:
    """Returns the runner's variables. The session's override the defaults, but never its identity.

    The session's are prefixed: none of them (``LD_PRELOAD``, ``GCONV_PATH`` ...) may mean anything to the loader of the
    sandbox, or of the process that holds the channel.
    """
    identity = {
        "USER": "work",
        "LOGNAME": "work",
        "BACKENDAI_KERNEL_ID": str(spec.key.kernel_id),
        "BACKENDAI_SESSION_ID": str(spec.session_id),
        "BACKENDAI_ATTEMPT": str(spec.key.attempt),
        **identity,
    }
    requested = {**spec.config.env_vars, **spec.environ}
    own = {*identity, *reserved}
    return {
        **defaults,
        **{SESSION_PREFIX + name: text for name, text in requested.items() if name not in own},
        **identity,
    }


def device_node(device: DeviceMapping) -> tuple[os.stat_result, str]:
    """Returns the status of a device's node, and the permissions to it. Raises CreationDenied if it is no device."""
    data = {"field": "devices", "key": device.cdi_name or device.target or device.source}
    try:
        status = Path(device.source).stat()
    except OSError as error:
        raise CreationDenied(f"the device {device.source!r} does not exist on this node", data=data) from error
    if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
        raise CreationDenied(f"{device.source!r} is no device", data=data)
    return status, "".join(letter for letter in "rwm" if letter in device.permissions) or "rw"


async def used_bytes(meter: Meter, record: WorkloadRecord, pids: Sequence[int]) -> int:
    """Returns what a workload holds on the disk of the homes, files without a name included."""
    size = await asyncio.to_thread(meter.home_size, record, time.monotonic())
    return size + await asyncio.to_thread(disk_space.unlinked_bytes, pids, Path(record.home))


async def guard_homes(
    settings: RuntimeSettings,
    homes: Path,
    living: Callable[[], Iterable[WorkloadRecord]],
    used: Callable[[WorkloadRecord], Awaitable[int]],
    end: Callable[[WorkloadKey, bool], Awaitable[None]],
) -> None:
    """Enforces the size of homes and the platform's reserve on their disk, until cancelled.

    ``end`` ends a workload; its second argument is True if the disk is full.
    """
    while True:
        await asyncio.sleep(settings.watch_interval_s)
        lacks_room = await asyncio.to_thread(disk_space.is_low, homes, settings.reserved_bytes)
        sizes: dict[WorkloadKey, int] = {}
        for record in living():
            limit = record.home_bytes
            if limit is None and not lacks_room:
                continue
            size = sizes[record.key] = await used(record)
            if limit is not None and size > limit:
                log.warning("the home of %s holds %d bytes, over its limit of %d", record.key, size, limit)
                await end(record.key, False)
        if lacks_room and sizes:
            key, size = max(sizes.items(), key=lambda item: item[1])
            if size >= settings.reserved_bytes // 64:  # else what fills the disk is none of ours
                log.error("the disk of the homes is full; %s holds %d bytes of it and is ended", key, size)
                await end(key, True)
