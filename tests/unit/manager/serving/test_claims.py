"""Replicas that use one claim in turn replace each other: none waits for one that waits for it."""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.common.serving import ServedRevisionStatus
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.serving.model import RolloutPolicy
from tests.unit.manager.serving.world import World, make_revision, make_service, ready

IN_TURN = RolloutPolicy(max_surge=0, max_unavailable=1, drain_s=1.0, first_backoff_s=1.0)


@dataclass
class ClaimWorld(World):
    """All sessions name one claim, which one of them uses at a time."""

    async def round(self) -> None:
        waiting = {key: each for key, each in self.sessions.items() if each.status is SessionStatus.PENDING}
        is_held = any(each.status in (SessionStatus.RUNNING, SessionStatus.TERMINATING) for each in self.live)
        kept_back = waiting if is_held else dict(list(waiting.items())[1:])
        for key in kept_back:
            self.sessions[key] = replace(self.sessions[key], status=SessionStatus.PREPARED)  # does not go on by itself
        await super().round()
        for key in kept_back:
            if self.sessions[key].status is SessionStatus.PREPARED:
                self.sessions[key] = replace(self.sessions[key], status=SessionStatus.PENDING)


async def started(policy: RolloutPolicy) -> ClaimWorld:
    world = ClaimWorld()
    await world.insert(make_service(policy=policy))
    await world.until(lambda service: ready(service) == 1)
    return world


async def test_a_revision_takes_the_claim_over_in_turn() -> None:
    world = await started(IN_TURN)
    await world.change([make_revision(2)])
    service = await world.until(lambda service: service.revisions[0].status is ServedRevisionStatus.ACTIVE)
    assert (ready(service, 1), ready(service, 2)) == (0, 1)


async def test_a_revision_that_never_serves_gives_the_claim_back() -> None:
    world = await started(IN_TURN)
    world.healthy = lambda session: "2" not in str(session.startup_command)
    await world.change([make_revision(2)])
    await world.until(lambda service: service.revisions[0].status is ServedRevisionStatus.FAILED, rounds=300)
    await world.until(lambda service: ready(service, 1) == 1, rounds=100)


async def test_a_revision_under_the_usual_policy_would_wait_until_its_deadline() -> None:
    world = await started(RolloutPolicy(drain_s=1.0))
    await world.change([make_revision(2)])
    for _ in range(100):
        await world.round()
    service = await world.service()
    assert (ready(service, 1), ready(service, 2)) == (1, 0), "which is why such a change is refused"


async def test_an_unhealthy_replica_is_replaced_under_any_policy() -> None:
    world = await started(RolloutPolicy(drain_s=1.0, unhealthy_s=5.0))
    (first,) = world.created
    world.healthy = lambda session: session.id != first
    await world.until(lambda service: ready(service) == 0)
    service = await world.until(lambda service: ready(service) == 1, rounds=100)
    assert [each.id for each in service.live_replicas] == world.created[1:]
