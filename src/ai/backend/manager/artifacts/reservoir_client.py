"""Calls other installations of this platform with the SDK, through their public API.

The credentials of a registry are a keypair of the other installation. Any user's keypair sees and fetches available
artifacts; delegated scans and imports need a superadmin's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from ai.backend.common.artifacts import ArtifactType, RevisionStatus
from ai.backend.common.errors import ArtifactNotFound, BackendError, Conflict, RegistryRefused, RegistryUnavailable
from ai.backend.manager.artifacts.gateway import Pages, Progress, RemoteRevision, ScanRequest
from ai.backend.manager.artifacts.model import ArtifactRegistry, RevisionRow, ScannedArtifact, ScannedRevision

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_PAGE_ARTIFACTS = 100
_TIMEOUT_S = 30.0


class _Revision(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    version: str
    status: RevisionStatus
    status_info: str | None = None
    size: int | None = None
    file_count: int | None = None
    digest: str | None = None


class _Artifact(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: ArtifactType
    name: str
    description: str = ""
    readme: str | None = None
    registry: str = ""
    extra: dict[str, Any] = {}
    restricted: bool = False
    revisions: list[_Revision] = []


class SdkReservoirs:
    """Implements :class:`ai.backend.manager.artifacts.gateway.Reservoirs` with the SDK."""

    @asynccontextmanager
    async def _session(self, registry: ArtifactRegistry) -> AsyncIterator[AsyncSession]:
        from ai.backend.client import exceptions
        from ai.backend.client.config import APIConfig
        from ai.backend.client.session import AsyncSession

        config = APIConfig(
            endpoint=registry.url,
            endpoint_type="api",
            access_key=registry.credentials["access_key"],
            secret_key=registry.credentials["secret_key"],
            domain="default",
            group="default",
            hash_type="sha256",
            vfolder_mounts=(),
            skip_sslcert_validation=False,
            connection_timeout=10.0,
            read_timeout=_TIMEOUT_S,
        )
        try:
            async with AsyncSession(config=config) as api:
                yield api
        except exceptions.BackendAPIError as e:
            raise _refusal(registry, e.status, str(e)) from e
        except exceptions.BackendClientError as e:
            raise RegistryUnavailable(f"{registry.name} does not answer: {e}") from e
        except (msgspec.ValidationError, KeyError, TypeError) as e:
            raise RegistryUnavailable(f"{registry.name} answers what cannot be understood: {e}") from e

    async def scan(self, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        seen_keys: set[tuple[ArtifactType, str]] = set()
        async with self._session(registry) as api:
            async for page in self._pages(api, request):
                new_artifacts = [artifact for artifact in page if (artifact.type, artifact.name) not in seen_keys]
                if not new_artifacts:
                    continue
                # Equal names from several registries of the other installation become one artifact.
                seen_keys |= {(artifact.type, artifact.name) for artifact in new_artifacts}
                yield [_scanned_artifact(artifact) for artifact in new_artifacts]
                if len(seen_keys) >= request.limit and not request.names:
                    return

    async def _pages(self, api: AsyncSession, request: ScanRequest) -> AsyncIterator[list[_Artifact]]:
        if request.names:
            for batch_start in range(0, len(request.names), _PAGE_ARTIFACTS):
                names = request.names[batch_start : batch_start + _PAGE_ARTIFACTS]
                yield [msgspec.convert(await api.Artifact.info(name), _Artifact) for name in names]
            return
        offset = 0
        while True:
            page_size = min(_PAGE_ARTIFACTS, request.limit)
            page = await api.Artifact.list(
                artifact_type=request.type and request.type.value, search=request.search, limit=page_size, offset=offset
            )
            yield msgspec.convert(page["items"], list[_Artifact])
            offset += page_size
            if offset >= min(int(page["total_count"]), request.limit):
                return

    async def delegate_scan(
        self, registry: ArtifactRegistry, remote_registry: str, request: ScanRequest, progress: Progress
    ) -> None:
        async with self._session(registry) as api:
            task_id = await api.Artifact.scan(
                remote_registry,
                artifact_type=request.type and request.type.value,
                search=request.search,
                author=request.author,
                names=request.names,
                limit=request.limit,
                closely=request.closely,
            )
            async for step in api.BackgroundTask(task_id).progress():
                if step.is_final:
                    if step.state != "done":
                        raise Conflict(f"The scan of {remote_registry} by {registry.name} {step.state}: {step.message}")
                    return
                await progress(step.current, step.total)

    async def revision(self, row: RevisionRow) -> RemoteRevision:
        async with self._session(row.registry) as api:
            remote = msgspec.convert(await api.Artifact.revision(_remote_id(row)), _Revision)
            return RemoteRevision(status=remote.status, status_info=remote.status_info)

    async def delegate_import(self, row: RevisionRow) -> None:
        async with self._session(row.registry) as api:
            await api.Artifact.import_revisions([_remote_id(row)])

    async def ticket(self, row: RevisionRow) -> str:
        async with self._session(row.registry) as api:
            return await api.Artifact.ticket(_remote_id(row))


def _remote_id(row: RevisionRow) -> str:
    source: Mapping[str, Any] = row.revision.source
    if not isinstance(source.get("revision_id"), str):
        raise ArtifactNotFound(f"It is not known what {row.registry.name} calls {row.ref}: scan it again.")
    return str(source["revision_id"])


def _scanned_artifact(artifact: _Artifact) -> ScannedArtifact:
    revisions: Sequence[_Revision] = artifact.revisions
    return ScannedArtifact(
        type=artifact.type,
        name=artifact.name,
        description=artifact.description,
        readme=artifact.readme,
        extra={**artifact.extra, "origin": artifact.registry},
        restricted=artifact.restricted,
        revisions=[
            ScannedRevision(
                version=revision.version,
                size=revision.size,
                file_count=revision.file_count,
                digest=revision.digest,
                source={"revision_id": revision.id},
                remote_status=revision.status,
            )
            for revision in revisions
        ],
    )


def _refusal(registry: ArtifactRegistry, status: int, error_text: str) -> BackendError:
    if status in (401, 403):
        return RegistryRefused(f"{registry.name} does not let our keypair do this: {error_text}")
    if status == 404:
        return ArtifactNotFound(f"{registry.name} does not have it, or does not show it to our keypair: {error_text}")
    if status >= 500 or status == 429:
        return RegistryUnavailable(f"{registry.name} cannot do it now: {error_text}")
    return Conflict(f"{registry.name} refuses: {error_text}")
