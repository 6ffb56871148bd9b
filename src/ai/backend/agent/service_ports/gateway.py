"""Where the services that every session has come from."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Kits(Protocol):
    """``directory`` holds the kits and is shown to every workload; ``services`` are the names that a kit can serve."""

    def open(self) -> None:
        """Create the directory. It must exist before a workload mounts it."""

    @property
    def directory(self) -> Path: ...

    @property
    def services(self) -> frozenset[str]: ...

    async def ensure(self) -> str:
        """The name of the kit in the directory, made if need be. Raises Unavailable: it cannot be made."""
        ...

    async def clean(self) -> None:
        """Remove unused kits of earlier versions of the agent. Raises Unavailable."""
