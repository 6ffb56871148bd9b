"""The vfs volume keeps the contract of volumes, with openat2 and without it."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ai.backend.common.errors import InvalidInput, StorageFull, Unavailable
from ai.backend.node.linux.syscalls import has_openat2
from ai.backend.plugin.testing.volume.contract import VolumeContract
from ai.backend.plugin.testing.volume.driver import parse_path, put, random_folder_id
from ai.backend.plugin.volume import AbstractVolume, Progress, UploadRecord, VolumeContext
from ai.backend.volume.vfs import migration, open_directory, uploads
from ai.backend.volume.vfs.volume import VfsVolume


class TestVfs(VolumeContract):
    def make(self, path: Path, **context: Any) -> AbstractVolume:
        return VfsVolume("local", path, {}, VolumeContext(**context))

    async def test_links_inside_are_followed(self, volume: AbstractVolume, folder: Any, inside: Path) -> None:
        if not has_openat2():
            pytest.skip("machine: the kernel has no openat2")
        (inside / "real").mkdir()
        (inside / "real" / "file").write_text("content")
        (inside / "sub").mkdir()
        (inside / "sub" / "link").symlink_to("../real")
        file = await volume.open_file(folder, parse_path("sub/link/file"))
        assert os.read(file.fd, 10) == b"content"
        file.close()


class TestVfsWithoutOpenat2(TestVfs):
    @pytest.fixture(autouse=True)
    def no_openat2(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(open_directory, "has_openat2", lambda: False)

    async def test_links_inside_are_followed(self, volume: AbstractVolume, folder: Any, inside: Path) -> None:
        """They are not: without openat2 nobody can know that they stay inside."""


async def test_chunks_are_given_to_the_disk_while_the_upload_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk is an opening of its own; the last fsync would find all of them else."""
    flushed: list[tuple[int, int]] = []
    monkeypatch.setattr(uploads, "start_writeback", lambda fd, offset, count: flushed.append((offset, count)))
    monkeypatch.setattr(uploads, "_WRITEBACK_BYTES", 100)
    volume = VfsVolume("local", tmp_path, {}, VolumeContext())
    await volume.start()
    folder = random_folder_id()
    await volume.create_folder(folder)
    await volume.create_upload(UploadRecord(session="0" * 32, folder=folder, path=parse_path("file"), size=300))
    for _ in range(5):
        upload = volume.open_upload(folder, "0" * 32)
        upload.write(b"x" * 60)
        upload.close()
    assert flushed == [(0, 120), (100, 140), (200, 100)]
    await volume.stop()


async def test_the_layout_is_the_published_one(tmp_path: Path) -> None:
    volume = VfsVolume("local", tmp_path, {}, VolumeContext())
    await volume.start()
    folder = random_folder_id()
    await put_somewhere(volume, folder)
    text = folder.id.hex
    assert (tmp_path / folder.scope.id.hex / text[:2] / text[2:4] / text[4:] / "file").read_bytes() == b"x"
    assert (tmp_path / "version.txt").read_text().strip() == "3"
    await volume.stop()


@pytest.mark.parametrize("version", ["2\n", None])
async def test_folders_of_an_older_layout_find_their_scopes(
    tmp_path: Path, version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "volume"
    folders = [random_folder_id() for _ in range(4)]
    for folder in folders:
        text = folder.id.hex
        place = root / text[:2] / text[2:4] / text[4:]
        place.mkdir(parents=True)
        (place / "file").write_text(text)
    if version is not None:
        (root / "version.txt").write_text(version)
    volume = VfsVolume("local", root, {}, VolumeContext())
    assert await volume.migrate(folders[:2]) == sorted(folder.id.hex for folder in folders[2:])
    with pytest.raises(InvalidInput):
        await volume.start()  # half of it is old

    def dies(path: Path, target: Path) -> Path:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            migration.migrate(volume.layout, folders)
    assert await volume.migrate(folders) == []
    assert await volume.migrate(folders) == []
    await volume.start()
    for folder in folders:
        assert (await volume.mount_path(folder, parse_path("file"))).read_text() == folder.id.hex
    assert sorted(p.name for p in root.iterdir()) == sorted([*(f.scope.id.hex for f in folders), "version.txt"])
    await volume.stop()
    (root / "version.txt").write_text("4\n")
    with pytest.raises(InvalidInput, match="no volume of layout 2"):
        migration.migrate(volume.layout, folders)


async def put_somewhere(volume: AbstractVolume, folder: Any) -> None:
    await volume.create_folder(folder)
    await put(volume, folder, "file", b"x")


async def test_a_place_that_is_no_volume_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InvalidInput, match=r"thesis\.tex"):
        await VfsVolume("local", tmp_path, {}, VolumeContext()).start()
    for version, way in (("2", "migrate-volume"), ("4", "this version knows 3")):
        (tmp_path / "version.txt").write_text(f"{version}\n")
        with pytest.raises(InvalidInput, match=f"layout '{version}'; .*{way}"):
            await VfsVolume("local", tmp_path, {}, VolumeContext()).start()
    with pytest.raises(InvalidInput, match="no setting 'size'"):
        VfsVolume("local", tmp_path, {"size": 1}, VolumeContext())


@pytest.mark.needs("root")
async def test_what_is_made_belongs_to_the_owner(tmp_path: Path) -> None:
    volume = VfsVolume("local", tmp_path, {}, VolumeContext(owner=(4321, 4322)))
    await volume.start()
    folder, copy = random_folder_id(), random_folder_id()
    await put_somewhere(volume, folder)
    await volume.make_directory(folder, parse_path("a/b"), parents=True, exist_ok=False)
    await volume.clone_folder(folder, volume, copy, Progress())
    for made in (folder, copy):
        top = await volume.mount_path(made, parse_path("."))
        for path in (top, *top.rglob("*")):
            assert (path.stat().st_uid, path.stat().st_gid) == (4321, 4322), path
    await volume.stop()


async def test_a_file_with_several_names_takes_room_once_in_a_clone(tmp_path: Path) -> None:
    """A limit judges a clone by what was measured, where such a file counts once."""
    volume = VfsVolume("local", tmp_path, {}, VolumeContext())
    await volume.start()
    folder, clone = random_folder_id(), random_folder_id()
    await put_somewhere(volume, folder)
    top = await volume.mount_path(folder, parse_path("."))
    (top / "below").mkdir()
    (top / "file").write_bytes(b"x" * 100_000)
    for name in ("below/a", "below/b"):
        (top / name).hardlink_to(top / "file")
    await volume.clone_folder(folder, volume, clone, Progress())
    made = await volume.mount_path(clone, parse_path("."))
    assert (made / "below" / "b").read_bytes() == b"x" * 100_000
    assert (made / "below" / "b").stat().st_nlink == 3
    assert await volume.folder_usage(clone) == await volume.folder_usage(folder)
    await volume.stop()


async def test_a_folder_whose_maker_was_killed_is_made_usable(tmp_path: Path) -> None:
    volume = VfsVolume("local", tmp_path, {}, VolumeContext())
    await volume.start()
    folder = random_folder_id()
    volume.layout.folder(folder).mkdir(mode=0o700, parents=True)
    await volume.create_folder(folder)
    assert stat.S_IMODE((await volume.mount_path(folder, parse_path("."))).stat().st_mode) == 0o755
    await volume.stop()


async def test_nothing_is_missing_of_a_volume_that_is_not_there(tmp_path: Path) -> None:
    """Who is told that a folder is gone forgets it; who makes one in the mount point makes it on the wrong disk."""
    volume = VfsVolume("local", tmp_path / "volume", {}, VolumeContext())
    await volume.start()
    folder = random_folder_id()
    await volume.create_folder(folder)
    (tmp_path / "volume").rename(tmp_path / "unmounted")
    (tmp_path / "volume").mkdir()
    for call in (
        volume.create_folder(random_folder_id()),
        volume.delete_folder(folder),
        volume.stat(folder, parse_path(".")),
        volume.clone_folder(folder, volume, random_folder_id(), Progress()),
        volume.scope_limit(folder.scope),
    ):
        with pytest.raises(Unavailable):
            await call
    assert not any((tmp_path / "volume").iterdir())
    await volume.stop()


async def test_what_could_not_be_written_out_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second fsync would succeed, though the disk does not have what the first one failed for."""
    volume = VfsVolume("local", tmp_path, {}, VolumeContext())
    await volume.start()
    folder = random_folder_id()
    await volume.create_folder(folder)
    record = UploadRecord(session="0" * 32, folder=folder, path=parse_path("file"), size=3)
    await volume.create_upload(record)
    with uploads.OpenUpload(volume.layout, folder, record.session) as upload:
        upload.write(b"abc")
        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", _no_room)
            with pytest.raises(StorageFull):
                upload.publish(record.path)
        assert upload.offset == 0
    assert (await volume.find_upload(folder, record.session))[1] == 0
    with uploads.OpenUpload(volume.layout, folder, record.session) as upload:
        upload.write(b"abc")
        upload.publish(record.path)
    assert ((await volume.mount_path(folder, parse_path("file"))).read_bytes()) == b"abc"
    await volume.stop()


def _no_room(_: int) -> None:
    raise OSError(errno.ENOSPC, "no space")


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_who_is_cancelled_leaves_no_descriptor_and_no_lock(tmp_path: Path) -> None:
    volume = VfsVolume("local", tmp_path, {}, VolumeContext())
    await volume.start()
    folder = random_folder_id()
    await put_somewhere(volume, folder)
    record = UploadRecord(session="0" * 32, folder=folder, path=parse_path("other"), size=3)
    await volume.create_upload(record)
    before = _descriptors()
    openings: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: volume.open_file(folder, parse_path("file")),
        lambda: asyncio.to_thread(volume.open_upload, folder, record.session),
    )
    for opening in openings:
        task = asyncio.ensure_future(opening())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    for _ in range(100):
        gc.collect()
        if _descriptors() <= before:
            break
        await asyncio.sleep(0.02)
    assert _descriptors() <= before
    volume.open_upload(folder, record.session).close()
    await volume.stop()
