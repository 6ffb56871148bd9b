"""Recovers kernels after a restart of the agent, reconciles records with workloads, and follows exits of workloads."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence

from ai.backend.agent.kernels.kernel import Kernel
from ai.backend.agent.kernels.model import Termination
from ai.backend.agent.lifecycle.context import AgentContext
from ai.backend.agent.lifecycle.steps.workload import claimed_devices_of
from ai.backend.agent.lifecycle.supervisor import Supervisor
from ai.backend.common.errors import BackendError
from ai.backend.common.states import KernelEventReason
from ai.backend.core.lifecycle.kernel_phase import Phase
from ai.backend.infra.retry import Backoff
from ai.backend.plugin.runtime import AbstractRuntime, WorkloadExited, WorkloadKey, WorkloadView

log = logging.getLogger(__name__)
_RETRY_S = 1.0
_RETRY_MAX_S = 5.0


class Recovery:
    """Resumes kernels from their records and removes workloads without a record."""

    def __init__(self, context: AgentContext, supervisor: Supervisor) -> None:
        self._context = context
        self._supervisor = supervisor

    async def recover(self) -> None:
        """Loads every record, removes workloads without one, and resumes the kernels."""
        now, wall_now = asyncio.get_running_loop().time(), self._context.wall_clock()
        multi_node_kernels: list[Kernel] = []
        for record in self._context.records.load():
            kernel_id = record.spec.kernel_id
            if record.phase is Phase.ENDED:
                self._supervisor.ended.add(kernel_id, now - max(0.0, wall_now - record.ended_at))
                continue
            kernel = self._supervisor.kernels[kernel_id] = Kernel(record, self._context.records)
            if record.spec.cluster.overlay is not None and record.phase is Phase.RUNNING:
                multi_node_kernels.append(kernel)
            self._context.networks.hold(record)
            self._context.inventory.adopt(kernel_id, record.device_allocation, claimed_devices_of(record.spec))
        if self._context.inventory.is_stale:  # devices are withheld that kernels hold by slots of other names
            await self._context.inventory.rebuild()
        self._forget_ended()
        self._supervisor.restore_leftovers()
        await self.remove_orphans(await self._context.runtime.list_workloads())
        await self._sweep_networks()
        await self._rejoin(multi_node_kernels)
        for kernel in self._supervisor.live_kernels():
            self._supervisor.resume(kernel)

    async def remove_orphans(self, views: Iterable[WorkloadView]) -> None:
        """Removes every workload without a kernel of this agent."""
        for view in views:
            kernel = self._supervisor.kernels.get(str(view.key.kernel_id))
            if kernel is not None and view.key.attempt in (kernel.attempt, kernel.record.restarted_from):
                continue
            log.warning("the workload %s belongs to no kernel of this agent and is removed", view.key)
            try:
                await self._context.runtime.stop(view.key, grace_s=0.0)
                await self._context.runtime.remove(view.key)
            except Exception:  # one workload must not keep the agent from starting
                log.exception("the workload %s cannot be removed; the next sync tries again", view.key)

    async def _sweep_networks(self) -> None:
        try:
            await self._context.networks.sweep()
        except Exception:  # likewise
            log.exception("networks of ended sessions cannot be removed; the next sync tries again")

    async def _rejoin(self, kernels: Sequence[Kernel]) -> None:
        broken_sessions = await self._context.networks.broken() if kernels else ()
        for record in [kernel.record for kernel in kernels]:
            try:
                if record.session_id not in broken_sessions:
                    await self._context.networks.join(record)
            except BackendError as e:
                log.warning("kernel %s may not reach those on other nodes: %s", record.spec.kernel_id, e)

    async def _end_disconnected(self, candidates: Collection[WorkloadKey]) -> None:
        broken_sessions = await self._context.networks.broken()
        for kernel in self._supervisor.live_kernels() if broken_sessions else ():
            if kernel.key in candidates and _is_running(kernel) and kernel.record.session_id in broken_sessions:
                message = "somebody has removed its session's network"
                reason = KernelEventReason.ANOMALY_DETECTED
                self._supervisor.end(kernel, Termination(reason=reason, message=message))

    async def sync(self) -> None:
        """Compares the records of kernels with the runtime's workloads, and ends kernels without a running workload.

        Also removes workloads without a kernel, and forgets kernels that ended long ago.
        """
        # Only kernels that ran before the listing: a workload that started meanwhile is missing from it.
        running_keys = {kernel.key for kernel in self._supervisor.live_kernels() if _is_running(kernel)}
        workload_views = {view.key: view for view in await self._context.runtime.list_workloads()}
        for kernel in self._supervisor.live_kernels():
            if kernel.key in running_keys and _is_running(kernel):
                view = workload_views.get(kernel.key)
                if view is None or view.exit is not None:
                    self._supervisor.end_lost_kernel(kernel, view.exit if view is not None else None)
        await self._end_disconnected(running_keys)
        await self.remove_orphans(workload_views.values())
        await self._sweep_networks()
        self._forget_ended()

    def _forget_ended(self) -> None:
        ended_before = asyncio.get_running_loop().time() - self._context.settings.kernel_lifecycles.tombstone
        for kernel_id in self._supervisor.ended.older_than(ended_before):
            self._context.records.forget(kernel_id)
            self._supervisor.ended.discard(kernel_id)


def _is_running(kernel: Kernel) -> bool:
    return kernel.phase is Phase.RUNNING and (kernel.task is None or kernel.task.done())


async def watch_exits(runtime: AbstractRuntime, supervisor: Supervisor) -> None:
    """Forwards exits of workloads to the supervisor until cancelled.

    The sync loop finds exits whose events were lost.
    """
    while True:
        try:
            async for event in runtime.events():
                await _forward(event, supervisor)
        except Exception:  # the events are read again, and the sync loop finds what was lost
            log.exception("the runtime's events broke off")
        await asyncio.sleep(_RETRY_S)


async def _forward(event: WorkloadExited, supervisor: Supervisor) -> None:
    """Forwards the exit of a workload to the supervisor. Repeats this while a full disk prevents that it is stored.

    A workload that filled the disk is ended for that: its exit comes at a moment at which nothing can be stored.
    """
    backoff = Backoff(_RETRY_S, _RETRY_MAX_S)
    while True:
        try:
            supervisor.end_exited_kernel(event.key, event.exit)
            return
        except OSError as e:
            log.warning("the exit of the workload %s cannot be stored, and is tried again: %s", event.key, e)
        await backoff.wait()
