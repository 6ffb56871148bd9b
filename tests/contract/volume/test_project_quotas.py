"""The xfs volume keeps the contract, and the file system itself enforces its limits."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp
import pytest

from ai.backend.common.errors import InvalidInput, StorageFull
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.plugin.testing.volume.contract import VolumeContract
from ai.backend.plugin.testing.volume.driver import eventually, parse_path, put, random_folder_id
from ai.backend.plugin.volume import AbstractVolume, Progress, Upload, UploadRecord, VolumeCapability, VolumeContext
from ai.backend.storage.main import StorageProxy
from ai.backend.volume.vfs.volume import VfsVolume
from ai.backend.volume.xfs import projects
from ai.backend.volume.xfs import volume as xfs_volume
from ai.backend.volume.xfs.volume import XfsVolume
from tests.support.quota_disk import quota_disk
from tests.support.storage_proxy import Caller, parsed

MIB = 1 << 20
FULL = "No space left|quota exceeded"


def write_through(path: Path, mib: int) -> None:
    """As a session does, and wait for the disk."""
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(MIB))
            file.flush()
            os.fsync(file.fileno())


def fill(fd: int, *, every: int) -> None:
    """Quarters of a mebibyte, with holes between."""
    for n in range(64):
        os.pwrite(fd, os.urandom(MIB // 4), n * every)
        os.fsync(fd)


def finish(upload: Upload, data: bytes, path: FolderPath) -> None:
    step = 64 << 10
    for begin in range(upload.offset, len(data), step):
        upload.write(data[begin : begin + step])
    upload.publish(path)


@pytest.mark.needs("xfs")
class TestXfs(VolumeContract):
    @pytest.fixture(scope="class")
    @classmethod
    def disk(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
        with quota_disk(tmp_path_factory.mktemp("disk")) as point:
            yield point

    @pytest.fixture
    def tmp_path(self, disk: Path) -> Path:
        place = disk / uuid4().hex
        place.mkdir()
        return place

    def make(self, path: Path, **context: Any) -> AbstractVolume:
        return XfsVolume("local", path, {}, VolumeContext(**context))

    async def test_the_limit_holds_for_whoever_writes(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        assert VolumeCapability.QUOTA in volume.capabilities
        other = random_folder_id()
        await volume.create_folder(other)
        await volume.set_scope_limit(folder.scope, 4 * MIB)
        with pytest.raises(OSError, match=FULL):
            write_through(inside / "session", 8)
        with pytest.raises(StorageFull):
            await put(volume, folder, "upload", os.urandom(2 * MIB))
        target = VFolderId(folder.scope, uuid4())
        with pytest.raises(StorageFull):
            await volume.clone_folder(folder, volume, target, Progress())
        assert not await volume.has_folder(target)
        assert (await volume.scope_usage(folder.scope)).used_bytes <= 4 * MIB
        await put(volume, other, "upload", os.urandom(2 * MIB))
        await volume.set_scope_limit(folder.scope, 16 * MIB)
        await put(volume, folder, "upload", os.urandom(2 * MIB))
        await volume.set_scope_limit(folder.scope, None)
        await put(volume, folder, "more", os.urandom(16 * MIB))

    async def test_an_upload_goes_on_when_the_limit_is_raised(self, volume: AbstractVolume, folder: VFolderId) -> None:
        await volume.set_scope_limit(folder.scope, 2 * MIB)
        data = os.urandom(4 * MIB)
        record = UploadRecord(session=uuid4().hex, folder=folder, path=parse_path("file"), size=len(data))
        await volume.create_upload(record)
        upload = volume.open_upload(folder, record.session)
        with pytest.raises(StorageFull):
            await asyncio.to_thread(finish, upload, data, record.path)
        upload.close()
        await volume.set_scope_limit(folder.scope, 64 * MIB)
        upload = volume.open_upload(folder, record.session)
        await asyncio.to_thread(finish, upload, data, record.path)
        upload.close()
        assert (await volume.mount_path(folder, parse_path("file"))).read_bytes() == data

    async def test_what_is_deleted_no_longer_counts(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        await volume.set_scope_limit(folder.scope, 4 * MIB)
        for _ in range(4):
            await put(volume, folder, "dir/file", os.urandom(3 * MIB // 2))
        await volume.delete_files(folder, [parse_path("dir")], recursive=True)

        async def is_free() -> bool:
            return (await volume.scope_usage(folder.scope)).used_bytes < MIB

        await eventually(is_free)
        await put(volume, folder, "again", os.urandom(3 * MIB))

    async def test_who_is_at_the_limit_can_delete(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        for n in range(40):  # more than a directory holds without a block of its own
            await put(volume, folder, f"d{n}/file", os.urandom(5000))
        await volume.set_scope_limit(folder.scope, 2 * MIB)
        with pytest.raises(OSError, match=FULL):
            write_through(inside / "ballast", 4)
        with suppress(OSError):
            for n in range(1000):
                (inside / f"{n:0100}").mkdir()
        await volume.delete_files(folder, [parse_path(f"d{n}") for n in range(40)], recursive=True)
        await volume.delete_folder(folder)

        async def is_free() -> bool:
            return (await volume.scope_usage(folder.scope)).used_bytes < MIB

        await eventually(is_free, 30)

    async def test_holes_do_not_count_until_they_are_filled(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        await volume.set_scope_limit(folder.scope, 4 * MIB)
        fd = os.open(inside / "sparse", os.O_CREAT | os.O_RDWR)
        try:
            os.ftruncate(fd, 1 << 30)
            assert (await volume.scope_usage(folder.scope)).used_bytes < MIB
            with pytest.raises(OSError, match=FULL):
                fill(fd, every=MIB)
            with pytest.raises(OSError, match=FULL):
                os.posix_fallocate(fd, 512 << 20, 8 * MIB)
            before = (await volume.scope_usage(folder.scope)).used_bytes
            assert 2 * MIB <= before <= 4 * MIB
            libc = ctypes.CDLL(None, use_errno=True)
            punched = libc.fallocate(fd, 0x03, ctypes.c_int64(0), ctypes.c_int64(1 << 30))  # PUNCH_HOLE | KEEP_SIZE
            assert punched == 0
            os.fsync(fd)
            assert (await volume.scope_usage(folder.scope)).used_bytes < MIB
        finally:
            os.close(fd)

    async def test_no_name_leads_to_the_room_of_another_scope(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        other = random_folder_id()
        await volume.create_folder(other)
        elsewhere = await volume.mount_path(other, parse_path("."))
        await put(volume, folder, "file", b"x")
        for attempt in (os.link, os.rename):
            with pytest.raises(OSError, match="cross-device"):
                attempt(inside / "file", elsewhere / "file")

    async def test_a_vfs_volume_becomes_one_of_projects(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        before = VfsVolume("local", tmp_path / "v", {}, VolumeContext())
        await before.start()
        folder = random_folder_id()
        await before.create_folder(folder)
        await before.set_scope_limit(folder.scope, 4 * MIB)
        for n in range(3):
            await put(before, folder, f"d{n}/file", os.urandom(MIB))
        inside = await before.mount_path(folder, parse_path("."))
        (inside / "link").symlink_to("d0/file")
        await before.stop()

        seen: list[int] = []

        def dies(fd: int, project: int) -> None:
            seen.append(fd)
            if len(seen) == 4:
                raise KeyboardInterrupt
            real(fd, project)

        real = projects.set_project
        with monkeypatch.context() as killed:
            killed.setattr(projects, "set_project", dies)
            half = self.make(before.path)
            with pytest.raises(KeyboardInterrupt):
                await asyncio.to_thread(_start_half, half)
        volume = self.make(before.path)
        await volume.start()
        usage = await volume.scope_usage(folder.scope)
        assert 3 * MIB <= usage.used_bytes <= 4 * MIB
        with pytest.raises(StorageFull):
            await put(volume, folder, "much", os.urandom(2 * MIB))
        await volume.move(folder, parse_path("link"), parse_path("d1"))
        assert (inside / "d1" / "link").readlink() == Path("d0/file")
        await volume.stop()

    async def test_the_file_system_learns_limits_again_at_the_start(
        self, volume: AbstractVolume, folder: VFolderId
    ) -> None:
        """The proxy may die between the note of a limit and the file system's."""
        assert isinstance(volume, XfsVolume)
        await volume.set_scope_limit(folder.scope, MIB)
        volume._quotas.limit(volume._claim_project_id(folder.scope.id.hex), None)
        again = self.make(volume.path)
        await again.start()
        with pytest.raises(StorageFull):
            await put(again, folder, "much", os.urandom(2 * MIB))
        await again.stop()

    async def test_no_two_scopes_share_a_project(self, volume: AbstractVolume, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their hashes may meet."""
        assert isinstance(volume, XfsVolume)
        monkeypatch.setattr(xfs_volume, "_PROJECT_ID_COUNT", 3)
        scopes = [random_folder_id().scope for _ in range(3)]
        for scope in scopes:
            await volume.create_scope(scope)
        assert len({volume._claim_project_id(scope.id.hex) for scope in scopes}) == 3


def _start_half(volume: AbstractVolume) -> None:
    """What ``start`` does, in this thread, so that a death in the middle is the test's to see."""
    assert isinstance(volume, XfsVolume)
    volume._open_quotas()
    volume._adopt_all()


async def test_a_file_system_without_project_quotas_is_refused(tmp_path: Path) -> None:
    volume = XfsVolume("local", tmp_path / "v", {}, VolumeContext())
    with pytest.raises(InvalidInput, match="xfs mounted with 'prjquota'"):
        await volume.start()
    await volume.stop()


@pytest.mark.needs("xfs")
async def test_the_proxy_says_whose_limit_it_was(tmp_path: Path) -> None:
    with quota_disk(tmp_path) as disk:
        settings = parsed(tmp_path, tables={"volume": {"volume1": {"backend": "xfs", "path": str(disk / "v")}}})
        proxy = StorageProxy(settings)
        await proxy.start()
        try:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
                await _use_up_a_limit(Caller(http, proxy.manager_url))
        finally:
            await proxy.stop()


async def _use_up_a_limit(caller: Caller) -> None:
    vfid = await caller.folder()
    scope = vfid.partition("/")[0]
    limited = await caller.ask("PATCH", "/quota-scope", qsid=scope, options={"limit_bytes": 4 * MIB})
    assert limited.status == 204
    state = (await caller.ask("GET", "/quota-scope", qsid=scope)).json
    assert (state["enforcement"], state["limit_bytes"]) == ("hard", 4 * MIB)
    first, second = [await caller.upload_url(vfid, name, 3 * MIB) for name in ("first", "second")]
    assert (await caller.patch(first, 0, os.urandom(3 * MIB))).status == 204
    refused = await caller.patch(second, 0, os.urandom(3 * MIB))
    assert (refused.status, refused.json["type"].rpartition("/")[2]) == (507, "quota-exceeded")
    assert refused.json["data"]["limit_bytes"] == 4 * MIB
    too_much = await caller.ask("POST", "/folder/file/upload", vfid=vfid, relpath="third", size=8 * MIB)
    assert (too_much.status, too_much.json["type"].rpartition("/")[2]) == (507, "quota-exceeded")
    assert (await caller.ask("DELETE", "/quota-scope/quota", qsid=scope)).status == 204
    offset = int((await caller.head(second)).headers["Upload-Offset"])
    assert (await caller.patch(second, offset, os.urandom(3 * MIB - offset))).status == 204
    assert sorted(p.name for p in (await caller.inside(vfid)).iterdir()) == ["first", "second"]
