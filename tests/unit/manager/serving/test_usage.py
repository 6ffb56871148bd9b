"""The use of endpoints: each report of a coordinator is added once, whatever dies, and reported by whom it concerns."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from ai.backend.common.errors import InvalidInput, NotFound, StaleVersion
from ai.backend.common.ids import AccessKey, DomainName, UserId
from ai.backend.common.structs import replace
from ai.backend.common.wire.appproxy import InferenceUsage, UsageRow
from ai.backend.manager.serving.memory_usage import MemoryEndpointUsageStore
from ai.backend.manager.serving.model import UseGrouping, UseKey, UseQuery, UseReport, UseSums
from ai.backend.manager.serving.service import ServingService
from ai.backend.manager.serving.settings import ServingSettings
from ai.backend.manager.serving.usage import HOUR_S, UsageLoop, UsageService
from ai.backend.manager.serving.views import usage_reply
from tests.unit.manager.serving.world import ENDPOINT, NOW, OWNER, World, make_service

HOUR = int(NOW.timestamp()) // HOUR_S
MINUTE = HOUR * 60
STRANGER = replace(OWNER, user_id=UserId(UUID(int=99)), access_key=AccessKey("AKIASTRANGER"))


def report(row_id: int, *, minute: int = MINUTE, endpoint: UUID | None = ENDPOINT, **values: Any) -> UsageRow:
    usage = InferenceUsage(minute=minute, circuit=UUID(int=5), endpoint=endpoint, requests=1, **values)
    return UsageRow(id=row_id, usage=usage)


class Scene:
    def __init__(self) -> None:
        self.world = World()
        self.store = MemoryEndpointUsageStore(self.world.store)
        self.loop = UsageLoop(
            store=self.store,
            services=self.world.store,
            resource_groups=cast(Any, self.world),
            coordinators=self.world,
            clock=cast(Any, self.world.clock),
            settings=ServingSettings(usage_days=2),
            samples=self.world.samples,
        )
        services = ServingService(
            store=self.world.store,
            revisions=cast(Any, None),
            coordinators=self.world,
            resource_groups=cast(Any, self.world),
            identity=cast(Any, None),
            claims=cast(Any, None),
            bus=cast(Any, None),
            clock=cast(Any, self.world.clock),
            id_generator=cast(Any, self.world.ids),
            settings=ServingSettings(),
        )
        self.service = UsageService(self.store, services, cast(Any, self.world.clock))

    def query(self, by: UseGrouping = UseGrouping.DAY) -> UseQuery:
        return self.service.query(since=None, until=None, by=by, limit=100)

    async def report(self, by: UseGrouping = UseGrouping.DAY) -> UseReport:
        return (await self.service.endpoint_report(OWNER, str(ENDPOINT), self.query(by)))[1]


@pytest.fixture
async def scene() -> Scene:
    scene = Scene()
    await scene.world.insert(make_service())
    return scene


async def test_reports_are_added_once(scene: Scene) -> None:
    scene.world.reports = [report(1, prompt_tokens=10, output_tokens=2, busy_ms=30), report(2, errors=1)]
    await scene.loop.once()
    await scene.loop.once()
    scene.world.reports.append(report(3, prompt_tokens=5, estimated=1))
    await scene.loop.once()
    total = (await scene.report()).total
    assert total == UseSums(requests=3, errors=1, prompt_tokens=15, output_tokens=2, estimated=1, busy_ms=30)


async def test_a_manager_that_lost_its_lead_adds_nothing_twice(scene: Scene) -> None:
    key, sums = UseKey(ENDPOINT, HOUR, "", None, None, None), UseSums(requests=1)
    await scene.store.add("source", after_number=0, last_number=7, use={key: sums})
    with pytest.raises(StaleVersion):
        await scene.store.add("source", after_number=0, last_number=7, use={key: sums})
    assert (await scene.report()).total.requests == 1


async def test_a_coordinator_reports_only_on_endpoints_that_it_serves(scene: Scene) -> None:
    scene.world.reports = [report(1, endpoint=uuid4(), prompt_tokens=10), report(2, endpoint=None), report(3)]
    await scene.loop.once()
    everyone = replace(scene.query(), user_id=None)
    assert (await scene.store.usage(everyone)).total == UseSums(requests=1)


async def test_a_coordinator_that_is_away_is_read_when_it_is_back(scene: Scene) -> None:
    scene.world.reports = [report(1)]
    scene.world.is_coordinator_away = True
    await scene.loop.once()
    scene.world.is_coordinator_away = False
    await scene.loop.once()
    assert (await scene.report()).total.requests == 1


async def test_use_is_summed_up_by_each_grouping(scene: Scene) -> None:
    user, revision, replica = UUID(int=70), UUID(int=11), UUID(int=12)
    scene.world.reports = [
        report(1, token="a", user=user, revision=revision, session=replica, prompt_tokens=1),
        report(2, token="b", minute=MINUTE - 60, output_tokens=5),
        report(3, token="a", minute=MINUTE - 30 * 60, prompt_tokens=2),
    ]
    await scene.loop.once()
    tokens = (await scene.report(UseGrouping.TOKEN)).groups
    assert [(each.key, each.sums.requests) for each in tokens] == [("b", 1), ("a", 2)]
    hours = (await scene.report(UseGrouping.HOUR)).groups
    assert [each.key for each in hours] == [HOUR - 30, HOUR - 1, HOUR]
    assert [each.key for each in (await scene.report(UseGrouping.DAY)).groups] == [
        HOUR // 24 - 2,
        HOUR // 24 - 1,
        HOUR // 24,
    ]
    for by, key in ((UseGrouping.USER, user), (UseGrouping.REVISION, revision), (UseGrouping.REPLICA, replica)):
        assert {each.key for each in (await scene.report(by)).groups} == {key, None}
    [group] = (await scene.service.total_report(OWNER, scene.query(UseGrouping.ENDPOINT))).groups
    assert (group.key, group.name, group.sums.requests) == (ENDPOINT, "my-service", 3)


async def test_tokens_by_the_second_are_those_of_the_time_that_is_over(scene: Scene) -> None:
    scene.world.clock.passed_s = 1800.0 - NOW.timestamp() % HOUR_S  # half of an hour
    now = scene.world.clock.now()
    hour = int(now.timestamp()) // HOUR_S
    scene.world.reports = [
        report(1, minute=hour * 60, prompt_tokens=1_000, cached_tokens=900, output_tokens=800),
        report(2, minute=hour * 60 - 1, output_tokens=3_600),
    ]
    await scene.loop.once()

    async def rates(query: UseQuery) -> list[float]:
        reply = usage_reply(query, (await scene.service.endpoint_report(OWNER, str(ENDPOINT), query))[1], now)
        return [*(each["tokens_per_s"] for each in reply["groups"]), reply["total"]["tokens_per_s"]]

    since = (hour - 1) * HOUR_S
    query = scene.service.query(since=since, until=None, by=UseGrouping.HOUR, limit=9)
    assert await rates(query) == [1.0, 1.0, 1.0]
    assert await rates(replace(query, until=hour)) == [1.0, 1.0]
    by_token = replace(query, by=UseGrouping.TOKEN, since=hour, until=hour + 48)
    assert await rates(by_token) == [1.0, 1.0]
    assert await rates(replace(query, since=hour + 1, until=hour + 2)) == [0.0]


async def test_others_see_nothing(scene: Scene) -> None:
    scene.world.reports = [report(1)]
    await scene.loop.once()
    with pytest.raises(NotFound):
        await scene.service.endpoint_report(STRANGER, str(ENDPOINT), scene.query())
    assert (await scene.service.total_report(STRANGER, scene.query())).total == UseSums()
    elsewhere = replace(STRANGER, domain_name=DomainName("other"), is_admin=True)
    assert (await scene.service.total_report(elsewhere, scene.query())).total == UseSums()


async def test_old_use_is_deleted(scene: Scene) -> None:
    scene.world.reports = [report(1)]
    await scene.loop.once()
    scene.world.clock.passed_s = 2 * 86_400 + 2 * HOUR_S
    await scene.loop.once()
    assert (await scene.report()).groups == []


@pytest.mark.parametrize(("since", "until"), [(HOUR_S, HOUR_S), (HOUR_S * 9, HOUR_S), (0, 401 * 86_400)])
async def test_impossible_periods_are_refused(scene: Scene, since: int, until: int) -> None:
    with pytest.raises(InvalidInput):
        scene.service.query(since=since, until=until, by=UseGrouping.DAY, limit=1)
