"""Manager-facing and client-facing routes of artifacts (docs/reference/artifact-proxy-api.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from ai.backend.common.errors import ArtifactNotFound, InvalidInput, NoSuchFile, NotSupported
from ai.backend.common.wire import artifacts as wire
from ai.backend.infra.http.errors import BodyTooSlow
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.plugin.object_storage import ObjectCapability, ObjectStorage
from ai.backend.storage.artifacts.archive import Archive
from ai.backend.storage.artifacts.hub import Hub
from ai.backend.storage.artifacts.imports import Imports
from ai.backend.storage.artifacts.model import files_of, plan_key
from ai.backend.storage.transfers.file_response import send_file
from ai.backend.storage.transfers.request_body import refuse_coding
from ai.backend.storage.transfers.tokens import ArtifactClaims, ObjectClaims, PutObjectClaims, Tokens

UPLOAD_IDLE_TIMEOUT_S = 60.0
"""Seconds without a byte after which an upload ends."""
_REDIRECT_EXPIRY_S = 3600
_MAX_BODY_BYTES = 16 << 20
"""The largest list of files to be uploaded, in bytes."""


@dataclass(slots=True)
class ArtifactApi:
    """Manager-facing routes of artifacts."""

    imports: Imports
    archive: Archive
    tokens: Tokens

    @route("GET", "/artifacts/storages", reply=wire.StoragesAnswer)
    async def storages(self, call: Call) -> wire.StoragesAnswer:
        """Lists the storages of artifacts."""
        storages = self.archive.storages
        default_names = {**storages.defaults, "mount-cache": storages.mount_cache}
        return wire.StoragesAnswer(
            storages=tuple(
                wire.StorageInfo(
                    name=storage.name,
                    backend=storage.backend,
                    capabilities=tuple(sorted(storage.capabilities)),
                    stages=tuple(stage_name for stage_name, name in default_names.items() if name == storage.name),
                )
                for storage in storages
            )
        )

    @route("POST", "/artifacts/scan", body=wire.ScanRequest, reply=wire.ScanAnswer)
    async def scan(self, call: Call[wire.ScanRequest]) -> wire.ScanAnswer:
        """Lists artifacts of a hub."""
        return await Hub(self.imports.fetcher, call.body.url, call.body.token).scan(call.body)

    @route("POST", "/artifacts/import", body=wire.ImportRequest, reply=wire.ImportState, status=202)
    async def start(self, call: Call[wire.ImportRequest]) -> wire.ImportState:
        """Starts or joins the import of a revision."""
        return await self.imports.start(call.body)

    @route("POST", "/artifacts/import/status", body=wire.ImportKey, reply=wire.ImportState, audited=False)
    async def status(self, call: Call[wire.ImportKey]) -> wire.ImportState:
        """Returns the state of an import."""
        return await self.imports.state(call.body)

    @route("POST", "/artifacts/import/cancel", body=wire.ImportKey)
    async def cancel(self, call: Call[wire.ImportKey]) -> None:
        """Cancels an import and removes the fetched files."""
        await self.imports.cancel(call.body)

    @route("POST", "/artifacts/upload", body=wire.UploadRequest, reply=wire.UploadAnswer, max_body=_MAX_BODY_BYTES)
    async def upload(self, call: Call[wire.UploadRequest]) -> wire.UploadAnswer:
        """Returns URLs to upload the files of a revision."""
        revision = call.body.revision_id

        async def url_of(storage: ObjectStorage, key: str, expires_s: int, size: int | None) -> str:
            if ObjectCapability.PRESIGN in storage.capabilities:
                return await storage.presign(key, expires_s=expires_s, put_size=size)
            claims = PutObjectClaims(storage=storage.name, revision=revision, key=key, size=size or 0)
            return self._object_url(claims, expires_s)

        return await self.imports.begin_upload(call.body, url_of)

    @route("POST", "/artifacts/delete", body=wire.RevisionKey)
    async def delete(self, call: Call[wire.RevisionKey]) -> None:
        """Removes all files of a revision."""
        await self.imports.delete(call.body.revision_id)

    @route("POST", "/artifacts/files", body=wire.FilesRequest, reply=wire.FilesAnswer, audited=False)
    async def files(self, call: Call[wire.FilesRequest]) -> wire.FilesAnswer:
        """Returns a page of a revision's files."""
        return await self.archive.files(call.body)

    @route("POST", "/artifacts/presign", body=wire.PresignRequest, reply=wire.PresignedFile)
    async def presign(self, call: Call[wire.PresignRequest]) -> wire.PresignedFile:
        """Returns a URL to download one file."""
        body = call.body
        storage, key = await self.archive.file_key(body, body.path)
        if ObjectCapability.PRESIGN in storage.capabilities:
            url = await storage.presign(key, expires_s=body.expires_s)
        else:
            claims = ObjectClaims(storage=storage.name, revision=body.revision_id, key=key)
            url = self._object_url(claims, body.expires_s)
        return wire.PresignedFile(path=body.path, url=url)

    def _object_url(self, claims: ObjectClaims, expires_s: int) -> str:
        return f"{self.tokens.client_url}/object?token={self.tokens.issue(claims, expire_s=expires_s)}"

    @route("POST", "/artifacts/ticket", body=wire.ArtifactPlace, reply=wire.Ticket)
    async def ticket(self, call: Call[wire.ArtifactPlace]) -> wire.Ticket:
        """Returns the URL by which another installation imports a revision."""
        storage, manifest = await self.archive.find(call.body)
        claims = ArtifactClaims(storage=storage.name, revision=manifest.revision_id, attempt=manifest.attempt)
        return wire.Ticket(url=f"{self.tokens.client_url}/artifacts/manifest", token=self.tokens.issue(claims))

    @route("POST", "/artifacts/mount", body=wire.ArtifactPlace, reply=wire.MountState, audited=False)
    async def mount(self, call: Call[wire.ArtifactPlace]) -> wire.MountState:
        """Returns the path of a revision on the nodes."""
        return await self.archive.mount(call.body)


class TokenQuery(Schema, frozen=True, kw_only=True):
    token: str


class FileQuery(TokenQuery, frozen=True, kw_only=True):
    path: str


@dataclass(slots=True)
class ArtifactClientApi:
    """Client-facing routes of artifacts, authorized by tokens."""

    archive: Archive
    tokens: Tokens

    @route("GET", "/artifacts/manifest", query=TokenQuery, auth=False, limited=False)
    async def manifest(self, call: Call[Any, TokenQuery]) -> web.Response:
        """Returns the manifest of a revision."""
        claims = self.tokens.read(call.query.token, ArtifactClaims)
        _, manifest = await self.archive.find(wire.ArtifactPlace(revision_id=claims.revision, storage=claims.storage))
        if manifest.attempt != claims.attempt:
            raise ArtifactNotFound("The revision was imported anew: ask for another ticket.")
        return web.Response(body=msgspec.json.encode(manifest), content_type="application/json")

    @route("GET", "/artifacts/file", query=FileQuery, auth=False, limited=False, kind="stream")
    async def file(self, call: Call[Any, FileQuery]) -> web.StreamResponse:
        """Sends a file of a revision."""
        claims = self.tokens.read(call.query.token, ArtifactClaims)
        key = files_of("artifacts", claims.revision, claims.attempt) + call.query.path
        return await self._send(call.request, claims.storage, key)

    @route("GET", "/object", query=TokenQuery, auth=False, limited=False, kind="stream")
    async def get(self, call: Call[Any, TokenQuery]) -> web.StreamResponse:
        """Sends an object."""
        claims = self.tokens.read(call.query.token, ObjectClaims)
        return await self._send(call.request, claims.storage, claims.key)

    async def _send(self, request: web.Request, storage_name: str, key: str) -> web.StreamResponse:
        storage = self.archive.storages.get(storage_name)
        try:
            if ObjectCapability.MOUNT in storage.capabilities:
                return await send_file(request, await storage.open_file(key), key.rpartition("/")[2])
            if ObjectCapability.PRESIGN in storage.capabilities:
                await storage.stat(key)
                url = await storage.presign(key, expires_s=_REDIRECT_EXPIRY_S)
                return web.Response(status=307, headers={"Location": url})
        except NoSuchFile:
            raise ArtifactNotFound("The revision has no such file, or it was removed.") from None
        raise NotSupported(f"The storage {storage.name} gives nothing to clients.")

    @route("OPTIONS", "/object", auth=False, limited=False)
    async def preflight(self, call: Call) -> None:
        """Answers preflight requests of browsers."""

    @route("PUT", "/object", query=TokenQuery, auth=False, limited=False, kind="upload", audited=False)
    async def put(self, call: Call[Any, TokenQuery]) -> web.Response:
        """Stores one object atomically."""
        claims = self.tokens.read(call.query.token, PutObjectClaims)
        if call.request.content_length != claims.size:
            raise InvalidInput(f"Send exactly {claims.size} bytes, and their number in Content-Length.")
        refuse_coding(call.request)
        storage = self.archive.storages.get(claims.storage)
        await _check_upload(storage, claims)
        await storage.put(claims.key, _body_parts(call.request, claims.size), size=claims.size)
        try:
            await _check_upload(storage, claims)
        except ArtifactNotFound:
            await storage.delete([claims.key])  # the revision was removed meanwhile
            raise
        return web.Response(status=200)


async def _check_upload(storage: ObjectStorage, claims: PutObjectClaims) -> None:
    """Raises ArtifactNotFound if no upload of files to the revision is open."""
    try:
        await storage.stat(plan_key(claims.revision))
    except NoSuchFile:
        raise ArtifactNotFound("Nothing is uploaded to this revision any more.") from None


async def _body_parts(request: web.Request, size: int) -> AsyncIterator[bytes]:
    remaining_bytes = size
    while remaining_bytes > 0:
        try:
            async with asyncio.timeout(UPLOAD_IDLE_TIMEOUT_S):
                part = await request.content.readany()
        except TimeoutError:
            raise BodyTooSlow from None
        if not part:
            raise ConnectionResetError
        remaining_bytes -= len(part)
        yield part
