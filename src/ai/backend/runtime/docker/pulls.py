"""Pulls images from registries. Workloads that wait for the same image share one transfer."""

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

_DISK_FULL_PATTERN = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_NOT_FOUND_PATTERN = re.compile(
    r"manifest unknown|not found|manifest for .* not found|no matching manifest", re.IGNORECASE
)
_ACCESS_REFUSED_PATTERN = re.compile(
    r"unauthorized|denied|forbidden|authentication required|no basic auth", re.IGNORECASE
)
_MAX_REASON_CHARS = 300


def registry_error(image_name: str, engine_text: str, http_status: int = 0) -> BackendError:
    """Converts the engine's error text about a registry into an error of the platform."""
    reason = " ".join(engine_text.split())[-_MAX_REASON_CHARS:]
    if _DISK_FULL_PATTERN.search(engine_text):
        return StorageFull(f"the disk of the engine is full: {reason}")
    if _ACCESS_REFUSED_PATTERN.search(engine_text) or http_status in (401, 403):
        return RegistryRefused(f"the registry refuses {image_name}: {reason}")
    if _NOT_FOUND_PATTERN.search(engine_text) or http_status == 404:
        return ImageNotFound(f"the registry has no {image_name} for this node: {reason}")
    return RegistryUnavailable(f"the registry did not give {image_name}: {reason}")


@dataclass(slots=True)
class _Transfer:
    task: asyncio.Task[None]
    waiter_count: int = 0
    layers: dict[str, tuple[int, int]] = field(default_factory=dict)
    watchers: list[TellProgress] = field(default_factory=list)

    def count_bytes(self, engine_message: Mapping[str, Any]) -> None:
        """Adds the bytes of an engine's progress message to the pull's progress, and notifies the watchers."""
        progress, layer_id = engine_message.get("progressDetail") or {}, str(engine_message.get("id"))
        if engine_message.get("status") == "Downloading" and isinstance(progress.get("total"), int):
            self.layers[layer_id] = (int(progress.get("current") or 0), int(progress["total"]))
        elif engine_message.get("status") in ("Download complete", "Pull complete") and layer_id in self.layers:
            self.layers[layer_id] = (self.layers[layer_id][1], self.layers[layer_id][1])
        else:
            return
        current_bytes, total_bytes = (sum(byte_counts) for byte_counts in zip(*self.layers.values(), strict=True))
        for tell_progress in self.watchers:
            tell_progress(current_bytes, total_bytes)


class Pulls:
    """Pulls images by one shared transfer per image, and removes images."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._transfers: dict[str, _Transfer] = {}

    async def needs_pull(self, request: ImageRequest) -> bool:
        if not request.when:
            return False
        image = await self._engine.image(request.name)
        if image is None:
            return True
        if request.when == "tag" or not (request.digest or request.config_digest):
            return False
        known_digests = {digest.partition("@")[2] for digest in image.get("RepoDigests") or ()} | {str(image["Id"])}
        return not known_digests.intersection((request.digest, request.config_digest))

    async def pull(self, request: ImageRequest, tell_progress: TellProgress) -> None:
        """Pulls an image. Raises ImageNotFound, RegistryRefused, RegistryUnavailable, StorageFull, Unavailable."""
        transfer = self._transfers.get(request.name)
        if transfer is None:
            transfer = self._transfers[request.name] = self._start_transfer(request)
        transfer.waiter_count += 1
        transfer.watchers.append(tell_progress)
        try:
            await asyncio.shield(transfer.task)
        finally:
            transfer.waiter_count -= 1
            transfer.watchers.remove(tell_progress)
            if not transfer.waiter_count and not transfer.task.done():
                self._transfers.pop(request.name, None)
                transfer.task.cancel()

    def _start_transfer(self, request: ImageRequest) -> _Transfer:
        transfer: _Transfer

        async def run() -> None:
            crash_point("pull.begun")
            await self._transfer_image(request, transfer)
            crash_point("pull.done")

        transfer = _Transfer(asyncio.create_task(run(), name=f"pull-{request.name}"))

        def ended(ended_task: asyncio.Task[None]) -> None:
            if self._transfers.get(request.name) is transfer:
                del self._transfers[request.name]
            if not ended_task.cancelled():
                ended_task.exception()  # whoever waits has it; nobody may be left

        transfer.task.add_done_callback(ended)
        return transfer

    async def _transfer_image(self, request: ImageRequest, transfer: _Transfer) -> None:
        image_name = ImageName.parse(request.name)
        login = (request.username, request.password) if request.username else None
        try:
            async for engine_message in self._engine.pull(
                image_name.repository, image_name.tag, login, image_name.registry
            ):
                if error_text := engine_message.get("error"):
                    raise registry_error(request.name, str(error_text))
                transfer.count_bytes(engine_message)
        except EngineRefusal as refusal:
            raise registry_error(request.name, refusal.message, refusal.status) from None
        if await self._engine.image(request.name) is None:
            raise RegistryUnavailable(f"the engine has fetched {request.name} and does not have it")

    async def remove(self, image_name: str) -> None:
        """Removes an image, if it exists. Raises Conflict if a container uses it."""
        try:
            await self._engine.remove_image(image_name)
        except EngineRefusal as refusal:
            if refusal.status == 409:
                raise Conflict(f"{image_name} is in use: {refusal.message[:_MAX_REASON_CHARS]}") from None
            if refusal.status != 404:
                raise

    async def close(self) -> None:
        tasks = [transfer.task for transfer in self._transfers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
