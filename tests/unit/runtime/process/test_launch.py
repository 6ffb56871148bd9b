"""What is opened to be bound into a sandbox."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ai.backend.common.errors import CreationDenied
from ai.backend.node.linux.open_beneath import open_source
from ai.backend.node.workload.file_trees import check_mount
from ai.backend.plugin.accelerator import Mount


def opened(source: str) -> Path:
    fd = open_source(source)
    try:
        return Path(f"/proc/self/fd/{fd}").readlink()
    finally:
        os.close(fd)


def test_a_path_beneath_a_folder_leads_through_no_link(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "a/b").mkdir(parents=True)
    outside.mkdir()
    (tmp_path / "link-to-folder").symlink_to(folder)
    assert opened(f"{folder}/./a/b") == folder / "a/b"
    assert opened(f"{tmp_path}/link-to-folder/./a") == folder / "a", "what stands before is the platform's own"
    (folder / "escape").symlink_to(outside)
    (folder / "a/up").symlink_to("../..")
    (folder / "file").touch()
    for below in ("escape", "a/up", "a/up/outside", "..", "a/../../outside", "a//b", "file", "gone"):
        with pytest.raises(OSError) as refused:  # noqa: PT011  # its number is looked at
            open_source(f"{folder}/./{below}")
        assert refused.value.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP), below
    (folder / "a/b").rmdir()
    (folder / "a/b").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        open_source(f"{folder}/./a/b")


def test_what_cannot_be_opened_so_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    mount = Mount(source=f"{tmp_path}/./sub", target="/home/work/data")
    check_mount(mount, is_staged=True)
    with pytest.raises(CreationDenied, match="mount the whole folder"):
        check_mount(mount, is_staged=False)
