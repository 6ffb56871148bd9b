"""Copies of the host's /etc that sessions see."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ai.backend.runtime.process import etc_folder
from ai.backend.runtime.process.etc_folder import EtcFolder


def _folder(tmp_path: Path, *names: str) -> EtcFolder:
    (tmp_path / "static").mkdir(exist_ok=True)
    return EtcFolder(tmp_path / "static", names, {"passwd": "work:x:1000:\n"}, host=tmp_path / "etc")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    host = tmp_path / "etc"
    (host / "ssl" / "certs").mkdir(parents=True)
    (host / "ssl" / "certs" / "a.pem").write_text("A")
    (host / "ssl" / "certs" / "link.pem").symlink_to("/usr/share/a.pem")
    (host / "services").write_text("ssh 22\n")
    (host / "shadow").write_text("secret")
    return host


def test_a_copy_has_what_is_named_and_nothing_else(tmp_path: Path, host: Path) -> None:
    copy = _folder(tmp_path, "ssl/certs", "services", "missing").current()
    assert copy is not None
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == [
        "passwd",
        "services",
        "ssl",
        "ssl/certs",
        "ssl/certs/a.pem",
        "ssl/certs/link.pem",
    ]
    assert (copy / "ssl/certs/link.pem").readlink() == Path("/usr/share/a.pem"), "links are not followed"


def test_what_not_every_user_may_read_is_left_out(tmp_path: Path, host: Path) -> None:
    (host / "services").chmod(0o640)
    (host / "ssl" / "certs" / "a.pem").chmod(0o600)
    os.mkfifo(host / "ssl" / "certs" / "pipe")
    copy = _folder(tmp_path, "ssl/certs", "services").current()
    assert copy is not None
    assert not (copy / "services").exists()
    assert [path.name for path in (copy / "ssl/certs").iterdir()] == ["link.pem"]


def test_programs_with_the_powers_of_their_owner_lose_them(tmp_path: Path, host: Path) -> None:
    (host / "services").chmod(0o4777)
    copy = _folder(tmp_path, "services").current()
    assert copy is not None
    assert (copy / "services").stat().st_mode & 0o7777 == 0o755


def test_a_changed_host_gets_another_copy(tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _folder(tmp_path, "ssl/certs")
    first = folder.current()
    (host / "ssl" / "certs" / "b.pem").write_text("B")
    assert folder.current() == first, "within the interval nothing is looked at"
    monkeypatch.setattr(etc_folder, "REFRESH_INTERVAL_S", 0.0)
    later = _folder(tmp_path, "ssl/certs")
    second = later.current()
    assert first is not None
    assert second is not None
    assert second != first
    assert (second / "ssl/certs/b.pem").read_text() == "B"
    assert not (first / "ssl/certs/b.pem").exists(), "what running sessions see stays as it is"
    later.remove_unused([f"--ro-bind {first} /etc"])
    assert first.exists(), "a workload still shows it"
    later.remove_unused([])
    assert not first.exists()
    assert later.current() == second


def test_a_folder_that_is_too_large_is_not_copied(tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(etc_folder, "MAX_BYTES", 3)
    assert _folder(tmp_path, "services").current() is None


def test_every_user_may_enter_a_copy_whatever_the_umask_of_the_agent(tmp_path: Path, host: Path) -> None:
    before = os.umask(0o077)
    try:
        copy = _folder(tmp_path, "ssl/certs", "services").current()
    finally:
        os.umask(before)
    assert copy is not None
    for path in (copy, copy / "ssl", copy / "ssl" / "certs"):
        assert path.stat().st_mode & 0o777 == 0o755, path


def test_another_boot_gets_a_copy_of_its_own(tmp_path: Path, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power loss, files that were not written to the disk may be empty."""
    earlier = _folder(tmp_path, "services").current()
    monkeypatch.setattr(etc_folder, "boot_id", lambda: "the next boot")
    later = _folder(tmp_path, "services").current()
    assert later is not None
    assert later != earlier
