"""The durable map under the agent's records."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ai.backend.agent.adapters import journal as module
from ai.backend.agent.adapters.journal import Journal


def reopened(path: Path) -> dict[str, bytes]:
    journal = Journal(path)
    values = journal.open()
    journal.close()
    return values


def test_the_newest_value_holds(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    assert journal.open() == {}
    journal.put("a", b'{"x": 1}')
    journal.put("b", b"2")
    journal.put("a", b"3")
    journal.delete("b")
    journal.delete("c")
    assert journal.get("a") == b"3"
    assert reopened(tmp_path / "j") == {"a": b"3"}
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600


def test_every_cut_leaves_the_value_before(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.open()
    journal.put("a", b'{"old": 1}')
    before = path.read_bytes()
    journal.put("a", b'{"new": 2}')
    whole = path.read_bytes()
    for length in range(len(before), len(whole)):
        path.write_bytes(whole[:length])
        assert reopened(path) == {"a": b'{"old": 1}'}
    path.write_bytes(whole)
    assert reopened(path) == {"a": b'{"new": 2}'}


def test_what_follows_a_cut_is_read(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.open()
    journal.put("a", b"1")
    with path.open("ab") as f:
        f.write(b"deadbeef b ")
    again = Journal(path)
    assert again.open() == {"a": b"1"}
    again.put("b", b"2")
    assert reopened(path) == {"a": b"1", "b": b"2"}


def test_damaged_lines_are_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.open()
    journal.put("a", b"1")
    journal.put("b", b"2")
    path.write_bytes(path.read_bytes().replace(b"a 1", b"a 7"))
    assert reopened(path) == {"b": b"2"}
    assert b"a 7" in (tmp_path / "j.damaged").read_bytes()


def test_what_is_out_of_date_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SMALL", 1000)
    path = tmp_path / "j"
    journal = Journal(path)
    journal.open()
    for i in range(500):
        journal.put("a", b"%d" % i)
        journal.put("b", b"x" * 50)
    assert path.stat().st_size < 2000
    assert reopened(path) == {"a": b"499", "b": b"x" * 50}


@pytest.mark.parametrize(("key", "value"), [("", b"1"), ("a b", b"1"), ("a\n", b"1"), ("a", b"1\n2")])
def test_what_would_spoil_a_line_is_refused(tmp_path: Path, key: str, value: bytes) -> None:
    journal = Journal(tmp_path / "j")
    journal.open()
    with pytest.raises(ValueError, match="one line"):
        journal.put(key, value)
    assert reopened(tmp_path / "j") == {}


def test_values_are_found_after_every_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the file alone, whose lines move when it is rewritten."""
    monkeypatch.setattr(module, "_SMALL", 300)
    dice = random.Random(7)
    journal = Journal(tmp_path / "j")
    expected = journal.open()
    for number in range(400):
        key = dice.choice("abcdef")
        if dice.random() < 0.3:
            journal.delete(key)
            expected.pop(key, None)
        else:
            expected[key] = str(number).encode() * dice.randint(1, 20)
            journal.put(key, expected[key])
        if dice.random() < 0.05:
            journal.close()
        if dice.random() < 0.05:
            assert journal.open() == expected
        assert {k: journal.get(k) for k in "abcdef" if journal.get(k) is not None} == expected
    assert reopened(tmp_path / "j") == expected
