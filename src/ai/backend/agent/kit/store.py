"""The kits of one agent: made when first asked for."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

from ai.backend.agent.kit.build import KitFailed, build_kit, remove_unused
from ai.backend.common.errors import Unavailable
from ai.backend.common.service_ports import SSHD, TTYD


class KitStore:
    """A :class:`~ai.backend.agent.service_ports.gateway.Kits`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = asyncio.Lock()
        self._name: str | None = None
        self._services = frozenset({TTYD, SSHD} if importlib.util.find_spec("asyncssh") is not None else {TTYD})

    def open(self) -> None:
        self._directory.mkdir(mode=0o755, exist_ok=True)

    @property
    def directory(self) -> Path:
        return self._directory

    @property
    def services(self) -> frozenset[str]:
        """``sshd`` where the extra ``ssh`` is installed."""
        return self._services

    async def clean(self) -> None:
        """Remove what earlier versions of the agent made, once nothing runs from it. Raises Unavailable."""
        async with self._lock:
            try:
                await asyncio.to_thread(remove_unused, self._directory)
            except (KitFailed, OSError) as e:
                raise Unavailable(f"kits of other versions stay: {e}") from e

    async def ensure(self) -> str:
        async with self._lock:
            if self._name is None or not (self._directory / self._name).is_dir():
                try:
                    self._name = (await asyncio.to_thread(build_kit, self._directory)).name
                except KitFailed as e:
                    raise Unavailable(str(e)) from e
            return self._name
