"""Autoscaling of endpoints: the loop follows the loads that a coordinator reports; rules are checked and stored."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from ai.backend.common.errors import Conflict, Forbidden, InvalidInput, LimitExceeded, NotFound
from ai.backend.common.serving import EndpointStatus, ServingReason
from ai.backend.common.wire.appproxy import EndpointLoad
from ai.backend.core.serving.autoscale import Comparator, MetricSource
from ai.backend.manager.serving.model import Service
from ai.backend.manager.serving.scaling import MAX_RULES, ScalingService
from ai.backend.manager.serving.schemas import TargetBody
from ai.backend.manager.serving.views import why_reply
from tests.unit.manager.serving.test_service import MONITOR, REQUEST, STRANGER, make_services
from tests.unit.manager.serving.world import OWNER, World, ready

RULE: dict[str, Any] = {
    "metric_name": "load",
    "threshold": Decimal(4),
    "comparator": Comparator.GREATER_THAN,
    "step_size": 1,
    "cooldown_seconds": 20.0,
    "metric_source": MetricSource.PROXY,
    "min_replicas": None,
    "max_replicas": 3,
}


async def started(**scaling: Any) -> tuple[World, ScalingService]:
    """An endpoint with one ready replica, which is scaled so."""
    world = World()
    services = make_services(world)
    service = await services.create(OWNER, REQUEST)
    world.endpoint_id = service.endpoint.id
    await world.until(lambda service: service.endpoint.status is EndpointStatus.HEALTHY)
    autoscaling = ScalingService(services)
    if scaling:
        await autoscaling.set(OWNER, "my-service", scaling)
    return world, autoscaling


def loaded(
    world: World, *, in_flight: int = 0, queued: int = 0, tokens: int = 0, last_used_s: float | None = None
) -> None:
    now = world.clock.now().timestamp()
    world.load = EndpointLoad(
        endpoint_id=world.endpoint_id,
        queued=queued,
        in_flight={uuid4(): in_flight},
        tokens=tokens,
        last_used=now if last_used_s is None else last_used_s,
    )


async def test_a_rule_adds_replicas_once_in_its_cooldown_up_to_its_bound() -> None:
    world, autoscaling = await started()
    rule = await autoscaling.add_rule(OWNER, "my-service", RULE)
    loaded(world, in_flight=40)
    service = await world.until(lambda service: service.endpoint.desired == 2)
    begun_s = world.clock.passed_s
    assert service.rules[0].rule.last_triggered_at == world.clock.now().timestamp()
    service = await world.until(lambda service: service.endpoint.desired == 3)
    assert world.clock.passed_s - begun_s >= 20.0
    for _ in range(30):
        await world.round()
    service = await world.service()
    assert (service.endpoint.desired, ready(service)) == (3, 3)
    note = service.endpoint.scaled
    assert note is not None
    assert (note.before, note.desired, note.reason, note.triggered) == (2, 3, ServingReason.SCALED_UP, (rule.id,))
    assert note.inputs["proxy:load"] == 40
    shown = why_reply(service, {}).autoscaling
    assert shown.last_decision is not None
    assert "load" in shown.last_decision["explanation"]
    events = [each for each in await world.store.history(service.endpoint.id, limit=100) if each.reason == "scaled-up"]
    assert [each.data["desired"] for each in events] == [3, 2]
    assert events[0].data["inputs"]["ready"] >= 1


async def test_a_rule_follows_the_tokens_of_half_a_minute() -> None:
    world, autoscaling = await started()
    changed = {"metric_name": "tokens_per_s", "threshold": Decimal(100), "max_replicas": 2}
    await autoscaling.add_rule(OWNER, "my-service", {**RULE, **changed})
    loaded(world, tokens=1_000_000)
    for _ in range(40):
        await world.round()  # what was counted before is no rate
    assert (await world.service()).endpoint.desired == 1
    loaded(world, tokens=1_002_000)
    for _ in range(40):
        await world.round()  # nor is one long answer a burst
    assert (await world.service()).endpoint.desired == 1
    loaded(world, tokens=1_008_000)
    service = await world.until(lambda service: service.endpoint.desired == 2)
    note = service.endpoint.scaled
    assert note is not None
    assert note.inputs["proxy:tokens_per_s"] == pytest.approx(200, rel=0.2)
    loaded(world, tokens=5)  # its circuit was made again
    await autoscaling.set(OWNER, "my-service", {"down_delay_s": 0.0})
    below = {**changed, "comparator": Comparator.LESS_THAN, "step_size": -1, "threshold": Decimal(1)}
    await autoscaling.add_rule(OWNER, "my-service", {**RULE, **below})
    await world.until(lambda service: service.endpoint.desired == 1)


async def test_a_target_follows_the_load_up_and_down() -> None:
    world, _ = await started(target=TargetBody(target=10.0), max_replicas=8, down_delay_s=10.0)
    loaded(world, in_flight=38)
    await world.until(lambda service: service.endpoint.desired == 4)
    await world.until(lambda service: ready(service) == 4)
    loaded(world, in_flight=3)
    service = await world.until(lambda service: ready(service) == 1 and service.endpoint.desired == 1, rounds=300)
    assert service.endpoint.scaled is not None
    assert service.endpoint.scaled.reason is ServingReason.SCALED_DOWN


async def test_an_idle_endpoint_has_no_replica_and_a_waiting_request_starts_one_once() -> None:
    world, _ = await started(min_replicas=0, max_replicas=4, idle_s=30.0)
    loaded(world)
    await world.until(lambda service: service.endpoint.desired == 0)
    service = await world.until(lambda service: service.endpoint.status is EndpointStatus.IDLE and not world.live)
    assert world.held_requests == 100
    assert service.endpoint.scaled is not None
    assert service.endpoint.scaled.reason is ServingReason.SCALED_TO_ZERO
    for _ in range(40):
        await world.round()
    assert len(world.created) == 1
    loaded(world, queued=7)
    service = await world.until(lambda service: ready(service) == 1)
    assert service.endpoint.scaled is not None
    assert service.endpoint.scaled.reason is ServingReason.REQUEST_ARRIVED
    assert len(world.created) == 2


async def test_an_endpoint_that_never_had_a_replica_waits_for_requests() -> None:
    world = World()
    services = make_services(world)
    service = await services.create(OWNER, REQUEST)
    world.endpoint_id = service.endpoint.id
    await services.scale(OWNER, "my-service", 0)
    await ScalingService(services).set(OWNER, "my-service", {"min_replicas": 0, "max_replicas": 1})
    await world.until(lambda service: service.endpoint.url is not None)
    assert (world.created, world.held_requests) == ([], 100)


async def test_without_reports_nothing_is_removed_and_a_new_leader_does_not_hurry() -> None:
    world, _ = await started(min_replicas=0, idle_s=30.0)
    world.is_coordinator_away = True
    for _ in range(60):
        await world.round()
    assert (await world.service()).endpoint.desired == 1
    world.is_coordinator_away = False
    loaded(world)
    world.start()
    for _ in range(25):
        await world.round()
    assert (await world.service()).endpoint.desired == 1
    await world.until(lambda service: service.endpoint.desired == 0)


async def test_loads_are_asked_for_only_where_they_count() -> None:
    world, autoscaling = await started()
    assert world.asked_loads == 0
    await autoscaling.set(OWNER, "my-service", {})
    await world.round()
    assert world.asked_loads == 1
    await autoscaling.end(OWNER, "my-service")
    await world.round()
    assert world.asked_loads == 1


async def test_bounds_hold_at_once_and_users_stay_within_them() -> None:
    world, autoscaling = await started(min_replicas=2, max_replicas=3)
    assert (await world.service()).endpoint.desired == 2
    with pytest.raises(Conflict, match="keeps 2 to 3 replicas"):
        await autoscaling.services.scale(OWNER, "my-service", 4)
    assert (await autoscaling.services.scale(OWNER, "my-service", 3)).endpoint.desired == 3
    service = await autoscaling.end(OWNER, "my-service")
    assert (service.endpoint.scaling, service.endpoint.scaled, service.endpoint.desired) == (None, None, 3)
    assert (await autoscaling.services.scale(OWNER, "my-service", 4)).endpoint.desired == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"metric_name": "no-such"},
        {"metric_source": MetricSource.PROMETHEUS},
        {"threshold": Decimal("NaN")},
        {"threshold": Decimal("1e999999")},
        {"threshold": Decimal("-1")},
        {"threshold": Decimal("1e-999999")},
        {"threshold": Decimal("1e-999999999999999999")},  # no computer has room for its text
        {"threshold": Decimal("0e-999999999999999999")},
        {"step_size": 0},
        {"min_replicas": 4},
        {"max_replicas": 1_000},
    ],
)
async def test_rules_that_could_do_nothing_are_refused(changes: dict[str, Any]) -> None:
    _, autoscaling = await started()
    rule = await autoscaling.add_rule(OWNER, "my-service", RULE)
    with pytest.raises(InvalidInput):
        await autoscaling.add_rule(OWNER, "my-service", {**RULE, **changes})
    with pytest.raises(InvalidInput):
        await autoscaling.modify_rule(OWNER, "my-service", rule.id, changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"min_replicas": 3, "max_replicas": 2},
        {"max_replicas": 65},
        {"target": TargetBody(target=1.0, stable_s=6.0, panic_s=7.0)},
    ],
)
async def test_wrong_bounds_and_windows_are_refused(changes: dict[str, Any]) -> None:
    world, autoscaling = await started()
    with pytest.raises(InvalidInput):
        await autoscaling.set(OWNER, "my-service", changes)
    assert (await world.service()).endpoint.scaling is None


async def test_rules_are_of_their_endpoint_and_bounded() -> None:
    world, autoscaling = await started()
    rule = await autoscaling.add_rule(OWNER, "my-service", {**RULE, "min_replicas": 0})
    changed = await autoscaling.modify_rule(OWNER, "my-service", rule.id, {"threshold": Decimal("2.5")})
    assert (changed.rule.threshold, changed.rule.step_size) == (Decimal("2.5"), 1)
    service: Service = await world.service()
    assert service.endpoint.scaling is not None
    assert service.endpoint.scaling.min_replicas == 0
    assert (await autoscaling.get_by_rule(OWNER, rule.id)).endpoint.name == "my-service"
    for caller, error in ((STRANGER, NotFound), (MONITOR, Forbidden)):
        with pytest.raises(error):
            await autoscaling.remove_rule(caller, service.endpoint.id, rule.id)
    with pytest.raises(NotFound, match="no rule"):
        await autoscaling.get_by_rule(STRANGER, rule.id)
    for _ in range(MAX_RULES - 1):
        await autoscaling.add_rule(OWNER, "my-service", RULE)
    with pytest.raises(LimitExceeded):
        await autoscaling.add_rule(OWNER, "my-service", RULE)
    await autoscaling.remove_rule(OWNER, "my-service", rule.id)
    with pytest.raises(NotFound):
        await autoscaling.remove_rule(OWNER, "my-service", rule.id)
    assert len((await world.service()).rules) == MAX_RULES - 1
