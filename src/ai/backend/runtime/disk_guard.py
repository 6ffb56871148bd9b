"""Ends the session that exceeds its home's limit, or that fills the disk on which the platform lives."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from ai.backend.common.errors import WorkloadError
from ai.backend.node.linux import disk_space
from ai.backend.node.workload.statistics import Meter
from ai.backend.plugin.runtime import WorkloadKey
from ai.backend.runtime.settings import RuntimeSettings
from ai.backend.runtime.workload import WorkloadRecord

log = logging.getLogger(__name__)
OWNER_LABEL = "ai.backend.owner"
_SHARE_OF_FILLER = 16
"""A workload is ended on a full disk only if it added at least this fraction (1/16) of the reserve."""
_CLOCK_STEP_S = 0.1
"""The time of a file may be this much older than its change, since file systems read a clock of coarse steps."""


async def used_bytes(meter: Meter, record: WorkloadRecord, pids: Sequence[int]) -> int:
    """Returns the number of bytes that a workload uses on the disk of the homes.

    Includes files that are deleted and still open.
    """
    home_bytes = await asyncio.to_thread(meter.home_size, record, time.monotonic())
    return home_bytes + await asyncio.to_thread(disk_space.unlinked_bytes, pids, Path(record.home))


class Growth(msgspec.Struct, frozen=True):
    """Holds the number of bytes that a workload added to a disk: in its home, and in folders that it mounts."""

    home: int
    folders: int


@dataclass(slots=True)
class DiskGuard:
    """Watches the sizes of homes and the free space of their disk.

    ``end_workload`` ends a workload with a reason; its last argument is True if its home is to be removed at once.
    """

    settings: RuntimeSettings
    homes_directory: Path
    living_records: Callable[[], Iterable[WorkloadRecord]]
    measure_bytes: Callable[[WorkloadRecord], Awaitable[int]]
    pids_of: Callable[[WorkloadKey], Awaitable[Sequence[int]]]
    end_workload: Callable[[WorkloadKey, str, bool], Awaitable[None]]
    _room_at: float = field(default_factory=time.time, init=False)

    def check_room(self) -> None:
        """Raises WorkloadError while the disk is full, so that no new workload is started.

        A new workload would take the space that the platform needs.
        """
        if disk_space.is_low(self.homes_directory, self.settings.reserved_bytes):
            raise WorkloadError("the disk of this node is full: less than reserved-bytes are free")

    async def run(self) -> None:
        """Checks periodically until cancelled. A check that fails is logged and does not stop the others."""
        while True:
            await asyncio.sleep(self.settings.watch_interval_s)
            limited_records = [record for record in self.living_records() if record.home_bytes is not None]
            checks: list[Callable[[], Awaitable[None]]] = [
                partial(self._check_home, record) for record in limited_records
            ]
            for check in (*checks, self._check_disk):
                try:
                    await check()
                except Exception:
                    log.exception("a check of the disk of the homes failed and runs again")

    async def _check_home(self, record: WorkloadRecord) -> None:
        """Ends a workload that holds more bytes than its limit."""
        size_bytes = await self.measure_bytes(record)
        if record.home_bytes is not None and size_bytes > record.home_bytes:
            log.warning("%s holds %d bytes, over its limit of %d", record.home, size_bytes, record.home_bytes)
            await self.end_workload(record.key, "home-limit", False)

    async def _check_disk(self) -> None:
        began_at = time.time()
        if await asyncio.to_thread(disk_space.is_low, self.homes_directory, self.settings.reserved_bytes):
            await self._end_filler()
        else:
            self._room_at = began_at

    async def _end_filler(self) -> None:
        """Ends the workload that added the most bytes to the disk since the disk last had room.

        The time counts anew when a workload was ended. Ends no workload if each added little.
        """
        records = list(self.living_records())
        pids_by_key = {record.key: await self.pids_of(record.key) for record in records}
        since_time = self._room_at - _CLOCK_STEP_S
        growths = await asyncio.to_thread(growth_by_workload, records, pids_by_key, self.homes_directory, since_time)
        reserve_bytes = await asyncio.to_thread(
            disk_space.needed_bytes, self.homes_directory, self.settings.reserved_bytes
        )
        key, growth = max(
            growths.items(), key=lambda item: item[1].home + item[1].folders, default=(None, Growth(home=0, folders=0))
        )
        if key is None or growth.home + growth.folders < reserve_bytes // _SHARE_OF_FILLER:
            return
        log.error("the disk of the homes is full; %s added %d bytes and is ended", key, growth.home + growth.folders)
        is_home = growth.home >= growth.folders
        await self.end_workload(key, "home-limit" if is_home else "disk-full", is_home)
        # Its last writes are older than this. Those to a shared folder would count for whoever still mounts that.
        # A workload that could not be ended is looked for again.
        self._room_at = time.time() + _CLOCK_STEP_S


def growth_by_workload(
    records: Sequence[WorkloadRecord],
    pids_by_key: Mapping[WorkloadKey, Sequence[int]],
    homes_directory: Path,
    since: float,
) -> dict[WorkloadKey, Growth]:
    """Returns the number of bytes that each workload added to the disk of the homes since the given time.

    A folder that sessions of several owners may write counts for those that have its new files open for writing.
    """
    device = homes_directory.stat().st_dev
    files_by_source = {
        source: disk_space.recent_files(Path(source), device, since)
        for source in {source for record in records for source in record.writable_sources}
    }
    growths: dict[WorkloadKey, Growth] = {}
    for record in records:
        pids = pids_by_key[record.key]
        own_file_sizes = [disk_space.recent_files(Path(path), device, since) for path in record.own_directories()]
        home_bytes = sum(sum(bytes_by_inode.values()) for bytes_by_inode in own_file_sizes)
        folder_bytes = 0
        for source in record.writable_sources:
            bytes_by_inode = files_by_source[source]
            owners = {
                other_record.labels.get(OWNER_LABEL)
                for other_record in records
                if _has_overlapping_source(other_record, source)
            }
            if len(owners) > 1:
                written_inodes = disk_space.open_inodes(pids, device)
                bytes_by_inode = {
                    inode: size_bytes for inode, size_bytes in bytes_by_inode.items() if inode in written_inodes
                }
            folder_bytes += sum(bytes_by_inode.values())
        home_bytes += disk_space.unlinked_bytes(pids, homes_directory)
        growths[record.key] = Growth(home=home_bytes, folders=folder_bytes)
    return growths


def _has_overlapping_source(record: WorkloadRecord, source: str) -> bool:
    return any(
        other_source == source or other_source.startswith(source + "/") or source.startswith(other_source + "/")
        for other_source in record.writable_sources
    )
