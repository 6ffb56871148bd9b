"""What users are told about requests and waiting sessions, and that it is true and theirs to know."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ai.backend.common.errors import BackendError, InvalidInput, NotFound, SessionNotFound
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, ClusterMode, SessionStatus, SessionType, UserRole
from ai.backend.common.structs import replace
from ai.backend.manager.identity.model import ResourcePolicy
from ai.backend.manager.scheduling.model import Explanation, NearestRequest
from ai.backend.manager.sessions.model import CreateSession
from tests.unit.manager.scheduling.memory_manager import NOW, Installation, make_agent


def asking(**resources: str | int) -> CreateSession:
    wanted = {name.replace("_", "."): amount for name, amount in resources.items()}
    return CreateSession(image="python", resources={"cpu": 1, "mem": "64m", **wanted})


async def explain(world: Installation, user: str, request: CreateSession, *, count: int = 1) -> Explanation:
    return await world.manager.services.explanations.explain_request(world.callers[user], request, count=count)


def _accelerators(count: int) -> dict[str, Any]:
    return {"cuda_device": count} if count else {}


machines_ = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=3)
requests_ = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.integers(1, 3), st.booleans()),
    min_size=1,
    max_size=5,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(machines_, requests_)
@example([(4, 4, 2)], [(1, 3, 1, 1, True), *[(3, 2, 0, 1, True)] * 3])
async def test_a_verdict_agrees_with_what_the_scheduler_then_does(
    machines: list[tuple[int, int, int]], requests: list[tuple[int, int, int, int, bool]]
) -> None:
    """Each request is explained, created, and scheduled together with all that wait since before."""
    agents = [
        make_agent(f"i-{number}", cpu=cpu, mem=mem * 64, **_accelerators(cuda))
        for number, (cpu, mem, cuda) in enumerate(machines)
    ]
    world = await Installation.make(*agents)
    for number, (cpu, mem, cuda, size, is_apart) in enumerate(requests):
        resources: dict[str, str | int | float] = {"cpu": cpu, "mem": f"{mem * 64}m"}
        if cuda:
            resources["cuda.device"] = cuda
        mode = ClusterMode.MULTI_NODE if is_apart else ClusterMode.SINGLE_NODE
        request = CreateSession(image="python", resources=resources, cluster_size=size, cluster_mode=mode)
        world.clock.seconds += 0.0005  # sessions of the same instant have no order
        try:
            explanation = await explain(world, "user", request)
        except InvalidInput:
            continue
        for nearest in explanation.nearest:
            smaller = replace(request, resources=nearest.resources, cluster_size=nearest.cluster_size)
            assert (await explain(world, "user", smaller)).verdict == "now"
        if explanation.is_refused:
            with pytest.raises(BackendError) as refusal:
                await world.create("user", f"session-{number}", resources, cluster_size=size, cluster_mode=mode)
            assert refusal.value.code == explanation.reason
            continue
        session = await world.create("user", f"session-{number}", resources, cluster_size=size, cluster_mode=mode)
        again = await world.manager.services.explanations.explain_session(world.callers["user"], str(session.id))
        assert (again.verdict, again.reason) == (explanation.verdict, explanation.reason)
        await world.schedule()
        stored = world.session(session)
        assert (explanation.verdict == "now") == (stored.status is SessionStatus.SCHEDULED)
        if stored.status is SessionStatus.PENDING:
            assert stored.status_info == explanation.reason


async def test_a_request_that_fits_says_where() -> None:
    dead = replace(make_agent("i-3", cpu=4, mem=512), status=AgentStatus.LOST)
    world = await Installation.make(make_agent("i-1", cpu=4, mem=512), make_agent("i-2", cpu=1, mem=512), dead)
    told = await explain(world, "admin", asking(cpu=2))
    assert (told.verdict, told.reason, told.placed, told.is_refused) == ("now", None, 1, False)
    assert told.message == "starts now; 1 of 3 agents could take it"
    assert told.agents.names == ["i-1"]
    assert {each.reason: each.agents for each in told.agents.excluded} == {
        "not-schedulable": ["i-3"],
        "too-small": ["i-2"],
    }
    assert not world.memory.sessions
    hidden = await explain(world, "user", asking(cpu=2))
    assert hidden.agents.names == []
    assert [(each.reason, each.count, each.agents) for each in hidden.agents.excluded] == [
        ("not-schedulable", 1, []),
        ("too-small", 1, []),
    ]


async def test_a_wait_says_what_would_start_and_who_holds_the_rest() -> None:
    world = await Installation.make(make_agent("i-1", cpu=8, mem=1024, cuda_device=4))
    await world.add_user("other")
    await world.create("other", "their-secret", {"cpu": 1, "mem": "64m", "cuda.device": 1})
    await world.create("user", "my-own", {"cpu": 1, "mem": "64m", "cuda.device": 1})
    await world.schedule()
    told = await explain(world, "user", asking(cuda_device=4))
    assert (told.verdict, told.reason, told.remedy) == ("waits", "insufficient-resource", "others")
    assert "most free is 2 on i-1" in told.message
    assert told.nearest[0] == NearestRequest(
        resources={"cpu": "1", "mem": str(64 * 2**20), "cuda.device": "2"}, cluster_size=1
    )
    assert (told.holders.count, [each.name for each in told.holders.visible]) == (2, ["my-own"])
    assert b"their-secret" not in msgspec.json.encode(told)
    seen = await explain(world, "admin", asking(cuda_device=4))
    assert {each.name for each in seen.holders.visible} == {"my-own", "their-secret"}


async def test_count_and_cluster_size_belong_to_the_verdict() -> None:
    world = await Installation.make(make_agent("i-1", cpu=4, mem=1024))
    assert (await explain(world, "user", asking(cpu=2), count=2)).verdict == "now"
    three = await explain(world, "user", asking(cpu=2), count=3)
    assert (three.verdict, three.placed, three.count) == ("waits", 2, 3)
    cluster = await explain(world, "user", replace(asking(cpu=2), cluster_size=2))
    assert (cluster.verdict, cluster.requested["cpu"]) == ("now", "4")
    large = await explain(world, "user", replace(asking(cpu=2), cluster_size=3))
    assert (large.verdict, large.is_refused, large.reason) == ("never", True, "insufficient-resource")


async def test_limits_are_named() -> None:
    world = await Installation.make(make_agent("i-1", cpu=8, mem=4096))
    policy = ResourcePolicy(
        name="default",
        created_at=NOW,
        total_resource_slots=ResourceSlot.parse({"cpu": "4"}),
        max_concurrent_sessions=2,
    )
    await world.manager.stores.identities.put(policy)
    await world.create("user", "first-one", {"cpu": 3, "mem": "64m"})
    await world.schedule()
    told = await explain(world, "user", asking(cpu=2))
    assert (told.verdict, told.reason, told.remedy) == ("waits", "quota-exceeded", "others")
    limit = next(each for each in told.limits if each.slot == "cpu")
    assert (limit.scope, limit.limit, limit.used, limit.requested, limit.is_exceeded) == (
        "keypair",
        "4",
        "3",
        "2",
        True,
    )
    assert [each.name for each in told.holders.visible] == ["first-one"]
    assert not told.nearest
    beyond = await explain(world, "user", asking(cpu=5))
    assert (beyond.verdict, beyond.reason, beyond.is_refused) == ("never", "limit-exceeded", True)
    many = await explain(world, "user", asking(cpu=1), count=2)
    assert (many.verdict, many.reason, many.remedy) == ("never", "limit-exceeded", "others")


async def test_a_waiting_session_says_its_place_without_the_names_of_others() -> None:
    world = await Installation.make(make_agent("i-1", cpu=4, mem=1024))
    await world.add_user("other")
    await world.create("other", "the-runner", {"cpu": 2, "mem": "64m"})
    await world.schedule()
    head = await world.create("other", "their-secret", {"cpu": 4, "mem": "64m"})
    mine = await world.create("user", "my-own", {"cpu": 2, "mem": "64m"})
    await world.schedule()
    explanations = world.manager.services.explanations
    told = await explanations.explain_session(world.callers["user"], "my-own")
    assert (told.verdict, told.reason, told.remedy) == ("waits", "behind-another", "time")
    assert (told.position, told.waiting, told.ahead.count, told.ahead.visible, told.behind) == (2, 2, 1, [], None)
    assert told.message == "waits behind another session, which came first"
    assert world.session(mine).status_data["scheduler"]["message"] == told.message
    assert b"their-secret" not in msgspec.json.encode(told)
    seen = await explanations.explain_session(world.callers["admin"], str(mine.id))
    assert seen.behind is not None
    assert (seen.behind.name, [each.name for each in seen.ahead.visible]) == ("their-secret", ["their-secret"])
    first = await explanations.explain_session(world.callers["other"], "their-secret")
    assert first.reserved is not None
    assert (first.position, first.reserved.count, first.reserved.agents) == (1, 1, [])
    assert [each.name for each in first.holders.visible] == ["the-runner"]
    with pytest.raises(SessionNotFound):
        await explanations.explain_session(world.callers["user"], str(head.id))


async def test_a_session_that_waits_no_more_is_told_so() -> None:
    world = await Installation.make(make_agent("i-1", cpu=4, mem=1024), keep_s=100.0)
    explanations = world.manager.services.explanations
    await explain(world, "user", asking(cpu=1))
    session = await world.create("user", "my-own", {"cpu": 2, "mem": "64m"})
    assert (await explanations.explain_session(world.callers["user"], "my-own")).verdict == "now"
    await world.schedule()
    assert (await explanations.explain_session(world.callers["user"], str(session.id))).verdict == "started"
    await world.manager.services.sessions.destroy(world.callers["user"], "my-own", forced=True)
    delayed = await world.create("user", "delayed", {"cpu": 1, "mem": "64m"}, starts_at="1h")
    told = await explanations.explain_session(world.callers["user"], str(delayed.id))
    assert (told.verdict, told.reason, told.remedy) == ("waits", "not-yet", "time")


async def test_answers_are_kept_for_a_moment_and_for_their_asker_only() -> None:
    world = await Installation.make(make_agent("i-1", cpu=4, mem=1024), keep_s=1.0)
    first = await explain(world, "user", asking(cpu=4))
    await world.create("user", "my-own", {"cpu": 4, "mem": "64m"})
    await world.schedule()
    assert await explain(world, "user", asking(cpu=4)) is first
    assert (await explain(world, "admin", asking(cpu=4))).agents.names == ["i-1"], "the snapshot is shared"
    world.clock.seconds += 2
    assert (await explain(world, "user", asking(cpu=4))).verdict == "waits"


async def test_faults_of_the_request_are_errors() -> None:
    world = await Installation.make(make_agent("i-1", cpu=4, mem=1024))
    with pytest.raises(InvalidInput):
        await explain(world, "user", replace(asking(), type=SessionType.BATCH))
    with pytest.raises(NotFound):
        await explain(world, "user", replace(asking(), scaling_group="elsewhere"))
    unknown = await explain(world, "user", replace(asking(), image="julia"))
    assert (unknown.verdict, unknown.reason, unknown.remedy) == ("never", "image-not-found", "change")


async def test_a_queue_shows_own_sessions_at_their_true_places() -> None:
    world = await Installation.make(make_agent("i-1", cpu=2, mem=1024))
    await world.add_user("other")
    for number in range(3):
        await world.create("other", f"theirs-{number}", {"cpu": 2, "mem": "64m"})
    await world.create(
        "user",
        "my-own",
        {"cpu": 2, "mem": "64m"},
    )
    scheduling, callers = world.manager.services.scheduling, world.callers
    view = await scheduling.queue(callers["user"], "default", limit=10, offset=0)
    assert (view.waiting, view.total_count, [entry.position for entry in view.items]) == (4, 1, [4])
    assert (view.items[0].name, view.items[0].reason) == ("my-own", "behind-another")
    assert view.reasons == {"insufficient-resource": 1, "behind-another": 2}
    assert b"theirs" not in msgspec.json.encode(view)
    everything = await scheduling.queue(callers["admin"], "default", limit=2, offset=1)
    assert (everything.total_count, [entry.name for entry in everything.items]) == (4, ["theirs-1", "theirs-2"])
    assert everything.items[0].reserved_agents == 1
    with pytest.raises(NotFound):
        await scheduling.queue(callers["user"], "elsewhere", limit=10, offset=0)


async def test_shares_are_those_that_the_caller_may_see() -> None:
    world = await Installation.make(make_agent("i-1", cpu=4, mem=1024))
    await world.add_user("other")
    await world.add_user("boss", UserRole.ADMIN)
    groups = world.manager.stores.resource_groups
    await groups.change_resource_group("default", scheduler="fair-share", scheduler_opts={"weights": {"default": 2.0}})
    await world.create("user", "my-own", {"cpu": 1, "mem": "64m"})
    await world.create("other", "theirs", {"cpu": 2, "mem": "64m"})
    await world.schedule()
    scheduling, user = world.manager.services.scheduling, world.callers["user"]
    view = await scheduling.shares(user, "default")
    assert view.order == "fair-share"
    assert [(item.level, item.name) for item in view.items] == [
        ("domain", "default"),
        ("project", "default"),
        ("user", "user@local"),
    ]
    domain, _, own = view.items
    assert (domain.weight, domain.share, domain.weighted_share) == (2.0, 0.75, 0.375)
    assert (own.is_own, own.share, own.occupied["cpu"]) == (True, 0.25, "1")
    everybody = await scheduling.shares(world.callers["boss"], "default")
    assert {item.name for item in everybody.items if item.level == "user"} == {
        "user@local",
        "other@local",
        "boss@local",
    }
