"""Finding the kernels of an earlier life again, and keeping records and workloads in step."""

from __future__ import annotations

import logging
import time

from ai.backend.agent.model.kernel import Phase
from ai.backend.agent.services.kernel import Kernel
from ai.backend.agent.services.kernel_lifecycle.context import Surroundings
from ai.backend.agent.services.kernel_lifecycle.supervisor import Supervisor

log = logging.getLogger(__name__)


class Recovery:
    """Goes on where the records stand, and ends what no record knows."""

    def __init__(self, around: Surroundings, supervisor: Supervisor) -> None:
        self._around = around
        self._supervisor = supervisor

    async def recover(self) -> None:
        """Find the kernels of an earlier life again, go on with each, and remove workloads that no record knows."""
        limit = time.time() - self._around.settings.kernel_lifecycles.tombstone
        for record in self._around.records.load():
            if record.phase is Phase.ENDED and record.ended_at < limit:
                self._around.records.forget(record.spec.kernel_id)
                continue
            kernel = self._supervisor.kernels[record.spec.kernel_id] = Kernel(record, self._around.records)
            if kernel.is_live:
                self._around.inventory.adopt(kernel.id, record.device_allocation)
        await self.remove_strangers()
        for kernel in self._supervisor.live():
            self._supervisor.resume(kernel)

    async def remove_strangers(self) -> None:
        """End every workload that no record of ours accounts for."""
        for view in await self._around.runtime.list_workloads():
            kernel = self._supervisor.kernels.get(str(view.key.kernel_id))
            known = kernel is not None and kernel.is_live
            if known and kernel is not None and view.key.attempt in (kernel.attempt, kernel.record.restarted_from):
                continue
            log.warning("the workload %s belongs to no kernel of this agent and is removed", view.key)
            try:
                await self._around.runtime.stop(view.key, grace_s=0.0)
                await self._around.runtime.remove(view.key)
            except Exception:
                log.exception("the workload %s cannot be removed; the next look tries again", view.key)

    async def sync(self) -> None:
        """Compare the records with what the runtime holds; forget kernels that ended long ago."""
        views = {view.key: view for view in await self._around.runtime.list_workloads()}
        for kernel in self._supervisor.live():
            if kernel.record.phase is Phase.RUNNING and (kernel.task is None or kernel.task.done()):
                view = views.get(kernel.key)
                if view is None or view.exit is not None:
                    self._supervisor.lost(kernel, view.exit if view is not None else None)
        await self.remove_strangers()
        limit = time.time() - self._around.settings.kernel_lifecycles.tombstone
        for kernel in [k for k in self._supervisor.kernels.values() if not k.is_live and k.record.ended_at < limit]:
            self._around.records.forget(kernel.id)
            del self._supervisor.kernels[kernel.id]
