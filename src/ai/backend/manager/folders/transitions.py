"""The one place that changes the status of folders."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ai.backend.core.lifecycle.folder import FolderEffect, FolderTrigger, step
from ai.backend.core.lifecycle.transition import InvalidTransition, Stories
from ai.backend.infra.clock import Clock
from ai.backend.manager.folders.model import Folder
from ai.backend.manager.folders.store import FolderStore

log = logging.getLogger(__name__)


class FolderTransitions:
    """Steps the machine, writes the outcome if the folder is still what was seen, and executes what follows.

    ``remove_files`` lets the loop that removes directories run now.
    """

    def __init__(self, store: FolderStore, clock: Clock, remove_files: Callable[[], None]) -> None:
        self._store = store
        self._clock = clock
        self._stories = Stories()
        self._executors = {FolderEffect.REMOVE_FILES: remove_files}

    def check(self, folder: Folder, trigger: FolderTrigger, *, cause: str) -> None:
        """Raises InvalidTransition if the folder's status does not admit this."""
        try:
            step(folder.status, trigger, name=folder.name, stimulus_id=cause, story=self._stories.of(folder.id))
        except InvalidTransition as e:
            log.info("%s", e.explain())
            raise

    async def apply(
        self, folder: Folder, trigger: FolderTrigger, *, cause: str, info: str | None = None, **limits: Any
    ) -> bool:
        """Move a folder; False if it was changed since it was read.

        A trigger that is out of date changes nothing. ``limits`` as :meth:`FolderStore.move` takes them.

        Raises:
            InvalidTransition: its status does not admit this.
            Conflict, FolderAlreadyExists, LimitExceeded: as :meth:`FolderStore.move` has them.
        """
        self.check(folder, trigger, cause=cause)
        target, path, effects = step(folder.status, trigger, stimulus_id=cause)
        if not path:
            return True
        moved = await self._store.move(folder.id, {folder.status}, target, at=self._clock.now(), info=info, **limits)
        if moved:
            self._stories.extend(folder.id, path)
            for effect in effects:
                self._executors[effect]()
        return moved
