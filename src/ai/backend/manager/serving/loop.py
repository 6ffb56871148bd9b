"""Creates and ends sessions of replicas, publishes routes to coordinators, and probes replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from ai.backend.common.errors import (
    BackendError,
    Blame,
    SessionNotFound,
    StaleVersion,
    Unavailable,
)
from ai.backend.common.ids import SessionId
from ai.backend.common.serving import EndpointStatus, ReplicaStatus, ServedRevisionStatus
from ai.backend.common.states import RUNNING_SESSION_STATUSES
from ai.backend.common.structs import replace
from ai.backend.common.wire.execution import OpenRoute
from ai.backend.core.lifecycle.events import SessionDestroyRequested
from ai.backend.core.lifecycle.transition import InvalidTransition
from ai.backend.core.serving.model import RevisionSample
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.service_ports.app_proxies import coordinator_of
from ai.backend.manager.service_ports.app_proxy_gateway import CoordinatorAddress
from ai.backend.manager.serving.gateway import EndpointCoordinators
from ai.backend.manager.serving.loads import Autoscaler
from ai.backend.manager.serving.model import (
    Endpoint,
    Replica,
    ReplicaRoute,
    ServedModel,
    Service,
    ServingChange,
    port_of,
)
from ai.backend.manager.serving.probes import Prober
from ai.backend.manager.serving.revisions import replica_request
from ai.backend.manager.serving.rounds import (
    Observation,
    ProbeOutcome,
    destroyed_change,
    digest_of,
    is_published,
    next_change,
    routes_of,
    serving_of,
)
from ai.backend.manager.serving.samples import RevisionSamples
from ai.backend.manager.serving.store import ServingStore
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.store import SessionStore
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.plugin.crash_points import crash_point

log = logging.getLogger(__name__)
_PROBED_STATUSES = frozenset({ReplicaStatus.WARMING, ReplicaStatus.READY, ReplicaStatus.UNHEALTHY})
_MAX_STEPS = 16
"""The maximum number of changes of one endpoint in one round; further changes follow in the next round."""
_MAX_AT_ONCE = 16


class ServingLoop(PeriodicLoop):
    """Changes sessions, routes and probes of endpoints step by step until endpoints are as users requested.

    Each step stores the next change of one endpoint, then makes the world follow what is stored; whatever is done may
    be done again.
    """

    period_s = 1.0

    def __init__(
        self,
        *,
        store: ServingStore,
        sessions: SessionStore,
        creation: SessionService,
        writer: SessionWriter,
        identity: IdentityService,
        resource_groups: ResourceGroupStore,
        coordinators: EndpointCoordinators,
        gateway: AgentGateway,
        prober: Prober,
        autoscaler: Autoscaler,
        samples: RevisionSamples,
        clock: Clock,
        id_generator: IdGenerator,
    ) -> None:
        super().__init__()
        self._store, self._sessions, self._creation, self._writer = store, sessions, creation, writer
        self._identity, self._resource_groups, self._coordinators = identity, resource_groups, coordinators
        self._gateway, self._prober, self._clock, self._ids = gateway, prober, clock, id_generator
        prober.on_change = self.wake
        self._autoscaler, self._samples = autoscaler, samples
        autoscaler.on_change = self.wake
        self._drivers: dict[UUID, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_MAX_AT_ONCE)
        self._authorities: dict[CoordinatorAddress, str] = {}

    async def once(self) -> None:
        services = await self._store.live()
        self._prober.keep(replica.id for service in services for replica in service.live_replicas)
        await self._ask_loads([each.endpoint for each in services if each.endpoint.scaling is not None])
        for service in services:
            endpoint_id = service.endpoint.id
            if endpoint_id not in self._drivers:
                self._drivers[endpoint_id] = asyncio.create_task(
                    self._advance_endpoint(endpoint_id), name=f"endpoint {endpoint_id}"
                )
                self._drivers[endpoint_id].add_done_callback(partial(self._on_driver_done, endpoint_id))

    async def _ask_loads(self, endpoints: Sequence[Endpoint]) -> None:
        """Starts to read the loads of these endpoints, and drops the loads of other endpoints."""
        coordinators: list[CoordinatorAddress] = []
        for endpoint in {each.resource_group: each for each in endpoints}.values():
            try:
                coordinators.append(await self._coordinator(endpoint))
            except BackendError:  # publishing says so, see ``service why``
                continue
        self._autoscaler.begin_due(coordinators, [each.id for each in endpoints])

    def _on_driver_done(self, key: UUID, _: asyncio.Task[None]) -> None:
        del self._drivers[key]

    async def finish_round(self) -> None:
        """Waits until the steps of the present round are done."""
        await asyncio.gather(*self._drivers.values())

    async def stop(self) -> None:
        """Cancels the work in progress; the next leader continues it."""
        driver_tasks = list(self._drivers.values())
        for driver_task in driver_tasks:
            driver_task.cancel()
        await asyncio.gather(*driver_tasks, return_exceptions=True)
        await self._autoscaler.stop()
        await self._prober.stop()

    async def _advance_endpoint(self, endpoint_id: UUID) -> None:
        try:
            async with self._slots:
                for _ in range(_MAX_STEPS):
                    if not await self._step(endpoint_id):
                        return
            self.wake()
        except StaleVersion:
            self.wake()
        except BackendError as e:
            log.warning("endpoint %s cannot go on for now: %s", endpoint_id, e)
        except Exception:  # the next round starts from what is stored
            log.exception("endpoint %s cannot go on for now", endpoint_id)

    async def _step(self, endpoint_id: UUID) -> bool:
        """Executes what the stored state of an endpoint requires, then stores its next change. Returns True if there
        was a change.
        """
        service = await self._store.get(endpoint_id)
        if service is None or service.endpoint.status is EndpointStatus.DESTROYED:
            return False
        problems: list[str] = []
        sessions = {
            each.id: each for each in await self._sessions.get_many(replica.id for replica in service.live_replicas)
        }
        reason_of_refusal = await self._create_sessions(service, sessions, problems)
        await self._end_sessions(service, sessions, problems)
        service = await self._open_routes(service, sessions, problems)
        service = await self._publish(service, problems)
        if service.endpoint.status is EndpointStatus.DESTROYING and not service.live_replicas and not problems:
            await self._store.save(destroyed_change(service, self._clock.now()))
            return False
        service = await self._store_problems(service, problems)
        probes = self._probe(service, sessions)
        logs = await self._last_log_lines(service, sessions)
        in_flight = await self._in_flight(service)
        self._autoscaler.gauges.begin_due(service, sessions)
        observation = Observation(
            sessions=sessions,
            probes=probes,
            refused=reason_of_refusal,
            logs=logs,
            in_flight=in_flight,
            scaling=self._autoscaler.decide(service),
            samples=self._sample(service),
        )
        # Not read again: a change that was faster makes the save fail, and the sessions are read anew.
        change = next_change(service, observation, self._clock.now(), self._ids)
        if change is None:
            return False
        crash_point("before-serving-change")
        await self._store.save(change)
        crash_point("after-serving-change")
        return True

    # ---- sessions ----

    async def _create_sessions(
        self, service: Service, sessions: Mapping[SessionId, Session], problems: list[str]
    ) -> dict[SessionId, str]:
        """Creates the missing sessions of PROVISIONING replicas. Returns by replica why a session was refused for good.

        Other refusals are added to ``problems``.
        """
        replicas_without_session = [
            each
            for each in service.live_replicas
            if each.status is ReplicaStatus.PROVISIONING and each.id not in sessions
        ]
        reason_of_refusal: dict[SessionId, str] = {}
        if not replicas_without_session:
            return reason_of_refusal
        owner = await self._owner(service.endpoint)
        for replica in replicas_without_session:
            if owner is None:
                reason_of_refusal[replica.id] = "the keypair of the endpoint's owner is not active"
                continue
            spec = service.revision(replica.revision_id).spec
            try:
                await self._creation.create(owner, replica_request(service.endpoint, spec, replica), call_id=replica.id)
                crash_point("after-replica-create")
            except BackendError as e:
                if e.retryable or e.blame is Blame.US:
                    problems.append(f"a replica cannot be created now: {e.message}")
                else:
                    reason_of_refusal[replica.id] = e.message
        return reason_of_refusal

    async def _owner(self, endpoint: Endpoint) -> Caller | None:
        credentials = await self._identity.credentials(endpoint.access_key)
        return credentials.caller if credentials is not None and credentials.is_active else None

    async def _end_sessions(self, service: Service, sessions: Mapping[SessionId, Session], problems: list[str]) -> None:
        for replica in service.live_replicas:
            session = sessions.get(replica.id)
            if replica.status is not ReplicaStatus.TERMINATING or session is None or session.status.is_final:
                continue
            request = SessionDestroyRequested(stimulus_id=f"endpoint {service.endpoint.name}: {replica.reason.value}")
            try:
                await self._writer.apply(session.id, request, self._clock, point="commit-destroy")
            except (SessionNotFound, InvalidTransition):
                continue
            except BackendError as e:
                problems.append(f"a replica cannot be ended now: {e.message}")

    # ---- routes ----

    async def _open_routes(
        self, service: Service, sessions: Mapping[SessionId, Session], problems: list[str]
    ) -> Service:
        """Opens routes to replicas that run, and stores the addresses of the routes."""
        routed_replicas: list[Replica] = []
        for replica in service.live_replicas:
            session = sessions.get(replica.id)
            is_due = replica.status in _PROBED_STATUSES and replica.route is None
            if not is_due or session is None or session.status not in RUNNING_SESSION_STATUSES:
                continue
            try:
                route = await self._open_route(service, replica, session)
            except BackendError as e:
                problems.append(f"no route to replica {str(replica.id)[:8]}: {e.message}")
                continue
            routed_replicas.append(replace(replica, route=route))
        if not routed_replicas:
            return service
        change = ServingChange(version=service.endpoint.version, endpoint=service.endpoint, replicas=routed_replicas)
        return await self._save(change)

    async def _open_route(self, service: Service, replica: Replica, session: Session) -> ReplicaRoute:
        coordinator = await self._coordinator(service.endpoint)
        if coordinator not in self._authorities:
            self._authorities[coordinator] = await self._coordinators.authority(coordinator)
        if session.main.agent is None:
            raise Unavailable("its session is on no agent")
        port = port_of(service.revision(replica.revision_id).spec.served, replica.id)
        request = OpenRoute(kernel_id=str(session.main.id), port=port, authority=self._authorities[coordinator])
        route = await self._gateway.agent(session.main.agent).open_route(request)
        crash_point("after-replica-route")
        return ReplicaRoute(name=route.name, host=route.host, port=route.port, certificate=route.certificate)

    async def _coordinator(self, endpoint: Endpoint) -> CoordinatorAddress:
        coordinator = coordinator_of(await self._resource_groups.resource_group(endpoint.resource_group))
        if coordinator is None:
            raise Unavailable(f"the resource group {endpoint.resource_group} has no app proxy")
        return coordinator

    async def _publish(self, service: Service, problems: list[str]) -> Service:
        """Sends the routes of an endpoint to its coordinator if they have changed, or removes an endpoint that ends."""
        endpoint = service.endpoint
        try:
            if endpoint.status is EndpointStatus.DESTROYING and not service.live_replicas:
                if endpoint.url is not None or endpoint.published:
                    await self._coordinators.remove_endpoint(await self._coordinator(endpoint), endpoint)
                    crash_point("after-endpoint-remove")
                return service
            if is_published(service):
                return service
            url = await self._coordinators.put_endpoint(
                await self._coordinator(endpoint), endpoint, routes_of(service), serving_of(service)
            )
            crash_point("after-endpoint-publish")
        except BackendError as e:
            problems.append(f"the app proxy does not have the present routes: {e.message}")
            return service
        published_endpoint = replace(endpoint, url=url, published=digest_of(service))
        return await self._save(ServingChange(version=endpoint.version, endpoint=published_endpoint))

    # ---- notes ----

    def _probe(self, service: Service, sessions: Mapping[SessionId, Session]) -> dict[SessionId, ProbeOutcome]:
        """Starts the probes that are due, and returns the outcome of earlier probes by replica."""
        replicas_to_probe: list[tuple[Replica, Session, ServedModel]] = []
        outcomes: dict[SessionId, ProbeOutcome] = {}
        for replica in service.live_replicas:
            session = sessions.get(replica.id)
            if (
                replica.status not in _PROBED_STATUSES
                or session is None
                or session.status not in RUNNING_SESSION_STATUSES
            ):
                continue
            server = service.revision(replica.revision_id).spec.served
            replicas_to_probe.append((replica, session, server))
            outcome = self._prober.outcome(replica, server.health)
            if outcome is not None:
                outcomes[replica.id] = outcome
        self._prober.begin_due(replicas_to_probe)
        return outcomes

    def _sample(self, service: Service) -> Mapping[UUID, RevisionSample]:
        """Returns the answers of the old and the new revision since the roll-out began, by revision.

        They are for the guard, which evaluates the roll-out. Returns nothing unless a revision is rolled out under a
        policy with a guard.
        """
        target_revision = next(
            (each for each in service.revisions if each.status is ServedRevisionStatus.ROLLING_OUT), None
        )
        if target_revision is None or service.endpoint.policy.guard is None:
            return {}
        self._samples.ask()
        compared_statuses = (ServedRevisionStatus.ROLLING_OUT, ServedRevisionStatus.ACTIVE)
        revision_ids = [each.id for each in service.revisions if each.status in compared_statuses]
        now = self._clock.now().timestamp()
        return self._samples.sum_since(revision_ids, target_revision.changed_at.timestamp(), now)

    async def _in_flight(self, service: Service) -> Mapping[UUID, int]:
        """Returns the number of open requests of draining replicas, if the app proxy reports it."""
        draining_ids = [each.id for each in service.live_replicas if each.status is ReplicaStatus.DRAINING]
        if not draining_ids:
            return {}
        try:
            counts = await self._coordinators.in_flight(await self._coordinator(service.endpoint), service.endpoint)
        except BackendError:  # they are ended when their time is over
            return {}
        return {each: counts.get(each, 0) for each in draining_ids} if counts is not None else {}

    async def _last_log_lines(self, service: Service, sessions: Mapping[SessionId, Session]) -> dict[SessionId, str]:
        """Returns, for each replica whose session has ended, the last line that the replica has printed."""
        last_lines: dict[SessionId, str] = {}
        for replica in service.live_replicas:
            session = sessions.get(replica.id)
            if session is not None and session.status.is_final:
                log_tail = (await self._sessions.get_log(session.main.id) or b"").decode(errors="replace")
                printed_lines = [line for line in log_tail.splitlines() if line.strip()]
                last_lines[replica.id] = (
                    "".join(filter(str.isprintable, printed_lines[-1]))[:500] if printed_lines else ""
                )
        return last_lines

    async def _store_problems(self, service: Service, problems: list[str]) -> Service:
        """Stores the problems of a round with the endpoint, for ``service why``."""
        problem = "; ".join(dict.fromkeys(problems))[:2000] or None
        if problem == service.endpoint.problem:
            return service
        endpoint = replace(service.endpoint, problem=problem)
        return await self._save(ServingChange(version=service.endpoint.version, endpoint=endpoint))

    async def _save(self, change: ServingChange) -> Service:
        await self._store.save(change)
        service = await self._store.get(change.endpoint.id)
        if service is None:
            raise StaleVersion(f"endpoint {change.endpoint.id} was deleted meanwhile")
        return service
