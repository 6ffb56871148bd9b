"""Asking another installation: its real API, our real client."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from ai.backend.common.artifacts import RegistryType, RevisionStatus
from ai.backend.common.errors import ArtifactNotFound, Conflict, RegistryRefused, RegistryUnavailable
from ai.backend.common.ids import ArtifactId, RegistryId, RevisionId
from ai.backend.common.structs import replace
from ai.backend.manager.artifacts.gateway import ScanRequest
from ai.backend.manager.artifacts.model import Artifact, ArtifactRegistry, Revision, RevisionRow, ScannedArtifact
from ai.backend.manager.artifacts.reservoir_client import SdkReservoirs
from tests.component.manager.api.conftest import Api
from tests.support.cluster import free_port
from tests.support.fake_artifacts import FakeDepot, model
from tests.support.signed_http import RawClient

NOW = datetime(2026, 1, 1, tzinfo=UTC)
WITHIN_S = 20


def reservoir(api: Api, client: RawClient) -> ArtifactRegistry:
    return ArtifactRegistry(
        id=RegistryId(uuid4()),
        name="far",
        type=RegistryType.RESERVOIR,
        url=f"http://127.0.0.1:{api.port}",
        credentials={"access_key": client.access_key, "secret_key": client.secret_key},
        created_at=NOW,
        modified_at=NOW,
    )


async def scanned(registry: ArtifactRegistry, **wanted: object) -> list[ScannedArtifact]:
    request = ScanRequest(**wanted)  # type: ignore[arg-type]  # fields by name
    return [artifact async for page in SdkReservoirs().scan(registry, request) for artifact in page]


def row(registry: ArtifactRegistry, found: ScannedArtifact) -> RevisionRow:
    artifact = Artifact(
        id=ArtifactId(uuid4()),
        registry_id=registry.id,
        type=found.type,
        name=found.name,
        created_at=NOW,
        scanned_at=NOW,
    )
    revision = Revision(
        id=RevisionId(uuid4()),
        artifact_id=artifact.id,
        version="main",
        source=found.revisions[0].source,
        status_changed=NOW,
        created_at=NOW,
    )
    return RevisionRow(revision=revision, artifact=artifact, registry=registry)


@pytest.fixture
async def far(api: Api, depot: FakeDepot) -> ArtifactRegistry:
    """The installation, asked by its superadmin; it has a hub that it has not scanned."""
    depot.models = [model("acme/large"), model("acme/small"), model("other/tiny")]
    body = {"name": "hub", "type": "huggingface", "url": "http://hub.example"}
    assert (await api.admin.request("POST", "/artifact-registries", json=body)).status == 201
    return reservoir(api, api.admin)


async def test_delegation_and_what_becomes_of_it(api: Api, far: ArtifactRegistry) -> None:
    asked = SdkReservoirs()

    async def told(done: float, total: float) -> None:
        pass

    assert await scanned(far) == []
    await asked.delegate_scan(far, "hub", ScanRequest(), told)
    found = await scanned(far)
    assert [(a.name, a.extra["origin"]) for a in found] == [
        ("acme/large", "hub"), ("acme/small", "hub"), ("other/tiny", "hub"),
    ]  # fmt: skip
    assert [a.name for a in await scanned(far, search="acme", limit=1)] == ["acme/large"]
    [small] = await scanned(far, names=["acme/small"])
    assert small.readme == "# acme/small\n"
    revision = row(far, small)
    assert (await asked.revision(revision)).status is RevisionStatus.SCANNED
    with pytest.raises(Conflict, match="not AVAILABLE"):
        await asked.ticket(revision)
    for _ in range(2):
        await asked.delegate_import(revision)
    async with asyncio.timeout(WITHIN_S):
        while (await asked.revision(revision)).status is not RevisionStatus.AVAILABLE:  # noqa: ASYNC110  # as the loop
            await asyncio.sleep(0.05)
    assert (await asked.ticket(revision)).startswith("http://local.example/ticket?token=")
    # Any keypair sees and fetches what is available, and no more.
    member = reservoir(api, api.user)
    [seen] = await scanned(member)
    assert seen.name == "acme/small"
    assert await asked.ticket(row(member, seen))
    with pytest.raises(RegistryRefused, match="does not let our keypair do this"):
        await asked.delegate_import(row(member, seen))
    with pytest.raises(RegistryRefused):
        await asked.delegate_scan(member, "hub", ScanRequest(), told)


async def test_what_goes_wrong_is_told_apart(far: ArtifactRegistry) -> None:
    asked = SdkReservoirs()

    async def told(done: float, total: float) -> None:
        pass

    stale = row(far, model("acme/small"))
    with pytest.raises(ArtifactNotFound, match="scan it again"):
        await asked.revision(stale)
    gone = replace(stale, revision=replace(stale.revision, source={"revision_id": str(uuid4())}))
    with pytest.raises(ArtifactNotFound, match="far does not have it"):
        await asked.revision(gone)
    with pytest.raises(ArtifactNotFound):
        await asked.delegate_scan(far, "no-such-hub", ScanRequest(), told)
    wrong = replace(far, credentials={**far.credentials, "secret_key": "wrong"})
    with pytest.raises(RegistryRefused):
        await scanned(wrong)
    silent = replace(far, url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RegistryUnavailable, match="far does not answer"):
        await scanned(silent)
