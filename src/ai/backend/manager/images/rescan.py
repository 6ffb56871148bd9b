"""Scans container registries. Scans are idempotent; an interrupted one removes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ai.backend.common.errors import BackendError, Conflict, InvalidInput, NotSupported, RegistryUnavailable
from ai.backend.common.ids import TaskId
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.images.gateway import RegistryScanner
from ai.backend.manager.images.model import ContainerRegistry, FoundImage, ScanStep
from ai.backend.manager.images.registries import ContainerRegistries, require_superadmin
from ai.backend.manager.images.store import ImageStore
from ai.backend.manager.tasks.service import TaskProgress, TaskService
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
_AT_ONCE = 100
"""Images per transaction; small, so that other writers need not wait."""
_MAX_REASONS = 5
_PROGRESS_S = 0.25


@dataclass(slots=True)
class Outcome:
    """Counts the results of a scan; ``skipped`` and ``failed`` hold the first few reasons."""

    images: int = 0
    new: int = 0
    removed: int = 0
    skipped_count: int = 0
    failed_count: int = 0
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def add(self, step: ScanStep) -> None:
        if step.skipped is not None:
            self.skipped_count += 1
            if len(self.skipped) < _MAX_REASONS:
                self.skipped.append(f"{step.current}: {step.skipped}")
        if step.failed is not None:
            self.failed_count += 1
            if len(self.failed) < _MAX_REASONS:
                self.failed.append(f"{step.current}: {step.failed}")

    def summary(self, name: str) -> str:
        text = f"{name} has {self.images} images; {self.new} are new, {self.removed} are gone"
        if self.skipped_count:
            text += f"; {self.skipped_count} cannot be used ({'; '.join(self.skipped)})"
        if self.failed_count:
            text += f"; {self.failed_count} could not be read and stay as they were ({'; '.join(self.failed)})"
        return text


class Rescan:
    """Scans registries, at once or as background tasks."""

    def __init__(
        self,
        store: ImageStore,
        scanner: RegistryScanner,
        registries: ContainerRegistries,
        tasks: TaskService | None,
        clock: Clock,
    ) -> None:
        self._store = store
        self._scanner = scanner
        self._registries = registries
        self._tasks = tasks
        self._clock = clock

    @classmethod
    def alone(
        cls, store: ImageStore, scanner: RegistryScanner, registries: ContainerRegistries, clock: Clock
    ) -> Rescan:
        """Returns a value for use outside of a manager, where only :meth:`scan` can be called."""
        return cls(store, scanner, registries, None, clock)

    async def start(self, caller: Caller, name: str | None = None) -> TaskId:
        """Starts scanning one registry, or all, in the background, or joins the running scan of the same.

        Raises:
            Forbidden, NotFound
            InvalidInput: no registry is configured.
        """
        require_superadmin(caller, "scan registries")
        registries = [await self._registries.get(name)] if name else list((await self._registries.all()).values())
        if not registries:
            raise InvalidInput("No registry is configured (config/docker/registry).", data={"registry": "none"})
        if self._tasks is None:
            raise NotSupported("nothing runs in the background here")
        subject = name or "all registries"

        async def work(progress: TaskProgress) -> str:
            return await self._scan_all(registries, progress)

        try:
            return await self._tasks.start(caller, f"scan {subject}", work, subject=f"the images of {subject}")
        except Conflict as e:
            return TaskId(UUID(e.data["task"]))

    async def _scan_all(self, registries: Sequence[ContainerRegistry], progress: TaskProgress) -> str:
        """Scans the registries one by one. Raises BackendError if one fails, after the others are scanned."""
        reports: list[str] = []
        problem: BackendError | None = None
        for registry in registries:
            try:
                reports.append(await self.scan(registry, progress))
            except BackendError as e:
                log.warning("the registry %s could not be scanned: %s", registry.name, e)
                reports.append(f"{registry.name}: {e.message}")
                problem = e
        if problem is not None and len(registries) == 1:
            raise problem
        if problem is not None:
            raise RegistryUnavailable(" | ".join(reports))
        return " | ".join(reports)

    async def scan(
        self,
        registry: ContainerRegistry,
        progress: TaskProgress | None = None,
        tell: Callable[[ScanStep], None] | None = None,
    ) -> str:
        """Scans one registry and returns a summary. Raises BackendError; images found until then are stored."""
        began, outcome = self._clock.now(), Outcome()
        pending: list[FoundImage] = []
        unread: set[str] = set()
        reported_at = began
        async for step in self._scanner.scan(registry):
            outcome.add(step)
            if tell is not None:
                tell(step)
            pending += step.found
            if step.failed is not None:
                unread.add(f"{registry.name}/{step.current}")
            if len(pending) >= _AT_ONCE:
                await self._write(registry, pending, outcome)
            now = self._clock.now()
            if progress is not None and ((now - reported_at).total_seconds() >= _PROGRESS_S or step.done == step.total):
                reported_at = now
                await progress.update(step.done, step.total, f"{registry.name}/{step.current}")
        await self._write(registry, pending, outcome)
        if outcome.images:
            outcome.removed = await self._store.sweep(registry.name, before=began, keep=unread)
        return outcome.summary(registry.name)

    async def _write(self, registry: ContainerRegistry, pending: list[FoundImage], outcome: Outcome) -> None:
        images, pending[:] = list(pending), []
        if images:
            outcome.new += await self._store.record(registry.name, images, at=self._clock.now())
            outcome.images += len(images)
            crash_point("after-image-scan-page")
