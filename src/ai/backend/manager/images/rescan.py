"""Scans container registries. Scans are idempotent; an interrupted one removes nothing."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from ai.backend.common.errors import BackendError, Conflict, InvalidInput, NotSupported, RegistryUnavailable
from ai.backend.common.ids import TaskId
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import require
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.images.model import ContainerRegistry, RegistryScan, ScannedImage, ScanStep
from ai.backend.manager.images.registries import ContainerRegistries
from ai.backend.manager.images.store import ImageStore
from ai.backend.manager.tasks.service import TaskProgress, TaskService
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
_IMAGES_PER_WRITE = 100
"""The number of images per transaction; small, so that other writers need not wait."""
_MAX_REASONS = 5
_SKIPPED_TEXT, _FAILED_TEXT = "cannot be used", "could not be read and stay as they were"
_PROGRESS_PERIOD_S = 0.25


@dataclass(slots=True)
class ScanOutcome:
    """Counts the images that a scan found, added and removed, and the tags that had problems.

    Keeps the problems with the first few tags of each kind.
    """

    images: int = 0
    new: int = 0
    removed: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, list[str]] = field(default_factory=lambda: {_SKIPPED_TEXT: [], _FAILED_TEXT: []})

    def add(self, step: ScanStep) -> None:
        for problem_kind, reason in ((_SKIPPED_TEXT, step.skipped), (_FAILED_TEXT, step.failed)):
            if reason is not None:
                self.counts[problem_kind] += 1
                if self.counts[problem_kind] <= _MAX_REASONS:
                    self.reasons[problem_kind].append(f"{step.current}: {reason}")

    def summary(self, name: str) -> str:
        summary_text = f"{name} has {self.images} images; {self.new} are new, {self.removed} are gone"
        for problem_kind, reasons in self.reasons.items():
            if reasons:
                summary_text += f"; {self.counts[problem_kind]} {problem_kind} ({'; '.join(reasons)})"
        return summary_text


@dataclass(slots=True)
class Rescan:
    """Scans registries, at once or as background tasks; without ``tasks`` (outside of a manager) only at once."""

    store: ImageStore
    scan_registry: RegistryScan
    registries: ContainerRegistries
    clock: Clock
    tasks: TaskService | None = None

    async def start(self, caller: Caller, name: str | None = None) -> TaskId:
        """Starts a background task that scans one or all registries, or joins the task that already does so. Raises
        Forbidden, NotFound; InvalidInput: no registry is configured.
        """
        require(caller, Operation.CONFIGURE_REGISTRIES)
        registries = [await self.registries.get(name)] if name else list((await self.registries.all()).values())
        if not registries:
            raise InvalidInput("No registry is configured (config/docker/registry).", data={"registry": "none"})
        if self.tasks is None:
            raise NotSupported("nothing runs in the background here")
        subject = name or "all registries"

        async def work(progress: TaskProgress) -> str:
            return await self._scan_all(registries, progress)

        try:
            return await self.tasks.start(caller, f"scan {subject}", work, subject=f"the images of {subject}")
        except Conflict as e:
            return TaskId(UUID(e.data["task"]))

    async def _scan_all(self, registries: Sequence[ContainerRegistry], progress: TaskProgress) -> str:
        registry_reports: list[str] = []
        problem: BackendError | None = None
        for registry in registries:
            try:
                registry_reports.append(await self.scan(registry, progress))
            except BackendError as e:
                log.warning("the registry %s could not be scanned: %s", registry.name, e)
                registry_reports.append(f"{registry.name}: {e.message}")
                problem = e
        if problem is not None and len(registries) == 1:
            raise problem
        if problem is not None:
            raise RegistryUnavailable(" | ".join(registry_reports))
        return " | ".join(registry_reports)

    async def scan(
        self,
        registry: ContainerRegistry,
        progress: TaskProgress | None = None,
        on_step: Callable[[ScanStep], None] | None = None,
    ) -> str:
        """Scans one registry and returns a summary. Raises BackendError; images found until then are stored."""
        began_at, scan_outcome = self.clock.now(), ScanOutcome()
        pending_images: list[ScannedImage] = []
        failed_tags: set[str] = set()
        reported_at = began_at
        async for step in self.scan_registry(registry):
            scan_outcome.add(step)
            if on_step is not None:
                on_step(step)
            pending_images += step.images
            if step.failed is not None:
                failed_tags.add(f"{registry.name}/{step.current}")
            if len(pending_images) >= _IMAGES_PER_WRITE:
                await self._write_pending(registry, pending_images, scan_outcome)
            now = self.clock.now()
            if progress is not None and (
                (now - reported_at).total_seconds() >= _PROGRESS_PERIOD_S or step.done == step.total
            ):
                reported_at = now
                await progress.update(step.done, step.total, f"{registry.name}/{step.current}")
        await self._write_pending(registry, pending_images, scan_outcome)
        if scan_outcome.images:
            scan_outcome.removed = await self.store.sweep(registry.name, before=began_at, kept_names=failed_tags)
        return scan_outcome.summary(registry.name)

    async def _write_pending(
        self, registry: ContainerRegistry, pending_images: list[ScannedImage], outcome: ScanOutcome
    ) -> None:
        images, pending_images[:] = list(pending_images), []
        if images:
            outcome.new += await self.store.record(registry.name, images, at=self.clock.now())
            outcome.images += len(images)
            crash_point("after-image-scan-page")
