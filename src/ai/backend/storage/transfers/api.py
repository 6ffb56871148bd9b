"""Client-facing routes of transfers, authorized by tokens (peer facts 5, wire contract 2.5, tus 1.0)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from email.utils import formatdate
from importlib.metadata import version
from time import time
from typing import Any

from aiohttp import web

from ai.backend.common.errors import BackendError, ChecksumMismatch, InvalidInput, WrongKindOfFile
from ai.backend.common.volume_paths import FolderPath, VFolderId
from ai.backend.infra.http.errors import UnsupportedMediaType, problem_response
from ai.backend.infra.http.routes import Call, Schema, route
from ai.backend.plugin.volume import AbstractVolume, FileKind
from ai.backend.storage.transfers.archive import ArchiveSlots, stream_zip
from ai.backend.storage.transfers.file_response import send_archive, send_file
from ai.backend.storage.transfers.request_body import body_of, refuse_coding
from ai.backend.storage.transfers.tokens import ArchiveClaims, DownloadClaims, Tokens, UploadClaims
from ai.backend.storage.transfers.uploads import CHECKSUM_ALGORITHMS, Checksum, Chunk, Uploads
from ai.backend.storage.volumes.registry import Volumes

TUS_VERSION = "1.0.0"
CHUNK_TYPE = "application/offset+octet-stream"
_CHECKSUM_STATUS = 460
_CORS_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": (
        "Content-Type, If-Range, Range, Tus-Resumable, Upload-Checksum, Upload-Length, Upload-Metadata, Upload-Offset,"
        " X-Requested-With, X-HTTP-Method-Override"
    ),
    "Access-Control-Expose-Headers": (
        "Content-Disposition, Content-Range, ETag, Last-Modified, Location, Tus-Checksum-Algorithm, Tus-Extension,"
        " Tus-Max-Size, Tus-Resumable, Tus-Version, Upload-Expires, Upload-Length, Upload-Offset"
    ),
    "Access-Control-Max-Age": "86400",
}


async def allow_all_origins(_: web.Request, response: web.StreamResponse) -> None:
    """Allows requests from all origins: only the token authorizes them."""
    response.headers.update(_CORS_HEADERS)


class UploadQuery(Schema, frozen=True, kw_only=True):
    token: str
    dst_dir: str | None = None
    no_cache: bool = False


class DownloadQuery(UploadQuery, frozen=True, kw_only=True):
    archive: bool = False


class PreflightQuery(DownloadQuery, frozen=True, kw_only=True):
    """The query of a preflight request, which has the same parameters as the request that follows."""

    token: str = ""


def _target_directory(query: UploadQuery) -> FolderPath | None:
    return FolderPath.parse(query.dst_dir) if query.dst_dir else None


class ClientApi:
    """Routes of downloads and uploads."""

    def __init__(self, volumes: Volumes, uploads: Uploads, tokens: Tokens, *, upload_expiry_s: float) -> None:
        self._volumes = volumes
        self._uploads = uploads
        self._tokens = tokens
        self._expiry_s = upload_expiry_s
        self._threads = ThreadPoolExecutor(8, "archive")
        self._slots = ArchiveSlots()

    @route("GET", "/", auth=False)
    async def info(self, call: Call) -> dict[str, str]:
        """Returns type and version of this API."""
        return {"status": "ok", "type": "client-facing", "storage-proxy": version("backendai")}

    @route("OPTIONS", "/", query=PreflightQuery, auth=False, limited=False)
    @route("OPTIONS", "/download", query=PreflightQuery, auth=False, limited=False)
    @route("OPTIONS", "/download-archive", query=PreflightQuery, auth=False, limited=False)
    async def preflight(self, call: Call[Any, PreflightQuery]) -> None:
        """Answers preflight requests of browsers."""

    @route("GET", "/download", query=DownloadQuery, auth=False, limited=False, kind="stream")
    async def download(self, call: Call[Any, DownloadQuery]) -> web.StreamResponse:
        """Sends a file, or a directory as a zip."""
        claims = self._tokens.read(call.query.token, DownloadClaims)
        volume, folder = self._volumes.get(claims.volume), VFolderId.parse(claims.vfid)
        path = FolderPath.parse(claims.relpath)
        entry = await volume.stat(folder, path)
        name = path.parts[-1] if path.parts else folder.id.hex
        if entry.kind != FileKind.DIRECTORY:
            return await send_file(call.request, await volume.open_file(folder, path), name)
        if not (claims.archive or call.query.archive):
            raise WrongKindOfFile("That is a directory: ask for it with 'archive'.")
        return await self._send_archive(call.request, volume, folder, [path], f"{name}.zip", claims.requester)

    @route("GET", "/download-archive", query=DownloadQuery, auth=False, limited=False, kind="stream")
    async def download_archive(self, call: Call[Any, DownloadQuery]) -> web.StreamResponse:
        """Sends several files and directories as a zip."""
        claims = self._tokens.read(call.query.token, ArchiveClaims)
        volume, folder = self._volumes.get(claims.volume), VFolderId.parse(claims.virtual_folder_id)
        paths = [FolderPath.parse(path_text) for path_text in claims.files]
        for path in paths:
            await volume.stat(folder, path)
        filename = claims.filename or f"{folder.id.hex}.zip"
        return await self._send_archive(call.request, volume, folder, paths, filename, claims.requester)

    async def _send_archive(
        self,
        request: web.Request,
        volume: AbstractVolume,
        folder: VFolderId,
        paths: Sequence[FolderPath],
        filename: str,
        requester: str,
    ) -> web.StreamResponse:
        with self._slots.take(requester or str(folder)):
            async with aclosing(stream_zip(volume, folder, paths, self._threads)) as parts:
                return await send_archive(request, parts, filename)

    @route("OPTIONS", "/upload", query=PreflightQuery, auth=False, limited=False)
    async def tus_options(self, call: Call[Any, PreflightQuery]) -> web.Response:
        """Returns the supported versions and extensions of tus."""
        return web.Response(
            status=204,
            headers={
                "Tus-Resumable": TUS_VERSION,
                "Tus-Version": TUS_VERSION,
                "Tus-Max-Size": str(self._uploads.max_size),
                "Tus-Extension": "creation,expiration,checksum,termination",
                "Tus-Checksum-Algorithm": ",".join(CHECKSUM_ALGORITHMS),
            },
        )

    @route("POST", "/upload", query=UploadQuery, auth=False, limited=False, kind="upload", audited=False)
    async def tus_create(self, call: Call[Any, UploadQuery]) -> web.Response:
        """Returns the location of an upload, which already exists since its token was issued."""
        if (refusal_response := _wrong_version(call.request)) is not None:
            return refusal_response
        claims = self._tokens.read(call.query.token, UploadClaims)
        if _header_number(call.request, "Upload-Length") != claims.size:
            raise InvalidInput(f"Upload-Length must be {claims.size}, as the token says.")
        await self._uploads.progress(claims)
        return web.Response(status=201, headers={**self._tus_headers(), "Location": call.request.path_qs})

    @route("GET", "/upload", query=UploadQuery, auth=False, limited=False)
    async def tus_head(self, call: Call[Any, UploadQuery]) -> web.Response:
        """Returns the offset of an upload."""
        if (refusal_response := _wrong_version(call.request)) is not None:
            return refusal_response
        claims = self._tokens.read(call.query.token, UploadClaims)
        offset = await self._uploads.progress(claims, directory=_target_directory(call.query))
        state = {"Upload-Offset": str(offset), "Upload-Length": str(claims.size), "Cache-Control": "no-store"}
        return web.Response(headers={**self._tus_headers(), **state})

    @route("PATCH", "/upload", query=UploadQuery, auth=False, limited=False, kind="upload", audited=False)
    async def tus_patch(self, call: Call[Any, UploadQuery]) -> web.Response:
        """Appends bytes to an upload."""
        request = call.request
        if (refusal_response := _wrong_version(request)) is not None:
            return refusal_response
        claims = self._tokens.read(call.query.token, UploadClaims)
        if request.content_type != CHUNK_TYPE:
            raise UnsupportedMediaType(f"Send {CHUNK_TYPE}.")
        refuse_coding(request)
        body = body_of(request)
        chunk = Chunk(_header_number(request, "Upload-Offset"), request.content_length, body, _parse_checksum(request))
        try:
            offset = await self._uploads.receive(claims, chunk, directory=_target_directory(call.query))
        except BackendError as error:
            if body.is_whole and not isinstance(error, ChecksumMismatch):
                raise
            response = problem_response(error, request_id=call.request_id)
            if isinstance(error, ChecksumMismatch):
                response.set_status(_CHECKSUM_STATUS, "Checksum Mismatch")
            if not body.is_whole:
                response.force_close()
            return response
        return web.Response(status=204, headers={**self._tus_headers(), "Upload-Offset": str(offset)})

    @route("DELETE", "/upload", query=UploadQuery, auth=False, limited=False, audited=False)
    async def tus_delete(self, call: Call[Any, UploadQuery]) -> web.Response:
        """Cancels an upload and discards its bytes."""
        if (refusal_response := _wrong_version(call.request)) is not None:
            return refusal_response
        await self._uploads.drop(self._tokens.read(call.query.token, UploadClaims))
        return web.Response(status=204, headers=self._tus_headers())

    def _tus_headers(self) -> dict[str, str]:
        return {"Tus-Resumable": TUS_VERSION, "Upload-Expires": formatdate(time() + self._expiry_s, usegmt=True)}

    def stop(self) -> None:
        self._threads.shutdown(wait=False)


def _wrong_version(request: web.Request) -> web.Response | None:
    """Returns a reply with status 412 for another version of tus, else None."""
    if request.headers.get("Tus-Resumable") == TUS_VERSION:
        return None
    response = problem_response(InvalidInput(f"Send the header Tus-Resumable: {TUS_VERSION}."))
    response.set_status(412)
    response.headers["Tus-Version"] = TUS_VERSION
    return response


def _header_number(request: web.Request, header: str) -> int:
    header_text = request.headers.get(header, "")
    if not (header_text.isascii() and header_text.isdigit() and len(header_text) < 20):
        raise InvalidInput(f"The header {header} must be a number.", data={header: "missing or malformed"})
    return int(header_text)


def _parse_checksum(request: web.Request) -> Checksum | None:
    header_text = request.headers.get("Upload-Checksum")
    if header_text is None:
        return None
    algorithm, _, value = header_text.strip().partition(" ")
    try:
        if algorithm in CHECKSUM_ALGORITHMS:
            return Checksum(algorithm, base64.b64decode(value, validate=True))
    except binascii.Error:
        pass
    raise InvalidInput(
        f"Upload-Checksum is one of {', '.join(CHECKSUM_ALGORITHMS)}, a blank, and the digest in Base64."
    )
