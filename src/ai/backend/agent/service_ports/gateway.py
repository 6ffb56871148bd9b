"""Where the services that every session has come from."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Kits(Protocol):
    """``directory`` holds the kits and is shown to every workload; ``services`` are the names that a kit can serve."""

    def open(self) -> None:
        """Make the directory, before any workload is shown it."""

    @property
    def directory(self) -> Path: ...

    @property
    def services(self) -> frozenset[str]: ...

    async def ensure(self) -> str:
        """The name of the kit in the directory, made if need be. Raises Unavailable: it cannot be made."""
        ...

    async def clean(self) -> None:
        """Remove what earlier versions of the agent made, once nothing runs from it. Raises Unavailable."""
