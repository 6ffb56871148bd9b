"""Changes the status of revisions by the transition table."""

from __future__ import annotations

from typing import Any

from ai.backend.core.lifecycle.artifact import RevisionState, RevisionTrigger, step
from ai.backend.core.lifecycle.transition import Stories
from ai.backend.infra.clock import Clock
from ai.backend.manager.artifacts.model import Revision
from ai.backend.manager.artifacts.store import ArtifactStore
from ai.backend.plugin.crash_points import crash_point


class RevisionWriter:
    """Applies triggers and writes the new status if the revision did not change meanwhile."""

    def __init__(self, store: ArtifactStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._stories = Stories()

    async def apply(
        self,
        seen: Revision,
        trigger: RevisionTrigger,
        *,
        cause: str = "artifact loop",
        info: str | None = None,
        unless_mounted: bool = False,
        **values: Any,
    ) -> Revision | None:
        """Applies a trigger. Returns the new revision, ``seen`` itself if nothing changes, or None if ``seen`` is
        outdated and must be loaded again.

        Raises:
            InvalidTransition: the status does not admit the trigger; the message is half a sentence.
            Conflict: ``unless_mounted`` and a session mounts it; the message is half a sentence.
        """
        before, subject = RevisionState(seen.status, seen.residue), f"revision {seen.id}"
        state, path, _ = step(before, trigger, subject=subject, stimulus_id=cause, story=self._stories.of(seen.id))
        if not path:
            return seen
        moved = await self._store.move(
            seen,
            at=self._clock.now(),
            unless_mounted=unless_mounted,
            status=state.status,
            residue=state.residue,
            status_info=info,
            **values,
        )
        if moved is not None:
            self._stories.extend(seen.id, path)
        crash_point(f"after-artifact-{trigger.value}")
        return moved

    async def update(self, seen: Revision, **values: Any) -> Revision | None:
        """Writes values other than the status; returns None as :meth:`apply` does."""
        return await self._store.move(seen, at=self._clock.now(), **values)
