"""Sends commands to HAProxy over its administration socket (HAProxy's management guide, section 9.3)."""

from __future__ import annotations

import asyncio
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from ai.backend.common.errors import Unavailable

_TIMEOUT_S = 30.0
"""A process that does not answer by then is ended, with everything that is open."""
_BATCH_BYTES = 12 * 1024
"""HAProxy reads a line of commands into one buffer."""
_NO_ERRORS = ("IP changed", "port changed", "no need to change", "nothing changed", "Key not found", "entry not found")
"""Replies to commands that have worked, or have nothing to do; all the others reply nothing."""


class CommandFailed(Exception):
    """Raised when HAProxy did not do what a command says."""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the counts of a backend, or of a server in a backend, since HAProxy's start.

    ``idle_s``: since the last use; None if there was none.
    """

    open: int
    requests: int
    received: int
    sent: int
    idle_s: int | None


class RuntimeApi:
    """Sends commands to HAProxy over its administration socket.

    Raises Unavailable if HAProxy does not answer, CommandFailed for a command that has no effect.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def command(self, *commands: str) -> None:
        """Runs commands in order. These commands have no reply."""
        for batch in _batches(commands):
            reply = await self.ask(";".join(batch))
            for line in reply.splitlines():
                if line.strip() and not line.startswith(_NO_ERRORS):
                    raise CommandFailed(f"haproxy: {line.strip()}")

    async def ask(self, line: str) -> str:
        """Returns the reply to a line of commands."""
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(str(self._path))
                try:
                    writer.write(line.encode("ascii") + b"\n")
                    reply = await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError) as e:
            raise Unavailable(f"haproxy does not answer its commands: {str(e) or 'in time'}") from e
        return reply.decode("utf-8", "replace")

    async def replace_file(self, kind: Literal["cert", "ca-file"], path: Path, content: str) -> None:
        """Replaces certificates that HAProxy has read from a file at its start. Later handshakes use the new
        certificates.

        Raises Unavailable, and CommandFailed for what cannot be used: the earlier ones stay then.
        """
        await self.ask(f"set ssl {kind} {path} <<\n{_pem_blocks(content)}\n")
        reply = await self.ask(f"commit ssl {kind} {path}")
        if "Success" not in reply:
            await self.ask(f"abort ssl {kind} {path}")
            raise CommandFailed(f"haproxy: {reply.strip()[-200:]}")

    async def read_uses(self) -> dict[tuple[str, str], Use]:
        """Returns the usage counts of each backend, by its name and ``BACKEND``, and of each server, by both names."""
        use_of_server = {}
        for row in csv.DictReader((await self.ask("show stat -1 6 -1")).lstrip("# ").splitlines()):
            if row["pxname"] and row["svname"]:
                use_of_server[row["pxname"], row["svname"]] = Use(
                    open=int(row["scur"] or 0),
                    requests=int(row["stot"] or 0),
                    received=int(row["bin"] or 0),
                    sent=int(row["bout"] or 0),
                    idle_s=int(row["lastsess"]) if row["lastsess"] not in ("", "-1") else None,
                )
        return use_of_server


def _pem_blocks(content: str) -> str:
    """Returns the blocks of a PEM file without other lines, because an empty line would end the payload
    of a command."""
    lines: list[str] = []
    is_inside = False
    for line in content.splitlines():
        is_inside |= line.startswith("-----BEGIN ")
        if is_inside and line.strip():
            lines.append(line.strip())
        is_inside &= not line.startswith("-----END ")
    return "\n".join(lines) + "\n"


def _batches(commands: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    batch_bytes = 0
    for command in commands:
        if batch and batch_bytes + len(command) > _BATCH_BYTES:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(command)
        batch_bytes += len(command) + 1
    if batch:
        yield batch
