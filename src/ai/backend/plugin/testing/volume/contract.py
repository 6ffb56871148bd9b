"""Tests what every volume promises.

A test file of a volume is::

    class TestMine(VolumeContract):
        def make(self, path, **context):
            return MyVolume("mine", path, {}, VolumeContext(**context))

``make`` is called again on the same path for what the next life of a proxy finds. Tests also write into a folder
directly, as sessions do, so ``mount_path`` must be a directory of this machine.
"""

# ruff: noqa: ASYNC240, PTH208  # tests look at the disk besides the volume, in the simplest way

from __future__ import annotations

import asyncio
import os
import random
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import (
    BackendError,
    FileAlreadyExists,
    FolderNotFound,
    InvalidInput,
    InvalidPath,
    NoSuchFile,
    QuotaScopeNotFound,
    WrongKindOfFile,
)
from ai.backend.common.volume_paths import VFolderId
from ai.backend.plugin.testing.volume.driver import (
    AWKWARD_NAMES,
    TOP,
    TreeModel,
    assert_refused,
    eventually,
    has_no_entry_named,
    names,
    parse_path,
    put,
    random_folder_id,
    read,
    remove_deep_tree,
)
from ai.backend.plugin.testing.volume.security import VolumeSecurityContract, VolumeUploadContract
from ai.backend.plugin.volume import AbstractVolume, FileKind, Progress


class VolumeContract(VolumeSecurityContract, VolumeUploadContract):
    """Tests a volume that a subclass makes."""

    def make(self, path: Path, **context: Any) -> AbstractVolume:
        pytest.fail("override `make`")

    @pytest.fixture
    async def volume(self, tmp_path: Path) -> AsyncIterator[AbstractVolume]:
        volume = self.make(tmp_path / "volume")
        await volume.start()
        yield volume
        await volume.stop()

    @pytest.fixture
    async def folder(self, volume: AbstractVolume) -> VFolderId:
        folder = random_folder_id()
        await volume.create_folder(folder)
        return folder

    @pytest.fixture
    async def inside(self, volume: AbstractVolume, folder: VFolderId) -> Path:
        """Returns the path at which a session sees a folder of the volume."""
        return await volume.mount_path(folder, TOP)

    # Volume and scopes

    async def test_tells_its_size_and_health(self, volume: AbstractVolume) -> None:
        usage = await volume.usage()
        assert 0 <= usage.used_bytes <= usage.capacity_bytes
        assert await volume.check() is None

    async def test_a_limit_survives_the_proxy(self, volume: AbstractVolume) -> None:
        scope = random_folder_id().scope
        await assert_refused(QuotaScopeNotFound, volume.scope_limit(scope))
        await volume.create_scope(scope)
        assert await volume.scope_limit(scope) is None
        await volume.set_scope_limit(scope, 12345)
        await volume.create_scope(scope)
        restarted_volume = self.make(volume.path)
        await restarted_volume.start()
        assert await restarted_volume.scope_limit(scope) == 12345
        await restarted_volume.set_scope_limit(scope, None)
        assert await volume.scope_limit(scope) is None
        await restarted_volume.stop()

    async def test_a_scope_uses_what_its_folders_use(self, volume: AbstractVolume) -> None:
        first_folder = random_folder_id()
        second_folder = VFolderId(first_folder.scope, uuid4())
        for folder in (first_folder, second_folder, random_folder_id()):
            await volume.create_folder(folder)
            await put(volume, folder, "file", os.urandom(1 << 20))
        usage = await volume.scope_usage(first_folder.scope)
        assert 2 << 20 <= usage.used_bytes < 3 << 20
        assert usage.file_count >= 2

    async def test_a_sparse_file_counts_what_it_holds(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        with (inside / "sparse").open("wb") as file:
            file.truncate(1 << 30)
            file.write(os.urandom(4096))
            os.fsync(file.fileno())
        os.link(inside / "sparse", inside / "again")
        usage = await volume.folder_usage(folder)
        assert usage.file_count == 1
        assert 4096 <= usage.used_bytes < 1 << 20

    # Folders

    async def test_a_folder_is_made_once(self, volume: AbstractVolume, folder: VFolderId) -> None:
        await put(volume, folder, "kept", b"x")
        await volume.create_folder(folder)
        assert await names(volume, folder) == ["kept"]
        assert (await volume.folder_usage(folder)).file_count == 1

    async def test_a_deleted_folder_is_gone_at_once(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        deepest_directory = inside
        for _ in range(40):
            deepest_directory = deepest_directory / "d"
            deepest_directory.mkdir()
        (deepest_directory / "file").write_bytes(b"x")
        deepest_directory.chmod(0o500)
        await volume.delete_folder(folder)
        assert not inside.exists()
        assert not await volume.has_folder(folder)
        await volume.delete_folder(folder)
        await volume.delete_folder(random_folder_id())
        await assert_refused(FolderNotFound, volume.list_directory(folder, TOP, limit=1))
        await eventually(lambda: has_no_entry_named("d", volume.path))

    async def test_a_tree_deeper_than_a_path_can_be_is_removed(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        folder_fd = os.open(inside, os.O_RDONLY)
        for _ in range(1200):
            os.mkdir("deep", dir_fd=folder_fd)
            child_fd = os.open("deep", os.O_RDONLY, dir_fd=folder_fd)
            os.close(folder_fd)
            folder_fd = child_fd
        os.close(folder_fd)
        try:
            await assert_refused(BackendError, volume.folder_usage(folder))
            await volume.delete_folder(folder)
            await eventually(lambda: has_no_entry_named("deep", volume.path), 30)
        finally:
            await asyncio.to_thread(remove_deep_tree, volume.path)

    async def test_a_clone_is_the_same_tree(self, volume: AbstractVolume, folder: VFolderId, inside: Path) -> None:
        (inside / "sub" / "empty").mkdir(parents=True)
        (inside / "sub" / "run").write_text("#!")
        (inside / "sub" / "run").chmod(0o755)
        (inside / "link").symlink_to("sub/run")
        (inside / "out").symlink_to("/etc/passwd")
        with (inside / "sparse").open("wb") as file:
            file.seek(1 << 26)
            file.write(b"end")
        os.mkfifo(inside / "fifo")
        os.utime(inside / "sub" / "run", (1_000_000, 1_000_000))
        clone, progress = random_folder_id(), Progress()
        await volume.clone_folder(folder, volume, clone, progress)
        clone_path = await volume.mount_path(clone, TOP)
        assert sorted(os.listdir(clone_path)) == ["link", "out", "sparse", "sub"]
        assert (clone_path / "out").readlink() == Path("/etc/passwd")
        status = (clone_path / "sub" / "run").stat()
        assert (stat.S_IMODE(status.st_mode), status.st_mtime) == (0o755, 1_000_000)
        assert (clone_path / "sparse").read_bytes() == (inside / "sparse").read_bytes()
        assert (clone_path / "sparse").stat().st_blocks * 512 < 1 << 20
        assert (progress.files, progress.skipped) == (4, 1)
        await volume.clone_folder(folder, volume, clone, Progress())  # is there: done
        assert not await volume.unfinished_clones()

    async def test_a_cancelled_clone_leaves_nothing(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        (inside / "file").write_bytes(b"x")
        target, progress = random_folder_id(), Progress()
        progress.cancel()
        await volume.clone_folder(folder, volume, target, progress)
        assert not await volume.has_folder(target)
        assert not await volume.unfinished_clones()
        await assert_refused(FolderNotFound, volume.clone_folder(random_folder_id(), volume, target, Progress()))

    async def test_a_folder_deleted_while_it_is_cloned_does_not_come_back(self, tmp_path: Path) -> None:
        clone_reached, may_go_on = threading.Event(), threading.Event()

        def waypoint(name: str) -> None:
            if name == "clone.copied":
                clone_reached.set()
                may_go_on.wait(10)

        volume = self.make(tmp_path / "volume", waypoint=waypoint)
        await volume.start()
        source, target = random_folder_id(), random_folder_id()
        await volume.create_folder(source)
        clone_task = asyncio.create_task(volume.clone_folder(source, volume, target, Progress()))
        await asyncio.to_thread(clone_reached.wait, 10)
        assert [clone_task.target for clone_task in await volume.unfinished_clones()] == [target]
        await volume.delete_folder(target)
        may_go_on.set()
        await assert_refused(FolderNotFound, clone_task)
        assert not await volume.has_folder(target)
        await volume.stop()

    async def test_two_clones_at_once_make_one_folder(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        for file_number in range(50):
            (inside / str(file_number)).write_bytes(os.urandom(1000))
        target = random_folder_id()
        await asyncio.gather(*(volume.clone_folder(folder, volume, target, Progress()) for _ in range(3)))
        assert len(await names(volume, target)) == 50

    # Files

    async def test_names_are_what_they_are(self, volume: AbstractVolume, folder: VFolderId, inside: Path) -> None:
        for name in AWKWARD_NAMES:
            await put(volume, folder, name, name.encode())
        assert sorted(os.listdir(inside)) == sorted(AWKWARD_NAMES)
        assert sorted(await names(volume, folder, limit=3)) == sorted(AWKWARD_NAMES)
        for name in AWKWARD_NAMES:
            assert await read(volume, folder, name) == name.encode()
        await volume.rename(folder, parse_path("new\nline"), "-")
        await volume.delete_files(
            folder, [parse_path(name) for name in AWKWARD_NAMES if name != "new\nline"], recursive=False
        )
        assert os.listdir(inside) == ["-"]

    async def test_entries_tell_what_they_are(self, volume: AbstractVolume, folder: VFolderId, inside: Path) -> None:
        (inside / "dir").mkdir()
        (inside / "file").write_bytes(b"12345")
        (inside / "link").symlink_to("file")
        os.mkfifo(inside / "pipe")
        (inside / os.fsdecode(b"\xff")).write_bytes(b"")
        page = await volume.list_directory(folder, TOP, limit=10)
        kind_by_name = {entry.name: entry.kind for entry in page.entries}
        assert kind_by_name == {
            "dir": FileKind.DIRECTORY,
            "file": FileKind.FILE,
            "link": FileKind.SYMBOLIC_LINK,
            "pipe": FileKind.OTHER,
            "\ufffd": FileKind.FILE,
        }
        entry_by_name = {entry.name: entry for entry in page.entries}
        assert entry_by_name["file"].size == 5
        assert entry_by_name["link"].symlink_target == "file"
        for path, error_class in (("pipe", WrongKindOfFile), ("dir", WrongKindOfFile), ("none", NoSuchFile)):
            await assert_refused(error_class, volume.open_file(folder, parse_path(path)))

    async def test_pages_miss_nothing_that_stays(self, volume: AbstractVolume, folder: VFolderId, inside: Path) -> None:
        kept_names = {f"stays-{name_number}" for name_number in range(300)}
        for name in kept_names | {f"goes-{name_number}" for name_number in range(300)}:
            (inside / name).touch()
        listed_names: list[str] = []
        cursor: str | None = None
        while True:
            page = await volume.list_directory(folder, TOP, limit=7, cursor=cursor)
            listed_names += [entry.name for entry in page.entries]
            assert len(page.entries) <= 7
            if (cursor := page.cursor) is None:
                break
            (inside / f"goes-{len(listed_names)}").unlink(missing_ok=True)
            (inside / f"new-{len(listed_names)}").touch()
        listed_kept_names = [name for name in listed_names if name in kept_names]
        assert len(listed_kept_names) == len(kept_names)
        assert set(listed_kept_names) == kept_names
        for wrong_cursor in ("x", "-5", "1" * 40):
            await assert_refused(InvalidInput, volume.list_directory(folder, TOP, limit=7, cursor=wrong_cursor))

    async def test_directories_are_made(self, volume: AbstractVolume, folder: VFolderId, inside: Path) -> None:
        await volume.make_directory(folder, parse_path("a/b/c"), parents=True, exist_ok=False)
        assert (inside / "a/b/c").is_dir()
        await assert_refused(
            NoSuchFile, volume.make_directory(folder, parse_path("x/y"), parents=False, exist_ok=False)
        )
        await assert_refused(
            FileAlreadyExists, volume.make_directory(folder, parse_path("a/b"), parents=True, exist_ok=False)
        )
        await volume.make_directory(folder, parse_path("a/b"), parents=True, exist_ok=True)
        (inside / "file").touch()
        await assert_refused(
            FileAlreadyExists, volume.make_directory(folder, parse_path("file"), parents=True, exist_ok=True)
        )
        await assert_refused(
            WrongKindOfFile, volume.make_directory(folder, parse_path("file/x"), parents=True, exist_ok=True)
        )

    async def test_nothing_is_replaced_by_moving(self, volume: AbstractVolume, folder: VFolderId, inside: Path) -> None:
        (inside / "dir").mkdir()
        (inside / "dir" / "b").write_text("old")
        (inside / "a").write_text("a")
        (inside / "b").write_text("b")
        await assert_refused(FileAlreadyExists, volume.rename(folder, parse_path("a"), "b"))
        await assert_refused(FileAlreadyExists, volume.move(folder, parse_path("b"), parse_path("dir")))
        await assert_refused(InvalidInput, volume.move(folder, parse_path("dir"), parse_path("dir/below")))
        await assert_refused(InvalidPath, volume.rename(folder, parse_path("a"), "x/y"))
        await volume.move(folder, parse_path("a"), parse_path("dir"))
        await volume.move(folder, parse_path("b"), parse_path("c"))
        assert {str(path.relative_to(inside)): path.read_text() for path in inside.rglob("*") if path.is_file()} == {
            "dir/a": "a",
            "dir/b": "old",
            "c": "b",
        }

    async def test_deleting_says_what_was_not_there(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path
    ) -> None:
        (inside / "dir").mkdir()
        (inside / "dir" / "x").touch()
        (inside / "a").touch()
        await assert_refused(
            WrongKindOfFile, volume.delete_files(folder, [parse_path("a"), parse_path("dir")], recursive=False)
        )
        assert (inside / "a").exists()
        await assert_refused(
            NoSuchFile,
            volume.delete_files(folder, [parse_path("none"), parse_path("a"), parse_path("dir")], recursive=True),
        )
        assert os.listdir(inside) == []
        await assert_refused(InvalidPath, volume.delete_files(folder, [TOP], recursive=True))

    # Archives

    async def test_a_tree_is_told_parents_first(self, volume: AbstractVolume, folder: VFolderId, inside: Path) -> None:
        (inside / "a" / "b").mkdir(parents=True)
        (inside / "a" / "b" / "f").write_text("f")
        (inside / "a" / "out").symlink_to("/etc/passwd")
        entry_by_path = {}
        with volume.open_tree(folder, [parse_path("a")]) as entries:
            for entry in entries:
                content = b""
                if entry.entry.kind == FileKind.FILE:
                    file = entry.open()
                    content = os.read(file.fd, 100)
                    file.close()
                entry_by_path[str(entry.path)] = (entry.entry.kind, content, entry.entry.symlink_target)
        assert entry_by_path == {
            "a": (FileKind.DIRECTORY, b"", ""),
            "a/b": (FileKind.DIRECTORY, b"", ""),
            "a/b/f": (FileKind.FILE, b"f", ""),
            "a/out": (FileKind.SYMBOLIC_LINK, b"", "/etc/passwd"),
        }

    # Everything at random

    @pytest.mark.parametrize("seed", range(8))
    async def test_random_operations_do_what_the_model_does(
        self, volume: AbstractVolume, folder: VFolderId, inside: Path, seed: int
    ) -> None:
        rng, model = random.Random(seed), TreeModel()
        for step_number in range(250):
            operation, arguments = model.choose(rng)
            expected_error = model.refusal(operation, *arguments)
            try:
                await _perform(volume, folder, operation, arguments)
                raised_error: type[BackendError] | None = None
            except BackendError as error:
                raised_error = type(error)
            assert raised_error == expected_error, f"seed {seed}, step {step_number}: {operation}{arguments}"
            if expected_error is None:
                model.apply(operation, *arguments)
            if step_number % 25 == 0:
                assert _read_tree(inside) == model.tree, f"seed {seed}, step {step_number}"
        assert _read_tree(inside) == model.tree


async def _perform(volume: AbstractVolume, folder: VFolderId, operation: str, arguments: tuple[Any, ...]) -> None:
    match operation, arguments:
        case "put", (path, content):
            await put(volume, folder, path, content)
        case "mkdir", (path,):
            await volume.make_directory(folder, parse_path(path), parents=False, exist_ok=False)
        case "delete", (path, recursive):
            await volume.delete_files(folder, [parse_path(path)], recursive=recursive)
        case "rename", (path, name):
            await volume.rename(folder, parse_path(path), name)
        case "move", (source, target):
            await volume.move(folder, parse_path(source), parse_path(target))
        case "read", (path,):
            await read(volume, folder, path)
        case "list", (path,):
            await names(volume, folder, path, limit=2)
        case "clone", ():
            target = random_folder_id()
            await volume.clone_folder(folder, volume, target, Progress())
            cloned_tree, original_tree = [
                _read_tree(await volume.mount_path(folder_id, TOP)) for folder_id in (target, folder)
            ]
            assert cloned_tree == original_tree
            await volume.delete_folder(target)
        case "archive", (path,):
            assert _reported_size(volume, folder, path) == len(await names(volume, folder, path))


def _reported_size(volume: AbstractVolume, folder: VFolderId, path: str) -> int:
    """Returns the number of entries directly below a directory, counted from the volume's ``open_tree``."""
    depth = len(parse_path(path).parts) + 1
    with volume.open_tree(folder, [parse_path(path)]) as entries:
        return sum(len(entry.path.parts) == depth for entry in entries)


def _read_tree(inside: Path) -> dict[str, bytes | None]:
    """Maps paths to file contents. The content of a directory is None."""
    return {str(path.relative_to(inside)): None if path.is_dir() else path.read_bytes() for path in inside.rglob("*")}
