"""The table of mounts, as proc(5) defines it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ai.backend.node.linux.disk_space import MountEntry, parse_mountinfo, read_mounts


def test_optional_fields_are_skipped() -> None:
    text = (
        "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n"
        "37 36 0:5 / /mnt2/tmp ro - tmpfs  rw\n"
    )
    assert parse_mountinfo(text) == [
        MountEntry("/mnt2", "/dev/root", "ext3", ("rw", "noatime"), ("rw", "errors=continue")),
        MountEntry("/mnt2/tmp", "", "tmpfs", ("ro",), ("rw",)),
    ]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("a\\040b", "a b"),
        ("a\\011b\\012c", "a\tb\nc"),
        ("a\\134040b", "a\\040b"),
        ("a\\043b", "a#b"),
        ("a\x0cb\u2028c", "a\x0cb\u2028c"),
    ],
)
def test_names_are_unescaped_once(written: str, name: str) -> None:
    (mount,) = parse_mountinfo(f"36 35 98:0 / /mnt/{written} rw - nfs host:/{written} rw\n")
    assert (mount.mount_point, mount.source) == (f"/mnt/{name}", f"host:/{name}")


def test_a_name_that_is_no_text_is_the_name_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_bytes(b"36 35 98:0 / /mnt/\xff rw - ext4 /dev/a rw\n")
    (mount,) = read_mounts(tmp_path)
    assert Path(mount.mount_point) == Path("/mnt/\udcff")


@pytest.mark.parametrize("line", ["broken line", "36 35 98:0 / /mnt rw", "36 35 98:0 / - ext4 /dev/a rw"])
def test_lines_of_another_form_are_left_out(line: str) -> None:
    assert parse_mountinfo(f"{line}\n") == []
