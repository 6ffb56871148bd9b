"""What every implementation of the store promises of device claims."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from ai.backend.common.errors import Conflict, InsufficientResource, LimitExceeded, NotFound, StaleVersion
from ai.backend.common.ids import AccessKey, DomainName, GroupId, ResourceGroupName, UserId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import ClaimStatus
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.claim import ClaimTrigger
from ai.backend.infra.database import Database
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.sessions.claims.model import Claim, ClaimChange, ClaimQuery, advance
from ai.backend.manager.sessions.memory import Memory
from ai.backend.simulator.stores import make_stores
from tests.contract.store.builders import AGENT, KEY, NOW, SLOTS, ended, make_agent, make_session, placed
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server
from tests.support.repeating import RepeatingDatabase

HALF = ResourceSlot({"cuda.shares": Decimal("0.5")})
CPU = ResourceSlot({"cpu": Decimal(2)})


def make_claim(name: str = "gpus", **changes: Any) -> Claim:
    values: dict[str, Any] = {
        "id": uuid4(),
        "name": name,
        "status_changed": NOW,
        "domain_name": DomainName("default"),
        "group_id": GroupId(UUID(int=7)),
        "group_name": "default",
        "user_id": UserId(UUID(int=8)),
        "user_email": "user@local",
        "access_key": KEY,
        "scaling_group": ResourceGroupName("default"),
        "requested_slots": HALF,
        "device_requests": ("memory >= 1g",),
        "idle_timeout_s": 60.5,
        "created_at": NOW,
    }
    return Claim(**{**values, **changes})


def allocated(claim: Claim, slots: ResourceSlot = HALF) -> ClaimChange:
    devices = {"cuda.shares": {"gpu0": str(slots["cuda.shares"])}}
    change = advance(claim, ClaimTrigger.PLACED, now=NOW, agent=AGENT, occupied_slots=slots, devices=devices)
    assert change is not None
    return change


class ClaimContract:
    """Override ``stores`` with an implementation."""

    @pytest.fixture
    def stores(self) -> Stores:
        raise NotImplementedError

    async def test_a_claim_comes_back_as_it_went_in(self, stores: Stores) -> None:
        claim = make_claim()
        await stores.sessions.insert_claim(claim, max_claims=None)
        assert await stores.sessions.claims_by_id([claim.id, uuid4()]) == [claim]
        assert await stores.sessions.claims_by_id([]) == []
        later = make_claim("later", created_at=NOW + timedelta(seconds=1), user_id=UserId(uuid4()))
        await stores.sessions.insert_claim(later, max_claims=None)
        page = await stores.sessions.claims(ClaimQuery())
        assert (page.items, page.total_count) == ([later, claim], 2)
        for query in (
            ClaimQuery(user_id=claim.user_id),
            ClaimQuery(name="gpus", group_id=claim.group_id),
            ClaimQuery(ids=[claim.id]),
            ClaimQuery(offset=1, limit=1),
        ):
            assert (await stores.sessions.claims(query)).items == [claim]
        for nothing in (ClaimQuery(is_held=True), ClaimQuery(agents=[AGENT]), ClaimQuery(ids=[])):
            assert (await stores.sessions.claims(nothing)).items == []

    async def test_names_are_unique_for_an_owner_in_a_project(self, stores: Stores) -> None:
        await stores.sessions.insert_claim(make_claim(), max_claims=None)
        with pytest.raises(Conflict):
            await stores.sessions.insert_claim(make_claim(), max_claims=None)
        await stores.sessions.insert_claim(make_claim(group_id=GroupId(uuid4())), max_claims=None)
        await stores.sessions.insert_claim(make_claim(user_id=UserId(uuid4())), max_claims=3)
        with pytest.raises(LimitExceeded):
            await stores.sessions.insert_claim(make_claim("more"), max_claims=3)
        await stores.sessions.insert_claim(make_claim("more", access_key=AccessKey("AKIAOTHER")), max_claims=1)
        assert (await stores.sessions.claims(ClaimQuery())).total_count == 4

    async def test_what_a_claim_holds_is_occupied_and_counted_once(self, stores: Stores) -> None:
        await stores.agents.put_agent(make_agent())
        claim, session = make_claim(), make_session()
        session = replace(session, claim_id=claim.id, claim_name="gpus")
        session = replace(session, kernels=tuple(replace(k, requested_slots=CPU) for k in session.kernels))
        await stores.sessions.insert_claim(claim, max_claims=None)
        await stores.sessions.insert(session, events=[])
        await stores.sessions.save([replace(placed(session), claim=allocated(claim))])
        (held,) = (await stores.sessions.claims(ClaimQuery(agents=[AGENT], is_held=True))).items
        assert (held.version, held.status, held.agent) == (2, ClaimStatus.ALLOCATING, AGENT)
        agent = await stores.agents.agent(AGENT)
        assert agent is not None
        assert agent.occupied_slots == CPU + HALF
        for scope in ({"access_key": KEY}, {"group_id": claim.group_id}, {"domain_name": claim.domain_name}, {}):
            assert await stores.sessions.occupied(**scope) == CPU + HALF
        assert await stores.sessions.occupied(access_key=AccessKey("AKIAOTHER")) == ResourceSlot()
        holdings = {holding.is_claim: holding for holding in await stores.sessions.held([AGENT])}
        assert (holdings[False].slots, holdings[False].devices, holdings[False].claim_id) == (CPU, {}, claim.id)
        assert (holdings[True].slots, holdings[True].devices) == (HALF, {"cuda.shares": {"gpu0": "0.5"}})
        assert holdings[True].scope == held.scope
        assert (await stores.sessions.audit()).is_clean
        (user,) = await stores.sessions.claim_users([claim.id])
        assert (user.session_id, user.holds) == (session.id, True)
        stored = await stores.sessions.get(session.id)
        assert stored is not None
        await stores.sessions.save([ended(stored)])
        assert await stores.sessions.claim_users([claim.id]) == []
        assert await stores.sessions.occupied() == HALF
        release = advance(held, ClaimTrigger.LEFT, now=NOW)
        assert release is not None
        await stores.sessions.save_claims([release])
        assert await stores.sessions.occupied() == ResourceSlot()
        assert (await stores.sessions.audit()).is_clean
        assert await stores.sessions.held([AGENT]) == []

    async def test_a_stale_change_of_a_claim_writes_nothing(self, stores: Stores) -> None:
        await stores.agents.put_agent(make_agent())
        claim, session = make_claim(), make_session()
        await stores.sessions.insert_claim(claim, max_claims=None)
        await stores.sessions.insert(replace(session, claim_id=claim.id), events=[])
        deleting = advance(claim, ClaimTrigger.DELETE_REQUESTED, now=NOW)
        assert deleting is not None
        await stores.sessions.save_claims([deleting])
        stored = await stores.sessions.get(session.id)
        assert stored is not None
        with pytest.raises(StaleVersion):
            await stores.sessions.save([replace(placed(stored), claim=allocated(claim))])
        with pytest.raises(StaleVersion):
            await stores.sessions.save_claims([allocated(claim)])
        assert await stores.sessions.get(session.id) == stored
        agent = await stores.agents.agent(AGENT)
        assert agent is not None
        assert agent.occupied_slots == ResourceSlot()

    async def test_no_claim_holds_more_than_an_agent_has(self, stores: Stores) -> None:
        await stores.agents.put_agent(make_agent())
        first, second = make_claim(), make_claim("second")
        for claim in (first, second):
            await stores.sessions.insert_claim(claim, max_claims=None)
        await stores.sessions.save_claims([allocated(first, SLOTS - CPU)])
        too_much = ResourceSlot({"cuda.shares": Decimal("0.8")})
        with pytest.raises(InsufficientResource):
            await stores.sessions.save_claims([allocated(second, too_much)])
        (unchanged,) = await stores.sessions.claims_by_id([second.id])
        assert unchanged == second

    async def test_a_claim_that_a_live_session_names_is_not_deleted(self, stores: Stores) -> None:
        claim, session = make_claim(is_deleting=False), make_session()
        await stores.sessions.insert_claim(claim, max_claims=None)
        await stores.sessions.insert(replace(session, claim_id=claim.id), events=[])
        deleting = replace(claim, is_deleting=True)
        await stores.sessions.save_claims([ClaimChange(old=claim, new=deleting)])
        gone = ClaimChange(old=replace(deleting, version=2), new=replace(deleting, status=ClaimStatus.DELETED))
        with pytest.raises(StaleVersion):
            await stores.sessions.save_claims([gone])
        for claim_id in (claim.id, uuid4()):
            with pytest.raises(NotFound):
                await stores.sessions.insert(replace(make_session("new"), claim_id=claim_id), events=[])
        stored = await stores.sessions.get(session.id)
        assert stored is not None
        await stores.sessions.save([ended(stored)])
        await stores.sessions.save_claims([gone])
        assert await stores.sessions.claims_by_id([claim.id]) == []


class TestSql(ClaimContract):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[Stores]:
        database = Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
        yield Stores.sql(database)
        await database.close()


class TestSqlRepeated(ClaimContract):
    """Every transaction runs twice: what it does outside of its connection must not add up."""

    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[Stores]:
        database = RepeatingDatabase(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
        yield Stores.sql(database)
        await database.close()


@pytest.mark.needs("postgres")
class TestPostgres(ClaimContract):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[Stores]:
        server = shared_server()
        database = Database(server.url(emptied(server, migrated_template())))
        yield Stores.sql(database)
        await database.close()


class TestMemory(ClaimContract):
    @pytest.fixture
    def stores(self) -> Stores:
        return make_stores(Memory(), lambda: NOW)
