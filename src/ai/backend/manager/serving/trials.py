"""Tries a request for an endpoint by starting, probing and ending one replica (client wire contract 2.8, ``try``)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID, uuid4

from ai.backend.common.errors import BackendError, Unavailable, WorkloadError
from ai.backend.common.ids import SessionId, TaskId
from ai.backend.common.states import RUNNING_SESSION_STATUSES
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.events import SessionDestroyRequested
from ai.backend.infra.clock import Clock
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.serving.gateway import ReplicaProbe
from ai.backend.manager.serving.model import Replica, RevisionSpec, port_of
from ai.backend.manager.serving.requests import CreateService
from ai.backend.manager.serving.revisions import trial_request
from ai.backend.manager.serving.service import ServingService
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.manager.tasks.service import TaskProgress, TaskService

_PROGRESS_STEPS = 3
_PROBE_PAUSE_S = 1.0
_START_TIMEOUT_S = 1800.0


@dataclass(eq=False, repr=False, kw_only=True)
class TrialService:
    """Tries a requested endpoint: a background task starts one replica, waits for its health check, and ends it."""

    services: ServingService
    sessions: SessionService
    writer: SessionWriter
    identity: IdentityService
    probe: ReplicaProbe
    tasks: TaskService
    clock: Clock

    async def start(self, caller: Caller, request: CreateService) -> TaskId:
        """Starts a trial as a background task, which succeeds once the replica answers its health check. Raises as
        ``ServingService.create``.
        """
        spec = await self.services.check(caller, request)
        owner = await self.identity.resolve_owner(caller, request.owner_access_key)
        tenant = {"group": request.group, "domain": request.domain, "scaling_group": request.scaling_group}

        async def run(progress: TaskProgress) -> str:
            return await self._run(progress, owner, spec, tenant)

        return await self.tasks.start(caller, "service-try", run)

    async def _run(
        self, progress: TaskProgress, owner: Caller, spec: RevisionSpec, tenant: dict[str, str | None]
    ) -> str:
        session_id, health_check = uuid4(), spec.served.health
        await progress.update(0, _PROGRESS_STEPS, "the session is being created")
        try:
            request = trial_request(spec, tenant, session_id)
            # Its agent ends it after that time, should this manager be killed before.
            request = replace(
                request,
                batch_timeout_s=health_check.initial_delay + health_check.interval * health_check.max_retries + 60,
            )
            await self.sessions.create(owner, request, call_id=session_id)
            session = await self._wait_until_running(SessionId(session_id))
            await progress.update(1, _PROGRESS_STEPS, f"the session {session.name} runs; waiting for its server")
            await self._wait_until_healthy(progress, session, spec)
            await progress.update(_PROGRESS_STEPS, _PROGRESS_STEPS, "the server answers")
        finally:
            end_request = SessionDestroyRequested(stimulus_id="end of a trial")
            with suppress(BackendError):
                await self.writer.apply(SessionId(session_id), end_request, self.clock, point="commit-destroy")
        return f"{spec.served.health.path} answered {spec.served.health.expected_status_code}: the model can be served"

    async def _wait_until_running(self, session_id: SessionId) -> Session:
        session = await self.writer.wait_until(session_id, lambda each: each.has_started, timeout_s=_START_TIMEOUT_S)
        if session is None or session.status not in RUNNING_SESSION_STATUSES:
            reason = session.status_info if session is not None else "it did not start in time"
            raise WorkloadError(f"The session of the trial does not run: {reason or 'no reason given'}")
        return session

    async def _wait_until_healthy(self, progress: TaskProgress, session: Session, spec: RevisionSpec) -> None:
        health_check, began_at = spec.served.health, self.clock.monotonic()
        replica = Replica(
            id=session.id,
            endpoint_id=UUID(int=0),
            revision_id=UUID(int=0),
            created_at=session.created_at,
            changed_at=session.created_at,
        )
        while True:
            problem = await self._probe_problem(session, replica, spec)
            if not problem:
                return
            elapsed_s = self.clock.monotonic() - began_at
            if elapsed_s > health_check.initial_delay + health_check.interval * health_check.max_retries:
                raise Unavailable(f"The server of the trial does not answer: {problem}")
            await progress.update(2, _PROGRESS_STEPS, f"not yet: {problem}")
            await asyncio.sleep(_PROBE_PAUSE_S)
            session = await self.writer.load(session.id)
            if session.status not in RUNNING_SESSION_STATUSES:
                raise WorkloadError(
                    f"The session of the trial has ended: {session.status_info or session.reason.value}"
                )

    async def _probe_problem(self, session: Session, replica: Replica, spec: RevisionSpec) -> str:
        """Probes a replica and returns why the probe fails, or an empty text if it passes."""
        health_check = spec.served.health
        try:
            status = await self.probe.probe(
                session,
                replica,
                port=port_of(spec.served, session.id),
                path=health_check.path,
                timeout_s=health_check.max_wait_time,
            )
        except BackendError as e:
            return e.message
        return "" if status == health_check.expected_status_code else f"{health_check.path} answers {status}"
