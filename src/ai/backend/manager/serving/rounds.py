"""Decides the next change of a service from the states of its sessions and the outcomes of probes. Pure.

Level-triggered: whatever was done, or was not because the manager was killed, the next change follows from what is
stored. Replicas are stored before their sessions are created, under the same id, so that none is lost or doubled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.ids import SessionId
from ai.backend.common.serving import FAILURES, EndpointStatus, ReplicaStatus, ServedRevisionStatus, ServingReason
from ai.backend.common.states import RUNNING_SESSION_STATUSES, SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import GatewayRoute, ProxyProtocol, RevisionShare, RouteInfo, ServingOptions
from ai.backend.core.lifecycle.endpoint import (
    EndpointTrigger,
    ReplicaTrigger,
    RevisionTrigger,
    Served,
    observe_endpoint,
    step_endpoint,
    step_replica,
    step_revision,
)
from ai.backend.core.serving import model as core
from ai.backend.core.serving.autoscale import ScalingDecision
from ai.backend.core.serving.rollout import plan_rollout
from ai.backend.infra.clock import IdGenerator
from ai.backend.manager.serving.model import (
    KEPT_REPLICAS,
    KEPT_REVISIONS,
    Endpoint,
    Replica,
    Revision,
    ScalingNote,
    Service,
    ServingChange,
    ServingEvent,
)
from ai.backend.manager.sessions.model import Session

R, V = ReplicaStatus, ServedRevisionStatus
_HELD_REQUESTS = 100
_ROUTED_STATUSES = frozenset({R.READY, R.DRAINING})
_TRIGGERS_AFTER_PUBLICATION = frozenset(
    {ReplicaTrigger.END_REQUESTED, ReplicaTrigger.DRAINED, ReplicaTrigger.DRAIN_TIMED_OUT}
)
"""Triggers that end the service of a replica, and wait until the coordinator has the present routes."""


class ProbeOutcome(StrEnum):
    """Names the outcome of a replica's probes: it serves, it fails, or it never served for too long after its start."""

    PASSED = "passed"
    FAILED = "failed"
    NEVER_PASSED = "never-passed"


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Holds the observed state of a service's replicas: their sessions, probes and open requests. Open requests are
    present where the app proxy reports them. ``refused``: why sessions could not be created; ``logs``: the last lines
    that ended sessions have printed; ``scaling``: the replicas that autoscaling wants; ``samples``: what revisions
    answered during a roll-out.
    """

    sessions: Mapping[SessionId, Session]
    probes: Mapping[SessionId, ProbeOutcome] = msgspec.field(default_factory=dict)
    in_flight: Mapping[UUID, int] = msgspec.field(default_factory=dict)
    refused: Mapping[SessionId, str] = msgspec.field(default_factory=dict)
    logs: Mapping[SessionId, str] = msgspec.field(default_factory=dict)
    scaling: ScalingDecision | None = None
    samples: Mapping[UUID, core.RevisionSample] = msgspec.field(default_factory=dict)


def routes_of(service: Service) -> list[RouteInfo]:
    """Returns the routes that the coordinator should have for a service, with the weights of its replicas.

    Ready replicas have their revision's share; draining replicas get no requests.
    """
    revisions = {revision.id: revision for revision in service.revisions}
    routed_replicas = [each for each in service.replicas if each.status in _ROUTED_STATUSES]
    is_weighed = any(revisions[each.revision_id].weight > 0 for each in routed_replicas if each.status is R.READY)
    routes = []
    for each in routed_replicas:
        if each.route is None:
            continue
        weight = revisions[each.revision_id].weight if is_weighed else 1.0
        certificate = each.route.certificate
        routes.append(
            RouteInfo(
                session_id=each.id,
                kernel_host=each.route.host,
                kernel_port=each.route.port,
                protocol=ProxyProtocol.HTTP,
                traffic_ratio=each.traffic_ratio if each.status is R.READY else 0.0,
                gateway=GatewayRoute(name=each.route.name, certificate=certificate) if certificate else None,
                revision=RevisionShare(id=each.revision_id, weight=weight),
            )
        )
    return routes


def serving_of(service: Service) -> ServingOptions:
    """Returns the options by which the worker of the app proxy serves an endpoint.

    The worker holds requests while the endpoint has no replica, if replicas are desired or if a request may start the
    first one.
    """
    endpoint = service.endpoint
    served_revisions = [each for each in service.revisions if each.weight > 0] or [service.current]
    model_names = sorted({each.spec.served.name for each in served_revisions})
    max_held_requests = _HELD_REQUESTS if endpoint.desired or is_woken(service) else 0
    return ServingOptions(
        name=endpoint.name, models=model_names, project=endpoint.group_id, hold_requests=max_held_requests
    )


def is_woken(service: Service) -> bool:
    """Returns True if a request may start the first replica of an endpoint that has none."""
    scaling = service.endpoint.scaling
    return scaling is not None and scaling.max_replicas > 0


def digest_of(service: Service) -> str:
    """Returns a digest of the routes and options that the coordinator should have for a service."""
    content = msgspec.json.encode((routes_of(service), serving_of(service), service.endpoint.open_to_public))
    return hashlib.sha256(content).hexdigest()


def is_published(service: Service) -> bool:
    """Returns True if the coordinator needs no update of the routes of a service.

    It has the present routes, or the service has no routes and needs no entry there. A service whose first replica is
    started by a request needs its entry at the coordinator.
    """
    endpoint = service.endpoint
    if endpoint.published == digest_of(service):
        return True
    waits_for_requests = is_woken(service) and not endpoint.desired
    return not endpoint.published and not routes_of(service) and not waits_for_requests


def next_change(service: Service, observation: Observation, now: datetime, ids: IdGenerator) -> ServingChange | None:
    """Returns the next change of a service, or None if nothing is to change."""
    return _ChangeBuilder(service, observation, now, ids).run()


def destroyed_change(service: Service, now: datetime) -> ServingChange:
    """Returns the change to DESTROYED of a service whose replicas have ended and whose circuit is removed."""
    endpoint = service.endpoint
    state, _, _ = step_endpoint(Served(endpoint.status, endpoint.reason), EndpointTrigger.EMPTIED)
    destroyed_endpoint = replace(
        endpoint,
        status=state.status,
        reason=state.reason,
        active_name=None,
        url=None,
        published="",
        explanation="",
        problem=None,
        changed_at=now,
        destroyed_at=now,
    )
    event = _event(destroyed_endpoint, now, "endpoint", state, None, {})
    return ServingChange(version=endpoint.version, endpoint=destroyed_endpoint, events=[event])


def _event(
    endpoint: Endpoint, now: datetime, subject: str, state: Served[Any], detail: str | None, data: Mapping[str, Any]
) -> ServingEvent:
    return ServingEvent(
        endpoint_id=endpoint.id,
        at=now,
        subject=subject,
        status=state.status.value,
        reason=state.reason.value,
        detail=detail,
        data=data,
    )


class _ChangeBuilder:
    """Collects the parts of one change of a service."""

    def __init__(self, service: Service, observation: Observation, now: datetime, ids: IdGenerator) -> None:
        self._service, self._seen, self._now, self._ids = service, observation, now, ids
        self._endpoint = service.endpoint
        self._replicas = {each.id: each for each in service.replicas}
        self._revisions = {each.id: each for each in service.revisions}
        self._rules = {each.id: each for each in service.rules}
        self._events: list[ServingEvent] = []
        self._is_published = is_published(service)

    def run(self) -> ServingChange | None:
        for replica in self._service.live_replicas:
            self._observe_replica(replica)
        if self._endpoint.status is EndpointStatus.DESTROYING:
            for revision in list(self._revisions.values()):
                self._step_revision(revision, RevisionTrigger.ENDPOINT_DESTROYED)
        else:
            self._begin_rollout()
            self._scale()
        self._apply_plan(self._plan_rollout())
        self._retire_revisions()
        self._observe_endpoint()
        return self._collect_change()

    # ---- what has happened ----

    def _observe_replica(self, replica: Replica) -> None:
        session, probe = self._seen.sessions.get(replica.id), self._seen.probes.get(replica.id)
        if session is None:
            if replica.id in self._seen.refused:
                detail = self._seen.refused[replica.id]
                self._step_replica(replica, ReplicaTrigger.SESSION_ENDED, ServingReason.START_FAILED, detail)
            elif replica.status is R.TERMINATING:
                self._step_replica(replica, ReplicaTrigger.SESSION_ENDED)
        elif session.status.is_final:
            log_tail = self._seen.logs.get(replica.id)
            detail = (session.status_info or session.reason.value) + (f": {log_tail}" if log_tail else "")
            self._step_replica(replica, ReplicaTrigger.SESSION_ENDED, detail=detail)
        elif session.status is SessionStatus.TERMINATING and replica.status in (R.READY, R.UNHEALTHY):
            reason = ServingReason.SESSION_LOST
            self._step_replica(replica, ReplicaTrigger.END_REQUESTED, reason, session.status_info)
        elif replica.status is R.PROVISIONING and session.status in RUNNING_SESSION_STATUSES:
            self._step_replica(replica, ReplicaTrigger.SESSION_STARTED, started_at=self._now)
        elif replica.route is not None and probe is ProbeOutcome.PASSED:
            if replica.status in (R.WARMING, R.UNHEALTHY):
                first_at = replica.ready_at or self._now
                self._step_replica(replica, ReplicaTrigger.PROBES_PASSED, ready_at=first_at)
        elif probe is ProbeOutcome.FAILED and replica.status is R.READY:
            self._step_replica(replica, ReplicaTrigger.PROBES_FAILED)
        elif probe is ProbeOutcome.NEVER_PASSED and replica.status is R.WARMING:
            self._step_replica(replica, ReplicaTrigger.START_TIMED_OUT, detail="its health check never passed")

    def _step_replica(
        self,
        replica: Replica,
        trigger: ReplicaTrigger,
        reason: ServingReason | None = None,
        detail: str | None = None,
        **values: Any,
    ) -> None:
        old_state = Served(replica.status, replica.reason)
        state, path, _ = step_replica(old_state, trigger, reason=reason)
        if not path:
            return
        detail = detail[:1000] if detail else replica.detail
        changed_replica = replace(
            replica, status=state.status, reason=state.reason, detail=detail, changed_at=self._now, **values
        )
        self._replicas[replica.id] = changed_replica
        self._events.append(
            _event(self._endpoint, self._now, f"replica {str(replica.id)[:8]}", state, changed_replica.detail, {})
        )
        revision = self._revisions[replica.revision_id]
        if state.status is R.READY:
            self._revisions[revision.id] = replace(revision, failures=0, failed_at=None)
        elif state.status is R.TERMINATED and state.reason in FAILURES:
            self._revisions[revision.id] = replace(revision, failures=revision.failures + 1, failed_at=self._now)

    def _step_revision(
        self,
        revision: Revision,
        trigger: RevisionTrigger,
        reason: ServingReason | None = None,
        detail: str | None = None,
    ) -> None:
        state, path, _ = step_revision(Served(revision.status, revision.reason), trigger, reason=reason)
        if not path:
            return
        changed_revision = replace(revision, status=state.status, reason=state.reason, changed_at=self._now)
        self._revisions[revision.id] = changed_revision
        self._events.append(_event(self._endpoint, self._now, f"revision {revision.number}", state, detail, {}))

    # ---- what is to be done ----

    def _revisions_in(self, *statuses: ServedRevisionStatus) -> list[Revision]:
        """Returns the revisions in these statuses, the newest first."""
        revisions = (each for each in self._revisions.values() if each.status in statuses)
        return sorted(revisions, key=lambda each: -each.number)

    def _begin_rollout(self) -> None:
        """Begins to roll out the newest waiting revision, and ends waiting and running roll-outs of other revisions."""
        pending_revisions = self._revisions_in(V.PENDING)
        if not pending_revisions:
            return
        newest_revision, *older_revisions = pending_revisions
        for revision in older_revisions:
            self._step_revision(revision, RevisionTrigger.SUPERSEDED)
        for revision in self._revisions_in(V.ROLLING_OUT):
            self._step_revision(revision, RevisionTrigger.SUPERSEDED)
        if not self._revisions_in(V.ROLLING_OUT, V.ROLLING_BACK):
            started_revision = replace(newest_revision, step=0, step_since=self._now, failures=0, failed_at=None)
            self._step_revision(started_revision, RevisionTrigger.ROLLOUT_STARTED)

    def _scale(self) -> None:
        """Sets the number of replicas that autoscaling has decided, and records the decision with its inputs."""
        decision, endpoint = self._seen.scaling, self._endpoint
        if decision is None or decision.reason is None or decision.desired == endpoint.desired:
            return
        scaling_note = ScalingNote(
            at=self._now,
            before=endpoint.desired,
            desired=decision.desired,
            reason=decision.reason,
            explanation=decision.explanation,
            inputs=decision.inputs,
            triggered=decision.triggered,
        )
        self._endpoint = replace(endpoint, desired=decision.desired, scaled=scaling_note)
        for rule_id in decision.triggered:
            rule = self._rules[rule_id]
            triggered_rule = replace(rule.rule, last_triggered_at=self._now.timestamp())
            self._rules[rule_id] = replace(rule, rule=triggered_rule)
        state = Served(endpoint.status, decision.reason)
        data = {"desired": decision.desired, "inputs": dict(decision.inputs)}
        self._events.append(_event(endpoint, self._now, "autoscaling", state, decision.explanation, data))

    def _plan_rollout(self) -> core.Plan:
        active_revision = next(iter(self._revisions_in(V.ACTIVE)), None)
        target_revision = next(iter(self._revisions_in(V.ROLLING_OUT, V.ROLLING_BACK)), None)
        is_rolled_back = target_revision is not None and target_revision.status is V.ROLLING_BACK
        step_started_at = (
            target_revision.step_since.timestamp()
            if target_revision is not None and target_revision.step_since is not None
            else 0.0
        )
        snapshot = core.RolloutSnapshot(
            desired=self._endpoint.desired,
            active=active_revision.id if active_revision is not None else None,
            target=target_revision.id if target_revision is not None else None,
            abort_reason=target_revision.reason if target_revision is not None and is_rolled_back else None,
            replicas=tuple(
                core.Replica(
                    id=each.id,
                    revision=each.revision_id,
                    status=each.status,
                    since=each.changed_at.timestamp(),
                    in_flight=self._seen.in_flight.get(each.id),
                )
                for each in self._replicas.values()
                if each.status is not R.TERMINATED
            ),
            step=target_revision.step if target_revision is not None else 0,
            step_since=step_started_at,
            started_at=target_revision.changed_at.timestamp() if target_revision is not None else 0.0,
            failures={
                each.id: core.FailedStarts(count=each.failures, last_at=each.failed_at.timestamp())
                for each in self._revisions.values()
                if each.failures and each.failed_at is not None
            },
            samples=self._seen.samples,
            is_destroying=self._endpoint.status is EndpointStatus.DESTROYING,
        )
        return plan_rollout(snapshot, self._endpoint.policy, self._now.timestamp())

    def _apply_plan(self, plan: core.Plan) -> None:
        for action in plan.actions:
            match action:
                case core.StartReplicas(revision=revision_id, count=count):
                    self._start_replicas(revision_id, count)
                case core.StepReplica(replica=replica_id, trigger=trigger, reason=reason):
                    self._step_as_planned(self._replicas[SessionId(replica_id)], trigger, reason)
                case core.EnterStep(step=step):
                    revision = next(iter(self._revisions_in(V.ROLLING_OUT)))
                    self._revisions[revision.id] = replace(revision, step=step, step_since=self._now)
                case core.Promote(revision=revision_id):
                    for old_revision in self._revisions_in(V.ACTIVE):
                        self._step_revision(old_revision, RevisionTrigger.SUPERSEDED)
                    self._step_revision(self._revisions[revision_id], RevisionTrigger.PROMOTED)
                case core.Abort(revision=revision_id, reason=reason, detail=detail):
                    self._step_revision(self._revisions[revision_id], RevisionTrigger.ABORTED, reason, detail)
                case core.FinishRollback(revision=revision_id):
                    self._step_revision(self._revisions[revision_id], RevisionTrigger.EMPTIED)
        for revision in list(self._revisions.values()):
            weight = plan.weights.get(revision.id, 0.0)
            if weight != revision.weight:
                self._revisions[revision.id] = replace(revision, weight=weight)
        self._endpoint = replace(self._endpoint, explanation=plan.explanation)

    def _start_replicas(self, revision_id: UUID, count: int) -> None:
        for _ in range(count):
            replica = Replica(
                id=SessionId(self._ids.uuid()),
                endpoint_id=self._endpoint.id,
                revision_id=revision_id,
                created_at=self._now,
                changed_at=self._now,
            )
            self._replicas[replica.id] = replica
            data = {"revision": self._revisions[revision_id].number}
            state = Served(replica.status, replica.reason)
            self._events.append(_event(self._endpoint, self._now, f"replica {str(replica.id)[:8]}", state, None, data))

    def _step_as_planned(self, replica: Replica, trigger: ReplicaTrigger, reason: ServingReason) -> None:
        """Applies a trigger to a replica, unless the coordinator must first get the present routes.

        A replica that serves waits until the coordinator has the routes of its replacement. A draining replica waits
        until the coordinator knows that it drains. Replicas of an endpoint that is being destroyed do not wait.
        """
        is_routed = replica.status in _ROUTED_STATUSES
        is_leaving = self._endpoint.status is EndpointStatus.DESTROYING
        if is_routed and trigger in _TRIGGERS_AFTER_PUBLICATION and not self._is_published and not is_leaving:
            return
        self._step_replica(replica, trigger, reason)

    def _retire_revisions(self) -> None:
        used_revision_ids = {each.revision_id for each in self._replicas.values() if each.status is not R.TERMINATED}
        for revision in self._revisions_in(V.RETIRING):
            if revision.id not in used_revision_ids:
                self._step_revision(revision, RevisionTrigger.EMPTIED)

    def _observe_endpoint(self) -> None:
        endpoint = self._endpoint
        if endpoint.status is EndpointStatus.DESTROYING:
            return
        statuses = [each.status for each in self._replicas.values()]
        old_state = Served(endpoint.status, endpoint.reason)
        state, path, _ = step_endpoint(old_state, observe_endpoint(endpoint.desired, statuses))
        if path:
            self._endpoint = replace(endpoint, status=state.status, reason=state.reason, changed_at=self._now)
            ready_count = sum(status is R.READY for status in statuses)
            data = {"ready": ready_count, "desired": endpoint.desired}
            self._events.append(_event(self._endpoint, self._now, "endpoint", state, endpoint.explanation, data))

    def _collect_change(self) -> ServingChange | None:
        replicas = [each for each in self._replicas.values() if each not in self._service.replicas]
        revisions = [each for each in self._revisions.values() if each not in self._service.revisions]
        dropped_ids = self._ids_to_drop()
        if not replicas and not revisions and not dropped_ids and self._endpoint == self._service.endpoint:
            return None
        return ServingChange(
            version=self._service.endpoint.version,
            endpoint=self._endpoint,
            revisions=revisions,
            replicas=replicas,
            rules=[each for each in self._rules.values() if each not in self._service.rules],
            dropped=dropped_ids,
            events=self._events,
        )

    def _ids_to_drop(self) -> list[UUID]:
        """Returns the ids of ended replicas and revisions that are deleted, since only the newest of them are kept."""
        ended_replicas = [each for each in self._service.replicas if each.status is R.TERMINATED]
        ended_replicas = sorted(ended_replicas, key=lambda each: each.changed_at, reverse=True)
        dropped_ids: list[UUID] = [each.id for each in ended_replicas[KEPT_REPLICAS:]]
        used_revision_ids = {each.revision_id for each in self._replicas.values() if each.id not in dropped_ids}
        unused_revisions = [
            each for each in self._revisions_in(V.RETIRED, V.FAILED) if each.id not in used_revision_ids
        ]
        return dropped_ids + [each.id for each in unused_revisions[KEPT_REVISIONS:]]
