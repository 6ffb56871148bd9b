"""Implements the use cases of model services: creation, reading, changing, tokens and removal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, NotFound, StaleVersion, Unavailable
from ai.backend.common.names import check_slug
from ai.backend.common.serving import EndpointStatus, ReplicaStatus, ServedRevisionStatus
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.endpoint import (
    EndpointTrigger,
    ReplicaTrigger,
    RevisionTrigger,
    Served,
    step_endpoint,
    step_replica,
    step_revision,
)
from ai.backend.core.serving.model import RolloutKind, RolloutPolicy
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.access.checks import is_permitted, visibility_filter
from ai.backend.manager.access.permissions import Operation
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.query.model import Page
from ai.backend.manager.resource_groups.store import ResourceGroupStore
from ai.backend.manager.service_ports.app_proxies import coordinator_of
from ai.backend.manager.serving.claims import ReplicaClaims
from ai.backend.manager.serving.gateway import EndpointCoordinators
from ai.backend.manager.serving.model import (
    Endpoint,
    EndpointQuery,
    EndpointToken,
    Revision,
    RevisionSpec,
    Service,
    ServingChange,
    ServingEvent,
)
from ai.backend.manager.serving.requests import CreateService, ModifyService
from ai.backend.manager.serving.revisions import RevisionBuilder, changed_request
from ai.backend.manager.serving.settings import ServingSettings
from ai.backend.manager.serving.store import ServingStore, name_taken
from ai.backend.manager.topics import SERVING

_MAX_TRIES = 20
_REPLICA_ENDINGS = frozenset({ReplicaStatus.DRAINING, ReplicaStatus.TERMINATING, ReplicaStatus.TERMINATED})
_MAX_POLICY_COUNT, _MAX_POLICY_S = 1_024, 30 * 86_400.0
_POLICY_FIELDS = set(RolloutPolicy.__struct_fields__)


@dataclass(eq=False, repr=False, kw_only=True)
class ServingService:
    """Creates, reads, changes and destroys endpoints on behalf of callers. ``ref`` is an id, or the name of the
    caller's own living endpoint; another user's endpoint is NotFound unless the caller's role sees it.
    """

    store: ServingStore
    revisions: RevisionBuilder
    coordinators: EndpointCoordinators
    resource_groups: ResourceGroupStore
    identity: IdentityService
    claims: ReplicaClaims
    bus: Bus
    clock: Clock
    id_generator: IdGenerator
    settings: ServingSettings

    # ---- creation ----

    async def create(self, caller: Caller, request: CreateService, *, call_id: UUID | None = None) -> Service:
        """Stores a new endpoint, whose replicas the loop starts. The same ``call_id`` gives the same endpoint.

        Raises InvalidInput, NotFound and Forbidden as ``RevisionBuilder.build``; Conflict: the name is taken;
        LimitExceeded; NotSupported: the resource group has no app proxy.
        """
        if call_id is not None and (existing_service := await self.store.get(call_id)) is not None:
            return self._check_permission(caller, existing_service, Operation.CHANGE_ENDPOINTS)
        check_slug(request.name, what="name", min_length=4, max_length=48)
        self._check_replicas(request.replicas)
        owner = await self.identity.resolve_owner(caller, request.owner_access_key)
        tenant = {"group": request.group, "domain": request.domain, "scaling_group": request.scaling_group}
        spec, session = await self.revisions.build(caller, owner, request.revision, tenant)
        group = await self.resource_groups.resource_group(session.scaling_group)
        if coordinator_of(group) is None:
            message = f"The resource group {session.scaling_group} has no app proxy, by which endpoints are called."
            raise InvalidInput(message, data={"config.scaling_group": "no app proxy"})
        now = self.clock.now()
        endpoint = Endpoint(
            id=call_id or self.id_generator.uuid(),
            name=request.name,
            active_name=request.name,
            domain_name=session.domain_name,
            group_id=session.group_id,
            group_name=session.group_name,
            user_id=owner.user_id,
            user_email=owner.email,
            access_key=owner.access_key,
            created_by=caller.access_key,
            resource_group=session.scaling_group,
            open_to_public=request.open_to_public,
            desired=request.replicas,
            policy=self._changed_policy(self._default_policy(), request.policy),
            created_at=now,
            changed_at=now,
        )
        service = Service(endpoint=endpoint, revisions=(self._new_revision(endpoint, 1, spec, now),))
        await self.claims.check(endpoint, service.revisions)
        event = event_of(endpoint, now, "endpoint", {"replicas": request.replicas, "by": caller.access_key})
        await self.store.insert(service, event, limit=self.settings.max_endpoints)
        self.bus.publish(SERVING)
        return service

    async def check(self, caller: Caller, request: CreateService) -> RevisionSpec:
        """Checks a request for an endpoint as :meth:`create` does, and returns its revision; creates nothing.

        Raises Conflict also if the owner already has an endpoint of this name.
        """
        check_slug(request.name, what="name", min_length=4, max_length=48)
        self._check_replicas(request.replicas)
        owner = await self.identity.resolve_owner(caller, request.owner_access_key)
        if (await self.store.search(EndpointQuery(user_id=owner.user_id, name=request.name, limit=1))).items:
            raise name_taken(request.name)
        self._changed_policy(self._default_policy(), request.policy)
        tenant = {"group": request.group, "domain": request.domain, "scaling_group": request.scaling_group}
        return (await self.revisions.build(caller, owner, request.revision, tenant))[0]

    def _new_revision(self, endpoint: Endpoint, number: int, spec: RevisionSpec, now: datetime) -> Revision:
        return Revision(
            id=self.id_generator.uuid(),
            endpoint_id=endpoint.id,
            number=number,
            status=ServedRevisionStatus.PENDING,
            spec=spec,
            created_at=now,
            changed_at=now,
        )

    def _check_replicas(self, count: int) -> None:
        if not 0 <= count <= self.settings.max_replicas:
            message = f"An endpoint has 0 to {self.settings.max_replicas} replicas."
            raise InvalidInput(message, data={"desired_session_count": "out of range"})

    def _default_policy(self) -> RolloutPolicy:
        settings = self.settings
        return RolloutPolicy(
            drain_s=settings.drain_s, start_timeout_s=settings.start_timeout_s, unhealthy_s=settings.unhealthy_s
        )

    def _changed_policy(self, policy: RolloutPolicy, changes: Mapping[str, Any]) -> RolloutPolicy:
        """Returns a roll-out policy in which ``changes`` replace some values. Raises InvalidInput for an unknown field
        or a wrong value.
        """
        unknown_fields = sorted(set(changes) - _POLICY_FIELDS)
        if unknown_fields:
            options = ", ".join(sorted(_POLICY_FIELDS))
            raise InvalidInput(
                f"A roll-out has no option {unknown_fields[0][:64]!r}; it has: {options}.", data={"policy": "unknown"}
            )
        try:
            changed_policy = msgspec.convert({**msgspec.to_builtins(policy), **changes}, RolloutPolicy)
        except msgspec.ValidationError as e:
            raise InvalidInput(f"policy: {e}", data={"policy": "malformed"}) from None
        policy_counts = (
            changed_policy.max_surge,
            changed_policy.max_unavailable,
            changed_policy.max_failures,
            len(changed_policy.steps),
        )
        times_s = (
            *(
                changed_policy.watch_s,
                changed_policy.soak_s,
                changed_policy.drain_s,
                changed_policy.quiet_s,
                changed_policy.unhealthy_s,
                changed_policy.first_backoff_s,
            ),
            *(changed_policy.deadline_s, changed_policy.start_timeout_s, changed_policy.max_backoff_s),
        )
        is_in_range = all(0 <= count <= _MAX_POLICY_COUNT for count in policy_counts)
        if not is_in_range or not all(0 <= time_s <= _MAX_POLICY_S for time_s in times_s):
            raise InvalidInput("policy: a number is out of range", data={"policy": "out of range"})
        return changed_policy

    # ---- reading ----

    async def get(self, caller: Caller, ref: str | UUID) -> Service:
        """Returns the endpoint of a name or id; a destroyed endpoint is returned only by its id. Raises NotFound."""
        return await self.one(caller, ref, Operation.SEE_ENDPOINTS)

    async def search(self, caller: Caller, query: EndpointQuery) -> Page[Service]:
        """Returns the endpoints that the caller's role may see. Users see their own endpoints, admins those of their
        domain, superadmins all.
        """
        if query.name is not None and not query.name.isprintable():
            return Page(items=(), total_count=0)
        return await self.store.search(replace(query, **visibility_filter(caller, Operation.SEE_ENDPOINTS)))

    async def history(self, caller: Caller, ref: str, *, limit: int, offset: int = 0) -> Sequence[ServingEvent]:
        """Returns the changes of an endpoint, newest first."""
        service = await self.get(caller, ref)
        return await self.store.history(service.endpoint.id, limit=limit, offset=offset)

    async def tokens(self, caller: Caller, ref: str | UUID, *, limit: int, offset: int = 0) -> Page[EndpointToken]:
        service = await self.get(caller, ref)
        return await self.store.tokens(service.endpoint.id, limit=limit, offset=offset)

    async def one(self, caller: Caller, ref: str | UUID, operation: Operation) -> Service:
        """Returns the endpoint of a name or id if the caller may perform ``operation`` on it. Raises NotFound, or
        Forbidden for an endpoint that the caller may only see.
        """
        try:
            service = await self.store.get(ref if isinstance(ref, UUID) else UUID(ref))
        except ValueError:
            if not str(ref).isprintable():
                raise _no_endpoint(repr(ref)) from None
            page = await self.store.search(EndpointQuery(user_id=caller.user_id, name=str(ref), limit=1))
            service = next(iter(page.items), None)
        if service is None:
            raise _no_endpoint(ref)
        return self._check_permission(caller, service, operation)

    def _check_permission(self, caller: Caller, service: Service, operation: Operation) -> Service:
        """Returns the service if the caller may perform ``operation`` on it. Raises NotFound, or Forbidden for one that
        the caller sees.
        """
        endpoint = service.endpoint
        owner: dict[str, Any] = {
            "domain_name": endpoint.domain_name,
            "is_own": endpoint.user_id == caller.user_id,
        }
        if not is_permitted(caller, Operation.SEE_ENDPOINTS, **owner):
            raise _no_endpoint(endpoint.id)
        if not is_permitted(caller, operation, **owner):
            raise Forbidden("The endpoint belongs to somebody else.")
        return service

    # ---- changing ----

    async def scale(self, caller: Caller, ref: str, replicas: int) -> Service:
        """Changes the desired number of replicas."""
        return await self.modify(caller, ref, ModifyService(replicas=replicas))

    async def modify(self, caller: Caller, ref: str | UUID, request: ModifyService) -> Service:
        """Changes an endpoint; changes that affect its replicas are rolled out as a new revision.

        Raises as :meth:`create`; Conflict: it is being destroyed.
        """
        if request.replicas is not None:
            self._check_replicas(request.replicas)
        if request.name is not None:
            check_slug(request.name, what="name", min_length=4, max_length=48)
        spec: RevisionSpec | None = None
        if request.revision:
            service = await self.one(caller, ref, Operation.CHANGE_ENDPOINTS)
            spec = await self._new_spec(caller, service, request.revision)

        def change(service: Service, now: datetime) -> ServingChange:
            endpoint = with_requested_change(service.endpoint, now)
            values: dict[str, Any] = {}
            if request.replicas is not None:
                _check_bounds(endpoint, request.replicas)
                values["desired"] = request.replicas
            if request.open_to_public is not None:
                values["open_to_public"] = request.open_to_public
            if request.name is not None:
                values |= {"name": request.name, "active_name": request.name}
            if request.policy is not None:
                values["policy"] = self._changed_policy(endpoint.policy, request.policy)
            revisions, data = (
                [],
                {"by": caller.access_key, **{name: value for name, value in values.items() if name != "policy"}},
            )
            if spec is not None:
                number = 1 + max(each.number for each in service.revisions)
                revisions.append(self._new_revision(endpoint, number, spec, now))
                data["revision"] = number
            endpoint = replace(endpoint, **values)
            event = event_of(endpoint, now, "endpoint", data, reason="changed")
            return ServingChange(
                version=service.endpoint.version, endpoint=endpoint, revisions=revisions, events=[event]
            )

        return await self.apply(caller, ref, change)

    async def _new_spec(self, caller: Caller, service: Service, changes: Mapping[str, Any]) -> RevisionSpec:
        endpoint, newest_revision = service.endpoint, service.revisions[0]
        owner = await self.identity.resolve_owner(caller, endpoint.access_key)
        tenant = {
            "group": str(endpoint.group_id),
            "domain": endpoint.domain_name,
            "scaling_group": endpoint.resource_group,
        }
        return (await self.revisions.build(caller, owner, changed_request(newest_revision.spec, changes), tenant))[0]

    async def sync(self, caller: Caller, ref: str) -> Service:
        """Wakes the loop, which compares the endpoint with the coordinator and sends its routes again."""

        def change(service: Service, now: datetime) -> ServingChange:
            endpoint = replace(with_requested_change(service.endpoint, now), published="")
            return ServingChange(version=service.endpoint.version, endpoint=endpoint)

        return await self.apply(caller, ref, change)

    async def cancel_rollout(self, caller: Caller, ref: str) -> Service:
        """Rolls back the revision that is being rolled out. Raises Conflict if none is."""

        def change(service: Service, now: datetime) -> ServingChange:
            cancellable_statuses = (ServedRevisionStatus.ROLLING_OUT, ServedRevisionStatus.PENDING)
            rolling_revision = next((each for each in service.revisions if each.status in cancellable_statuses), None)
            if rolling_revision is None:
                raise Conflict("No revision is being rolled out.", data={"status": "no roll-out"})
            state = Served(rolling_revision.status, rolling_revision.reason)
            new_state, _, _ = step_revision(state, RevisionTrigger.CANCEL_REQUESTED, stimulus_id=caller.stimulus_id)
            rolling_revision = replace(
                rolling_revision, status=new_state.status, reason=new_state.reason, changed_at=now
            )
            endpoint = with_requested_change(service.endpoint, now)
            event = event_of(
                endpoint, now, f"revision {rolling_revision.number}", {"by": caller.access_key}, served=new_state
            )
            return ServingChange(
                version=service.endpoint.version, endpoint=endpoint, revisions=[rolling_revision], events=[event]
            )

        return await self.apply(caller, ref, change)

    async def promote(self, caller: Caller, ref: str) -> Service:
        """Ends the present step of a canary roll-out, or the observation period of a blue-green roll-out.

        Raises Conflict if there is no step that can be ended.
        """

        def change(service: Service, now: datetime) -> ServingChange:
            rolling_statuses = ServedRevisionStatus.ROLLING_OUT
            rolling_revision = next((each for each in service.revisions if each.status is rolling_statuses), None)
            policy = service.endpoint.policy
            has_step = rolling_revision is not None and (
                rolling_revision.step < len(policy.steps)
                if policy.kind is RolloutKind.CANARY
                else rolling_revision.step == 1
            )
            if rolling_revision is None or not has_step:
                raise Conflict("No step of a roll-out can be ended now.", data={"status": "no step"})
            rolling_revision = replace(rolling_revision, step=rolling_revision.step + 1, step_since=now)
            endpoint = with_requested_change(service.endpoint, now)
            data = {"by": caller.access_key, "step": rolling_revision.step}
            state = Served(rolling_revision.status, rolling_revision.reason)
            event = event_of(endpoint, now, f"revision {rolling_revision.number}", data, served=state)
            return ServingChange(
                version=service.endpoint.version, endpoint=endpoint, revisions=[rolling_revision], events=[event]
            )

        return await self.apply(caller, ref, change)

    async def set_traffic_ratio(self, caller: Caller, ref: str, replica_id: UUID, ratio: float) -> Service:
        """Changes the weight of a replica among the replicas of its revision. Raises NotFound."""

        def change(service: Service, now: datetime) -> ServingChange:
            replica = replace(_get_replica(service, replica_id), traffic_ratio=ratio)
            endpoint = with_requested_change(service.endpoint, now)
            event = event_of(endpoint, now, _subject(replica_id), {"traffic_ratio": ratio}, reason="changed")
            return ServingChange(
                version=service.endpoint.version, endpoint=endpoint, replicas=[replica], events=[event]
            )

        return await self.apply(caller, ref, change)

    async def remove_replica(self, caller: Caller, ref: str, replica_id: UUID) -> Service:
        """Ends one replica and lowers the desired number of replicas by one. Raises NotFound;
        Conflict if it is ending.
        """

        def change(service: Service, now: datetime) -> ServingChange:
            replica = _get_replica(service, replica_id)
            if replica.status in _REPLICA_ENDINGS:
                raise Conflict(f"The replica is {replica.status} already.", data={"status": replica.status.value})
            state = Served(replica.status, replica.reason)
            new_state, _, _ = step_replica(state, ReplicaTrigger.END_REQUESTED, stimulus_id=caller.stimulus_id)
            ended_replica = replace(replica, status=new_state.status, reason=new_state.reason, changed_at=now)
            endpoint = with_requested_change(service.endpoint, now)
            endpoint = replace(endpoint, desired=max(0, endpoint.desired - 1))
            event = event_of(endpoint, now, _subject(replica_id), {"by": caller.access_key}, served=new_state)
            return ServingChange(
                version=service.endpoint.version, endpoint=endpoint, replicas=[ended_replica], events=[event]
            )

        return await self.apply(caller, ref, change)

    async def destroy(self, caller: Caller, ref: str) -> Service:
        """Requests the end of an endpoint and returns at once. The loop ends all replicas, then releases the URL.
        Repeating the request is harmless.
        """

        def change(service: Service, now: datetime) -> ServingChange | None:
            endpoint = service.endpoint
            state = Served(endpoint.status, endpoint.reason)
            if endpoint.status in (EndpointStatus.DESTROYING, EndpointStatus.DESTROYED):
                return None
            new_state, _, _ = step_endpoint(state, EndpointTrigger.DESTROY_REQUESTED, stimulus_id=caller.stimulus_id)
            endpoint = replace(endpoint, status=new_state.status, reason=new_state.reason, changed_at=now)
            event = event_of(endpoint, now, "endpoint", {"by": caller.access_key})
            return ServingChange(version=service.endpoint.version, endpoint=endpoint, events=[event])

        return await self.apply(caller, ref, change)

    async def apply(self, caller: Caller, ref: str | UUID, change: Any) -> Service:
        """Stores a change of an endpoint, retries with the newest version after conflicts, and wakes the loop."""
        for _ in range(_MAX_TRIES):
            service = await self.one(caller, ref, Operation.CHANGE_ENDPOINTS)
            service_change = change(service, self.clock.now())
            if service_change is None:
                return service
            await self.claims.check_change(service, service_change)
            try:
                await self.store.save(service_change)
            except StaleVersion:
                continue
            self.bus.publish(SERVING)
            return await self.one(caller, service.endpoint.id, Operation.CHANGE_ENDPOINTS)
        raise StaleVersion(f"endpoint {ref} changes too fast")

    # ---- tokens ----

    async def make_token(self, caller: Caller, ref: str, *, valid_until: datetime) -> tuple[str, EndpointToken]:
        """Returns a new token with which clients may call an endpoint; the token itself is not stored. Raises
        InvalidInput for a time in the past or too far away; Conflict before the endpoint has a URL; Unavailable.
        """
        service = await self.one(caller, ref, Operation.CHANGE_ENDPOINTS)
        endpoint, now = service.endpoint, self.clock.now()
        if not now < valid_until <= now + timedelta(days=self.settings.max_token_days):
            message = f"A token is valid until a time in the next {self.settings.max_token_days:g} days."
            raise InvalidInput(message, data={"duration": "out of range"})
        if endpoint.url is None:
            raise Conflict(
                "The endpoint has no URL yet: no replica was ready so far.", data={"status": endpoint.status}
            )
        coordinator = coordinator_of(await self.resource_groups.resource_group(endpoint.resource_group))
        if coordinator is None:
            raise Unavailable(f"The resource group {endpoint.resource_group} has no app proxy any more.")
        token_text = await self.coordinators.endpoint_token(coordinator, endpoint, caller.user_id, valid_until)
        token = EndpointToken(
            id=self.id_generator.uuid(),
            endpoint_id=endpoint.id,
            user_id=caller.user_id,
            domain_name=endpoint.domain_name,
            group_id=endpoint.group_id,
            created_at=now,
            valid_until=valid_until,
        )
        await self.store.add_token(token)
        return token_text, token


def event_of(
    endpoint: Endpoint,
    now: datetime,
    subject: str,
    data: Mapping[str, Any],
    *,
    served: Served[Any] | None = None,
    reason: str | None = None,
    detail: str | None = None,
) -> ServingEvent:
    """Builds an event of an endpoint's history, with the status and reason of ``served`` or else of the endpoint.

    ``served`` is the state of a revision or replica. A ``reason`` replaces the reason of either.
    """
    state = served or Served(endpoint.status, endpoint.reason)
    return ServingEvent(
        endpoint_id=endpoint.id,
        at=now,
        subject=subject,
        status=state.status.value,
        reason=reason or state.reason.value,
        detail=detail,
        data=data,
    )


def _subject(replica_id: UUID) -> str:
    return f"replica {str(replica_id)[:8]}"


def with_requested_change(endpoint: Endpoint, now: datetime) -> Endpoint:
    """Returns the endpoint in the status that a requested change leads to. Raises InvalidTransition if it is being
    destroyed.
    """
    state = Served(endpoint.status, endpoint.reason)
    new_state, _, _ = step_endpoint(state, EndpointTrigger.CHANGE_REQUESTED)
    return replace(endpoint, status=new_state.status, reason=new_state.reason, changed_at=now)


def _check_bounds(endpoint: Endpoint, replicas: int) -> None:
    """Raises Conflict if the number of replicas is outside the bounds of the endpoint's autoscaling."""
    scaling = endpoint.scaling
    if scaling is not None and not scaling.min_replicas <= replicas <= scaling.max_replicas:
        message = (
            f"Autoscaling keeps {scaling.min_replicas} to {scaling.max_replicas} replicas; change that first: "
            f"backend.ai service autoscale set {endpoint.name} --min N --max N"
        )
        raise Conflict(message, data={"desired_session_count": "out of bounds"})


def _get_replica(service: Service, replica_id: UUID) -> Any:
    replica = next((each for each in service.live_replicas if each.id == replica_id), None)
    if replica is None:
        raise NotFound("The endpoint has no such route.", data={"route_id": "unknown"})
    return replica


def _no_endpoint(ref: str | UUID) -> NotFound:
    return NotFound(f"There is no endpoint {str(ref)[:64]!r}.", data={"endpoint": "unknown"})
