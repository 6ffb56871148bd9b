from __future__ import annotations

from pathlib import Path

from ai.backend.runner import process


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_keys_of_ssh_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder, other = tmp_path / ".ssh", tmp_path / "other"
    folder.mkdir(mode=0o755)
    for path in (folder / "id_rsa", folder / "authorized_keys", other):
        path.write_text("key")
        path.chmod(0o644)
    (folder / "link").symlink_to(other)
    process.restrict_ssh_keys(str(folder))
    assert (mode(folder), mode(folder / "id_rsa"), mode(folder / "authorized_keys")) == (0o700, 0o600, 0o600)
    assert mode(other) == 0o644


def test_a_home_without_keys_is_left_alone(tmp_path: Path) -> None:
    process.restrict_ssh_keys(str(tmp_path / ".ssh"))
    (tmp_path / ".ssh").symlink_to(tmp_path)
    before = mode(tmp_path)
    process.restrict_ssh_keys(str(tmp_path / ".ssh"))
    assert mode(tmp_path) == before
