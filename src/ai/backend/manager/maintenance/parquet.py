"""Writes history as Parquet files, one for each batch. `pyarrow`, DuckDB, Spark and others read the
files as one table.
"""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.files import sync_folder
from ai.backend.manager.maintenance.store import Columns, Rows


class ParquetArchive:
    """Implements :class:`ai.backend.manager.maintenance.store.Archive` in a folder that only this user may enter.

    Every file of a table has the same columns. Raises InvalidInput where `pyarrow` is not installed.
    """

    def __init__(self, folder: Path, columns: Columns) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            problem = "an archive of history needs the extra `archive`: pip install 'backendai[archive]'"
            raise InvalidInput(problem, data={"retention.archive-dir": "the extra archive is not installed"}) from None
        arrow_types = {
            datetime: pyarrow.timestamp("us", tz="UTC"),
            int: pyarrow.int64(),
            float: pyarrow.float64(),
            bool: pyarrow.bool_(),
            str: pyarrow.string(),
        }
        self._folder = folder
        self._arrow = pyarrow
        self._schemas = {
            table: pyarrow.schema([(name, arrow_types[value_type]) for name, value_type in type_by_column.items()])
            for table, type_by_column in columns.items()
        }

    @property
    def folder(self) -> Path:
        return self._folder

    def write(self, table: str, name: str, rows: Rows) -> Path:
        folder = self.folder / table
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path, temporary_path = folder / f"{name}.parquet", folder / f".{name}.tmp"
        arrow_table = self._arrow.Table.from_pylist(list(rows), schema=self._schemas[table])
        temporary_path.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                self._arrow.parquet.write_table(arrow_table, file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            temporary_path.replace(path)
        finally:
            temporary_path.unlink(missing_ok=True)
        sync_folder(folder)
        return path
