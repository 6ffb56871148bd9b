"""The one place that changes the status of revisions."""

from __future__ import annotations

from typing import Any

from ai.backend.core.lifecycle.artifact import RevisionState, RevisionTrigger, step
from ai.backend.infra.clock import Clock
from ai.backend.manager.model.artifact import Revision
from ai.backend.manager.ports.artifact_store import ArtifactStore
from ai.backend.plugin.crash_points import crash_point


class RevisionWriter:
    """Steps the machine, and writes the outcome if the revision is still what was seen."""

    def __init__(self, store: ArtifactStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def apply(
        self,
        seen: Revision,
        trigger: RevisionTrigger,
        *,
        info: str | None = None,
        unless_mounted: bool = False,
        **values: Any,
    ) -> Revision | None:
        """The revision as it is now, which is ``seen`` itself if the trigger changes nothing; None if ``seen`` is out
        of date: load it again.

        Raises:
            Conflict: its status does not admit this, or ``unless_mounted`` and a session mounts it; the message is half
                a sentence.
        """
        state = step(RevisionState(seen.status, seen.residue), trigger)
        if state.status is seen.status:
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
        crash_point(f"after-artifact-{trigger.value}")
        return moved

    async def note(self, seen: Revision, **values: Any) -> Revision | None:
        """Write what changes no status; None as for :meth:`apply`."""
        return await self._store.move(seen, at=self._clock.now(), **values)
