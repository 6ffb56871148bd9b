"""Finding the kernels of an earlier life again, and keeping records and workloads in step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import Termination
from ai.backend.agent.lifecycle.context import AgentContext
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.common.errors import BackendError
from ai.backend.common.states import KernelEventReason, KernelStatus
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.plugin.runtime import WorkloadKey, WorkloadView

log = logging.getLogger(__name__)


class Recovery:
    """Goes on where the records stand, and ends what no record knows."""

    def __init__(self, around: AgentContext, supervisor: Supervisor) -> None:
        self._around = around
        self._supervisor = supervisor

    async def recover(self) -> None:
        """Find the kernels of an earlier life again, go on with each, and remove workloads that no record knows."""
        now, wall_now = asyncio.get_running_loop().time(), self._around.wall_clock()
        spread: list[Kernel] = []
        for record in self._around.records.load():
            kernel_id = record.spec.kernel_id
            if record.phase is Phase.ENDED:
                self._supervisor.ended.add(kernel_id, now - max(0.0, wall_now - record.ended_at))
                continue
            kernel = self._supervisor.kernels[kernel_id] = Kernel(record, self._around.records)
            if record.spec.cluster.overlay is not None and record.phase is Phase.RUNNING:
                spread.append(kernel)
            self._around.networks.hold(record)
            self._around.inventory.adopt(kernel_id, record.device_allocation)
        self._forget_ended()
        self._supervisor.restore_leftovers()
        await self.remove_strangers(await self._around.runtime.list_workloads())
        await self._sweep_networks()
        await self._rejoin(spread)
        for kernel in self._supervisor.live():
            self._supervisor.resume(kernel)

    async def remove_strangers(self, views: Iterable[WorkloadView]) -> None:
        """End every workload that no record of ours accounts for."""
        for view in views:
            kernel = self._supervisor.kernels.get(str(view.key.kernel_id))
            if kernel is not None and view.key.attempt in (kernel.attempt, kernel.record.restarted_from):
                continue
            log.warning("the workload %s belongs to no kernel of this agent and is removed", view.key)
            try:
                await self._around.runtime.stop(view.key, grace_s=0.0)
                await self._around.runtime.remove(view.key)
            except Exception:
                log.exception("the workload %s cannot be removed; the next look tries again", view.key)

    async def _sweep_networks(self) -> None:
        try:
            await self._around.networks.sweep()
        except Exception:
            log.exception("networks of sessions that are gone cannot be removed; the next look tries again")

    async def _rejoin(self, kernels: Sequence[Kernel]) -> None:
        """Where a network is broken nothing is mended: the next comparison ends its kernels."""
        broken = await self._around.networks.broken() if kernels else ()
        for record in [kernel.record for kernel in kernels]:
            try:
                if record.session_id not in broken:
                    await self._around.networks.join(record)
            except BackendError as e:
                log.warning("kernel %s may not reach those on other nodes: %s", record.spec.kernel_id, e)

    async def _end_cut_off(self, settled: Collection[WorkloadKey]) -> None:
        """Somebody has removed the network of a session from under its kernels."""
        broken = await self._around.networks.broken()
        for kernel in self._supervisor.live() if broken else ():
            if kernel.key in settled and _is_settled(kernel) and kernel.record.session_id in broken:
                message = "somebody has removed its session's network"
                reason = KernelEventReason.ANOMALY_DETECTED
                self._supervisor.end(
                    kernel, Termination(status=KernelStatus.TERMINATED, reason=reason, message=message)
                )

    async def sync(self) -> None:
        """Compare the records with what the runtime holds; forget kernels that ended long ago."""
        # Only those that ran before the runtime was asked: one that began meanwhile is missing from the answer.
        settled = {kernel.key for kernel in self._supervisor.live() if _is_settled(kernel)}
        views = {view.key: view for view in await self._around.runtime.list_workloads()}
        for kernel in self._supervisor.live():
            if kernel.key in settled and _is_settled(kernel):
                view = views.get(kernel.key)
                if view is None or view.exit is not None:
                    self._supervisor.lost(kernel, view.exit if view is not None else None)
        await self._end_cut_off(settled)
        await self.remove_strangers(views.values())
        await self._sweep_networks()
        self._forget_ended()

    def _forget_ended(self) -> None:
        limit = asyncio.get_running_loop().time() - self._around.settings.kernel_lifecycles.tombstone
        for kernel_id in self._supervisor.ended.older_than(limit):
            self._around.records.forget(kernel_id)
            self._supervisor.ended.discard(kernel_id)


def _is_settled(kernel: Kernel) -> bool:
    return kernel.phase is Phase.RUNNING and (kernel.task is None or kernel.task.done())
