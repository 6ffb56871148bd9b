"""Changes the status of folders, as the transition table permits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ai.backend.core.lifecycle.folder import FolderEffect, FolderTrigger, step
from ai.backend.core.lifecycle.transition import InvalidTransition, TransitionHistories
from ai.backend.infra.clock import Clock
from ai.backend.manager.folders.model import Folder
from ai.backend.manager.folders.store import FolderStore

log = logging.getLogger(__name__)


class FolderTransitions:
    """Changes the status of folders in the database, and executes the effects of each transition.

    A status is stored only if the folder did not change meanwhile. ``remove_files`` executes the effect that removes
    the files of a folder.
    """

    def __init__(self, store: FolderStore, clock: Clock, remove_files: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._histories = TransitionHistories()
        self._executors = {FolderEffect.REMOVE_FILES: remove_files}

    def check(self, folder: Folder, trigger: FolderTrigger, *, cause: str) -> None:
        """Raises InvalidTransition if the trigger is not allowed in the folder's status."""
        try:
            step(
                folder.status,
                trigger,
                name=folder.name,
                stimulus_id=cause,
                recent_transitions=self._histories.of(folder.id),
            )
        except InvalidTransition as e:
            log.info("%s", e.explain())
            raise

    async def apply(
        self, folder: Folder, trigger: FolderTrigger, *, cause: str, info: str | None = None, **limits: Any
    ) -> bool:
        """Changes the status of a folder by a trigger. Returns False if the folder has changed since it was read.

        An outdated trigger changes nothing. ``limits`` as :meth:`FolderStore.move` takes them.

        Raises:
            InvalidTransition: the status does not admit the trigger.
            Conflict, FolderAlreadyExists, LimitExceeded: as :meth:`FolderStore.move` raises them.
        """
        self.check(folder, trigger, cause=cause)
        new_status, transition_path, effects = step(folder.status, trigger, stimulus_id=cause)
        if not transition_path:
            return True
        is_moved = await self._store.move(
            folder.id, {folder.status}, new_status, at=self._clock.now(), info=info, **limits
        )
        if is_moved:
            self._histories.extend(folder.id, transition_path)
            for effect in effects:
                self._executors[effect]()
        return is_moved
