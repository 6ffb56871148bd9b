"""Sends creations and restarts of kernels to agents.

A SCHEDULED session is created on the agents of its kernels, a RESTARTING one is restarted. Agents are idempotent by
(kernel, attempt), so everything is sent again after a crash or when an agent does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from ai.backend.common import errors
from ai.backend.common.ids import AgentId, KernelId, SessionId
from ai.backend.common.states import KernelEventReason, KernelStatus, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.agent import CreateKernels, RestartKernel
from ai.backend.core.lifecycle.events import SessionCreationFailed, SessionDispatched
from ai.backend.infra.clock import Clock
from ai.backend.infra.loop import PeriodicLoop, cancel_all
from ai.backend.infra.retry import Backoff
from ai.backend.infra.telemetry import bind_log_context
from ai.backend.infra.telemetry.tracing import child_span
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.dotfiles.model import InjectedFiles
from ai.backend.manager.dotfiles.service import DotfileService
from ai.backend.manager.images.registries import ImagePulls
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.claims.model import Claim
from ai.backend.manager.sessions.lifecycle.kernel_spec import kernel_spec
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.networks import Derive
from ai.backend.manager.sessions.settings import SessionSettings
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.transitions import MAX_RETRY_AFTER_S, advance
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)

_PERMANENT_ERRORS = (
    errors.CreationDenied,
    errors.UnsupportedResource,
    errors.InvalidInput,
    errors.NotFound,
    errors.PluginError,
)
"""Errors of an agent after which a second try to create the kernel would fail again. Any other one sends the session
back to the scheduler, a few times.
"""
_REQUIREMENTS_KEY = "requirements"
"""The key in the data of UnsupportedResource that says that no device meets the session's requirements any more. The
session goes back to the scheduler.
"""
_STIMULUS_ID = "launch loop"
_FIRST_REPORT_S = 0.1
"""How long the first report of an agent that has accepted a session is awaited."""
_LAUNCHABLE_STATUSES = (SessionStatus.SCHEDULED, SessionStatus.RESTARTING)


@dataclass(eq=False, repr=False)
class LaunchLoop(PeriodicLoop):
    """Creates and restarts the kernels of scheduled and restarting sessions."""

    period_s = 2.0

    store: SessionStore
    writer: SessionWriter
    gateway: AgentGateway
    clock: Clock
    settings: SessionSettings
    dotfiles: DotfileService
    image_pulls: ImagePulls | None
    derive: Derive
    open_environ: Callable[[Mapping[str, str]], Mapping[str, str]]
    _running: dict[SessionId, asyncio.Task[None]] = field(default_factory=dict, init=False)

    def push(self, session: Session) -> None:
        """Launches a session now, unless a launch is running."""
        if session.id in self._running:
            return
        task = asyncio.create_task(self._launch(session))
        self._running[session.id] = task
        task.add_done_callback(lambda _: self._running.pop(session.id, None))

    async def once(self) -> None:
        for session in await self.store.by_status(_LAUNCHABLE_STATUSES):
            self.writer.cache([session])
            self.push(session)

    async def stop(self) -> None:
        """Cancels running launches; the next start sends them again."""
        await cancel_all(*self._running.values())

    async def _launch(self, session: Session) -> None:
        is_restart = session.status is SessionStatus.RESTARTING
        name, trace_attributes = (
            f"session {'restart' if is_restart else 'launch'}",
            {"backendai.session_id": str(session.id)},
        )
        with (
            bind_log_context(session_id=session.id),
            child_span(name, parent=session.trace, attributes=trace_attributes),
        ):
            try:
                await (self._restart if is_restart else self._create)(session)
            except Exception:  # a failure of one session must not affect others; the loop sends again
                log.exception("could not launch session %s", session.id)

    async def _create(self, session: Session) -> None:
        kernels_by_agent: dict[AgentId, list[Kernel]] = {}
        for kernel in session.kernels:
            if kernel.agent is not None and kernel.status is KernelStatus.SCHEDULED:
                kernels_by_agent.setdefault(kernel.agent, []).append(kernel)
        owner = session.domain_name, session.group_id, session.access_key
        files = await self.dotfiles.injected_files(*owner)
        crash_point("before-agent-create")
        agents = list(kernels_by_agent)
        send_errors = await asyncio.gather(
            *(self._send(session, agent, kernels_by_agent[agent], files) for agent in agents)
        )
        crash_point("after-agent-create")
        refusals = {agent: error for agent, error in zip(agents, send_errors, strict=True) if error is not None}
        attempts = {kernel.id: kernel.attempt for kernel in session.kernels}
        if not refusals:
            await self._mark_dispatched(session.id, attempts)
            return
        if all(isinstance(error, errors.Unavailable) for error in refusals.values()):
            # They may have accepted, so the same attempt is sent until they answer or are lost.
            return
        failed_kernel_ids = frozenset(
            refused_kernel.id
            for refusing_agent, error in refusals.items()
            if not isinstance(error, errors.Unavailable)
            for refused_kernel in kernels_by_agent[refusing_agent]
        )
        await self._fail(session.id, attempts, failed_kernel_ids, refusals)

    async def _send(
        self, session: Session, agent_id: AgentId, kernels: Sequence[Kernel], files: InjectedFiles
    ) -> errors.BackendError | None:
        """Sends the kernels to an agent; returns its error, or None if it accepted."""
        try:
            kept_claims = await self._kept_claims(agent_id)
            claim = kept_claims.get(session.claim_id) if session.claim_id is not None else None
            if session.claim_id is not None and claim is None:
                return errors.InsufficientResource(f"the claim {session.claim_name} has no devices on {agent_id}")
            secrets = self.open_environ(session.sealed_environ)
            kernel_specs = [kernel_spec(session, kernel, files, self.derive, secrets, claim) for kernel in kernels]
            request = CreateKernels(kernels=kernel_specs)
            if self.image_pulls is not None:
                request = await self.image_pulls.creation_command(kernel_specs)
            if kept_claims:
                devices = {
                    str(kept_claim.id): {
                        plugin_key: dict(plugin_devices) for plugin_key, plugin_devices in kept_claim.devices.items()
                    }
                    for kept_claim in kept_claims.values()
                }
                request = replace(request, kept=devices)
            await self.gateway.agent(agent_id).create_kernels(request)
        except errors.BackendError as e:
            log.warning("agent %s refused session %s: %s: %s", agent_id, session.id, e.code, e.message)
            return e
        return None

    async def _kept_claims(self, agent_id: AgentId) -> dict[UUID, Claim]:
        """Returns the device claims that hold devices of an agent, by their ids."""
        return {claim.id: claim for claim in await self.store.claims_on(agent_id)}

    async def _mark_dispatched(self, session_id: SessionId, attempts: Mapping[KernelId, int]) -> None:
        """Moves a SCHEDULED session to PREPARING if no report of an agent has changed its status first."""

        def make_change(session: Session) -> Change | None:
            if session.status is not SessionStatus.SCHEDULED or not _same_attempts(session, attempts):
                return None
            return advance(session, SessionDispatched(stimulus_id=_STIMULUS_ID), now=self.clock.now())

        # An agent that starts at once has its observations on the way: one write less on the path to RUNNING.
        reported_session = await self.writer.wait_until(
            session_id, lambda session: session.status is not SessionStatus.SCHEDULED, timeout_s=_FIRST_REPORT_S
        )
        if reported_session is None:
            await self.writer.transition(session_id, make_change, point="commit-dispatch")

    async def _fail(
        self,
        session_id: SessionId,
        attempts: Mapping[KernelId, int],
        failed_ids: frozenset[KernelId],
        refusals: Mapping[AgentId, errors.BackendError],
    ) -> None:
        """Stores the worst refusal of the agents with the session, and each agent's refusal with its failed kernels."""
        denying_agent = next(
            (
                agent
                for agent, refusal in refusals.items()
                if isinstance(refusal, _PERMANENT_ERRORS) and _REQUIREMENTS_KEY not in refusal.data
            ),
            None,
        )
        worst_agent = denying_agent or next(
            agent for agent, error in refusals.items() if not isinstance(error, errors.Unavailable)
        )
        worst_error = refusals[worst_agent]
        reason = KernelEventReason.CREATION_DENIED if denying_agent is not None else KernelEventReason.CREATION_DEFERRED
        event = SessionCreationFailed(
            kernel_ids=failed_ids, reason=reason, retryable=denying_agent is None, stimulus_id=_STIMULUS_ID
        )
        now = self.clock.now()

        def make_change(session: Session) -> Change | None:
            if not _same_attempts(session, attempts):
                return None
            change = advance(session, event, now=now)
            if change is None:
                return None
            agent_of_kernel = {kernel.id: kernel.agent for kernel in session.kernels}
            kernels = tuple(
                replace(
                    kernel,
                    status_info=error.message[:500],
                    status_data={**kernel.status_data, **_error_details(agent, error)},
                )
                if kernel.id in failed_ids
                and (agent := agent_of_kernel[kernel.id]) is not None
                and (error := refusals.get(agent)) is not None
                else kernel
                for kernel in change.new.kernels
            )
            new_session = replace(
                change.new,
                status_data={**session.status_data, **_error_details(worst_agent, worst_error)},
                status_info=worst_error.message[:500],
                kernels=kernels,
            )
            if new_session.status is SessionStatus.PENDING:
                new_session = replace(
                    new_session, not_before=now + timedelta(seconds=self._backoff(new_session, worst_error))
                )
            return replace(change, new=new_session)

        await self.writer.transition(session_id, make_change, point="commit-dispatch")

    def _backoff(self, session: Session, error: errors.BackendError) -> float:
        attempts = max(kernel.attempt for kernel in session.kernels)
        requested_s = error.retry_after if isinstance(error, errors.CreationDeferred) else 0.0
        backoff = Backoff(min(self.settings.retry_backoff_s, MAX_RETRY_AFTER_S), MAX_RETRY_AFTER_S)
        return min(max(backoff.delay_s(attempts - 1), requested_s), MAX_RETRY_AFTER_S)

    async def _restart(self, session: Session) -> None:
        for kernel in session.kernels:
            if kernel.status is not KernelStatus.RESTARTING or kernel.agent is None:
                continue
            crash_point("before-agent-restart")
            try:
                request = RestartKernel(
                    kernel_id=str(kernel.id),
                    attempt=kernel.attempt,
                    secret_environ=dict(self.open_environ(session.sealed_environ)),
                    registries=await self.image_pulls.registry_access([kernel.image])
                    if self.image_pulls is not None
                    else [],
                )
                await self.gateway.agent(kernel.agent).restart_kernel(request)
            except errors.BackendError as e:
                log.warning("agent %s does not restart kernel %s (yet): %s", kernel.agent, kernel.id, e)
                return  # sent again until the deadline of RESTARTING
            crash_point("after-agent-restart")


def _error_details(agent: AgentId, error: errors.BackendError) -> dict[str, Any]:
    return {"error": {"code": error.code, "message": error.message, "agent": agent, "data": error.data}}


def _same_attempts(session: Session, attempts: Mapping[KernelId, int]) -> bool:
    """Returns True if every kernel of the session is still at its attempt in ``attempts``."""
    return all(kernel.attempt == attempts.get(kernel.id) for kernel in session.kernels)
