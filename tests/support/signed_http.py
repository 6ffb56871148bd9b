"""A client that writes requests byte by byte, so that a test decides what is on the wire and what is signed."""

from __future__ import annotations

import asyncio
import json as jsonlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from ai.backend.common.signing import SignedParts, authorization, media_type, sign

VERSION = "v7.20230615"


@dataclass
class RawReply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        assert "json" in self.headers["content-type"], self.headers
        return jsonlib.loads(self.body)

    @property
    def problem(self) -> str:
        """The code of a problem document, which must be well formed."""
        assert self.headers["content-type"] == "application/problem+json", (self.status, self.body)
        document = self.json()
        assert document["title"]
        assert document["status"] == self.status
        return str(document["type"]).removeprefix("https://api.backend.ai/probs/")


@dataclass
class RawClient:
    """One request per connection.

    Attributes:
        host: what the Host header says; by default the address.
        signed_host: the authority that is signed; by default ``host``.
    """

    port: int
    access_key: str = ""
    secret_key: str = ""
    host: str = ""
    signed_host: str = ""
    address: str = "127.0.0.1"
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(
        self,
        method: str,
        target: str,
        *,
        body: bytes = b"",
        content_type: str | None = "text/plain",
        headers: Mapping[str, str] | None = None,
        date: datetime | None = None,
        date_header: str = "Date",
        rfc7231: bool = False,
        sign_body: bool = False,
        signed_method: str = "",
        signed_target: str = "",
        hash_name: str = "sha256",
    ) -> bytes:
        host = self.host or f"{self.address}:{self.port}"
        lines = {"Host": host, "X-BackendAI-Version": VERSION}
        if content_type is not None:
            lines["Content-Type"] = content_type
            lines["Content-Length"] = str(len(body))
        if self.access_key:
            moment = date or datetime.now(UTC)
            stamp = format_datetime(moment, usegmt=True) if rfc7231 else moment.isoformat()
            lines[date_header] = stamp
            override = (headers or {}).get("X-Method-Override", "").strip().upper() if method == "POST" else ""
            parts = SignedParts(
                method=signed_method or override or method,
                raw_target=signed_target or target,
                date=stamp,
                host=self.signed_host or host,
                content_type=media_type(content_type),
                version=VERSION,
            )
            signature = sign(parts, self.secret_key, hash_name=hash_name, body=body if sign_body else b"")
            lines["Authorization"] = authorization(self.access_key, signature, hash_name=hash_name)
        lines.update(self.headers)
        lines.update(headers or {})
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"{method} {target} HTTP/1.1\r\n{text}\r\n".encode()

    async def request(self, method: str, target: str, *, json: Any = None, body: bytes = b"", **how: Any) -> RawReply:
        """Send one request and read its whole reply."""
        if json is not None:
            body = jsonlib.dumps(json).encode()
            how.setdefault("content_type", "application/json")
        head = self.head(method, target, body=body, **how)
        return await self.exchange(head + body)

    async def exchange(self, raw: bytes) -> RawReply:
        reader, writer = await self.send(raw)
        try:
            status, headers = await read_head(reader)
            length = headers.get("content-length")
            if status in (204, 304):
                content = b""
            elif length is not None:
                content = await reader.readexactly(int(length))
            else:
                content = await _read_chunks(reader)
            return RawReply(status, headers, content)
        finally:
            writer.close()

    async def send(self, raw: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(self.address, self.port, limit=2**24)
        writer.write(raw)
        await writer.drain()
        return reader, writer


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)).decode()
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    """One chunk of a chunked body; empty at its end."""
    size = int(await asyncio.wait_for(reader.readline(), 30), 16)
    data = await reader.readexactly(size)
    await reader.readexactly(2)
    return data


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while part := await read_chunk(reader):
        parts.append(part)
    return b"".join(parts)
