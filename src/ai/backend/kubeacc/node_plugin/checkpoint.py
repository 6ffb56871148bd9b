"""Stores durably which workloads hold which devices, in one file for each workload."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from ai.backend.common.devices import DeviceAllocation
from ai.backend.common.errors import InvalidInput
from ai.backend.plugin.accelerator import WorkloadConfig

log = logging.getLogger(__name__)
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_SUFFIX = ".json"


class HeldDevice(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a device that a workload holds.

    ``requests`` are the requests of its claim that the device satisfies. A share of a device has the ``share_id`` of
    its claim's result, and the ``amount`` of the device's slot that can be divided. ``pci_address`` is where the device
    was when it was given, empty elsewhere: another plugin may list the same device.
    """

    plugin: str
    device_id: str
    name: str
    requests: tuple[str, ...] = ()
    share_id: str | None = None
    amount: str | None = None
    pci_address: str = ""


class PluginShare(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a plugin's part of a workload: its allocation, the state of its hook, and its configuration.

    ``calls`` are the methods of the hook that have begun.
    """

    allocation: DeviceAllocation
    state: dict[str, Any] = {}
    state_version: int = 1
    calls: tuple[str, ...] = ()
    config: WorkloadConfig | None = None


class WorkloadRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Describes a workload that holds devices: a resource claim, or a container by the device plugin.

    ``phase``: ``preparing`` until all hooks have answered, ``prepared``, and ``releasing`` while hooks undo. Devices
    are held in every phase. ``pod`` and ``pod_uid`` are of the first pod that uses a claim; others may follow."""

    uid: str
    way: Literal["dra", "device-plugin"]
    namespace: str = ""
    name: str = ""
    pod_uid: str = ""
    pod: str = ""
    phase: Literal["preparing", "prepared", "releasing"] = "preparing"
    devices: tuple[HeldDevice, ...] = ()
    shares: dict[str, PluginShare] = {}
    cdi_names: dict[str, tuple[str, ...]] = {}
    at: float = 0.0


class Checkpoint:
    """Stores workload records in a directory, one file for each workload.

    If a method raises OSError, it has changed nothing.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def load(self) -> dict[str, WorkloadRecord]:
        """Returns all records by uid. A file that cannot be read is logged and stays, for a person to look at."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        records = {}
        for path in sorted(self._directory.glob(f"*{_SUFFIX}")):
            try:
                record = msgspec.json.decode(path.read_bytes(), type=WorkloadRecord)
            except (msgspec.MsgspecError, UnicodeDecodeError) as e:
                log.error("the record %s is damaged and not used: %s", path, e)
                continue
            records[record.uid] = record
        return records

    def put(self, record: WorkloadRecord) -> None:
        """Stores a record so that it survives the loss of power. Raises InvalidInput for an unusable uid."""
        path = self._path(record.uid)
        temporary_path = path.with_name(f".{path.name}.tmp")
        temporary_path.unlink(missing_ok=True)
        with os.fdopen(
            os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            file.write(msgspec.json.encode(record))
            file.flush()
            os.fsync(file.fileno())
        is_new = not path.exists()
        temporary_path.replace(path)
        if is_new:  # an update that is lost leaves the record before it, from which a restart goes on
            self._sync_directory()

    def delete(self, uid: str) -> None:
        """Removes the record of a workload. A missing record is no error.

        A record that is back after a loss of power is released again.
        """
        self._path(uid).unlink(missing_ok=True)

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _path(self, uid: str) -> Path:
        if not _UID.fullmatch(uid):
            raise InvalidInput(f"{uid[:100]!r} is no uid")
        return self._directory / f"{uid}{_SUFFIX}"
