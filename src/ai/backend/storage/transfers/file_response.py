"""Sends files and archives as HTTP responses (RFC 9110: conditions 13, ranges 14)."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.parse import quote

from aiohttp import web

from ai.backend.plugin.volume import OpenFile

_READ_BYTES = 1 << 20
_WRITE_TIMEOUT_S = 60.0
"""The seconds in which a client must take one part of an archive."""
_DIGITS = re.compile(r"[0-9]{0,19}")
_MAX_TIME_S = 253_402_300_799  # the end of the year 9999; users may set any time on their files


def disposition(filename: str) -> str:
    """Returns the Content-Disposition of an attachment (RFC 6266)."""
    ascii_name = "".join(
        character if character.isascii() and character.isprintable() and character not in '"\\%' else "_"
        for character in filename
    )
    return f"attachment; filename=\"{ascii_name}\"; filename*=UTF-8''{quote(filename, safe='')}"


class _UnsatisfiableRange(Exception):
    pass


def _requested_range(request: web.Request, size: int) -> tuple[int, int] | None:
    """Returns the requested range of a file as (first byte, length).

    Returns None for the whole file, also if several ranges are requested.
    """
    header_text = request.headers.get("Range", "").strip()
    unit, _, range_text = header_text.partition("=")
    first_text, separator, last_text = range_text.strip().partition("-")
    if (
        unit != "bytes"
        or not separator
        or not (first_text or last_text)
        or not all(_DIGITS.fullmatch(digits) for digits in (first_text, last_text))
    ):
        return None
    if first_text == "":
        length = min(int(last_text), size)
        if length == 0:
            raise _UnsatisfiableRange
        return size - length, length
    first_byte, last_byte = int(first_text), min(int(last_text) if last_text else size - 1, size - 1)
    if last_text and int(last_text) < int(first_text):
        return None
    if first_byte >= size:
        raise _UnsatisfiableRange
    return first_byte, last_byte - first_byte + 1


def _is_current(request: web.Request, etag: str, modified_at: datetime) -> bool:
    """True if ``If-Range`` is absent or has the file's current strong tag or date, so that the range applies."""
    if_range_header = request.headers.get("If-Range")
    if if_range_header is None or if_range_header.strip() == etag:
        return True
    return request.if_range is not None and request.if_range == modified_at


def _is_unchanged(request: web.Request, etag: str, modified_at: datetime) -> bool:
    none_match_header = request.headers.get("If-None-Match")
    if none_match_header is not None:
        tags = {tag.strip().removeprefix("W/") for tag in none_match_header.split(",")}
        return "*" in tags or etag in tags
    modified_since = request.if_modified_since
    return modified_since is not None and modified_at <= modified_since


async def send_file(request: web.Request, file: OpenFile, filename: str) -> web.StreamResponse:
    """Sends a file or a range of a file, and closes the file."""
    try:
        etag = f'"{file.modified_ns:x}-{file.size:x}"'
        modified_at = datetime.fromtimestamp(min(max(0, file.modified_ns // 1_000_000_000), _MAX_TIME_S), UTC)
        headers = {
            "ETag": etag,
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
            "Content-Disposition": disposition(filename),
            "X-Content-Type-Options": "nosniff",
        }
        response = web.StreamResponse(headers=headers)
        response.last_modified = modified_at
        if _is_unchanged(request, etag, modified_at):
            response.set_status(304)
            return await _finish_response(request, response)
        offset, byte_count = 0, file.size
        try:
            part = _requested_range(request, file.size) if _is_current(request, etag, modified_at) else None
        except _UnsatisfiableRange:
            response.set_status(416)
            response.headers["Content-Range"] = f"bytes */{file.size}"
            response.content_length = 0
            return await _finish_response(request, response)
        if part is not None:
            offset, byte_count = part
            response.set_status(206)
            response.headers["Content-Range"] = f"bytes {offset}-{offset + byte_count - 1}/{file.size}"
        response.content_length = byte_count
        await response.prepare(request)
        if request.method != "HEAD" and byte_count:
            await _send(request, response, file.fd, offset, byte_count)
        await response.write_eof()
        return response
    finally:
        file.close()


async def _finish_response(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    await response.prepare(request)
    await response.write_eof()
    return response


async def _send(request: web.Request, response: web.StreamResponse, fd: int, offset: int, byte_count: int) -> None:
    """Sends bytes of a file by sendfile(2) if loop and transport can, else in parts.

    Raises ConnectionError: the client has disconnected, or the file is shorter than announced.
    """
    loop, transport = asyncio.get_running_loop(), request.transport
    if transport is None:
        raise ConnectionResetError
    sent_bytes = 0
    try:
        if transport.get_extra_info("sslcontext") is not None:
            raise asyncio.SendfileNotAvailableError
        with os.fdopen(fd, "rb", buffering=0, closefd=False) as file:
            sent_bytes = await loop.sendfile(transport, file, offset, byte_count, fallback=False)
    except (NotImplementedError, asyncio.SendfileNotAvailableError):
        while sent_bytes < byte_count:
            data = await loop.run_in_executor(
                None, os.pread, fd, min(_READ_BYTES, byte_count - sent_bytes), offset + sent_bytes
            )
            if not data:
                break
            await response.write(data)
            sent_bytes += len(data)
    if sent_bytes < byte_count:
        transport.abort()
        raise ConnectionResetError


async def send_archive(request: web.Request, parts: AsyncIterator[bytes], filename: str) -> web.StreamResponse:
    """Sends a stream of unknown length; closes the connection if the stream fails.

    Raises ConnectionError: the client has disconnected or does not read.
    """
    first_part = await anext(parts)
    response = web.StreamResponse(
        headers={"Content-Type": "application/zip", "Content-Disposition": disposition(filename)}
    )
    await response.prepare(request)
    if request.method != "HEAD":
        try:
            await _write_with_timeout(response, first_part)
            async for archive_part in parts:
                await _write_with_timeout(response, archive_part)
        except BaseException:
            if request.transport is not None:
                request.transport.abort()
            raise
    await response.write_eof()
    return response


async def _write_with_timeout(response: web.StreamResponse, part: bytes) -> None:
    try:
        async with asyncio.timeout(_WRITE_TIMEOUT_S):
            await response.write(part)
    except TimeoutError:
        raise ConnectionResetError("the client does not read") from None
