"""Pulls images from registries, by one transfer for all workloads that wait for the same image."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ai.backend.common.errors import (
    BackendError,
    Conflict,
    ImageNotFound,
    RegistryRefused,
    RegistryUnavailable,
    StorageFull,
)
from ai.backend.common.images import ImageName
from ai.backend.plugin.crash_points import crash_point
from ai.backend.plugin.runtime import ImageRequest, TellProgress
from ai.backend.runtime.docker.engine import Engine, EngineRefusal

_FULL = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_MISSING = re.compile(r"manifest unknown|not found|manifest for .* not found|no matching manifest", re.IGNORECASE)
_REFUSED = re.compile(r"unauthorized|denied|forbidden|authentication required|no basic auth", re.IGNORECASE)
_WHY_LIMIT = 300


def error_of(name: str, message: str, status: int = 0) -> BackendError:
    """Translates an engine's error text about a registry."""
    why = " ".join(message.split())[-_WHY_LIMIT:]
    if _FULL.search(message):
        return StorageFull(f"the disk of the engine is full: {why}")
    if _REFUSED.search(message) or status in (401, 403):
        return RegistryRefused(f"the registry refuses {name}: {why}")
    if _MISSING.search(message) or status == 404:
        return ImageNotFound(f"the registry has no {name} for this node: {why}")
    return RegistryUnavailable(f"the registry did not give {name}: {why}")


@dataclass(slots=True)
class _Transfer:
    task: asyncio.Task[None]
    waiting: int = 0
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    watchers: list[TellProgress] = field(default_factory=list)

    def count(self, line: Mapping[str, Any]) -> None:
        """Counts the bytes of one of the engine's messages."""
        detail, layer = line.get("progressDetail") or {}, str(line.get("id"))
        if line.get("status") == "Downloading" and isinstance(detail.get("total"), int):
            self.layers[layer] = (int(detail.get("current") or 0), int(detail["total"]))
        elif line.get("status") in ("Download complete", "Pull complete") and layer in self.layers:
            self.layers[layer] = (self.layers[layer][1], self.layers[layer][1])
        else:
            return
        current, total = (sum(numbers) for numbers in zip(*self.layers.values(), strict=True))
        for tell in self.watchers:
            tell(current, total)


class Pulls:
    """Pulls and removes images."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._transfers: dict[str, _Transfer] = {}

    async def lacks(self, request: ImageRequest) -> bool:
        if not request.when:
            return False
        image = await self._engine.image(request.name)
        if image is None:
            return True
        if request.when == "tag" or not (request.digest or request.config_digest):
            return False
        digests = {digest.partition("@")[2] for digest in image.get("RepoDigests") or ()} | {str(image["Id"])}
        return not digests.intersection((request.digest, request.config_digest))

    async def pull(self, request: ImageRequest, tell: TellProgress) -> None:
        """Pulls an image. Raises ImageNotFound, RegistryRefused, RegistryUnavailable, StorageFull, Unavailable."""
        transfer = self._transfers.get(request.name)
        if transfer is None:
            transfer = self._transfers[request.name] = self._begin(request)
        transfer.waiting += 1
        transfer.watchers.append(tell)
        try:
            await asyncio.shield(transfer.task)
        finally:
            transfer.waiting -= 1
            transfer.watchers.remove(tell)
            if not transfer.waiting and not transfer.task.done():
                self._transfers.pop(request.name, None)
                transfer.task.cancel()

    def _begin(self, request: ImageRequest) -> _Transfer:
        transfer: _Transfer

        async def run() -> None:
            crash_point("pull.begun")
            await self._fetch(request, transfer)
            crash_point("pull.done")

        transfer = _Transfer(asyncio.create_task(run(), name=f"pull-{request.name}"))

        def ended(task: asyncio.Task[None]) -> None:
            if self._transfers.get(request.name) is transfer:
                del self._transfers[request.name]
            if not task.cancelled():
                task.exception()  # whoever waits has it; nobody may be left

        transfer.task.add_done_callback(ended)
        return transfer

    async def _fetch(self, request: ImageRequest, transfer: _Transfer) -> None:
        name = ImageName.parse(request.name)
        login = (request.username, request.password) if request.username else None
        try:
            async for line in self._engine.pull(name.repository, name.tag, login, name.registry):
                if problem := line.get("error"):
                    raise error_of(request.name, str(problem))
                transfer.count(line)
        except EngineRefusal as refusal:
            raise error_of(request.name, refusal.message, refusal.status) from None
        if await self._engine.image(request.name) is None:
            raise RegistryUnavailable(f"the engine has fetched {request.name} and does not have it")

    async def remove(self, name: str) -> None:
        """Removes an image, if it exists. Raises Conflict if a container uses it."""
        try:
            await self._engine.remove_image(name)
        except EngineRefusal as refusal:
            if refusal.status == 409:
                raise Conflict(f"{name} is in use: {refusal.message[:_WHY_LIMIT]}") from None
            if refusal.status != 404:
                raise

    async def close(self) -> None:
        tasks = [transfer.task for transfer in self._transfers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
