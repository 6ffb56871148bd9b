"""What must be staged for a sandbox: whatever the session's user could not reach by itself."""

from __future__ import annotations

from pathlib import Path

from ai.backend.runtime.process.sandbox import BubblewrapArguments


def test_sources_open_to_everybody_are_bound_as_they_are() -> None:
    view = BubblewrapArguments(is_staged=True)
    view.bind("/etc/passwd", "/etc/passwd")
    view.bind("/usr/bin", "/usr/bin")
    assert view.staged_sources == []
    assert view.arguments == ["--ro-bind", "/etc/passwd", "/etc/passwd", "--ro-bind", "/usr/bin", "/usr/bin"]


def test_others_and_links_are_staged(tmp_path: Path) -> None:
    view = BubblewrapArguments(is_staged=True)
    view.bind(tmp_path, "/home/work")
    view.bind("/etc/no-such-directory/../../root", "/x")
    view.bind("/etc/mtab", "/etc/mtab")  # a link, where there is one
    assert view.staged_sources[0]["source"] == str(tmp_path)
    assert all(argument != str(tmp_path) for argument in view.arguments)
    assert not Path("/etc/mtab").is_symlink() or "/etc/mtab" not in view.arguments[1::3]
