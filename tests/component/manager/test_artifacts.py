"""Artifacts in a real manager on a real SQLite file; the storage proxy and the other installation are in memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from ai.backend.common.artifacts import ArtifactType, RegistryType, RevisionStatus
from ai.backend.common.errors import (
    ArtifactChanged,
    ArtifactDamaged,
    BackendError,
    Conflict,
    InvalidInput,
    NotFound,
    RegistryRefused,
    Unavailable,
)
from ai.backend.common.structs import replace
from ai.backend.common.wire.artifacts import ImportPhase
from ai.backend.core.lifecycle.artifact import RevisionTrigger
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import SystemClock
from ai.backend.infra.database import Database
from ai.backend.infra.rpc.memory import MemoryLink
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.artifacts.facade import Artifacts
from ai.backend.manager.artifacts.gateway import ScanRequest
from ai.backend.manager.artifacts.loop import RevisionWriter
from ai.backend.manager.artifacts.model import ArtifactQuery, ArtifactSettings, Revision, RevisionRow
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.folders.model import CreateFolder
from ai.backend.manager.sessions.model import CreateSession
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.tasks.model import Task, TaskStatus
from tests.component.manager.fakes import FakeAgent
from tests.support.fake_artifacts import COMMIT, CONTENT, FakeDepot, FakeReservoirs, model
from tests.support.fake_storage import FakeStorage
from tests.support.migrated import migrated

S = RevisionStatus
WITHIN_S = 30


@dataclass
class House:
    """A manager whose artifact loop runs by itself."""

    manager: Manager
    link: MemoryLink
    depot: FakeDepot
    reservoirs: FakeReservoirs
    admin: Caller
    user: Caller

    @property
    def artifacts(self) -> Artifacts:
        assert self.manager.services.artifacts is not None
        return self.manager.services.artifacts

    async def add(self, name: str = "hub", kind: RegistryType = RegistryType.HUGGINGFACE, **more: object) -> None:
        keys = {"access_key": "AKIATEST", "secret_key": "secret"} if kind is RegistryType.RESERVOIR else {}
        await self.artifacts.registries.add(
            self.admin, name=name, type=kind, url="http://hub.example", credentials=keys, storages={}
        )

    async def scan(self, registry: str = "hub", delegate_to: str | None = None) -> Task:
        task_id = await self.artifacts.scans.scan(self.admin, registry, ScanRequest(), delegate_to=delegate_to)
        steps = [task async for task in self.manager.services.tasks.subscribe(self.admin, task_id)]
        return steps[-1]

    async def revision(self, ref: str) -> Revision:
        return (await self.artifacts.service.revision(self.admin, ref)).revision

    async def begin(self, *refs: str, delegate: bool = False) -> list[RevisionRow]:
        return await self.artifacts.imports.begin(self.admin, refs, delegate=delegate)

    async def until(self, ref: str, status: S, *, residue: bool = False, info: str = "") -> Revision:
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = await self.revision(ref)
                told = info in (found.status_info or "")
                if found.status is status and found.residue is residue and told:
                    return found
                self.artifacts.loop.wake()
                await asyncio.sleep(0.02)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110  # what is awaited is in rows and fakes
            await asyncio.sleep(0.01)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    link, database = MemoryLink(), Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
    depot, reservoirs = FakeDepot(tmp_path / "depot"), FakeReservoirs()
    depot.models = [model("acme/large", "main", "v1"), model("acme/small"), model("other/tiny")]
    manager = Manager(
        ManagerSettings(sessions=SessionSettings(destroy_wait_s=5.0)),
        database,
        Bus(),
        link.manager,
        storage=FakeStorage(tmp_path / "storage", "local:volume1"),
        artifacts=depot,
        reservoirs=reservoirs,
        hash_password=str,
    )
    await manager.start()
    await link.manager.start(manager.reports)
    await manager.bootstrap.run(vfolder_hosts=["local:volume1"])
    callers = []
    for email in ("admin@local", "user@local"):
        pair = await manager.bootstrap.main_keypair(email)
        assert pair is not None
        found = await manager.services.identity.credentials(pair.access_key)
        assert found is not None
        callers.append(found.caller)
    yield House(manager, link, depot, reservoirs, *callers)
    await link.manager.stop()
    await manager.stop()
    await database.close()


# ---- scanning ----


async def test_a_scan_of_several_pages_is_idempotent(house: House) -> None:
    await house.add()
    assert (await house.scan()).message == ("hub has 3 artifacts with 4 revisions; 3 artifacts and 4 revisions are new")
    before = await house.artifacts.service.page(house.admin, ArtifactQuery())
    house.depot.models[1] = replace(house.depot.models[1], description="another text", readme=None)
    house.depot.models.append(model("other/new"))
    assert (await house.scan()).message.endswith("; 1 artifacts and 1 revisions are new")
    after = await house.artifacts.service.page(house.admin, ArtifactQuery())
    assert [row.artifact.name for row in after.items] == ["acme/large", "acme/small", "other/new", "other/tiny"]
    assert after.total_count == 4
    ids = {row.artifact.name: row.artifact.id for row in before.items}
    assert all(ids.get(row.artifact.name, row.artifact.id) == row.artifact.id for row in after.items)
    small = after.items[1].artifact
    assert (small.description, small.readme) == ("another text", "# acme/small\n"), "what was not told again stays"


async def test_lists_are_filtered_and_paged(house: House) -> None:
    await house.add()
    await house.scan()
    page = house.artifacts.service.page

    async def names(**wanted: object) -> list[str]:
        return [r.artifact.name for r in (await page(house.admin, ArtifactQuery(**wanted))).items]  # type: ignore[arg-type]  # fields by name

    assert await names(limit=2) == ["acme/large", "acme/small"]
    assert await names(limit=2, offset=2) == ["other/tiny"]
    assert await names(search="ACME") == ["acme/large", "acme/small"]
    assert await names(search="%") == []
    assert await names(type=ArtifactType.IMAGE) == []
    assert await names(status=S.AVAILABLE) == []


async def test_a_scan_that_fails_says_why_and_keeps_what_it_has_found(house: House) -> None:
    await house.add()
    house.depot.page, house.depot.down_after = 1, 1
    task = await house.scan()
    assert task.status is TaskStatus.FAILED
    assert "does not answer" in (task.message or "")
    assert (await house.artifacts.service.page(house.admin, ArtifactQuery())).total_count == 1
    house.depot.down, house.depot.down_after = False, None
    assert (await house.scan()).message.startswith("hub has 3 artifacts")


# ---- importing ----


async def test_an_import_passes_every_status_and_is_cleaned_up(house: House) -> None:
    await house.add()
    await house.scan()
    house.depot.hold = ImportPhase.DOWNLOADING
    [row] = await house.begin("acme/small")
    assert row.revision.status is S.PULLING
    await eventually(lambda: house.artifacts.imports.progress(row.revision) is not None)
    progress = house.artifacts.imports.progress(row.revision)
    assert progress is not None
    assert (progress.phase, progress.current, progress.total) == ("downloading", 3, len(CONTENT))
    house.depot.hold = ImportPhase.ARCHIVING
    pulled = await house.until("acme/small", S.PULLED)
    again = await house.begin("acme/small")
    assert again[0].revision == pulled, "an import of what is being imported changes nothing"
    house.depot.gate.set()
    found = await house.until("acme/small", S.AVAILABLE)
    assert (found.size, found.file_count, found.imported_digest) == (len(CONTENT), 1, COMMIT)
    assert found.stages is not None
    assert (found.stages.proxy, found.stages.archive) == ("local", "volume1")
    assert {attempt for _, attempt, _ in house.depot.begun} == {1}
    with pytest.raises(Conflict, match="acme/small@main cannot be cancelled: its import is done"):
        await house.artifacts.imports.cancel(house.admin, ["acme/small"])
    with pytest.raises(Conflict, match="clean it up first"):
        await house.artifacts.imports.delete(house.admin, "acme/small")
    with pytest.raises(Conflict, match="clean it up first"):
        await house.artifacts.registries.remove(house.admin, "hub")
    await house.artifacts.imports.clean_up(house.admin, ["acme/small"])
    gone = await house.until("acme/small", S.SCANNED)
    assert gone.id == found.id
    assert not house.depot.directory(row).exists()
    await house.begin("acme/small")
    assert (await house.until("acme/small", S.AVAILABLE)).attempt == 2
    await house.artifacts.imports.clean_up(house.admin, ["acme/small"])
    await house.until("acme/small", S.SCANNED)
    await house.artifacts.registries.remove(house.admin, "hub")
    assert (await house.artifacts.service.page(house.admin, ArtifactQuery())).total_count == 0


@pytest.mark.parametrize("phase", [ImportPhase.DOWNLOADING, ImportPhase.VERIFYING, ImportPhase.ARCHIVING])
async def test_an_import_is_cancelled_in_any_phase_and_begun_anew(house: House, phase: ImportPhase) -> None:
    await house.add()
    await house.scan()
    house.depot.hold = phase
    [row] = await house.begin("acme/small")
    await house.until("acme/small", S.PULLING if phase is ImportPhase.DOWNLOADING else S.PULLED)
    with pytest.raises(Conflict, match="cannot be cleaned up: it is being imported"):
        await house.artifacts.imports.clean_up(house.admin, ["acme/small"])
    await house.artifacts.imports.cancel(house.admin, ["acme/small"])
    found = await house.until("acme/small", S.SCANNED, info="cancelled")
    assert house.depot.removed == [row.revision.id]
    assert found.stages is None
    with pytest.raises(Conflict, match="it is not being imported"):
        await house.artifacts.imports.cancel(house.admin, ["acme/small"])
    house.depot.gate.set()
    await house.begin("acme/small")
    assert (await house.until("acme/small", S.AVAILABLE)).status_info is None


async def test_what_is_left_over_is_removed_before_the_next_import_begins(house: House) -> None:
    await house.add()
    await house.scan()
    house.depot.hold = ImportPhase.ARCHIVING
    [row] = await house.begin("acme/small")
    await house.until("acme/small", S.PULLED)
    house.depot.down = True
    await house.artifacts.imports.cancel(house.admin, ["acme/small"])
    await house.until("acme/small", S.SCANNED, residue=True)
    with pytest.raises(Unavailable, match="No storage proxy"):
        await house.begin("acme/small")
    house.depot.down = False
    house.depot.gate.set()
    await house.begin("acme/small")
    await house.until("acme/small", S.AVAILABLE)
    order = [attempt for _, attempt, _ in house.depot.begun]
    assert set(house.depot.removed) == {row.revision.id}, "once, or again where the first answer did not come in time"
    assert order[0] == 1
    assert order[-1] == 2


@pytest.mark.parametrize(
    ("failure", "tries"),
    [(ArtifactChanged("The commit is another one."), 1), (ArtifactDamaged("The bytes are damaged."), 3)],
)
async def test_a_failed_import_goes_back_with_its_reason(house: House, failure: BackendError, tries: int) -> None:
    await house.add()
    await house.scan()
    house.depot.failure = failure
    await house.begin("acme/small")
    found = await house.until("acme/small", S.SCANNED)
    assert found.status_info == failure.message
    assert len(house.depot.begun) == tries
    assert house.depot.removed == [found.id]


async def test_a_silent_proxy_is_asked_again_until_the_deadline(house: House) -> None:
    await house.add()
    await house.scan()
    await house.artifacts.registries.stages(await house.artifacts.registries.find("hub"))
    house.depot.failure = Unavailable("The hub does not answer.")
    await house.begin("acme/small")
    await house.until("acme/small", S.PULLING, info="The hub does not answer. (It is tried again.)")
    house.depot.failure = None
    assert (await house.until("acme/small", S.AVAILABLE)).status_info is None


async def test_an_import_that_nobody_answers_is_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    await house.add()
    await house.scan()
    house.depot.failure = Unavailable("The hub does not answer.")
    monkeypatch.setattr(house.artifacts.loop, "_give_up", timedelta(seconds=0.05))
    await house.begin("acme/small")
    assert (await house.until("acme/small", S.SCANNED)).status_info == "The hub does not answer."


async def test_stages_come_from_registry_settings_and_proxy(house: House) -> None:
    settings = ArtifactSettings(archive_storage="local:bucket")
    registries = replace(house.artifacts.registries, settings=settings)
    await house.add()
    hub = await registries.find("hub")
    told = await registries.stages(hub)
    assert (told.proxy, told.download, told.archive) == ("local", "", "bucket")
    told = await registries.stages(replace(hub, storages={"archive": "local:volume1", "verify": "local:bucket"}))
    assert (told.verify, told.archive) == ("bucket", "volume1")
    with pytest.raises(InvalidInput, match="one storage proxy"):
        await registries.stages(replace(hub, storages={"download": "far:away"}))
    with pytest.raises(NotFound, match="no storage 'local:nowhere'"):
        await registries.stages(replace(hub, storages={"download": "local:nowhere"}))
    with pytest.raises(Unavailable, match="'gone:volume1' does not answer"):
        await registries.stages(replace(hub, storages={"download": "gone:volume1"}))


@pytest.mark.parametrize("seed", [1, 2])
async def test_whatever_is_asked_at_once_row_and_files_agree_in_the_end(house: House, seed: int) -> None:
    chance = random.Random(seed)
    await house.add()
    await house.scan()
    refs = ["acme/large@main", "acme/large@v1", "acme/small"]
    imports = house.artifacts.imports

    async def ask() -> None:
        operation = chance.choice([imports.begin, imports.begin, imports.cancel, imports.clean_up, imports.clean_up])
        with contextlib.suppress(Conflict, Unavailable):
            await operation(house.admin, chance.sample(refs, chance.randint(1, 3)))

    for _ in range(25):
        house.depot.down = chance.random() < 0.1
        house.depot.failure = ArtifactDamaged("damaged") if chance.random() < 0.05 else None
        await asyncio.gather(*(ask() for _ in range(chance.randint(1, 3))))
        await asyncio.sleep(chance.choice([0, 0.02, 0.5]))  # an import takes 0.3 s
    house.depot.down, house.depot.failure = False, None
    with contextlib.suppress(Conflict):
        await imports.clean_up(house.admin, [chance.choice(refs)])
    for ref in refs:
        async with asyncio.timeout(WITHIN_S):
            while True:
                row = await house.artifacts.service.revision(house.admin, ref)
                if row.revision.status in (S.SCANNED, S.AVAILABLE) and not row.revision.residue:
                    break
                house.artifacts.loop.wake()
                await asyncio.sleep(0.02)
        is_there = (house.depot.directory(row) / "weights").exists()
        assert is_there is (row.revision.status is S.AVAILABLE), row


# ---- other installations ----


async def test_an_import_from_an_installation_takes_its_ticket(house: House) -> None:
    await house.add("far", RegistryType.RESERVOIR)
    house.reservoirs.models = [model("acme/small")]
    await house.scan("far")
    await house.begin("acme/small")
    await house.until("acme/small", S.AVAILABLE)
    assert house.depot.begun[0][2] == f"http://far.example/artifacts/manifest?token={house.depot.begun[0][0]}"
    await house.add()
    with pytest.raises(InvalidInput, match="Only another installation can scan"):
        await house.scan("hub", delegate_to="x")


async def test_delegation_has_the_other_one_scan_and_import_first(house: House) -> None:
    await house.add("far", RegistryType.RESERVOIR)
    house.reservoirs.models, house.reservoirs.status = [model("acme/small")], S.SCANNED
    await house.scan("far", delegate_to="their-hub")
    assert house.reservoirs.scans == ["their-hub"]
    await house.begin("acme/small")
    await house.until("acme/small", S.SCANNED, info="import it with delegation")
    await house.begin("acme/small", delegate=True)
    await house.until("acme/small", S.PULLING, info="waiting for far")
    house.reservoirs.status = S.PULLED
    await house.until("acme/small", S.PULLING, info="waiting for far")
    assert len(house.reservoirs.delegated) == 1, "it is asked once"
    house.reservoirs.status = S.AVAILABLE
    assert (await house.until("acme/small", S.AVAILABLE)).status_info is None


async def test_a_delegated_import_that_fails_there_fails_here(house: House) -> None:
    await house.add("far", RegistryType.RESERVOIR)
    house.reservoirs.models, house.reservoirs.status = [model("acme/small")], S.SCANNED
    await house.scan("far")
    await house.begin("acme/small", delegate=True)
    await house.until("acme/small", S.PULLING, info="waiting for far")
    house.reservoirs.status, house.reservoirs.status_info = S.SCANNED, "its disk is full"
    await house.until("acme/small", S.SCANNED, info="far could not import acme/small@main: its disk is full")


async def test_a_ticket_that_has_expired_is_asked_for_again(house: House) -> None:
    await house.add("far", RegistryType.RESERVOIR)
    house.reservoirs.models = [model("acme/small")]
    await house.scan("far")
    house.depot.failure = RegistryRefused("The ticket has expired.")
    await house.begin("acme/small")
    await house.until("acme/small", S.PULLING, info="has expired")
    house.depot.failure = None
    await house.until("acme/small", S.AVAILABLE)
    assert len(house.depot.begun) >= 2
    assert {attempt for _, attempt, _ in house.depot.begun} == {1}


# ---- names ----


async def test_references_name_one_revision(house: House) -> None:
    await house.add()
    await house.scan()
    revision = house.artifacts.service.revision
    main = (await revision(house.admin, "acme/large")).revision
    assert main.version == "main"
    assert (await revision(house.admin, "acme/large@v1")).revision.version == "v1"
    assert (await revision(house.admin, str(main.id))).revision == main
    assert (await revision(house.admin, f"{main.artifact_id}@v1")).revision.version == "v1"
    with pytest.raises(NotFound, match="no revision 'v9'"):
        await revision(house.admin, "acme/large@v9")
    with pytest.raises(NotFound, match="no artifact"):
        await revision(house.admin, "acme/none")
    await house.begin("acme/large@v1")
    await house.until("acme/large@v1", S.AVAILABLE)
    assert (await revision(house.admin, "acme/large")).revision.version == "main"
    for who in (house.admin, house.user):
        assert (await revision(who, "acme/large", usable=True)).revision.version == "v1", "what can be used is meant"
    await house.add("second")
    await house.scan("second")
    with pytest.raises(Conflict, match="use an id") as refused:
        await revision(house.admin, "acme/large")
    assert {match["registry"] for match in refused.value.data["matches"]} == {"hub", "second"}
    house.depot.models = [model("acme/tagged", "v1", "v2")]
    await house.scan()
    with pytest.raises(Conflict, match=r"Say which revision of 'acme/tagged': v1, v2"):
        await revision(house.admin, "acme/tagged")


# ---- mounting ----


@pytest.fixture
async def agent(house: House) -> AsyncIterator[FakeAgent]:
    agent = FakeAgent()
    endpoint = house.link.agent_endpoint(agent.agent_id)
    await endpoint.start(agent)
    agent.reports = endpoint.reports
    await agent.beat()
    yield agent
    await agent.close()


async def _session(house: House, name: str, *mounts: str, **more: object) -> object:
    return await house.manager.services.sessions.create(
        house.user,
        CreateSession(image="python", name=name, mounts=mounts, **more),  # type: ignore[arg-type]  # fields by name
    )


async def test_a_session_mounts_what_is_available(house: House, agent: FakeAgent) -> None:
    await house.add()
    await house.scan()
    for ref, why in {
        "artifact:acme/small": "no artifact 'acme/small'",
        "artifact:acme/none@v1": "no artifact 'acme/none'",
        "artifact:": "no artifact ''",
    }.items():
        with pytest.raises(InvalidInput, match=why):
            await _session(house, "early", ref)
    [row] = await house.begin("acme/small")
    await house.until("acme/small", S.AVAILABLE)
    with pytest.raises(InvalidInput, match="for reading only"):
        await _session(
            house, "early", "artifact:acme/small", mount_options={"artifact:acme/small": {"permission": "rw"}}
        )
    with pytest.raises(InvalidInput, match="nothing can be mounted at '/etc'"):
        await _session(house, "early", "artifact:acme/small:/etc")
    with pytest.raises(InvalidInput, match="not among the mounts"):
        await _session(house, "early", "artifact:acme/small", mount_map={"artifact:acme/other": "/models"})
    await _session(house, "first", "artifact:acme/small")
    await _session(house, "second", "artifact:acme/small@main", mount_map={"artifact:acme/small@main": "/models/s"})
    await eventually(lambda: len(agent.created) == 2)
    mounts = {m.target: m for spec in agent.created for m in spec.mounts}
    assert set(mounts) == {"/home/work/small", "/models/s"}
    assert all(m.read_only and m.source == str(house.depot.directory(row)) for m in mounts.values())
    assert mounts["/models/s"].name == "artifact:acme/small@main"
    with pytest.raises(Conflict, match=r"cannot be cleaned up: the session '(first|second)' mounts it"):
        await house.artifacts.imports.clean_up(house.admin, ["acme/small"])
    for name in ("first", "second"):
        await house.manager.services.sessions.destroy(house.user, name)
    await house.artifacts.imports.clean_up(house.admin, ["acme/small"])
    await house.until("acme/small", S.SCANNED)


@pytest.mark.usefixtures("agent")
async def test_an_artifact_and_a_folder_are_not_mounted_into_each_other(house: House) -> None:
    await house.add()
    await house.scan()
    await house.begin("acme/small")
    await house.until("acme/small", S.AVAILABLE)
    assert house.manager.services.folders is not None
    await house.manager.services.folders.service.create(house.user, CreateFolder(name="small"))
    with pytest.raises(InvalidInput, match="inside of"):
        await _session(house, "both", "artifact:acme/small", "small")


async def test_a_change_that_was_seen_too_late_is_not_written(house: House) -> None:
    await house.add()
    await house.scan()
    house.depot.hold = ImportPhase.DOWNLOADING
    [row] = await house.begin("acme/small")
    writer = RevisionWriter(house.manager.stores.artifacts, SystemClock())  # type: ignore[arg-type]  # there is one
    assert await writer.update(row.revision, status_info="first") is not None
    assert await writer.update(row.revision, status_info="second") is None
    assert await writer.apply(row.revision, RevisionTrigger.DOWNLOADED) is None
    found = await house.revision("acme/small")
    assert (found.status, found.status_info) == (S.PULLING, "first")
