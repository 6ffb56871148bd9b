"""Backup files that others made or wrote to, and writers that end early or are two."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from ai.backend.common.errors import BackendError, Conflict, InvalidInput
from ai.backend.infra.database import Database
from ai.backend.manager.backup.archive import BackupReader, BackupWriter
from ai.backend.manager.backup.model import FORMAT, BackupHead, KeyDerivation, SealedPart
from ai.backend.manager.backup.sql_sqlite import SqliteCopier


class FixedKey:
    """A key that costs no time."""

    def new_derivation(self) -> KeyDerivation:
        return KeyDerivation(key_id="f1")

    def derive(self, derivation: KeyDerivation) -> bytes:
        return b"k" * 32


SECRET = FixedKey()


def _writer(path: Path, *, key_id: str = "f1") -> BackupWriter:
    key = KeyDerivation(key_id=key_id)
    head = BackupHead(format=FORMAT, version="1", created_at="now", database="sqlite", revision="0001", key=key)
    return BackupWriter(path, head)


def _sealed(writer: BackupWriter) -> SealedPart:
    return SealedPart(
        database_sha256=writer.database_sha256,
        database_bytes=writer.database_bytes,
        files={},
        settings="",
        configuration=[],
    )


def _write(path: Path, content: bytes, *, key_id: str = "f1") -> Path:
    writer = _writer(path, key_id=key_id)
    with writer.open_database(is_compressed=True) as stream:
        stream.write(content)
    writer.finish(_sealed(writer), SECRET)
    writer.discard()
    return path


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_of_two_writers_of_one_name_the_first_to_finish_has_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "backup"
    first, second = _writer(path), _writer(path)
    for writer, content in ((first, b"first"), (second, b"second")):
        with writer.open_database(is_compressed=True) as stream:
            stream.write(content)
    first.finish(_sealed(first), SECRET)
    first.discard()
    with pytest.raises(Conflict, match="exists already"):
        second.finish(_sealed(second), SECRET)
    second.discard()
    reader = BackupReader(path)
    sealed = reader.open_sealed_part(SECRET)
    with reader.open_database(sealed) as stream:
        assert stream.read() == b"first"
    reader.close()
    assert _names(tmp_path) == ["backup"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_draft_of_a_killed_writer_is_removed_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    (tmp_path / ".backup.0123abcd.partial").write_text("left by a kill")
    (tmp_path / ".backup.partial").write_text("of somebody else")
    living = _writer(tmp_path / "backup")
    _write(tmp_path / "backup", b"whole")
    assert len([name for name in _names(tmp_path) if name.endswith(".partial")]) == 2
    living.discard()
    assert _names(tmp_path) == [".backup.partial", "backup"]


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    """Closing a file writes what is buffered, and fails once more."""
    writer = _writer(tmp_path / "backup")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, writer._file.fileno())
    os.close(full)

    def copy() -> None:
        with writer.open_database(is_compressed=True) as stream:
            for _ in range(3):
                stream.write(b"x" * 100_000)

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        copy()
    writer.discard()
    assert _names(tmp_path) == []


def _with_flag(data: bytes, mark: bytes, offset: int, value: int) -> bytes:
    changed, place = bytearray(data), data.find(mark)
    while place >= 0:
        changed[place + offset] = value
        place = data.find(mark, place + 4)
    return bytes(changed)


def _all_encrypted(data: bytes) -> bytes:
    return _with_flag(_with_flag(data, b"PK\x03\x04", 6, 1), b"PK\x01\x02", 8, 1)


def _of_unknown_method(data: bytes) -> bytes:
    return _with_flag(_with_flag(data, b"PK\x03\x04", 8, 99), b"PK\x01\x02", 10, 99)


def _with_bad_streams(data: bytes) -> bytes:
    return _with_flag(_with_flag(data, b"PK\x03\x04", 8, 8), b"PK\x01\x02", 10, 8)


@pytest.mark.parametrize("change", [_all_encrypted, _of_unknown_method, _with_bad_streams, lambda data: data[:60]])
def test_a_file_that_was_made_to_harm_gets_a_clear_refusal(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = _write(tmp_path / "backup", b"x" * 1000)
    path.write_bytes(change(path.read_bytes()))

    def read() -> None:
        reader = BackupReader(path)
        reader.check_database(reader.open_sealed_part(SECRET))

    with pytest.raises(InvalidInput):
        read()


def test_the_id_of_a_key_writes_nothing_to_a_terminal(tmp_path: Path) -> None:
    path = _write(tmp_path / "backup", b"x", key_id="\x1b]0;owned\x07")
    with pytest.raises(InvalidInput, match="malformed"):
        BackupReader(path)


def _read_all(reader: BackupReader, sealed: SealedPart) -> None:
    with reader.open_database(sealed) as stream:
        while stream.read(1 << 20):
            pass


def test_a_database_that_is_exchanged_after_its_check_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "backup", b"A" * 3_000_000)
    reader = BackupReader(path)
    sealed = reader.open_sealed_part(SECRET)
    reader.check_database(sealed)
    data = path.read_bytes()
    with path.open("r+b") as file:  # the same file, and the check sum of the ZIP fits
        file.write(
            data.replace(b"A" * 3_000_000, b"B" * 3_000_000).replace(
                zlib.crc32(b"A" * 3_000_000).to_bytes(4, "little"), zlib.crc32(b"B" * 3_000_000).to_bytes(4, "little")
            )
        )
    with pytest.raises(BackendError, match=r"has changed|damaged"):
        _read_all(reader, sealed)
    reader.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-journal"])
async def test_sqlite_is_restored_only_where_none_of_its_files_is(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"manager.db{suffix}").write_text("older")
    copier = SqliteCopier(Database(f"sqlite:///{tmp_path}/manager.db"), tmp_path)
    with pytest.raises(Conflict, match=f"manager.db{suffix} exists"):
        await copier.check_restore_target(0)


async def test_a_database_that_is_made_during_the_restoration_is_kept(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "copy.db") as copy:
        copy.execute("CREATE TABLE restored (x)")
    copier = SqliteCopier(Database(f"sqlite:///{tmp_path}/manager.db"), tmp_path)
    await copier.check_restore_target(0)
    (tmp_path / "manager.db").write_text("of a manager that started")
    with (tmp_path / "copy.db").open("rb") as stream, pytest.raises(Conflict, match="was made meanwhile"):
        await copier.read_from(stream)
    assert (tmp_path / "manager.db").read_text() == "of a manager that started"
    assert _names(tmp_path) == ["copy.db", "manager.db"]


def test_a_zip_without_our_parts_is_no_backup(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "other", "w") as other:
        other.writestr("../../etc/passwd", "x")
    with pytest.raises(InvalidInput, match="is not a backup"):
        BackupReader(tmp_path / "other")
