"""The use cases of endpoints: who may do what, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, InvalidName, LimitExceeded, NotFound
from ai.backend.common.ids import AccessKey, DomainName, GroupId, UserId
from ai.backend.common.serving import EndpointStatus, ReplicaStatus, ServedRevisionStatus
from ai.backend.common.states import UserRole
from ai.backend.common.structs import replace
from ai.backend.core.serving.autoscale import Comparator, MetricSource
from ai.backend.core.serving.model import RolloutKind
from ai.backend.infra.bus import Bus
from ai.backend.manager.access.caller import Caller
from ai.backend.manager.serving.claims import ReplicaClaims
from ai.backend.manager.serving.model import EndpointQuery, RevisionSpec, Service, ServingChange
from ai.backend.manager.serving.requests import CreateService, ModifyService, RevisionRequest
from ai.backend.manager.serving.scaling import ScalingService
from ai.backend.manager.serving.service import ServingService
from ai.backend.manager.serving.settings import ServingSettings
from ai.backend.manager.sessions.model import Session
from tests.contract.store.builders import make_session
from tests.unit.manager.serving.world import OWNER, World, make_spec, ready

STRANGER = replace(OWNER, user_id=UserId(uuid4()), access_key=AccessKey("AKIASTRANGER"))
ADMIN = replace(STRANGER, role=UserRole.ADMIN, access_key=AccessKey("AKIAADMIN"))
MONITOR = replace(STRANGER, role=UserRole.MONITOR, access_key=AccessKey("AKIAMONITOR"))
REQUEST = CreateService(name="my-service", replicas=1, revision=RevisionRequest(image="python", model="folder"))


class Builder:
    """Makes every revision that is asked for."""

    async def build(
        self, _caller: Caller, owner: Caller, request: RevisionRequest, _place: Mapping[str, Any]
    ) -> tuple[RevisionSpec, Session]:
        session = make_session(user_id=owner.user_id, access_key=owner.access_key)
        spec = make_spec(request.startup_command or "serve", environ=dict(request.environ), claim=request.claim)
        return spec, session


class SharedClaims:
    """Says that the claim ``shared`` may be used at once, and no other."""

    async def unshared_slot(self, _user_id: UserId, _group_id: GroupId, name: str) -> str | None:
        return None if name == "shared" else "mock.device"


def make_services(world: World, **settings: Any) -> ServingService:
    async def resolve_owner(caller: Caller, owner_access_key: str | None) -> Caller:
        assert owner_access_key in (None, caller.access_key, OWNER.access_key)
        return caller if owner_access_key is None else OWNER

    world.resolve_owner = resolve_owner  # type: ignore[attr-defined]  # of the identity service
    return ServingService(
        store=world.store,
        revisions=cast(Any, Builder()),
        coordinators=world,
        resource_groups=cast(Any, world),
        identity=cast(Any, world),
        claims=ReplicaClaims(SharedClaims()),
        bus=Bus(),
        clock=cast(Any, world.clock),
        id_generator=cast(Any, world.ids),
        settings=ServingSettings(**settings),
    )


async def test_the_same_call_makes_one_endpoint() -> None:
    services, call_id = make_services(World()), uuid4()
    first = await services.create(OWNER, REQUEST, call_id=call_id)
    assert (await services.create(OWNER, REQUEST, call_id=call_id)).endpoint.id == first.endpoint.id == call_id
    with pytest.raises(Conflict):
        await services.create(OWNER, REQUEST)
    with pytest.raises(NotFound):
        await services.create(STRANGER, REQUEST, call_id=call_id)


@pytest.mark.parametrize(
    "request_",
    [
        replace(REQUEST, replicas=65),
        replace(REQUEST, replicas=-1),
        replace(REQUEST, policy={"kind": "no-such"}),
        replace(REQUEST, policy={"no_such": 1}),
        replace(REQUEST, policy={"max_surge": -1}),
        replace(REQUEST, policy={"drain_s": 1e9}),
        replace(REQUEST, policy={"max_surge": 10**30}),
        replace(REQUEST, policy={"steps": [{"weight": 1}] * 2_000}),
    ],
)
async def test_wrong_numbers_and_policies_are_refused(request_: CreateService) -> None:
    services = make_services(World())
    with pytest.raises(InvalidInput):
        await services.create(OWNER, request_)
    assert (await services.search(OWNER, EndpointQuery())).total_count == 0


async def test_names_and_numbers_of_endpoints_are_bounded() -> None:
    services = make_services(World(), max_endpoints=1)
    for name in ("a/b", "abc", "x" * 49, "../../x"):
        with pytest.raises(InvalidName):
            await services.create(OWNER, replace(REQUEST, name=name))
    await services.create(OWNER, REQUEST)
    with pytest.raises(LimitExceeded):
        await services.create(OWNER, replace(REQUEST, name="another"))


async def test_others_do_not_find_it_and_those_who_see_it_do_not_change_it() -> None:
    services = make_services(World())
    endpoint_id = str((await services.create(OWNER, REQUEST)).endpoint.id)
    for ref in (endpoint_id, "my-service", "a\0b"):
        with pytest.raises(NotFound):
            await services.get(STRANGER, ref)
        with pytest.raises(NotFound):
            await services.destroy(STRANGER, ref)
    assert (await services.search(STRANGER, EndpointQuery(user_id=OWNER.user_id))).total_count == 0
    assert (await services.get(MONITOR, endpoint_id)).endpoint.name == "my-service"
    with pytest.raises(Forbidden):
        await services.scale(MONITOR, endpoint_id, 2)
    assert (await services.scale(ADMIN, endpoint_id, 2)).endpoint.desired == 2
    elsewhere = replace(ADMIN, domain_name=DomainName("elsewhere"))
    with pytest.raises(NotFound):
        await services.scale(elsewhere, endpoint_id, 3)


async def started() -> tuple[World, ServingService, Service]:
    world = World()
    services = make_services(world)
    service = await services.create(OWNER, REQUEST)
    for _ in range(30):
        await world.round()
        service = await services.get(OWNER, service.endpoint.id)
        if service.endpoint.url is not None:
            return world, services, service
    raise AssertionError(service)


async def test_tokens_are_of_living_urls_and_of_sensible_times() -> None:
    world = World()
    services = make_services(world)
    await services.create(OWNER, REQUEST)
    tomorrow = world.clock.now() + timedelta(days=1)
    with pytest.raises(Conflict, match="no URL"):
        await services.make_token(OWNER, "my-service", valid_until=tomorrow)
    world, services, _ = await started()
    text, token = await services.make_token(OWNER, "my-service", valid_until=tomorrow)
    assert (text, token.valid_until) == ("token", tomorrow)
    for moment in (world.clock.now(), world.clock.now() + timedelta(days=36_500)):
        with pytest.raises(InvalidInput):
            await services.make_token(OWNER, "my-service", valid_until=moment)
    with pytest.raises(NotFound):
        await services.make_token(STRANGER, "my-service", valid_until=tomorrow)
    assert (await services.tokens(OWNER, "my-service", limit=10)).total_count == 1


async def test_a_change_of_what_replicas_are_made_of_makes_a_revision() -> None:
    _, services, _ = await started()
    service = await services.modify(OWNER, "my-service", ModifyService(replicas=2, policy={"kind": "blue-green"}))
    assert len(service.revisions) == 1
    assert service.endpoint.policy.kind is RolloutKind.BLUE_GREEN
    service = await services.modify(OWNER, "my-service", ModifyService(revision={"environ": {"A": "b"}}))
    assert [each.number for each in service.revisions] == [2, 1]
    service = await services.cancel_rollout(OWNER, "my-service")
    assert service.revisions[0].status is ServedRevisionStatus.RETIRED
    with pytest.raises(Conflict, match="No revision"):
        await services.cancel_rollout(OWNER, "my-service")


async def test_a_step_of_a_roll_out_is_ended_by_its_user() -> None:
    world, services, service = await started()
    world.endpoint_id = service.endpoint.id
    policy = {"kind": "canary", "steps": [{"weight": 20, "hold_s": None}]}
    changes = ModifyService(policy=policy, revision={"environ": {"A": "b"}})
    await services.modify(OWNER, "my-service", changes)
    with pytest.raises(Conflict, match="No step"):
        await services.promote(OWNER, "my-service")
    for _ in range(10):
        await world.round()
    service = await services.get(OWNER, "my-service")
    assert [each.weight for each in service.revisions] == [20.0, 80.0]
    with pytest.raises(NotFound):
        await services.promote(STRANGER, "my-service")
    await services.promote(OWNER, "my-service")
    service = await world.until(lambda service: service.revisions[0].status is ServedRevisionStatus.ACTIVE)
    assert [each.weight for each in service.revisions] == [1.0, 0.0]
    with pytest.raises(Conflict, match="No step"):
        await services.promote(OWNER, "my-service")


async def test_a_trial_is_checked_as_a_creation_is() -> None:
    services = make_services(World())
    await services.check(OWNER, REQUEST)
    for wrong in (replace(REQUEST, name="../../x"), replace(REQUEST, policy={"no_such": 1})):
        with pytest.raises((InvalidName, InvalidInput)):
            await services.check(OWNER, wrong)
    await services.create(OWNER, REQUEST)
    with pytest.raises(Conflict):
        await services.check(OWNER, REQUEST)
    await services.check(STRANGER, REQUEST)


async def test_one_replica_is_weighed_and_removed() -> None:
    world, services, service = await started()
    replica = service.live_replicas[0]
    await services.set_traffic_ratio(OWNER, "my-service", replica.id, 0.25)
    await world.round()
    assert [each.traffic_ratio for each in world.routes or ()] == [0.25]
    with pytest.raises(NotFound):
        await services.remove_replica(OWNER, "my-service", UUID(int=5))
    with pytest.raises(NotFound):
        await services.set_traffic_ratio(OWNER, "my-service", UUID(int=5), 1.0)
    service = await services.remove_replica(OWNER, "my-service", replica.id)
    assert (service.endpoint.desired, service.replicas[0].status) == (0, ReplicaStatus.DRAINING)
    with pytest.raises(Conflict):
        await services.remove_replica(OWNER, "my-service", replica.id)


async def test_a_destroyed_endpoint_is_changed_no_more() -> None:
    world, services, service = await started()
    assert ready(service) == 1
    for _ in range(2):
        service = await services.destroy(OWNER, str(service.endpoint.id))
        assert service.endpoint.status is EndpointStatus.DESTROYING
    for change in (ModifyService(replicas=3), ModifyService(revision={"environ": {}})):
        with pytest.raises(Conflict):
            await services.modify(OWNER, str(service.endpoint.id), change)
    for _ in range(40):  # nobody reports open requests: it is drained by time
        await world.round()
    assert (await services.get(OWNER, str(service.endpoint.id))).endpoint.status is EndpointStatus.DESTROYED
    with pytest.raises(NotFound):
        await services.get(OWNER, "my-service")


def claiming(claim: str, **changes: Any) -> CreateService:
    return replace(REQUEST, revision=replace(REQUEST.revision, claim=claim), **changes)


IN_TURN = {"kind": "rolling", "max_surge": 0, "max_unavailable": 1}
RULE = {
    "metric_name": "load",
    "threshold": Decimal(4),
    "comparator": Comparator.GREATER_THAN,
    "step_size": 1,
    "cooldown_seconds": 20.0,
    "metric_source": MetricSource.PROXY,
}


async def test_replicas_hold_a_claim_at_once_only_where_it_may_be_used_at_once() -> None:
    world = World()
    services = make_services(world)
    with pytest.raises(InvalidInput, match=r"in turn, since .* mock\.device\. my-service has one replica at most"):
        await services.create(OWNER, claiming("gpus", replicas=2))
    await services.create(OWNER, claiming("gpus"))
    with pytest.raises(InvalidInput, match="one replica at most"):
        await services.scale(OWNER, "my-service", 2)
    for replicas in (0, 1):
        assert (await services.scale(OWNER, "my-service", replicas)).endpoint.desired == replicas
    scaling = ScalingService(services)
    with pytest.raises(InvalidInput, match="by hand and by autoscaling"):
        await scaling.set(OWNER, "my-service", {"min_replicas": 0, "max_replicas": 3})
    with pytest.raises(InvalidInput, match="by hand and by autoscaling"):
        await scaling.add_rule(OWNER, "my-service", RULE)
    await scaling.set(OWNER, "my-service", {"min_replicas": 0, "max_replicas": 1})
    assert (await services.get(OWNER, "my-service")).rules == ()
    shared = await services.create(OWNER, claiming("shared", name="other-service", replicas=3))
    assert (await services.scale(OWNER, "other-service", 5)).endpoint.id == shared.endpoint.id


async def test_a_new_revision_takes_a_claim_over_only_after_the_old_one() -> None:
    world = World()
    services = make_services(world)
    made = await services.create(OWNER, claiming("gpus"))
    active = replace(made.revisions[0], status=ServedRevisionStatus.ACTIVE)
    change = ServingChange(version=made.endpoint.version, endpoint=made.endpoint, revisions=[active])
    await world.store.save(change)
    same = {"claim": "gpus", "environ": {"A": "1"}}
    with pytest.raises(InvalidInput, match="after the old one has ended") as refused:
        await services.modify(OWNER, "my-service", ModifyService(revision=same))
    assert "policy" in refused.value.data
    for policy in ({"kind": "canary"}, {"kind": "blue-green", "max_surge": 0, "max_unavailable": 1}):
        with pytest.raises(InvalidInput, match="after the old one has ended"):
            await services.modify(OWNER, "my-service", ModifyService(revision=same, policy=policy))
    changed = await services.modify(OWNER, "my-service", ModifyService(revision=same, policy=IN_TURN))
    assert [each.spec.claim for each in changed.revisions] == ["gpus", "gpus"]
    with pytest.raises(InvalidInput, match="after the old one has ended"):
        await services.modify(OWNER, "my-service", ModifyService(policy={"max_surge": 1}))
    assert (await services.modify(OWNER, "my-service", ModifyService(replicas=0))).endpoint.desired == 0


@pytest.mark.parametrize("claim", ["other", ""])
async def test_a_new_revision_with_another_claim_is_rolled_out_as_any(claim: str) -> None:
    world = World()
    services = make_services(world)
    made = await services.create(OWNER, claiming("gpus"))
    active = replace(made.revisions[0], status=ServedRevisionStatus.ACTIVE)
    await world.store.save(ServingChange(version=made.endpoint.version, endpoint=made.endpoint, revisions=[active]))
    changed = await services.modify(OWNER, "my-service", ModifyService(revision={"claim": claim}))
    assert changed.revisions[0].number == 2
