"""Declares how the database of a backup is copied."""

from __future__ import annotations

from typing import IO, Literal, Protocol

DatabaseKind = Literal["sqlite", "postgresql"]


class DatabaseCopier(Protocol):
    """Writes a database to a stream and reads it back."""

    @property
    def kind(self) -> DatabaseKind: ...

    async def revision(self) -> str | None:
        """Returns the revision of the schema, or None for a database without tables."""

    async def write_to(self, output: IO[bytes]) -> None:
        """Writes the database as it is at one moment, while other programs use it. Raises Unavailable."""

    async def check_restore_target(self, needed_bytes: int) -> None:
        """Raises Conflict if the database has tables or a program is connected to it. Raises InvalidInput if this
        machine's disk is to hold it and has too little room.
        """

    async def read_from(self, copy: IO[bytes]) -> None:
        """Fills the empty database from a stream, completely or not at all. Raises Unavailable."""

    async def raise_attempts(self) -> int:
        """Raises attempts in the rows, since agents may have seen newer ones, and returns the number of changed
        kernels.

        Waiting kernels get attempts that no agent has: the next attempt by the row may have been given since.
        """
