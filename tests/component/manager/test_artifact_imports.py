"""Imports through a real storage proxy from a hub: manager and proxy are killed, and nothing stays half-way."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self

import pytest

from ai.backend.common.artifacts import RegistryType, RevisionStatus
from ai.backend.common.errors import NotFound
from ai.backend.infra.bus import Bus
from ai.backend.infra.config_store import SQLiteConfigStore
from ai.backend.infra.database import Database
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.artifacts.facade import Artifacts
from ai.backend.manager.artifacts.gateway import ScanRequest
from ai.backend.manager.artifacts.model import Revision, RevisionRow
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.crash_points import ARTIFACT_CRASH_POINTS
from tests.support.fake_hub import FakeHub, Model
from tests.support.forked import ForkedPopen
from tests.support.storage_proxy import MANAGER_SECRET, ProxyProcess

S = RevisionStatus
WITHIN_S = 60
FILES = {"config.json": b'{"hidden_size": 8}', "data/model.safetensors": os.urandom(300_000)}


class Life:
    """One life of a manager on the files of ``path``, with one storage proxy and one hub."""

    def __init__(self, path: Path, proxy_url: str, hub_url: str) -> None:
        self._database = Database(f"sqlite:///{path / 'manager.db'}")
        self.manager = Manager(ManagerSettings(), self._database, Bus(), MemoryLink().manager, hash_password=str)
        self._proxy_url, self._hub_url = proxy_url, hub_url

    async def __aenter__(self) -> Self:
        await self.manager.migrate()
        place = "volumes/proxies/local/"
        told = {"manager_api": self._proxy_url, "client_api": self._proxy_url, "secret": MANAGER_SECRET}
        await SQLiteConfigStore(self._database).put_many({place + key: value for key, value in told.items()})
        await self.manager.bootstrap.run()
        await self.manager.start()
        pair = await self.manager.bootstrap.main_keypair("admin@local")
        assert pair is not None
        found = await self.manager.services.identity.credentials(pair.access_key)
        assert found is not None
        self.admin: Caller = found.caller
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.manager.stop()
        await self._database.close()

    @property
    def artifacts(self) -> Artifacts:
        assert self.manager.services.artifacts is not None
        return self.manager.services.artifacts

    async def row(self) -> RevisionRow:
        return await self.artifacts.service.revision(self.admin, "acme/tiny")

    async def until(self, status: S) -> Revision:
        """With nothing left over."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = (await self.row()).revision
                if found.status is status and not found.residue:
                    return found
                self.artifacts.loop.wake()
                await asyncio.sleep(0.05)

    async def settled(self) -> Revision:
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = (await self.row()).revision
                if found.status in (S.SCANNED, S.AVAILABLE) and not found.residue:
                    return found
                await asyncio.sleep(0.05)

    async def scan(self) -> None:
        try:
            await self.artifacts.registries.find("hub")
        except NotFound:
            await self.artifacts.registries.add(
                self.admin, name="hub", kind=RegistryType.HUGGINGFACE, url=self._hub_url, credentials={}, storages={}
            )
        task = await self.artifacts.scans.scan(self.admin, "hub", ScanRequest())
        steps = [step async for step in self.manager.services.tasks.subscribe(self.admin, task)]
        assert steps[-1].status.value == "bgtask_done", steps[-1].message

    async def begin(self) -> None:
        await self.artifacts.imports.begin(self.admin, ["acme/tiny"])

    async def clean_up(self) -> None:
        await self.artifacts.imports.clean_up(self.admin, ["acme/tiny"])
        await self.until(S.SCANNED)

    async def directory(self) -> Path:
        state = await self.artifacts.mounts.gateway.mount(await self.row())
        assert state.path is not None
        return Path(state.path)

    async def check_files(self) -> None:
        directory = await self.directory()
        assert {path: (directory / path).read_bytes() for path in FILES} == FILES


async def doomed(path: str, proxy_url: str, hub_url: str) -> None:
    """A scan, an import and a cleanup, after whatever an earlier life has left."""
    async with Life(Path(path), proxy_url, hub_url) as life:
        await life.scan()
        if (await life.settled()).status is S.AVAILABLE:
            await life.clean_up()
        await life.begin()
        await life.until(S.AVAILABLE)
        await life.clean_up()


@pytest.fixture
async def hub() -> AsyncIterator[FakeHub]:
    async with FakeHub().serving() as hub:
        hub.models["acme/tiny"] = Model(FILES)
        yield hub


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """One for all tests of this module: every revision has an id of its own."""
    proxy = ProxyProcess(tmp_path_factory.mktemp("proxy"), {"artifacts": {"allowed-hosts": ["127.0.0.1"]}})
    proxy.start()
    yield proxy
    proxy.stop()


async def left(proxy: ProxyProcess, life: Life) -> list[str]:
    """Files of the revision on the volume, whatever they are."""
    revision = (await life.row()).revision.id
    found = [str(p) for p in (proxy.root / "volume1").rglob("*") if p.is_file()]
    return [path for path in found if str(revision) in path or revision.hex in path]


@pytest.mark.timeout(300)
async def test_a_manager_killed_anywhere_goes_on_in_its_next_life(
    tmp_path: Path, proxy: ProxyProcess, hub: FakeHub
) -> None:
    arguments = (str(tmp_path), proxy.manager_url, hub.url)
    code = f"import asyncio; from {__name__} import doomed; asyncio.run(doomed(*{arguments!r}))"
    for point in ARTIFACT_CRASH_POINTS:
        process = ForkedPopen([sys.executable, "-c", code], env={**os.environ, "BACKENDAI_CRASH_POINT": point})
        assert await process.ended() == -9, point
    async with Life(*(tmp_path, *arguments[1:])) as life:
        found = await life.settled()
        assert (found.status, found.status_info) == (S.SCANNED, None)
        assert await left(proxy, life) == []
        await life.begin()
        await life.until(S.AVAILABLE)
        await life.check_files()
        await life.clean_up()
        assert await left(proxy, life) == []


@pytest.mark.timeout(200)
async def test_a_proxy_killed_in_any_stage_goes_on(tmp_path: Path, proxy: ProxyProcess, hub: FakeHub) -> None:
    async with Life(tmp_path, proxy.manager_url, hub.url) as life:
        await life.scan()
        for point in ("artifact.part", "artifact.verified", "artifact.archived"):
            await asyncio.to_thread(proxy.stop, kill=True)
            await asyncio.to_thread(proxy.start, point)
            await life.begin()
            assert await asyncio.to_thread(proxy.wait_killed), point
            await asyncio.to_thread(proxy.start)
            found = await life.until(S.AVAILABLE)
            assert found.status_info is None
            await life.check_files()
            await life.clean_up()
        await life.begin()
        await life.until(S.AVAILABLE)
        await asyncio.to_thread(proxy.stop, kill=True)
        await asyncio.to_thread(proxy.start, "artifact.deleting")
        await life.artifacts.imports.clean_up(life.admin, ["acme/tiny"])
        assert await asyncio.to_thread(proxy.wait_killed)
        await asyncio.to_thread(proxy.start)
        await life.until(S.SCANNED)
        assert await left(proxy, life) == []


@pytest.mark.timeout(120)
async def test_a_cancel_while_bytes_come_leaves_nothing(tmp_path: Path, proxy: ProxyProcess, hub: FakeHub) -> None:
    async with Life(tmp_path, proxy.manager_url, hub.url) as life:
        await life.scan()
        hub.gate.clear()
        await life.begin()
        async with asyncio.timeout(WITHIN_S):
            progress = None
            while progress is None or not progress.current:
                await asyncio.sleep(0.05)
                progress = life.artifacts.imports.progress((await life.row()).revision)
        assert progress.total == sum(map(len, FILES.values()))
        await life.artifacts.imports.cancel(life.admin, ["acme/tiny"])
        found = await life.until(S.SCANNED)
        assert found.status_info == "cancelled"
        assert await left(proxy, life) == []
        hub.gate.set()
        await life.begin()
        await life.until(S.AVAILABLE)
        await life.check_files()


@pytest.mark.timeout(120)
async def test_a_model_that_changes_after_its_scan_is_not_imported(
    tmp_path: Path, proxy: ProxyProcess, hub: FakeHub
) -> None:
    async with Life(tmp_path, proxy.manager_url, hub.url) as life:
        await life.scan()
        hub.models["acme/tiny"] = Model({**FILES, "config.json": b"{}"})
        await life.begin()
        found = await life.until(S.SCANNED)
        assert "another commit" in (found.status_info or "")
        await life.scan()
        await life.begin()
        found = await life.until(S.AVAILABLE)
        assert not found.is_outdated
        hub.models["acme/tiny"] = Model(FILES)
        await life.scan()
        assert (await life.row()).revision.is_outdated


@pytest.mark.timeout(120)
async def test_a_hub_that_refuses_ends_the_import_with_its_reason(
    tmp_path: Path, proxy: ProxyProcess, hub: FakeHub
) -> None:
    async with Life(tmp_path, proxy.manager_url, hub.url) as life:
        await life.scan()
        hub.token = "hf_secret"
        await life.begin()
        found = await life.until(S.SCANNED)
        assert found.status_info
        assert "hf_secret" not in found.status_info
        await life.artifacts.registries.change(life.admin, "hub", credentials={"token": "hf_secret"})
        await life.begin()
        await life.until(S.AVAILABLE)
