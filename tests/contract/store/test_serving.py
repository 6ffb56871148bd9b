"""What every implementation of the store of model services promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from ai.backend.common.errors import Conflict, InvalidInput, LimitExceeded, StaleVersion
from ai.backend.common.ids import SessionId, UserId
from ai.backend.common.serving import EndpointStatus, ReplicaStatus, ServedRevisionStatus, ServingReason
from ai.backend.common.structs import replace
from ai.backend.core.serving.autoscale import Comparator, MetricSource, ScalingPolicy, ScalingRule, TargetPolicy
from ai.backend.core.serving.model import CanaryStep, RolloutKind, RolloutPolicy
from ai.backend.infra.database import Database
from ai.backend.manager.query.model import Condition, OrderBy
from ai.backend.manager.serving.memory import MemoryServingStore
from ai.backend.manager.serving.model import (
    AutoscalingRule,
    EndpointQuery,
    EndpointToken,
    Replica,
    ReplicaRoute,
    ScalingNote,
    Service,
    ServingChange,
)
from ai.backend.manager.serving.service import event_of
from ai.backend.manager.serving.sql import SqlServingStore
from ai.backend.manager.serving.store import ServingStore
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server
from tests.unit.manager.serving.world import NOW, OWNER, make_revision, make_service

POLICY = RolloutPolicy(kind=RolloutKind.CANARY, steps=(CanaryStep(weight=5.0, hold_s=None),), guard=None)


def service_named(name: str, *, age_s: float = 0.0, user_id: UserId = OWNER.user_id) -> Service:
    service, created_at = make_service(policy=POLICY), NOW - timedelta(seconds=age_s)
    endpoint = replace(
        service.endpoint, id=uuid4(), name=name, active_name=name, created_at=created_at, user_id=user_id
    )
    revision = replace(service.revisions[0], id=uuid4(), endpoint_id=endpoint.id)
    return Service(endpoint=endpoint, revisions=(revision,))


def replica_of(service: Service) -> Replica:
    return Replica(
        id=SessionId(uuid4()),
        endpoint_id=service.endpoint.id,
        revision_id=service.revisions[0].id,
        status=ReplicaStatus.READY,
        reason=ServingReason.PROBES_PASSED,
        detail="what it said",
        traffic_ratio=0.5,
        route=ReplicaRoute(name="r1", host="node", port=6100, certificate="pem"),
        created_at=NOW,
        changed_at=NOW,
        started_at=NOW,
        ready_at=NOW,
    )


async def insert(store: ServingStore, service: Service, *, limit: int = 10) -> None:
    await store.insert(service, event_of(service.endpoint, NOW, "endpoint", {"n": 1}), limit=limit)


class ServingStoreContract:
    """Override ``store`` with an implementation."""

    @pytest.fixture
    def store(self) -> ServingStore:
        raise NotImplementedError

    async def test_a_service_comes_back_whole(self, store: ServingStore) -> None:
        service = service_named("mine")
        await insert(store, service)
        assert await store.get(service.endpoint.id) == service
        replica = replica_of(service)
        endpoint = replace(service.endpoint, url="http://proxy/1", published="abc", problem="no room")
        second = replace(make_revision(2), id=uuid4(), endpoint_id=endpoint.id, weight=0.25, failures=2, failed_at=NOW)
        event = event_of(endpoint, NOW, "replica 1", {"ready": 1}, detail="said")
        change = ServingChange(version=1, endpoint=endpoint, revisions=[second], replicas=[replica], events=[event])
        await store.save(change)
        stored = await store.get(endpoint.id)
        assert stored == Service(
            endpoint=replace(endpoint, version=2), revisions=(second, service.revisions[0]), replicas=(replica,)
        )
        assert [each.subject for each in await store.history(endpoint.id, limit=10)] == ["replica 1", "endpoint"]
        assert (await store.history(endpoint.id, limit=1, offset=1))[0].data == {"n": 1}

    async def test_scaling_and_its_rules_come_back(self, store: ServingStore) -> None:
        service, rule_id = service_named("mine"), uuid4()
        await insert(store, service)
        rule = ScalingRule(
            id=rule_id,
            source=MetricSource.PROXY,
            metric="load",
            threshold=Decimal("0.1"),
            comparator=Comparator.LESS_THAN_OR_EQUAL,
            step_size=-1,
            cooldown_s=1.5,
            min_replicas=0,
            last_triggered_at=12.5,
        )
        stored_rule = AutoscalingRule(id=rule_id, endpoint_id=service.endpoint.id, rule=rule, created_at=NOW)
        note = ScalingNote(
            at=NOW,
            before=2,
            desired=1,
            reason=ServingReason.SCALED_DOWN,
            explanation="load 0",
            inputs={"load": 0.5, "queued": 3, "last_request_at": None, "source": "proxy"},
            triggered=(rule_id,),
        )
        policy = ScalingPolicy(min_replicas=0, max_replicas=3, target=TargetPolicy(target=2.5), idle_s=7.0)
        endpoint = replace(service.endpoint, scaling=policy, scaled=note)
        await store.save(ServingChange(version=1, endpoint=endpoint, rules=[stored_rule]))
        stored = await store.get(endpoint.id)
        assert stored == replace(service, endpoint=replace(endpoint, version=2), rules=(stored_rule,))
        assert await store.get_by_rule(rule_id) == stored
        assert await store.get_by_rule(uuid4()) is None
        await store.save(ServingChange(version=2, endpoint=endpoint, dropped=[rule_id]))
        stored = await store.get(endpoint.id)
        assert stored is not None
        assert stored.rules == ()
        assert await store.get_by_rule(rule_id) is None

    async def test_one_of_two_writers_is_stale_and_writes_nothing(self, store: ServingStore) -> None:
        service = service_named("mine")
        await insert(store, service)
        await store.save(ServingChange(version=1, endpoint=service.endpoint, replicas=[replica_of(service)]))
        with pytest.raises(StaleVersion):
            await store.save(ServingChange(version=1, endpoint=service.endpoint, replicas=[replica_of(service)]))
        stored = await store.get(service.endpoint.id)
        assert stored is not None
        assert len(stored.replicas) == 1
        dropped = [stored.replicas[0].id]
        await store.save(ServingChange(version=2, endpoint=service.endpoint, dropped=dropped))
        stored = await store.get(service.endpoint.id)
        assert stored is not None
        assert stored.replicas == ()

    async def test_a_name_is_of_one_living_endpoint_of_a_user(self, store: ServingStore) -> None:
        first = service_named("mine")
        await insert(store, first)
        with pytest.raises(Conflict):
            await insert(store, service_named("mine"))
        await insert(store, service_named("mine", user_id=UserId(uuid4())))
        ended = replace(first.endpoint, active_name=None, status=EndpointStatus.DESTROYED, destroyed_at=NOW)
        await store.save(ServingChange(version=1, endpoint=ended))
        await insert(store, service_named("mine"))
        with pytest.raises(LimitExceeded):
            await insert(store, service_named("other"), limit=1)
        assert first.endpoint.id not in {each.endpoint.id for each in await store.live()}

    async def test_search(self, store: ServingStore) -> None:
        services = [service_named(f"s-{age}", age_s=age) for age in range(3)]
        for service in services:
            await insert(store, service)
        page = await store.search(EndpointQuery(limit=2, user_id=services[0].endpoint.user_id))
        assert [each.endpoint.name for each in page.items] == ["s-0", "s-1"]
        assert page.total_count == 3
        by_name = await store.search(EndpointQuery(name="s-2"))
        assert [each.endpoint.id for each in by_name.items] == [services[2].endpoint.id]
        named = EndpointQuery(filter=Condition(field="name", op="==", value="s-1"), order=(OrderBy(field="name"),))
        assert [each.endpoint.name for each in (await store.search(named)).items] == ["s-1"]
        assert (await store.search(EndpointQuery(domain_name="elsewhere"))).total_count == 0
        with pytest.raises(InvalidInput):
            await store.search(EndpointQuery(filter=Condition(field="nothing", op="==", value="1")))

    async def test_tokens_and_what_is_over_is_purged(self, store: ServingStore) -> None:
        service = service_named("mine")
        await insert(store, service)
        endpoint = service.endpoint
        for age in range(2):
            token = EndpointToken(
                id=UUID(int=age + 1),
                endpoint_id=endpoint.id,
                user_id=endpoint.user_id,
                domain_name=endpoint.domain_name,
                group_id=endpoint.group_id,
                created_at=NOW - timedelta(seconds=age),
                valid_until=NOW + timedelta(days=1),
            )
            await store.add_token(token)
        page = await store.tokens(endpoint.id, limit=1)
        assert ([each.id.int for each in page.items], page.total_count) == ([1], 2)
        ended = replace(endpoint, active_name=None, status=EndpointStatus.DESTROYED, destroyed_at=NOW)
        await store.save(ServingChange(version=1, endpoint=ended))
        await store.purge(before=NOW)
        assert await store.get(endpoint.id) is not None
        await store.purge(before=NOW + timedelta(seconds=1))
        assert await store.get(endpoint.id) is None
        assert (await store.tokens(endpoint.id, limit=1)).total_count == 0

    async def test_revisions_are_newest_first(self, store: ServingStore) -> None:
        service = service_named("mine")
        await insert(store, service)
        for number in (2, 3):
            revision = replace(make_revision(number), id=uuid4(), endpoint_id=service.endpoint.id)
            await store.save(ServingChange(version=number - 1, endpoint=service.endpoint, revisions=[revision]))
        stored = await store.get(service.endpoint.id)
        assert stored is not None
        assert [each.number for each in stored.revisions] == [3, 2, 1]
        assert stored.current.number == 3
        active = replace(stored.revisions[1], status=ServedRevisionStatus.ACTIVE)
        await store.save(ServingChange(version=3, endpoint=service.endpoint, revisions=[active]))
        stored = await store.get(service.endpoint.id)
        assert stored is not None
        assert stored.current.number == 2


class TestMemoryServing(ServingStoreContract):
    @pytest.fixture
    def store(self) -> ServingStore:
        return MemoryServingStore()


class TestSqlServing(ServingStoreContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[ServingStore]:
        database = Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
        yield SqlServingStore(database)
        await database.close()


@pytest.mark.needs("postgres")
class TestPostgresServing(ServingStoreContract):
    @pytest.fixture
    async def store(self) -> AsyncIterator[ServingStore]:
        server = shared_server()
        database = Database(server.url(emptied(server, migrated_template())))
        yield SqlServingStore(database)
        await database.close()
