"""The database of the agent's records: what it holds after a kill, on a full disk, and when its file is damaged."""

from __future__ import annotations

import errno
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ai.backend.agent.channel.model import RunRecord, RunsRecord
from ai.backend.agent.directory.directory import RecordDatabase, RecordTable
from ai.backend.agent.kernels.files import FileKernelRecords

WRITER = (
    "import sys\n"
    "from pathlib import Path\n"
    "from ai.backend.agent.directory.directory import RecordDatabase\n"
    "database = RecordDatabase(Path(sys.argv[1]))\n"
    "database.open()\n"
    "first, second = database.table('first'), database.table('second')\n"
    "for number in range(10**9):\n"
    "    first.put(f'k{number % 50}', b'%d ' % number + b'x' * 3000)\n"
    "    second.put('newest', b'%d' % number)\n"
    "    print(number, flush=True)\n"
)


def read(path: Path, table: str = "records") -> dict[str, bytes]:
    database = RecordDatabase(path)
    database.open()
    values = database.table(table).items()
    database.close()
    return values


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RecordDatabase]:
    database = RecordDatabase(tmp_path / "records.db")
    database.open()
    yield database
    database.close()


@pytest.fixture
def table(database: RecordDatabase) -> RecordTable:
    return database.table("records")


def test_the_newest_value_holds(tmp_path: Path, database: RecordDatabase, table: RecordTable) -> None:
    assert table.items() == {}
    table.put("a", b'{"x": 1}')
    table.put("b", b"2")
    table.put("a", b"3")
    table.delete("b")
    table.delete("c")
    assert table.get("a") == b"3"
    assert table.get("b") is None
    assert database.table("others").items() == {}
    database.close()
    assert read(tmp_path / "records.db") == {"a": b"3"}


def test_the_code_of_waiting_runs_is_written_once(tmp_path: Path, database: RecordDatabase) -> None:
    code = {"a": {"code": "a" * 900_000}, "b": {"code": "b" * 900_000}}
    runs = [RunRecord(run_id=name, frame=frame) for name, frame in code.items()]
    records = FileKernelRecords(database)
    records.put_runs("k", RunsRecord(attempt=1, runs=runs))
    written = (tmp_path / "records.db-wal").stat().st_size
    for acked in range(100):
        records.put_runs("k", RunsRecord(attempt=1, acked=acked, runs=runs))
    assert (tmp_path / "records.db-wal").stat().st_size - written < 2_000_000
    for restarted in (records, FileKernelRecords(database)):
        restored = restarted.load_runs("k")
        assert restored is not None
        assert {run.run_id: run.frame for run in restored.runs} == code
    begun = RunRecord(run_id="a", frame={}, started=True)
    again = RunRecord(run_id="b", frame={"code": "another"})
    records.put_runs("k", RunsRecord(attempt=1, runs=[begun, again]))
    restored = records.load_runs("k")
    assert restored is not None
    assert [run.frame for run in restored.runs] == [{}, {"code": "another"}]
    records.put_runs("kk", RunsRecord(attempt=1, runs=[again]))
    records.forget_runs("k")
    assert list(database.table("run_frames").items()) == ["kk/b"]
    FileKernelRecords(database).forget_runs("kk")
    assert not database.table("run_frames").items()
    assert not database.table("runs").items()


def test_a_record_of_damaged_bytes_is_ignored(database: RecordDatabase, caplog: pytest.LogCaptureFixture) -> None:
    for number, content in enumerate((b"{", b'{"version": "\xff"}', b"[]")):
        database.table("kernels").put(f"k{number}", content)
    assert FileKernelRecords(database).load() == []
    assert caplog.text.count("cannot be used") == 3


def test_nobody_else_reads_it(tmp_path: Path, table: RecordTable) -> None:
    table.put("a", b"1")
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"records.db": 0o600, "records.db-wal": 0o600, "records.db-shm": 0o600}


def test_the_same_value_again_writes_nothing(tmp_path: Path, table: RecordTable) -> None:
    table.put("a", b"1")
    size = (tmp_path / "records.db-wal").stat().st_size
    for _ in range(100):
        table.put("a", b"1")
    assert (tmp_path / "records.db-wal").stat().st_size == size


def test_the_files_stay_small(tmp_path: Path, table: RecordTable) -> None:
    for number in range(3000):
        table.put(f"k{number % 5}", b"%d" % number + b"x" * 3000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 6 << 20


def test_values_are_found_after_every_change(database: RecordDatabase, table: RecordTable) -> None:
    dice = random.Random(7)
    expected: dict[str, bytes] = {}
    for number in range(400):
        key = dice.choice("abcdef")
        if dice.random() < 0.3:
            table.delete(key)
            expected.pop(key, None)
        else:
            expected[key] = str(number).encode() * dice.randint(1, 20)
            table.put(key, expected[key])
        if dice.random() < 0.05:
            database.close()
            database.open()
        assert {k: table.get(k) for k in "abcdef" if table.get(k) is not None} == expected
    assert table.items() == expected


@pytest.mark.parametrize("count", [1, 7, 60, 400])
def test_a_kill_loses_nothing_that_was_written(tmp_path: Path, count: int) -> None:
    path = tmp_path / "records.db"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        for _ in range(count):
            writer.stdout.readline()
        writer.kill()
        numbers = writer.stdout.read().split(b"\n")[:-1]
    assert writer.returncode == -signal.SIGKILL
    last = int(numbers[-1]) if numbers else count - 1
    newest = int(read(path, "second")["newest"])
    assert newest in (last, last + 1), "the next write may have happened, and not been reported"
    values = {key: int(value.split()[0]) for key, value in read(path, "first").items()}
    assert values[f"k{newest % 50}"] == newest
    assert set(values.values()) <= set(range(newest - 49, newest + 2))


def test_a_cut_write_leaves_the_value_before(tmp_path: Path, database: RecordDatabase, table: RecordTable) -> None:
    """Whatever part of a write has reached the file, the next life sees all of it or nothing."""
    table.put("a", b'{"old": 1}')
    names = ("records.db", "records.db-wal")
    before = {name: (tmp_path / name).read_bytes() for name in names}
    table.put("a", b'{"new": 2}')
    whole = {name: (tmp_path / name).read_bytes() for name in names}
    size = len(before["records.db-wal"])
    for number, length in enumerate([*range(size, len(whole["records.db-wal"]), 97), len(whole["records.db-wal"])]):
        copy = tmp_path / str(number)
        copy.mkdir()
        (copy / "records.db").write_bytes(whole["records.db"])
        (copy / "records.db-wal").write_bytes(whole["records.db-wal"][:length])
        is_whole = length == len(whole["records.db-wal"])
        assert read(copy / "records.db") == {"a": b'{"new": 2}' if is_whole else b'{"old": 1}'}


def fill(table: RecordTable) -> OSError:
    """Write until there is no room; returns the error."""
    try:
        for number in range(10_000):
            table.put(f"k{number}", b"%d " % number + b"x" * 3000)
    except OSError as error:
        return error
    raise AssertionError("there is always room")


def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path, database: RecordDatabase) -> None:
    table = database.table("records")
    table.put("a", b"old")
    database.execute("PRAGMA max_page_count = 50")
    error = fill(table)
    assert (error.errno, "No space left on device" in str(error)) == (errno.ENOSPC, True)
    held = table.items()
    assert held["a"] == b"old"
    with pytest.raises(OSError, match="No space left"):
        table.put("a", b"y" * 300_000)
    assert table.items() == held
    database.execute("PRAGMA max_page_count = 10000")
    table.put("a", b"new")
    database.close()
    assert read(tmp_path / "records.db") == {**held, "a": b"new"}


@pytest.mark.needs("root")
def test_on_a_disk_that_is_really_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], check=True)
    try:
        database = RecordDatabase(disk / "records.db")
        database.open()
        table = database.table("records")
        table.put("a", b"old")
        assert fill(table).errno == errno.ENOSPC
        held = table.items()
        assert held["a"] == b"old"
        assert held["k5"].startswith(b"5 ")
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        table.put("a", b"new")
        database.close()
        assert read(disk / "records.db") == {**held, "a": b"new"}
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.parametrize("damage", ["no database", "torn"])
def test_a_damaged_file_is_set_aside(
    tmp_path: Path, database: RecordDatabase, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    path = tmp_path / "records.db"
    table = database.table("records")
    for number in range(20):
        table.put(f"k{number}", b"x" * 3000)
    database.close()
    content = path.read_bytes()
    path.write_bytes(b"{} " * 5000 if damage == "no database" else content[:4096] + b"\xff" * (len(content) - 4096))
    spoilt = path.read_bytes()
    assert read(path) == {}
    assert (tmp_path / "records.db.damaged").read_bytes() == spoilt
    assert "is set aside as records.db.damaged" in caplog.text
    database.open()
    database.table("records").put("a", b"1")
    database.close()
    assert read(path) == {"a": b"1"}


def test_a_closed_database_says_so(database: RecordDatabase, table: RecordTable) -> None:
    database.close()
    with pytest.raises(OSError, match="is not open"):
        table.put("a", b"1")
