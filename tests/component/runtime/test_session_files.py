"""Files that we touch in places where the session's user may have laid traps."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.node.workload.file_trees import give_home, place_files, remove_tree, tree_size
from ai.backend.runtime.process.processes import read_log_tail


def test_files_go_into_the_home_or_beside_it(tmp_path: Path) -> None:
    home, directory = tmp_path / "home", tmp_path / "w"
    home.mkdir()
    directory.mkdir()
    files = {"/home/work/a/b": b"1", "/etc/x": b"2"}
    bound = place_files(files, directory, home, None)
    assert (home / "a/b").read_bytes() == b"1"
    assert {target: path.read_bytes() for target, path in bound.items()} == {"/etc/x": b"2"}


@pytest.mark.parametrize("target", ["relative", "/home/work/../x", "/a//b", "/home/work/"])
def test_odd_paths_are_denied(tmp_path: Path, target: str) -> None:
    with pytest.raises(CreationDenied):
        place_files({target: b""}, tmp_path, tmp_path, None)


def test_links_in_a_kept_home_are_not_followed(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    (outside / "file").write_text("untouched")
    (home / "dir").symlink_to(outside)
    (home / "file").symlink_to(outside / "file")
    with pytest.raises(CreationDenied):
        place_files({"/home/work/dir/new": b"x"}, tmp_path, home, None)
    place_files({"/home/work/file": b"ours"}, tmp_path, home, None)
    assert (home / "file").read_bytes() == b"ours"
    assert (outside / "file").read_text() == "untouched"
    assert os.listdir(outside) == ["file"]


def test_any_tree_is_removed_and_nothing_beside_it(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    # If it is not removed, it is too deep for pytest's clean-up, which would end a later run.
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", tmp_path / "home"], check=True))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("untouched")
    home = tmp_path / "home"
    home.mkdir()
    fd = os.open(home, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=fd)
        (below, fd) = (fd, os.open("deep", os.O_RDONLY, dir_fd=fd))
        os.close(below)
    os.close(fd)
    (home / "link").symlink_to(outside)
    (home / ".lifted-1").mkdir()
    (home / ".lifted-2").write_text("in the way")
    (home / "closed").mkdir()
    (home / "closed" / "inner").mkdir()
    (home / "closed" / "inner" / "f").touch()
    (home / "closed" / "inner").chmod(0)
    (home / "closed").chmod(0)
    remove_tree(home)
    assert not home.exists()
    assert (outside / "file").read_text() == "untouched"
    remove_tree(home)
    remove_tree(tmp_path / "no" / "parent")


def test_a_file_or_a_link_is_removed_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/etc")
    remove_tree(tmp_path / "file")
    remove_tree(tmp_path / "link")
    assert os.listdir(tmp_path) == []


def test_sizes_count_blocks_and_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "f").write_bytes(os.urandom(100_000))
    (tmp_path / "up").symlink_to("/usr")
    assert 100_000 <= tree_size(tmp_path) < 200_000


def test_the_tail_of_the_log_spans_both_files(tmp_path: Path) -> None:
    (tmp_path / "log.1").write_bytes(b"older-")
    (tmp_path / "log.0").write_bytes(b"newer")
    assert read_log_tail(tmp_path, 100) == b"older-newer"
    assert read_log_tail(tmp_path, 7) == b"r-newer"
    assert read_log_tail(tmp_path, 3) == b"wer"
    assert read_log_tail(tmp_path / "none", 3) == b""


@pytest.mark.needs("root")
def test_a_kept_home_is_given_to_the_new_user_with_its_files(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", tmp_path / "home"], check=True))
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "d").mkdir(parents=True)
    for path in (home / "d" / "own", home / "foreign", outside):
        path.write_text("x")
    for path in (home, home / "d", home / "d" / "own", outside):
        os.chown(path, 1234, 1234)
    (home / "d" / "link").symlink_to(outside)
    os.chown(home / "d" / "link", 1234, 1234, follow_symlinks=False)
    fd = os.open(home / "d", os.O_RDONLY)
    for _ in range(3000):  # no reason to fail
        os.mkdir("deep", dir_fd=fd)
        os.chown("deep", 1234, 1234, dir_fd=fd)
        (below, fd) = (fd, os.open("deep", os.O_RDONLY, dir_fd=fd))
        os.close(below)
    os.close(fd)
    give_home(home, (4321, 99))
    given = (home, home / "d", home / "d" / "own", home / "d" / "link", home / "d" / "deep" / "deep")
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in given} == {(4321, 99)}
    assert ((home / "foreign").stat().st_uid, outside.stat().st_uid) == (0, 1234)
