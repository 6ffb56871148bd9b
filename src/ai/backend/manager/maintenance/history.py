"""Moves old ended sessions, audit records and claim periods out of the database to an archive.

A batch is written to files before its rows are deleted. A note beside the files names the rows of the batch until they
are deleted, so that a process that was killed in between leaves no row in two files and none in neither.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ai.backend.common.errors import InvalidInput, Unavailable
from ai.backend.infra.files import sync_folder, write_atomically
from ai.backend.manager.maintenance.store import Archive, HistoryKind, HistoryStore, Rows

BATCH_ROWS = 1_000
"""The number of sessions, or of audit records, in one file and one transaction. Such a transaction holds SQLite's lock
for some 50 ms.
"""
_UNFINISHED_BATCH_FILE = "unfinished.json"


class History(msgspec.Struct, frozen=True):
    """Moves history from a store to an archive, or deletes the history if there is no archive."""

    store: HistoryStore
    archive: Archive | None

    async def remove(self, kind: HistoryKind, *, before: datetime) -> Mapping[str, int]:
        """Removes history that ended before a time, in batches. After each batch it waits as long as the batch took, so
        that other writers get their turn. Returns the numbers of removed rows by their kind.

        Raises:
            Unavailable: the archive cannot be written. What was not archived stays in the database.
        """
        removed_counts: Counter[str] = Counter()
        loop = asyncio.get_running_loop()
        removed_counts.update(await self._finish_batch())
        while ids := await self.store.expired_ids(kind, before=before, limit=BATCH_ROWS):
            began_s = loop.time()
            await self._archive(kind, ids)
            removed_counts.update(await self._delete(kind, ids))
            await asyncio.sleep(min(1.0, loop.time() - began_s))
        return removed_counts

    async def _archive(self, kind: HistoryKind, ids: Sequence[str]) -> None:
        if self.archive is None:
            return
        rows_by_table = {table: rows for table, rows in (await self.store.rows(kind, ids)).items() if rows}
        try:
            await asyncio.to_thread(self._write, self.archive, kind, ids, rows_by_table)
        except OSError as e:
            raise Unavailable(
                f"History cannot be archived in {self.archive.folder}: {e.strerror or e}. Nothing of it was deleted."
            ) from e

    @staticmethod
    def _write(archive: Archive, kind: HistoryKind, ids: Sequence[str], rows_by_table: Mapping[str, Rows]) -> None:
        file_name = f"{ids[0]}-{len(ids)}"
        batch_note = {
            "kind": kind.value,
            "ids": list(ids),
            "name": file_name,
            "tables": list(rows_by_table),
            "complete": False,
        }
        _write_batch_note(archive.folder, batch_note)
        for table, rows in rows_by_table.items():
            archive.write(table, file_name, rows)
        _write_batch_note(archive.folder, {**batch_note, "complete": True})

    async def _delete(self, kind: HistoryKind, ids: Sequence[str]) -> Mapping[str, int]:
        removed_counts = await self.store.remove(kind, ids)
        if self.archive is not None:
            await asyncio.to_thread((self.archive.folder / _UNFINISHED_BATCH_FILE).unlink, missing_ok=True)
        return removed_counts

    async def _finish_batch(self) -> Mapping[str, int]:
        """Completes a batch that was interrupted: deletes archived rows from the database, or archives the batch anew.

        The rows are deleted if the files of the batch were complete. An incomplete batch is archived anew: its files
        lie under the name of its first row, and are replaced or removed.
        """
        if self.archive is None:
            return {}
        batch_note = await asyncio.to_thread(_read_batch_note, self.archive.folder)
        if batch_note is None:
            return {}
        if batch_note["complete"]:
            return await self._delete(HistoryKind(batch_note["kind"]), batch_note["ids"])
        for table in batch_note["tables"]:
            for path in (self.archive.folder / table).glob(f"{batch_note['name']}.*"):
                await asyncio.to_thread(path.unlink, missing_ok=True)
        return {}


def _write_batch_note(folder: Path, batch_note: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(folder / _UNFINISHED_BATCH_FILE, json.dumps(batch_note).encode())
    sync_folder(folder)


def _read_batch_note(folder: Path) -> dict[str, Any] | None:
    """Returns the note in the archive's folder about an interrupted batch, or None without such a note.

    Raises InvalidInput for a note that is damaged.
    """
    path = folder / _UNFINISHED_BATCH_FILE
    try:
        batch_note: dict[str, Any] = json.loads(path.read_bytes())
        return {key: batch_note[key] for key in ("kind", "ids", "name", "tables", "complete")}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as e:
        raise InvalidInput(f"{path} is damaged: remove it. Rows of the newest files may be archived again.") from e
