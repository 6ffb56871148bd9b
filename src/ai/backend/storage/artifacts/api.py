"""Manager-facing and client-facing routes of artifacts (docs/reference/artifact-proxy-api.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from aiohttp import web

from ai.backend.common.errors import ArtifactNotFound, InvalidInput, NoSuchFile, NotSupported
from ai.backend.common.wire.artifacts import (
    ArtifactPlace,
    FilesAnswer,
    FilesRequest,
    ImportKey,
    ImportRequest,
    ImportState,
    MountState,
    PresignedFile,
    PresignRequest,
    RevisionKey,
    ScanAnswer,
    ScanRequest,
    StorageInfo,
    StoragesAnswer,
    Ticket,
    UploadAnswer,
    UploadRequest,
)
from ai.backend.infra.http.errors import BodyTooSlow
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.plugin.object_storage import ObjectCapability, ObjectStorage
from ai.backend.storage.artifacts.archive import Archive
from ai.backend.storage.artifacts.fetcher import Fetcher
from ai.backend.storage.artifacts.hub import Hub
from ai.backend.storage.artifacts.imports import Imports
from ai.backend.storage.artifacts.model import files_of, plan_key
from ai.backend.storage.artifacts.storages import Storages
from ai.backend.storage.transfers.file_response import send_file
from ai.backend.storage.transfers.model import ArtifactClaims, ObjectClaims, PutObjectClaims
from ai.backend.storage.transfers.tokens import Tokens

IDLE_S = 60.0
"""Seconds without a byte after which an upload ends."""
_REDIRECT_S = 3600
_MAX_BODY = 16 << 20
"""Bytes of a list of files to be uploaded."""


class ArtifactApi:
    """Manager-facing routes of artifacts."""

    def __init__(
        self, storages: Storages, imports: Imports, kept: Archive, fetcher: Fetcher, tokens: Tokens, *, client_url: str
    ) -> None:
        self._storages = storages
        self._imports = imports
        self._kept = kept
        self._fetcher = fetcher
        self._tokens = tokens
        self.client_url = client_url

    @route("GET", "/artifacts/storages", reply=StoragesAnswer)
    async def storages(self, call: Call) -> StoragesAnswer:
        """Lists the storages of artifacts."""
        defaults = {**self._storages.defaults, "mount-cache": self._storages.mount_cache}
        return StoragesAnswer(
            storages=tuple(
                StorageInfo(
                    name=storage.name,
                    backend=storage.backend,
                    capabilities=tuple(sorted(storage.capabilities)),
                    stages=tuple(stage for stage, name in defaults.items() if name == storage.name),
                )
                for storage in self._storages
            )
        )

    @route("POST", "/artifacts/scan", body=ScanRequest, reply=ScanAnswer)
    async def scan(self, call: Call[ScanRequest]) -> ScanAnswer:
        """Lists artifacts of a hub."""
        return await Hub(self._fetcher, call.body.url, call.body.token).scan(call.body)

    @route("POST", "/artifacts/import", body=ImportRequest, reply=ImportState, status=202)
    async def start(self, call: Call[ImportRequest]) -> ImportState:
        """Starts or joins the import of a revision."""
        return await self._imports.start(call.body)

    @route("POST", "/artifacts/import/status", body=ImportKey, reply=ImportState, audited=False)
    async def status(self, call: Call[ImportKey]) -> ImportState:
        """Returns the state of an import."""
        return await self._imports.state(call.body)

    @route("POST", "/artifacts/import/cancel", body=ImportKey)
    async def cancel(self, call: Call[ImportKey]) -> None:
        """Cancels an import and removes the fetched files."""
        await self._imports.cancel(call.body)

    @route("POST", "/artifacts/upload", body=UploadRequest, reply=UploadAnswer, max_body=_MAX_BODY)
    async def upload(self, call: Call[UploadRequest]) -> UploadAnswer:
        """Returns URLs to upload the files of a revision."""
        revision = call.body.revision_id

        async def url_of(storage: ObjectStorage, key: str, expires_s: int, size: int | None) -> str:
            if ObjectCapability.PRESIGN in storage.capabilities:
                return await storage.presign(key, expires_s=expires_s, put_size=size)
            claims = PutObjectClaims(storage=storage.name, revision=revision, key=key, size=size or 0)
            return f"{self.client_url}/object?token={self._tokens.issue(claims, expire_s=expires_s)}"

        return await self._imports.take(call.body, url_of)

    @route("POST", "/artifacts/delete", body=RevisionKey)
    async def delete(self, call: Call[RevisionKey]) -> None:
        """Removes all files of a revision."""
        await self._imports.delete(call.body.revision_id)

    @route("POST", "/artifacts/files", body=FilesRequest, reply=FilesAnswer, audited=False)
    async def files(self, call: Call[FilesRequest]) -> FilesAnswer:
        """Returns a page of a revision's files."""
        return await self._kept.files(call.body)

    @route("POST", "/artifacts/presign", body=PresignRequest, reply=PresignedFile)
    async def presign(self, call: Call[PresignRequest]) -> PresignedFile:
        """Returns a URL to download one file."""
        body = call.body
        storage, key = await self._kept.file_key(body, body.path)
        if ObjectCapability.PRESIGN in storage.capabilities:
            url = await storage.presign(key, expires_s=body.expires_s)
        else:
            claims = ObjectClaims(storage=storage.name, revision=body.revision_id, key=key)
            url = f"{self.client_url}/object?token={self._tokens.issue(claims, expire_s=body.expires_s)}"
        return PresignedFile(path=body.path, url=url)

    @route("POST", "/artifacts/ticket", body=ArtifactPlace, reply=Ticket)
    async def ticket(self, call: Call[ArtifactPlace]) -> Ticket:
        """Returns the URL by which another installation imports a revision."""
        storage, manifest = await self._kept.find(call.body)
        claims = ArtifactClaims(storage=storage.name, revision=manifest.revision_id, attempt=manifest.attempt)
        return Ticket(url=f"{self.client_url}/artifacts/manifest", token=self._tokens.issue(claims))

    @route("POST", "/artifacts/mount", body=ArtifactPlace, reply=MountState, audited=False)
    async def mount(self, call: Call[ArtifactPlace]) -> MountState:
        """Returns the path of a revision on the nodes."""
        return await self._kept.mount(call.body)


class TokenQuery(Schema, frozen=True, kw_only=True):
    token: str


class FileQuery(TokenQuery, frozen=True, kw_only=True):
    path: str


class ArtifactClientApi:
    """Client-facing routes of artifacts, authorized by tokens."""

    def __init__(self, storages: Storages, kept: Archive, tokens: Tokens) -> None:
        self._storages = storages
        self._kept = kept
        self._tokens = tokens

    @route("GET", "/artifacts/manifest", query=TokenQuery, auth=False, limited=False)
    async def manifest(self, call: Call[Any, TokenQuery]) -> web.Response:
        """Returns the manifest of a revision."""
        claims = self._tokens.read(call.query.token, ArtifactClaims)
        _, manifest = await self._kept.find(ArtifactPlace(revision_id=claims.revision, storage=claims.storage))
        if manifest.attempt != claims.attempt:
            raise ArtifactNotFound("The revision was imported anew: ask for another ticket.")
        return web.Response(body=msgspec.json.encode(manifest), content_type="application/json")

    @route("GET", "/artifacts/file", query=FileQuery, auth=False, limited=False, kind="stream")
    async def file(self, call: Call[Any, FileQuery]) -> web.StreamResponse:
        """Sends a file of a revision."""
        claims = self._tokens.read(call.query.token, ArtifactClaims)
        key = files_of("artifacts", claims.revision, claims.attempt) + call.query.path
        return await self._send(call.request, self._storages.get(claims.storage), key)

    @route("GET", "/object", query=TokenQuery, auth=False, limited=False, kind="stream")
    async def get(self, call: Call[Any, TokenQuery]) -> web.StreamResponse:
        """Sends an object."""
        claims = self._tokens.read(call.query.token, ObjectClaims)
        return await self._send(call.request, self._storages.get(claims.storage), claims.key)

    async def _send(self, request: web.Request, storage: ObjectStorage, key: str) -> web.StreamResponse:
        try:
            if ObjectCapability.MOUNT in storage.capabilities:
                return await send_file(request, await storage.open_file(key), key.rpartition("/")[2])
            if ObjectCapability.PRESIGN in storage.capabilities:
                await storage.stat(key)
                url = await storage.presign(key, expires_s=_REDIRECT_S)
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
        claims = self._tokens.read(call.query.token, PutObjectClaims)
        if call.request.content_length != claims.size:
            raise InvalidInput(f"Send exactly {claims.size} bytes, and their number in Content-Length.")
        storage = self._storages.get(claims.storage)
        await _is_wanted(storage, claims)
        await storage.put(claims.key, _parts(call.request, claims.size), size=claims.size)
        try:
            await _is_wanted(storage, claims)
        except ArtifactNotFound:
            await storage.delete([claims.key])  # the revision was removed while this came
            raise
        return web.Response(status=200)


async def _is_wanted(storage: ObjectStorage, claims: PutObjectClaims) -> None:
    try:
        await storage.stat(plan_key(claims.revision))
    except NoSuchFile:
        raise ArtifactNotFound("Nothing is uploaded to this revision any more.") from None


async def _parts(request: web.Request, size: int) -> AsyncIterator[bytes]:
    """The body as it comes.

    Raises:
        BodyTooSlow: nothing comes for :data:`IDLE_S`.
        ConnectionResetError: it is not all.
    """
    left = size
    while left > 0:
        try:
            async with asyncio.timeout(IDLE_S):
                part = await request.content.readany()
        except TimeoutError:
            raise BodyTooSlow from None
        if not part:
            raise ConnectionResetError
        left -= len(part)
        yield part
