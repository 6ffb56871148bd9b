"""Ends the kernels of TERMINATING sessions, and older attempts of kernels that still run on an agent.

A kernel in TERMINATING is asked to end until its agent reports that nothing is left. The end is forced when the
deadline has passed, and the kernel is given up when its agent is lost or the deadline has passed three times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.common.states import AgentStatus, KernelEventReason, KernelStatus, SessionStatus
from ai.backend.common.wire.agent import DestroyKernel
from ai.backend.core.lifecycle.effects import DestroyKernels, KernelTarget
from ai.backend.core.lifecycle.events import KernelsAbandoned
from ai.backend.infra.clock import Ages, Clock
from ai.backend.infra.loop import PeriodicLoop, cancel_all
from ai.backend.infra.telemetry import bind_log_context
from ai.backend.infra.telemetry.tracing import child_span
from ai.backend.manager.agents.settings import AgentSettings
from ai.backend.manager.agents.store import AgentGateway, AgentStore
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
_RESEND_S = 1.0
"""Minimum time before a round sends a request again."""


@dataclass(eq=False, repr=False)
class TerminateLoop(PeriodicLoop):
    """Ends the kernels of TERMINATING sessions, and gives up kernels whose agents do not answer."""

    period_s = 5.0

    store: SessionStore
    agents: AgentStore
    writer: SessionWriter
    gateway: AgentGateway
    clock: Clock
    sessions: SessionSettings
    agent_settings: AgentSettings
    _tasks: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _sent: dict[KernelTarget, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._ages = Ages(self.clock)

    def push(self, effect: DestroyKernels) -> None:
        """Sends the requests to end kernels now."""
        self._record_sent_targets(effect.targets)
        task = asyncio.create_task(self._destroy(effect.targets, effect.reason, forced=effect.forced))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        await cancel_all(*self._tasks)

    async def once(self) -> None:
        resend_before_s = self.clock.monotonic() - _RESEND_S
        self._sent = {
            kernel_target: sent_at_s for kernel_target, sent_at_s in self._sent.items() if sent_at_s > resend_before_s
        }
        sessions = await self.store.by_status([SessionStatus.TERMINATING])
        if not sessions:
            return
        agents = {agent.id: agent for agent in await self.agents.agents()}
        self._ages.next_round()
        requests: list[Awaitable[None]] = []
        for session in sessions:
            age_s = self._ages.of(session.id, session.status_changed)
            is_overdue = age_s > self.sessions.terminate_timeout_s
            is_far_overdue = age_s > 3 * self.sessions.terminate_timeout_s
            given_up_ids: set[KernelId] = set()
            for kernel in session.kernels:
                if kernel.status is not KernelStatus.TERMINATING or kernel.agent is None:
                    continue
                agent = agents.get(kernel.agent)
                is_agent_lost = agent is None or agent.status is not AgentStatus.ALIVE
                if is_far_overdue or (is_agent_lost and age_s > self.agent_settings.abandon_terminating_s):
                    given_up_ids.add(kernel.id)
                    continue
                kernel_target = KernelTarget(kernel_id=kernel.id, agent_id=kernel.agent, attempt=kernel.attempt)
                if not is_agent_lost and kernel_target not in self._sent:
                    self._record_sent_targets([kernel_target])
                    requests.append(self._destroy([kernel_target], session.reason, forced=is_overdue))
            if given_up_ids:
                requests.append(self._abandon(session.id, frozenset(given_up_ids)))
        await asyncio.gather(*requests)

    def _record_sent_targets(self, targets: Iterable[KernelTarget]) -> None:
        now = self.clock.monotonic()
        self._sent.update((target, now) for target in targets)

    async def _abandon(self, session_id: SessionId, kernels: frozenset[KernelId]) -> None:
        log.warning("giving up %d kernels of session %s: their agents do not end them", len(kernels), session_id)
        event = KernelsAbandoned(kernel_ids=kernels, reason=KernelEventReason.AGENT_LOST, stimulus_id="terminate loop")
        try:
            await self.writer.apply(session_id, event, self.clock, point="commit-abandon")
        except BackendError as e:  # the next round tries again; the other sessions do not wait for this one
            log.warning("kernels of session %s could not be given up: %s", session_id, e)

    async def _destroy(self, targets: Sequence[KernelTarget], reason: KernelEventReason, *, forced: bool) -> None:
        for kernel_target in targets:
            request = DestroyKernel(
                kernel_id=str(kernel_target.kernel_id), attempt=kernel_target.attempt, reason=reason, forced=forced
            )
            crash_point("before-agent-destroy")
            session = self.writer.recent_session_of_kernel(kernel_target.kernel_id)
            trace, session_id = (session.trace, session.id) if session is not None else (None, None)
            with bind_log_context(session_id=session_id), child_span("kernel destroy", parent=trace):
                try:
                    await self.gateway.agent(kernel_target.agent_id).destroy_kernel(request)
                except Unavailable:
                    continue  # sent again by the next round, or given up with its agent
                except BackendError as e:
                    log.warning(
                        "agent %s does not end kernel %s: %s", kernel_target.agent_id, kernel_target.kernel_id, e
                    )
            crash_point("after-agent-destroy")
