from __future__ import annotations

from pathlib import Path

from ai.backend.appproxy.worker.link.state_file import StateFile, StoredState
from tests.support.proxy_apps import circuit_to, route_to


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    circuit = circuit_to(route_to(8000), port=10205)
    file = StateFile(tmp_path / "state.json")
    file.replace(7, {circuit.id: circuit})
    file.set_identity("key", "certificate")
    file.save()
    expected = StoredState(version=7, circuits=[circuit], key="key", certificate="certificate")
    assert StateFile(tmp_path / "state.json").load() == expected


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    file.set_identity("key", "certificate")
    file.save()
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_used_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    assert StateFile(path).load() == StoredState()
    for content in ("", "{", '{"circuits": 3}', "\x00" * 100):
        path.write_text(content)
        assert StateFile(path).load() == StoredState()


def test_a_place_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "missing" / "state.json")
    file.replace(1, {})
    file.save()


def test_a_change_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "later" / "state.json")
    file.replace(1, {})
    file.save()
    (tmp_path / "later").mkdir()
    file.save()
    assert StateFile(tmp_path / "later" / "state.json").load().version == 1


def test_nothing_is_written_without_a_change(tmp_path: Path) -> None:
    StateFile(tmp_path / "state.json").save()
    assert not list(tmp_path.iterdir())
