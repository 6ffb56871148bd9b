"""Archives of downloads, unpacked."""

import io
import tarfile
from pathlib import Path

import pytest

from ai.backend.client.exceptions import BackendClientError
from ai.backend.client.multipart import extract


def _archive(*members: tuple[str, bytes, bytes]) -> io.BytesIO:
    """Members as (name, tar type, content or target of the link)."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(content)
            else:
                info.linkname = content.decode()
            tar.addfile(info, io.BytesIO(content))
    packed.seek(0)
    return packed


def test_files_folders_and_links_inside_are_unpacked(tmp_path: Path) -> None:
    archive = _archive(
        ("folder", tarfile.DIRTYPE, b""),
        ("folder/a.txt", tarfile.REGTYPE, b"a"),
        ("folder/link", tarfile.SYMTYPE, b"a.txt"),
    )
    assert extract(archive, tmp_path) == [tmp_path / "folder/a.txt", tmp_path / "folder/link"]
    assert (tmp_path / "folder/link").read_bytes() == b"a"


def test_what_was_there_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"kept")
    (tmp_path / "a.txt").symlink_to("kept")
    extract(_archive(("a.txt", tarfile.REGTYPE, b"new")), tmp_path)
    assert ((tmp_path / "a.txt").read_bytes(), (tmp_path / "kept").read_bytes()) == (b"new", b"kept")


@pytest.mark.parametrize(
    "members",
    [
        [("../out", tarfile.REGTYPE, b"x")],
        [("/out", tarfile.REGTYPE, b"x")],
        [("link", tarfile.SYMTYPE, b"..")],
        [("a", tarfile.SYMTYPE, b"b"), ("b", tarfile.SYMTYPE, b".."), ("a/out", tarfile.REGTYPE, b"x")],
        [("hard", tarfile.LNKTYPE, b"../kept")],
        [("device", tarfile.CHRTYPE, b"")],
    ],
)
def test_nothing_gets_out(tmp_path: Path, members: list[tuple[str, bytes, bytes]]) -> None:
    dest = tmp_path / "in"
    with pytest.raises(BackendClientError, match="unusable"):
        extract(_archive(*members), dest)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
