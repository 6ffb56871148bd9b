"""The loop of endpoints: replicas start, serve, are replaced and end, whenever its manager is killed."""

from __future__ import annotations

from uuid import UUID

import pytest

from ai.backend.common.errors import InvalidInput, Unavailable
from ai.backend.common.serving import EndpointStatus, ReplicaStatus, ServedRevisionStatus, ServingReason
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import InferenceUsage
from ai.backend.core.serving.model import RolloutKind, RolloutPolicy
from ai.backend.manager.crash_points import SERVING_CRASH_POINTS
from ai.backend.manager.serving import loop as serving_loop
from ai.backend.manager.serving.model import Service
from tests.unit.manager.serving.world import ENDPOINT, NOW, Killed, World, make_revision, make_service, ready


def is_healthy(service: Service) -> bool:
    return service.endpoint.status is EndpointStatus.HEALTHY


def is_destroyed(service: Service) -> bool:
    return service.endpoint.status is EndpointStatus.DESTROYED


async def started(desired: int = 1, policy: RolloutPolicy | None = None) -> World:
    world = World()
    await world.insert(make_service(desired=desired, policy=policy))
    await world.until(is_healthy)
    return world


async def test_replicas_start_are_published_and_end() -> None:
    world = await started(desired=2)
    await world.round()
    service = await world.service()
    assert service.endpoint.url == "http://proxy/1"
    assert service.revisions[0].status is ServedRevisionStatus.ACTIVE
    assert [each.session_id for each in world.routes or ()] == [each.id for each in service.live_replicas]
    await world.change(status=EndpointStatus.DESTROYING)
    service = await world.until(is_destroyed)
    assert (service.endpoint.active_name, world.routes, world.live) == (None, None, [])


async def test_no_url_before_a_replica_is_ready() -> None:
    world = World(healthy=lambda _: False)
    await world.insert(make_service())
    for _ in range(5):
        await world.round()
    service = await world.service()
    assert (service.endpoint.url, world.served) == (None, [])
    assert world.prober.error_of(service.replicas[0].id) == "/health answers 503"


async def test_a_lost_replica_is_replaced_and_tells_its_last_words() -> None:
    world = await started()
    lost = (await world.service()).live_replicas[0]
    world.end(lost.id)
    service = await world.until(lambda service: ready(service) == 1 and service.live_replicas[0].id != lost.id)
    gone = next(each for each in service.replicas if each.id == lost.id)
    assert (gone.status, gone.reason) == (ReplicaStatus.TERMINATED, ServingReason.SESSION_LOST)
    assert "out of memory" in str(gone.detail)
    await world.round()
    assert [each.session_id for each in world.routes or ()] == [service.live_replicas[0].id]


async def test_an_unhealthy_replica_leaves_the_routes_and_returns() -> None:
    world = await started()
    world.healthy = lambda _: False
    await world.until(lambda service: service.endpoint.status is EndpointStatus.UNHEALTHY)
    await world.round()
    assert world.routes == []
    world.healthy = lambda _: True
    await world.until(is_healthy)
    await world.round()
    assert len(world.routes or ()) == 1
    assert len(world.created) == 1


async def test_a_new_revision_replaces_the_old_one_without_a_gap() -> None:
    world = await started(desired=2)
    world.served.clear()
    await world.change([make_revision(2)])
    service = await world.until(lambda service: ready(service, 2) == 2 and len(service.live_replicas) == 2)
    assert [each.status for each in service.revisions] == [ServedRevisionStatus.ACTIVE, ServedRevisionStatus.RETIRED]
    assert all(sum(route.traffic_ratio > 0 for route in routes) >= 2 for routes in world.served)


async def test_a_revision_that_never_serves_is_rolled_back() -> None:
    world = await started(policy=RolloutPolicy(drain_s=1.0, first_backoff_s=1.0))
    world.healthy = lambda session: "2" not in str(session.startup_command)
    await world.change([make_revision(2)])
    service = await world.until(lambda service: service.revisions[0].status is ServedRevisionStatus.FAILED, rounds=200)
    assert service.revisions[1].status is ServedRevisionStatus.ACTIVE
    assert ready(service, 1) == 1
    assert len(world.live) == 1


def answered(revision: int, requests: int, errors: int = 0) -> InferenceUsage:
    minute = int(NOW.timestamp()) // 60
    return InferenceUsage(
        minute=minute,
        circuit=ENDPOINT,
        endpoint=ENDPOINT,
        revision=UUID(int=10 + revision),
        requests=requests,
        errors=errors,
    )


@pytest.mark.parametrize("kind", list(RolloutKind))
async def test_a_revision_whose_answers_are_errors_is_rolled_back_and_the_old_one_serves_meanwhile(
    kind: RolloutKind,
) -> None:
    world = await started(desired=2, policy=RolloutPolicy(kind=kind, drain_s=1.0))
    asked = 0

    def ask() -> None:
        """Each second 30 requests to the revisions that have weight: those to the new one fail."""
        nonlocal asked
        asked += 1
        routed = {route.revision.id for route in world.routes or () if route.revision and route.revision.weight > 0}
        reports = [answered(1, 30), answered(2, 30, errors=25)]
        world.samples.record([each for each in reports if each.revision in routed], world.clock.now().timestamp())

    world.samples.ask = ask
    await world.change([make_revision(2)])
    service = await world.until(lambda service: service.revisions[0].status is ServedRevisionStatus.ROLLING_BACK)
    assert service.revisions[0].reason is ServingReason.GUARD_TRIPPED
    assert ready(service, 1) >= 1
    service = await world.until(lambda service: service.revisions[0].status is ServedRevisionStatus.FAILED)
    assert service.revisions[1].status is ServedRevisionStatus.ACTIVE
    service = await world.until(lambda service: ready(service, 1) == 2 == len(service.live_replicas))
    await world.round()
    assert asked
    assert {route.session_id for route in world.routes or ()} == {each.id for each in service.live_replicas}
    history = await world.store.history(ENDPOINT, limit=100)
    assert any("requests failed" in (event.detail or "") for event in history)


async def test_a_blue_green_revision_serves_all_requests_while_the_old_replicas_are_kept() -> None:
    world = await started(policy=RolloutPolicy(kind=RolloutKind.BLUE_GREEN, watch_s=20.0, drain_s=1.0))
    await world.change([make_revision(2)])
    service = await world.until(lambda service: service.revisions[0].weight > 0)
    began_at = world.clock.passed_s
    assert [each.weight for each in service.revisions] == [1.0, 0.0]
    assert (ready(service, 1), ready(service, 2)) == (1, 1)
    await world.until(lambda service: service.revisions[0].status is ServedRevisionStatus.ACTIVE)
    assert world.clock.passed_s - began_at == pytest.approx(20.0, abs=2.0)


async def test_replicas_are_drained_only_once_the_coordinator_has_the_new_routes() -> None:
    world = await started()
    world.is_coordinator_away = True
    await world.change([make_revision(2)])
    service = await world.until(lambda service: ready(service, 2) == 1)
    for _ in range(20):
        await world.round()
    service = await world.service()
    assert ready(service, 1) == 1
    assert "the coordinator is away" in str(service.endpoint.problem)
    world.is_coordinator_away = False
    service = await world.until(lambda service: len(service.live_replicas) == 1)
    assert ready(service, 2) == 1
    assert service.endpoint.problem is None


async def test_a_draining_replica_ends_with_its_last_request() -> None:
    world = await started(desired=2, policy=RolloutPolicy(drain_s=600.0))
    ids = [each.id for each in (await world.service()).live_replicas]
    world.open_requests = {ids[0]: 1, ids[1]: 1}
    await world.change(desired=1)
    for _ in range(10):
        await world.round()
    service = await world.service()
    assert sorted(each.status for each in service.live_replicas) == [ReplicaStatus.DRAINING, ReplicaStatus.READY]
    assert sorted(each.traffic_ratio for each in world.routes or ()) == [0.0, 1.0]
    world.open_requests = {}
    service = await world.until(lambda service: len(service.live_replicas) == 1)
    assert service.live_replicas[0].status is ReplicaStatus.READY


async def test_requests_wait_only_while_a_replica_is_wanted() -> None:
    world = await started()
    await world.round()
    assert world.held_requests == 100
    await world.change(desired=0)
    await world.until(lambda service: not service.live_replicas)
    await world.round()
    assert (world.held_requests, world.routes) == (0, [])
    await world.change(desired=1)
    await world.until(is_healthy)
    await world.round()
    assert (world.held_requests, len(world.created)) == (100, 2)


async def test_a_refused_session_is_a_failed_start_and_an_away_agent_is_not() -> None:
    world = World(refusal=Unavailable("frozen"))
    await world.insert(make_service())
    for _ in range(3):
        await world.round()
    service = await world.service()
    assert [each.status for each in service.replicas] == [ReplicaStatus.PROVISIONING]
    assert "frozen" in str(service.endpoint.problem)
    world.refusal = InvalidInput("no such folder")
    service = await world.until(lambda service: service.replicas[0].status is ReplicaStatus.TERMINATED)
    assert (service.replicas[0].reason, service.replicas[0].detail) == (ServingReason.START_FAILED, "no such folder")


async def test_nothing_starts_for_an_owner_whose_key_is_inactive() -> None:
    world = World(is_owner_active=False)
    await world.insert(make_service())
    for _ in range(3):
        await world.round()
    assert world.created == []
    assert "keypair" in str((await world.service()).replicas[0].detail)


async def test_a_user_who_ends_a_session_makes_its_replica_leave() -> None:
    world = await started(desired=2)
    victim = (await world.service()).live_replicas[0]
    world.sessions[victim.id] = replace(world.sessions[victim.id], status=SessionStatus.TERMINATING)
    service = await world.until(lambda service: ready(service) == 2 and victim not in service.live_replicas)
    assert victim.id not in {each.id for each in service.live_replicas}


@pytest.mark.parametrize("point", SERVING_CRASH_POINTS)
@pytest.mark.parametrize("passage", [1, 2, 3, 4])
async def test_a_kill_at_any_step_loses_and_doubles_no_replica(
    point: str, passage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = 0

    def crash_point(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == passage:
            raise Killed

    monkeypatch.setattr(serving_loop, "crash_point", crash_point)
    world = World()
    await world.insert(make_service(desired=2))

    async def until(condition: object) -> Service:
        for _ in range(100):
            try:
                service = await world.service()
                if condition(service):  # type: ignore[operator]  # one of the two below
                    return service
                await world.round()
            except Killed:
                world.start()
        raise AssertionError(await world.service())

    service = await until(lambda service: ready(service) == 2 and is_healthy(service))
    assert {each.id for each in service.live_replicas} == {each.id for each in world.live}
    assert len(world.created) == len(set(world.created)) == 2
    endpoint = (await world.service()).endpoint
    await world.change([make_revision(2)], desired=endpoint.desired)
    service = await until(lambda service: ready(service, 2) == 2 and len(service.live_replicas) == 2)
    assert {each.id for each in service.live_replicas} == {each.id for each in world.live}
    await world.change(status=EndpointStatus.DESTROYING)
    await until(is_destroyed)
    assert world.live == []
    assert world.routes is None
    assert passed >= 1
