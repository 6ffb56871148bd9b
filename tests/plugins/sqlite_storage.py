"""An object storage in one SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, ClassVar

from ai.backend.common.errors import InvalidInput, NoSuchFile
from ai.backend.plugin.object_storage import (
    ObjectCapability,
    ObjectInfo,
    ObjectPage,
    ObjectStorage,
    ObjectUpload,
    StorageContext,
    check_key,
    check_prefix,
)

_TABLES = """
CREATE TABLE IF NOT EXISTS objects (key TEXT PRIMARY KEY, size INT, modified REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS parts (key TEXT, is_upload INT, start INT, data BLOB, PRIMARY KEY (key, is_upload, start));
"""
_UPLOADED = "SELECT coalesce(max(start + length(data)), 0) FROM parts WHERE is_upload AND key = ?"


class SqliteUpload(ObjectUpload):
    def __init__(self, db: sqlite3.Connection, key: str, offset: int) -> None:
        self._db, self._key, self.offset = db, key, offset
        self._is_open = True

    async def write(self, data: bytes) -> None:
        if data:
            with self._db:
                self._db.execute("INSERT INTO parts VALUES (?, 1, ?, ?)", (self._key, self.offset, bytes(data)))
            self.offset += len(data)

    async def publish(self) -> None:
        self._is_open = False
        with self._db:
            self._db.execute("DELETE FROM parts WHERE NOT is_upload AND key = ?", (self._key,))
            self._db.execute("UPDATE parts SET is_upload = 0 WHERE key = ?", (self._key,))
            self._db.execute("REPLACE INTO objects VALUES (?, ?, ?)", (self._key, self.offset, time.time()))

    async def close(self) -> None:
        self._is_open = False

    async def abort(self) -> None:
        if self._is_open:
            self._is_open = False
            with self._db:
                self._db.execute("DELETE FROM parts WHERE is_upload AND key = ?", (self._key,))


class SqliteStorage(ObjectStorage):
    """The option ``file`` is its path."""

    backend: ClassVar[str] = "sqlite"
    capabilities: frozenset[ObjectCapability] = frozenset()

    def __init__(self, name: str, options: Mapping[str, Any], context: StorageContext) -> None:
        super().__init__(name, options, context)
        if options.keys() != {"file"}:
            raise InvalidInput(f"The object storage {name} has the option file, and no other.")
        self._path = str(options["file"])

    async def start(self) -> None:
        try:
            self._db = sqlite3.connect(self._path)
            self._db.executescript(_TABLES)
        except sqlite3.Error as e:
            raise InvalidInput(f"The object storage {self.name} cannot use {self._path}: {e}.") from None

    async def stop(self) -> None:
        self._db.close()

    async def check(self) -> str | None:
        return None

    async def stat(self, key: str) -> ObjectInfo:
        row = self._db.execute("SELECT size, modified FROM objects WHERE key = ?", (check_key(key),)).fetchone()
        if row is None:
            raise NoSuchFile(data={"key": key[:256]})
        return ObjectInfo(key=key, size=row[0], modified=row[1])

    async def read(self, key: str, *, offset: int = 0, count: int | None = None) -> AsyncGenerator[bytes, None]:
        size = (await self.stat(key)).size
        end = size if count is None else min(size, offset + count)
        query = (
            "SELECT start, data FROM parts WHERE NOT is_upload AND key = ? AND start < ? AND start + length(data) > ?"
        )
        for start, data in self._db.execute(f"{query} ORDER BY start", (key, end, offset)):
            yield data[max(0, offset - start) : end - start]

    async def open_upload(self, key: str, *, size: int | None = None) -> ObjectUpload:
        [offset] = self._db.execute(_UPLOADED, (check_key(key),)).fetchone()
        return SqliteUpload(self._db, key, offset)

    async def list(self, prefix: str = "", *, limit: int = 1000, cursor: str | None = None) -> ObjectPage:
        check_prefix(prefix)
        query = "SELECT key, size, modified FROM objects WHERE substr(key, 1, ?) = ? AND key > ? ORDER BY key"
        rows = self._db.execute(f"{query} LIMIT ?", (len(prefix), prefix, cursor or "", limit + 1)).fetchall()
        objects = [ObjectInfo(key=key, size=size, modified=modified) for key, size, modified in rows[:limit]]
        return ObjectPage(objects=objects, cursor=objects[-1].key if len(rows) > limit else None)

    async def delete(self, keys: Sequence[str]) -> None:
        with self._db:
            for condition in ("objects WHERE key = ?", "parts WHERE NOT is_upload AND key = ?"):
                self._db.executemany(f"DELETE FROM {condition}", [(check_key(key),) for key in keys])

    async def abort_uploads(self, prefix: str) -> None:
        check_prefix(prefix)
        with self._db:
            self._db.execute("DELETE FROM parts WHERE is_upload AND substr(key, 1, ?) = ?", (len(prefix), prefix))

    async def move(self, source: str, target: str) -> None:
        await self.stat(source)
        with self._db:
            if check_key(target) != source:
                for condition in ("objects WHERE key = ?", "parts WHERE NOT is_upload AND key = ?"):
                    self._db.execute(f"DELETE FROM {condition}", (target,))
                self._db.execute("UPDATE objects SET key = ? WHERE key = ?", (target, source))
                self._db.execute("UPDATE parts SET key = ? WHERE NOT is_upload AND key = ?", (target, source))
