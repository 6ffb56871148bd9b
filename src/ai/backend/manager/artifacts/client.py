"""Calls storage proxies about artifacts over HTTP (docs/reference/artifact-proxy-api.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec

from ai.backend.common.artifacts import ArtifactType, RegistryType
from ai.backend.common.errors import ArtifactNotFound, BackendError, Unavailable
from ai.backend.common.wire import artifacts as wire
from ai.backend.manager.artifacts.gateway import Pages, ScanRequest
from ai.backend.manager.artifacts.model import (
    ArtifactFile,
    ArtifactRegistry,
    ArtifactSettings,
    ArtifactStorage,
    RevisionRow,
    ScannedArtifact,
    Stages,
)
from ai.backend.manager.storage_proxy import StorageProxies

log = logging.getLogger(__name__)

A = TypeVar("A", bound=wire.Answer)
_SCAN_TIMEOUT = aiohttp.ClientTimeout(total=600.0, sock_connect=5.0)
"""The timeout of a scan; long, because a detailed scan sends several requests per artifact to the hub."""


class StorageProxyArtifacts:
    """Implements :class:`ai.backend.manager.artifacts.gateway.ArtifactGateway` by HTTP calls to storage proxies."""

    def __init__(self, proxies: StorageProxies, settings: ArtifactSettings) -> None:
        self._proxies = proxies
        self._url_s = settings.url_s

    async def _ask_proxy(self, proxy: str, path: str, body: Any, kind: type[A], **options: Any) -> A:
        reply = await self._proxies.ask(proxy, "POST", f"/artifacts/{path}", body, **options)
        try:
            return msgspec.convert(reply, kind)
        except msgspec.ValidationError as e:
            raise Unavailable(f"The storage proxy {proxy} sends a malformed reply: {e}") from e

    async def storages(self) -> Mapping[str, ArtifactStorage]:
        names = await self._proxies.names()
        replies = await asyncio.gather(*(self._storages_of(name) for name in names))
        return {storage.host: storage for storages in replies for storage in storages}

    async def _storages_of(self, proxy: str) -> list[ArtifactStorage]:
        try:
            reply = msgspec.convert(await self._proxies.ask(proxy, "GET", "/artifacts/storages"), wire.StoragesAnswer)
        except (BackendError, msgspec.ValidationError) as e:
            log.warning("cannot list the artifact storages of the storage proxy %s: %s", proxy, e)
            return []
        return [
            ArtifactStorage(
                host=f"{proxy}:{storage.name}",
                backend=storage.backend,
                capabilities=storage.capabilities,
                stages=storage.stages,
            )
            for storage in reply.storages
        ]

    async def scan(self, proxy: str, registry: ArtifactRegistry, request: ScanRequest) -> Pages:
        if request.type is ArtifactType.IMAGE:
            return  # a hub has models, and data sets as packages
        names = list(request.names)
        if not names:
            limit = min(request.limit, wire.MAX_SCAN)
            search_options: dict[str, Any] = {"search": request.search, "author": request.author, "limit": limit}
            scan_answer = await self._scan(proxy, registry, type=request.type or ArtifactType.MODEL, **search_options)
            yield _scanned_artifacts(scan_answer)
            names = [artifact.name for artifact in scan_answer.artifacts] if request.closely else []
        for batch_start in range(0, len(names), wire.MAX_NAMED):
            reply = await self._scan(proxy, registry, names=tuple(names[batch_start : batch_start + wire.MAX_NAMED]))
            if reply.missing and request.names:
                missing_names = ", ".join(reply.missing)
                raise ArtifactNotFound(f"{registry.name} has no {missing_names}.", data={"names": list(reply.missing)})
            yield _scanned_artifacts(reply)

    async def _scan(self, proxy: str, registry: ArtifactRegistry, **options: Any) -> wire.ScanAnswer:
        body = wire.ScanRequest(url=registry.url, token=registry.credentials.get("token"), **options)
        return await self._ask_proxy(proxy, "scan", body, wire.ScanAnswer, timeout=_SCAN_TIMEOUT)

    async def begin_import(self, row: RevisionRow, *, ticket: str | None = None) -> wire.ImportState:
        revision, stages = row.revision, _stages(row)
        source: wire.HubSource | wire.ReservoirSource | wire.UploadSource
        if ticket is not None:
            source = wire.ReservoirSource(ticket=ticket)
        elif row.registry.type is RegistryType.LOCAL:
            source = wire.UploadSource()
        else:
            source = wire.HubSource(
                url=row.registry.url,
                token=row.registry.credentials.get("token"),
                name=row.artifact.name,
                version=revision.version,
                digest=revision.digest,
                size=revision.size,
            )
        body = wire.ImportRequest(
            revision_id=revision.id,
            attempt=revision.attempt,
            type=row.artifact.type,
            name=row.artifact.name,
            version=revision.version,
            source=source,
            stages=_wire_stages(stages),
            verify=stages.check,
        )
        return await self._ask_proxy(stages.proxy, "import", body, wire.ImportState)

    async def upload(self, row: RevisionRow, files: Sequence[wire.UploadFile]) -> Sequence[tuple[str, str]]:
        stages = _stages(row)
        body = wire.UploadRequest(
            revision_id=row.revision.id,
            attempt=row.revision.attempt,
            files=tuple(files),
            stages=_wire_stages(stages),
            expires_s=self._url_s,
        )
        reply = await self._ask_proxy(stages.proxy, "upload", body, wire.UploadAnswer)
        return [(file.path, file.url) for file in reply.files]

    async def import_state(self, row: RevisionRow) -> wire.ImportState | None:
        body = wire.ImportKey(revision_id=row.revision.id, attempt=row.revision.attempt)
        try:
            return await self._ask_proxy(_stages(row).proxy, "import/status", body, wire.ImportState)
        except ArtifactNotFound:
            return None

    async def remove(self, row: RevisionRow) -> None:
        if row.revision.stages is not None:
            body = wire.RevisionKey(revision_id=row.revision.id)
            await self._proxies.ask(row.revision.stages.proxy, "POST", "/artifacts/delete", body)

    async def files(self, row: RevisionRow) -> Sequence[ArtifactFile]:
        files: list[ArtifactFile] = []
        cursor: str | None = None
        while True:
            body = wire.FilesRequest(**_location(row), limit=10_000, cursor=cursor)
            reply = await self._ask_proxy(_stages(row).proxy, "files", body, wire.FilesAnswer)
            files += [ArtifactFile(path=file.path, size=file.size, sha256=file.sha256) for file in reply.files]
            cursor = reply.cursor
            if cursor is None:
                return files

    async def presign(self, row: RevisionRow, path: str) -> str:
        body = wire.PresignRequest(**_location(row), path=path, expires_s=self._url_s)
        return (await self._ask_proxy(_stages(row).proxy, "presign", body, wire.PresignedFile)).url

    async def ticket(self, row: RevisionRow) -> str:
        reply = await self._ask_proxy(_stages(row).proxy, "ticket", wire.ArtifactPlace(**_location(row)), wire.Ticket)
        return f"{reply.url}?token={reply.token}"

    async def mount(self, row: RevisionRow) -> wire.MountState:
        return await self._ask_proxy(_stages(row).proxy, "mount", wire.ArtifactPlace(**_location(row)), wire.MountState)


def _stages(row: RevisionRow) -> Stages:
    if row.revision.stages is None:
        raise ArtifactNotFound(f"No files of {row.ref} are stored.")
    return row.revision.stages


def _wire_stages(stages: Stages) -> wire.Stages:
    return wire.Stages(download=stages.download, verify=stages.verify, archive=stages.archive)


def _location(row: RevisionRow) -> dict[str, Any]:
    return {"revision_id": row.revision.id, "storage": _stages(row).archive}


def _scanned_artifacts(reply: wire.ScanAnswer) -> list[ScannedArtifact]:
    return msgspec.convert(reply.artifacts, list[ScannedArtifact], from_attributes=True)
