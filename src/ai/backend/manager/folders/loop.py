"""Creates, fills and removes the directories of folders until they match the stored rows.

The row is written first, with the desired status; the directory follows. If the manager is killed in between, this
loop continues from the row. All steps are idempotent, and a row changes its status only from the expected one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import timedelta

from ai.backend.common.errors import BackendError, FolderNotFound, NotFound
from ai.backend.common.folders import FolderStatus
from ai.backend.common.ids import FolderId
from ai.backend.core.lifecycle.folder import FolderTrigger
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.folders.gateway import FolderGateway, Progress
from ai.backend.manager.folders.model import Folder
from ai.backend.manager.folders.store import FolderStore
from ai.backend.manager.folders.transitions import FolderTransitions
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
_MAX_CONCURRENT_STEPS = 8
_TRANSITION_CAUSE = "folder loop"
_REMOVED_STATUSES = frozenset({FolderStatus.DELETE_ONGOING, FolderStatus.DELETE_COMPLETE})


class FolderLoop(PeriodicLoop):
    """Creates, clones and removes the directories of folders until they match the folders in the database.

    :meth:`begin` creates or clones the directory of a new folder at once, for a waiting request.
    """

    period_s = 10.0

    def __init__(self, store: FolderStore, storage: FolderGateway, clock: Clock, *, trash_days: float = 0) -> None:
        super().__init__()
        self._store = store
        self._storage = storage
        self._clock = clock
        self._trash_days = trash_days
        self.transitions = FolderTransitions(store, clock, self.wake)
        self._under_way: set[FolderId] = set()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_STEPS)
        self._clones: set[asyncio.Task[None]] = set()

    async def once(self) -> None:
        await self._empty_trash()
        folders = await self._store.by_status(
            {FolderStatus.PERFORMING, FolderStatus.CLONING, FolderStatus.DELETE_ONGOING}
        )
        idle_folders = [folder for folder in folders if folder.id not in self._under_way]
        for folder in idle_folders:
            # A clone may take hours and must not delay other folders.
            if folder.status is FolderStatus.CLONING:
                task = asyncio.create_task(
                    self._try_step(self._copy_files, folder, nullcontext()), name=f"clone-{folder.id}"
                )
                self._clones.add(task)
                task.add_done_callback(self._clones.discard)
        step_of_status = {FolderStatus.PERFORMING: self._create_directory, FolderStatus.DELETE_ONGOING: self._remove}
        planned_steps = [
            (step_of_status[folder.status], folder) for folder in idle_folders if folder.status in step_of_status
        ]
        await asyncio.gather(*(self._try_step(step, folder, self._slots) for step, folder in planned_steps))

    async def _empty_trash(self) -> None:
        if self._trash_days:
            now, trash_period = self._clock.now(), timedelta(days=self._trash_days)
            expired_count = await self._store.expire(
                now - trash_period, at=now, info=f"in the trash for {self._trash_days:g} days"
            )
            if expired_count:
                crash_point("after-trash-expired")
                log.info("%d folders were in the trash for %g days and are removed", expired_count, self._trash_days)

    async def stop(self) -> None:
        """Cancels the clones that were resumed; the next process continues them."""
        for task in self._clones:
            task.cancel()
        await asyncio.gather(*self._clones, return_exceptions=True)

    async def _try_step(
        self,
        step: Callable[[Folder], Awaitable[object]],
        folder: Folder,
        concurrency_limit: AbstractAsyncContextManager[None],
    ) -> None:
        self._under_way.add(folder.id)
        try:
            async with concurrency_limit:
                await step(folder)
        except BackendError as e:
            log.warning("the folder %s (%s) stays %s: %s", folder.id, folder.host, folder.status, e)
        finally:
            self._under_way.discard(folder.id)

    async def begin(
        self,
        folder: Folder,
        *,
        max_count: int = 0,
        progress: Progress | None = None,
        insert_result: asyncio.Future[None] | None = None,
    ) -> None:
        """Stores a new folder, sets the result of ``insert_result``, and creates or clones the folder's directory.

        Raises FolderAlreadyExists, LimitExceeded; and BackendError if the storage proxy failed, whereupon the folder is
        removed.
        """
        self._under_way.add(folder.id)
        try:
            await self._insert_row(folder, max_count, insert_result)
            await (self._create_directory(folder) if folder.cloned_from is None else self._copy_files(folder, progress))
        except BackendError as e:
            if await self._give_up(folder, e.message):
                log.warning("the folder %s could not be made on %s: %s", folder.id, folder.host, e)
            raise
        finally:
            self._under_way.discard(folder.id)

    async def _insert_row(self, folder: Folder, max_count: int, insert_result: asyncio.Future[None] | None) -> None:
        try:
            crash_point("before-commit-folder")
            await self._store.insert(folder, max_count=max_count)
            crash_point("after-commit-folder")
        except BaseException as e:
            if insert_result is not None and not insert_result.done():
                insert_result.set_exception(e)
            raise
        if insert_result is not None and not insert_result.done():
            insert_result.set_result(None)

    async def _create_directory(self, folder: Folder) -> None:
        if folder.unmanaged_path is None:
            await self._storage.create_folder(folder.key)
        crash_point("after-folder-create")
        await self._mark_ready(folder, FolderTrigger.MADE)

    async def _copy_files(self, folder: Folder, progress: Progress | None = None) -> None:
        source_folder = await self._store.get(folder.cloned_from) if folder.cloned_from is not None else None
        if source_folder is None:
            await self._give_up(folder, "the source of the clone is gone")
            raise FolderNotFound("The folder to clone is gone.")
        try:
            await self._storage.clone_folder(source_folder.folder.key, folder.key, progress)
        except NotFound as e:
            await self._give_up(folder, e.message)
            raise
        crash_point("after-folder-clone")
        await self._mark_ready(folder, FolderTrigger.FILLED)

    async def _mark_ready(self, folder: Folder, trigger: FolderTrigger) -> None:
        """Marks a folder as ready, or deletes its directory if another manager has removed the folder."""
        if not await self.transitions.apply(folder, trigger, cause=_TRANSITION_CAUSE):
            row = await self._store.get(folder.id)
            if row is None or row.folder.status in _REMOVED_STATUSES:
                await self._delete_directory(folder)

    async def _give_up(self, folder: Folder, reason: str) -> bool:
        return await self.transitions.apply(folder, FolderTrigger.FAILED, cause=_TRANSITION_CAUSE, info=reason)

    async def _remove(self, folder: Folder) -> None:
        try:
            await self._delete_directory(folder)
        except BackendError as e:
            if e.retryable:
                raise
            await self.transitions.apply(folder, FolderTrigger.REMOVAL_FAILED, cause=_TRANSITION_CAUSE, info=e.message)
            return
        crash_point("after-folder-delete")
        await self.transitions.apply(folder, FolderTrigger.REMOVED, cause=_TRANSITION_CAUSE)

    async def _delete_directory(self, folder: Folder) -> None:
        if folder.unmanaged_path is None:
            with suppress(FolderNotFound):
                await self._storage.delete_folder(folder.key)
