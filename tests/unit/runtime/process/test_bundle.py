"""The bundle of gVisor: what is mounted where, and what has no place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.runtime.process.bundle import BundleView


def _targets(view: BundleView) -> list[tuple[str, str, str]]:
    return [(mount["source"], mount["destination"], mount["options"][1]) for mount in view.mounts]


def test_what_the_sessions_user_cannot_reach_is_staged(tmp_path: Path) -> None:
    view = BundleView(is_staged=True)
    view.bind("/usr", "/usr")
    view.bind(tmp_path, "/home/work", "--bind")
    assert _targets(view) == [("/usr", "/usr", "ro"), ("/tmp/0", "/home/work", "rw")]
    assert [(staged["source"], staged["bind"]) for staged in view.staged_sources] == [(str(tmp_path), "--bind")]


def test_a_target_in_a_staged_folder_is_placed_in_the_stage(tmp_path: Path) -> None:
    view = BundleView(is_staged=True)
    view.bind(tmp_path, "/home/work", "--bind")
    view.bind(tmp_path, "/home/work/data")
    view.bind(tmp_path, "/home/work/data/deep")
    assert len(view.mounts) == 1, "gVisor would follow links on the way to it"
    assert [staged["place"] for staged in view.staged_sources[1:]] == [["0", "data"], ["0", "data/deep"]]


def test_nothing_is_mounted_where_a_folder_of_the_host_has_no_place_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    view = BundleView(is_staged=True)
    view.bind("/usr", "/usr")
    view.bind(tmp_path, "/usr/share")
    with pytest.raises(CreationDenied, match="no place for '/usr/lib/not-there'"):
        view.bind(tmp_path, "/usr/lib/not-there")
    with pytest.raises(CreationDenied, match="no place for '/usr/lib'"):
        view.bind(tmp_path / "file", "/usr/lib")


def test_there_are_no_devices_of_the_host() -> None:
    view = BundleView(is_staged=True)
    view.show_system(has_devices=False)
    assert {mount["type"] for mount in view.mounts} == {"proc", "tmpfs", "sysfs"}
    with pytest.raises(CreationDenied):
        view.show_system(has_devices=True)
