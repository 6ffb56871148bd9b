"""A manager killed in the middle of a folder's creation, clone or end leaves neither row nor directory alone."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Self

import pytest

from ai.backend.common.folders import FolderKey, FolderStatus
from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.crash_points import FOLDER_CRASH_POINTS
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.folders.model import CreateFolder, Folder
from tests.support.fake_storage import FakeStorage
from tests.support.forked import ForkedPopen
from tests.support.migrated import migrated

HOST = "local:volume1"


class Life:
    """One life of a manager on the files of ``path``."""

    def __init__(self, path: Path) -> None:
        self.storage = FakeStorage(path / "storage", HOST)
        self._database = Database(f"sqlite:///{migrated(path / 'manager.db')}")
        self.manager = Manager(
            ManagerSettings(), self._database, Bus(), MemoryLink().manager, storage=self.storage, hash_password=str
        )

    async def __aenter__(self) -> Self:
        await self.manager.start()
        await self.manager.bootstrap.run(vfolder_hosts=[HOST])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.manager.stop()
        await self._database.close()

    @property
    def folders(self) -> Folders:
        assert self.manager.services.folders is not None
        return self.manager.services.folders

    async def caller(self) -> Caller:
        pair = await self.manager.bootstrap.main_keypair("user@local")
        assert pair is not None
        found = await self.manager.services.identity.credentials(pair.access_key)
        assert found is not None
        return found.caller

    async def rows(self) -> list[Folder]:
        store = self.manager.stores.folders
        assert store is not None
        return await store.by_status(set(FolderStatus))

    async def throw_away_long_ago(self, name: str) -> None:
        """Let a folder in the trash be there for longer than it stays."""
        store = self.manager.stores.folders
        assert store is not None
        for folder in await self.rows():
            if folder.name == name and folder.status is FolderStatus.DELETE_PENDING:
                await store.change(folder.id, status_changed=folder.status_changed - timedelta(days=1000))

    async def settled_but_trash(self) -> list[Folder]:
        """As :meth:`settled`, but what is in the trash may stay there."""
        async with asyncio.timeout(30):
            while True:
                rows = await self.rows()
                still = (FolderStatus.READY, FolderStatus.DELETE_COMPLETE, FolderStatus.DELETE_PENDING)
                if all(f.status in still for f in rows):
                    return rows
                await asyncio.sleep(0.02)

    async def settled(self) -> list[Folder]:
        """The rows, once none of them is on its way."""
        async with asyncio.timeout(30):
            while True:
                rows = await self.rows()
                if all(f.status in (FolderStatus.READY, FolderStatus.DELETE_COMPLETE) for f in rows):
                    return rows
                await asyncio.sleep(0.02)


async def doomed(path: Path) -> None:
    """Everything that passes a crash point."""
    async with Life(path) as life:
        user = await life.caller()
        await life.folders.service.create(user, CreateFolder(name="first", cloneable=True))
        _, task = await life.folders.service.clone(user, "first", CreateFolder(name="copy"))
        async for _ in life.manager.services.tasks.subscribe(user, task):
            pass
        await life.folders.service.trash(user, "first")
        await life.throw_away_long_ago("first")
        await life.folders.loop.once()
        await life.settled()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("point", FOLDER_CRASH_POINTS)
async def test_the_next_life_finishes_what_was_begun(tmp_path: Path, point: str, count: int) -> None:
    code = (
        f"import asyncio, pathlib; from {__name__} import doomed; asyncio.run(doomed(pathlib.Path({str(tmp_path)!r})))"
    )
    process = ForkedPopen([sys.executable, "-c", code], env={**os.environ, "BACKENDAI_CRASH_POINT": f"{point}:{count}"})
    status = await process.ended()
    # The second passage is the clone's row; making, filling and removing happen once each.
    assert status == (-9 if count == 1 or "commit" in point else 0)
    async with Life(tmp_path) as life:
        rows = await life.settled()
        user = await life.caller()
        kept = {f.key for f in rows if f.status is FolderStatus.READY}
        there = {p.name for p in (tmp_path / "storage").glob("*/*/*")}
        assert there == {key.folder_id.hex for key in kept}
        for folder in rows:
            if folder.status is FolderStatus.READY:
                await life.folders.service.trash(user, str(folder.id))
                await life.folders.service.purge(user, str(folder.id))
        await life.folders.service.create(user, CreateFolder(name="first"))
        assert [f.name for f in await life.settled() if f.status is FolderStatus.READY] == ["first"]
        assert len(list((tmp_path / "storage").glob("*/*/*"))) == 1


async def test_what_the_proxy_cannot_remove_now_is_removed_later(tmp_path: Path) -> None:
    async with Life(tmp_path) as life:
        user = await life.caller()
        await life.folders.service.create(user, CreateFolder(name="data"))
        await life.folders.service.trash(user, "data")
        life.storage.down = True
        await life.folders.service.purge(user, "data")
        await life.folders.loop.once()
        [row] = await life.rows()
        assert row.status is FolderStatus.DELETE_ONGOING
        assert life.storage.directory(row.key).is_dir()
        life.storage.down = False
        life.folders.loop.wake()
        assert [f.status for f in await life.settled()] == [FolderStatus.DELETE_COMPLETE]
        assert not life.storage.directory(row.key).exists()


async def test_a_resumed_clone_keeps_no_other_folder_waiting(tmp_path: Path) -> None:
    async with Life(tmp_path) as life:
        user = await life.caller()
        await life.folders.service.create(user, CreateFolder(name="source", cloneable=True))
        await life.folders.service.create(user, CreateFolder(name="data"))
        life.storage.clone_gate.clear()
        await life.folders.service.clone(user, "source", CreateFolder(name="copy"))
    again = Life(tmp_path)
    again.storage.clone_gate.clear()
    async with again as life:
        await life.folders.service.trash(user, "data")
        await life.folders.service.purge(user, "data")
        async with asyncio.timeout(30):
            while True:
                statuses = {f.name: f.status for f in await life.rows()}
                if statuses["data"] is FolderStatus.DELETE_COMPLETE:
                    break
                await asyncio.sleep(0.02)
        assert statuses["copy"] is FolderStatus.CLONING
        life.storage.clone_gate.set()
        assert {f.name for f in await life.settled() if f.status is FolderStatus.READY} == {"source", "copy"}


async def test_a_proxy_that_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async with Life(tmp_path) as life:
        user = await life.caller()
        create = life.storage.create_folder

        async def made_but_not_told(folder: FolderKey) -> None:
            await create(folder)
            life.storage.down = True
            await create(folder)

        life.storage.create_folder = made_but_not_told  # type: ignore[method-assign]  # the fault under test
        with pytest.raises(Exception, match="does not answer"):
            await life.folders.service.create(user, CreateFolder(name="data"))
        assert len(list((tmp_path / "storage").glob("*/*/*"))) == 1
        life.storage.down = False
        life.folders.loop.wake()
        assert [f.status for f in await life.settled()] == [FolderStatus.DELETE_COMPLETE]
        assert not list((tmp_path / "storage").glob("*/*/*"))


async def test_two_managers_on_one_database_do_each_step_once(tmp_path: Path) -> None:
    """Both loops run all the time, over folders that are made, cloned, thrown away and expire."""
    async with Life(tmp_path) as one, Life(tmp_path) as two:
        user = await one.caller()
        lives = [one, two]
        await one.folders.service.create(user, CreateFolder(name="source", cloneable=True))

        async def loops() -> None:
            while True:
                await asyncio.gather(*(life.folders.loop.once() for life in lives))
                await asyncio.sleep(0)

        running = asyncio.create_task(loops())
        try:
            for n in range(8):
                life, other = lives[n % 2], lives[1 - n % 2]
                await life.folders.service.create(user, CreateFolder(name="data"))
                await other.folders.service.clone(user, "source", CreateFolder(name="copy"))
                await other.folders.service.trash(user, "data")
                rows = await life.settled_but_trash()
                await life.throw_away_long_ago("data")
                for folder in rows:
                    if folder.name == "copy" and folder.status is FolderStatus.READY:
                        await life.folders.service.trash(user, str(folder.id))
                        await other.folders.service.purge(user, str(folder.id))
            rows = await one.settled()
        finally:
            running.cancel()
        assert [f.name for f in rows if f.status is FolderStatus.READY] == ["source"]
        assert len(list((tmp_path / "storage").glob("*/*/*"))) == 1
