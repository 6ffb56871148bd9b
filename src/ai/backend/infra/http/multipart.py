"""Uploads and downloads files as multipart messages.

Source: client wire contract 2.1.4: an uploaded part's file name is percent-encoded, slashes included; a download is one
part per file, each a tar archive without any content encoding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from email.message import Message
from io import BytesIO
from typing import Any
from urllib.parse import quote, unquote

import msgspec
from aiohttp import BodyPartReader, MultipartReader, MultipartWriter, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from multidict import CIMultiDict

from ai.backend.infra.http.decode import refuse
from ai.backend.infra.http.errors import UnsupportedMediaType
from ai.backend.infra.http.routes import Call

MAX_FILE_NAME_LENGTH = 4_096
PART_OVERHEAD_BYTES = 8_192


class UploadedFile(msgspec.Struct, frozen=True):
    """An uploaded file. ``name`` is decoded, and otherwise as the client wrote it."""

    name: str
    data: bytes


async def read_files(call: Call[Any, Any], *, max_files: int, max_file_bytes: int) -> list[UploadedFile]:
    """Reads the files of a ``multipart/form-data`` body. Raises InvalidInput for a malformed body or a limit (spec
    03-08: 400)."""
    content_type = call.request.headers.get("Content-Type", "")
    if not content_type.lower().startswith("multipart/form-data"):
        raise UnsupportedMediaType("Send multipart/form-data.", data={"Content-Type": content_type[:64]})
    body = await call.read_body()
    loop = asyncio.get_running_loop()
    # The limit is beyond the body, so the reader never asks its protocol, which has no transport, to pause.
    body_stream = StreamReader(BaseProtocol(loop), len(body) + 1, loop=loop)
    body_stream.feed_data(body)
    body_stream.feed_eof()
    files: list[UploadedFile] = []
    try:
        async for part in MultipartReader(CIMultiDict({"Content-Type": content_type}), body_stream):
            if not isinstance(part, BodyPartReader):
                raise refuse({"src": "nested multipart"})
            name = _file_name(part)
            if name is None:
                continue
            if len(files) == max_files:
                raise refuse({"src": f"at most {max_files} files at once"})
            files.append(UploadedFile(name, await _read_part(part, name, max_file_bytes)))
    except (ValueError, AssertionError, EOFError, RuntimeError, HttpProcessingError):
        raise refuse({"body": "malformed multipart"}) from None
    if not files:
        raise refuse({"src": "no file in the request"})
    return files


def _file_name(part: BodyPartReader) -> str | None:
    """Returns the file name of a part of a multipart message, decoded once.

    The client percent-encodes a plain ``filename``; ``filename*`` has its own rules.

    ``part.filename`` of aiohttp lacks the leading slashes, so ``/etc/x`` would be taken for a relative path.
    """
    raw_name = part.headers.get("Content-Disposition", "")
    header = Message()
    header["Content-Disposition"] = raw_name
    name = header.get_filename()
    if name is None:
        return None
    if "filename*" not in raw_name.lower():
        try:
            name = unquote(name, errors="strict")
        except UnicodeDecodeError:
            raise refuse({"src": "the file name is not UTF-8"}) from None
    if not name or len(name) > MAX_FILE_NAME_LENGTH or "\0" in name:
        raise refuse({"src": "malformed file name"})
    return name


async def _read_part(part: BodyPartReader, name: str, limit: int) -> bytes:
    part_data = bytearray()
    while chunk := await part.read_chunk(65_536):
        part_data += chunk
        if len(part_data) > limit:
            raise refuse({name[:128]: f"larger than {limit} bytes"})
    return bytes(part_data)


async def send_archives(request: web.Request, files: Iterable[UploadedFile]) -> web.StreamResponse:
    """Sends tar archives as a multipart message, with one part for each archive."""
    with MultipartWriter("mixed") as writer:
        for archive in files:
            disposition = f'attachment; filename="{quote(archive.name, safe="")}"'
            headers = {"Content-Type": "application/x-tar", "Content-Disposition": disposition}
            writer.append(BytesIO(archive.data), headers)
    response = web.Response(body=writer)
    await response.prepare(request)
    await response.write_eof()
    return response
