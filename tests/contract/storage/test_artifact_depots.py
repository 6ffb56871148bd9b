"""What the manager needs of storage proxies for artifacts: the same of the fake and of the real daemon over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import aiohttp
import pytest
from yarl import URL

from ai.backend.common.artifacts import ArtifactType, RegistryType
from ai.backend.common.errors import AddressRefused, ArtifactIncomplete, ArtifactNotFound
from ai.backend.common.ids import ArtifactId, RegistryId, RevisionId
from ai.backend.common.structs import replace
from ai.backend.common.wire.artifacts import ImportPhase, ImportState, UploadFile
from ai.backend.infra.config_store import MemoryConfigStore
from ai.backend.manager.artifacts.client import StorageProxyArtifacts
from ai.backend.manager.artifacts.gateway import ArtifactGateway, ScanRequest
from ai.backend.manager.artifacts.loop import problem_of
from ai.backend.manager.artifacts.model import (
    Artifact,
    ArtifactRegistry,
    ArtifactSettings,
    Revision,
    RevisionRow,
    ScannedArtifact,
    Stages,
)
from ai.backend.manager.storage_proxy import StorageProxies
from ai.backend.storage.config.settings import StorageSettings
from ai.backend.storage.main import StorageProxy
from tests.support.fake_artifacts import CONTENT, FakeDepot, model
from tests.support.fake_hub import FakeHub, Model

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "a secret of the manager and its storage proxy"


def registry(url: str, kind: RegistryType = RegistryType.HUGGINGFACE) -> ArtifactRegistry:
    return ArtifactRegistry(id=RegistryId(uuid4()), name="hub", type=kind, url=url, created_at=NOW, modified_at=NOW)


def row(registry: ArtifactRegistry) -> RevisionRow:
    artifact = Artifact(
        id=ArtifactId(uuid4()),
        registry_id=registry.id,
        type=ArtifactType.MODEL,
        name="acme/tiny",
        created_at=NOW,
        scanned_at=NOW,
    )
    revision = Revision(
        id=RevisionId(uuid4()),
        artifact_id=artifact.id,
        version="main",
        attempt=1,
        stages=Stages(proxy="local", download="volume2", archive="volume1"),
        status_changed=NOW,
        created_at=NOW,
    )
    return RevisionRow(revision=revision, artifact=artifact, registry=registry)


async def ended(depot: ArtifactGateway, row: RevisionRow, state: ImportState | None) -> ImportState:
    async with asyncio.timeout(30):
        while state is None or not state.phase.has_ended:
            await asyncio.sleep(0.02)
            state = await depot.import_state(row) or await depot.begin_import(row)
        return state


class DepotContract:
    """Override ``depot`` with one that has the storages ``local:volume1`` and ``local:volume2``, and ``hub_url`` with a
    hub that has the model ``acme/tiny``."""

    @pytest.fixture
    def hub_url(self) -> str:
        return "http://hub.example"

    @pytest.fixture
    def depot(self) -> ArtifactGateway:
        pytest.fail("override depot")

    @pytest.fixture
    async def imported(self, depot: ArtifactGateway, hub_url: str) -> RevisionRow:
        made = row(registry(hub_url))
        state = await ended(depot, made, await depot.begin_import(made))
        assert state.phase is ImportPhase.DONE, state
        return made

    async def test_storages_are_told_by_host(self, depot: ArtifactGateway) -> None:
        storages = await depot.storages()
        assert {"local:volume1", "local:volume2"} <= set(storages)
        assert "mount" in storages["local:volume1"].capabilities
        assert "archive" in {stage for storage in storages.values() for stage in storage.stages}

    @pytest.mark.parametrize("request_", [ScanRequest(), ScanRequest(names=["acme/tiny"])])
    async def test_a_scan_tells_revisions_and_sizes(
        self, depot: ArtifactGateway, hub_url: str, request_: ScanRequest
    ) -> None:
        found: dict[str, ScannedArtifact] = {}
        async for page in depot.scan("local", registry(hub_url), request_):
            found |= {artifact.name: artifact for artifact in page}
        assert list(found) == ["acme/tiny"]
        [revision] = found["acme/tiny"].revisions
        assert (revision.version, revision.size, revision.file_count) == ("main", len(CONTENT), 1)
        assert revision.digest

    async def test_a_name_that_is_not_there(self, depot: ArtifactGateway, hub_url: str) -> None:
        with pytest.raises(ArtifactNotFound, match="acme/none"):
            async for _ in depot.scan("local", registry(hub_url), ScanRequest(names=["acme/none"])):
                pass

    async def test_an_import_may_be_begun_again_at_any_time(self, depot: ArtifactGateway, hub_url: str) -> None:
        made = row(registry(hub_url))
        assert await depot.import_state(made) is None
        first = await depot.begin_import(made)
        assert (first.revision_id, first.attempt) == (made.revision.id, 1)
        again = await depot.begin_import(made)
        state = await ended(depot, made, again)
        assert (state.phase, state.size, state.files, state.storage) == (
            ImportPhase.DONE, len(CONTENT), 1, "volume1",
        )  # fmt: skip
        assert (await depot.begin_import(made)).phase is ImportPhase.DONE

    async def test_what_is_archived(self, depot: ArtifactGateway, imported: RevisionRow) -> None:
        [file] = await depot.files(imported)
        assert (file.path, file.size, file.sha256) == ("weights", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
        state = await depot.mount(imported)
        assert state.path is not None
        assert (Path(state.path) / "weights").read_bytes() == CONTENT
        assert (await depot.presign(imported, "weights")).startswith("http")
        assert "token=" in await depot.ticket(imported)

    async def test_removing_may_be_repeated_and_leaves_nothing(
        self, depot: ArtifactGateway, imported: RevisionRow
    ) -> None:
        state = await depot.mount(imported)
        assert state.path is not None
        for _ in range(2):
            await depot.remove(imported)
        assert not (Path(state.path) / "weights").exists()
        assert await depot.import_state(imported) is None
        for gone in (depot.files, depot.mount):
            with pytest.raises(ArtifactNotFound):
                await gone(imported)
        await depot.remove(replace(imported, revision=replace(imported.revision, stages=None)))


class TestFake(DepotContract):
    @pytest.fixture
    def depot(self, tmp_path: Path) -> ArtifactGateway:
        return FakeDepot(tmp_path, models=[model("acme/tiny")])


class TestDaemon(DepotContract):
    @pytest.fixture
    async def hub(self) -> AsyncIterator[FakeHub]:
        async with FakeHub().serving() as hub:
            hub.models["acme/tiny"] = Model({"weights": CONTENT})
            yield hub

    @pytest.fixture
    def hub_url(self, hub: FakeHub) -> str:
        return hub.url

    @pytest.fixture
    async def depot(self, tmp_path: Path) -> AsyncIterator[ArtifactGateway]:
        settings = {
            "storage-proxy": {"secret": "a secret of the tokens, of 32 bytes or more"},
            "api": {"manager": {"secret": SECRET}},
            "volume": {name: {"backend": "vfs", "path": str(tmp_path / name)} for name in ("volume1", "volume2")},
            "artifacts": {"allowed-hosts": ["127.0.0.1"]},
        }
        proxy = StorageProxy(StorageSettings.model_validate(settings))
        await proxy.start(client=("127.0.0.1", 0), manager=("127.0.0.1", 0))
        config = MemoryConfigStore()
        await config.put_many({"volumes/proxies/local/manager_api": proxy.manager_url})
        await config.put_many({"volumes/proxies/local/secret": SECRET})
        proxies = StorageProxies(config)
        yield StorageProxyArtifacts(proxies, ArtifactSettings())
        await proxies.close()
        await proxy.stop()

    async def test_a_registry_where_the_proxy_does_not_go_is_refused(self, depot: ArtifactGateway) -> None:
        """That is no wrong secret of ours, and no reason to try for hours."""
        with pytest.raises(AddressRefused):
            _ = [page async for page in depot.scan("local", registry("http://127.0.0.2:1"), ScanRequest())]

    async def test_each_stage_has_its_storage(self, imported: RevisionRow, tmp_path: Path) -> None:
        def kept(volume: str) -> list[str]:
            return [
                p.name for p in (tmp_path / volume).rglob("*") if imported.revision.id.hex in str(p) and p.is_file()
            ]

        assert sorted(kept("volume1")) == ["manifest.json", "weights"]
        assert kept("volume2") == []

    async def test_urls_give_the_bytes_to_anybody(self, depot: ArtifactGateway, imported: RevisionRow) -> None:
        url = await depot.presign(imported, "weights")
        async with aiohttp.ClientSession() as http, http.get(URL(url, encoded=True)) as reply:
            assert (reply.status, await reply.read()) == (200, CONTENT)

    async def test_another_installation_imports_with_a_ticket(
        self, depot: ArtifactGateway, imported: RevisionRow
    ) -> None:
        copy = row(registry("http://far.example", RegistryType.RESERVOIR))
        state = await ended(depot, copy, await depot.begin_import(copy, ticket=await depot.ticket(imported)))
        assert state.phase is ImportPhase.DONE, state
        found = await depot.mount(copy)
        assert found.path is not None
        assert (Path(found.path) / "weights").read_bytes() == CONTENT

    async def test_an_upload_is_imported_once_all_of_it_is_there(self, depot: ArtifactGateway) -> None:
        made = row(registry("", RegistryType.LOCAL))
        early = await ended(depot, made, await depot.begin_import(made))
        assert isinstance(problem_of(early), ArtifactIncomplete)
        [(path, url)] = await depot.upload(made, [UploadFile(path="weights", size=len(CONTENT))])
        assert path == "weights"
        early = await ended(depot, made, await depot.begin_import(made))
        assert isinstance(problem_of(early), ArtifactIncomplete)
        async with aiohttp.ClientSession() as http, http.put(URL(url, encoded=True), data=CONTENT) as reply:
            assert reply.status == 200
        state = await ended(depot, made, await depot.begin_import(made))
        assert state.phase is ImportPhase.DONE, state
        assert [file.path for file in await depot.files(made)] == ["weights"]
