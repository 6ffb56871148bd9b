"""What every implementation of the manager's stores promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from ai.backend.common.errors import (
    Conflict,
    InsufficientResource,
    InvalidInput,
    LimitExceeded,
    SessionAlreadyExists,
    StaleVersion,
)
from ai.backend.common.ids import (
    AccessKey,
    AgentId,
    DomainName,
    GroupId,
    ResourceGroupName,
    SessionId,
    SlotName,
    UserId,
)
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, GroupType, SessionStatus, SlotType, UserRole, UserStatus
from ai.backend.common.structs import replace
from ai.backend.common.volume_paths import QuotaScopeKind
from ai.backend.infra.database import Database
from ai.backend.infra.http.client_tokens import Answer, KnownCall
from ai.backend.manager.agents.model import SlotTypeInfo
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.identity.model import Domain, Group, GroupRef, Keypair, ResourcePolicy, StoragePolicy, User
from ai.backend.manager.identity.store import KeypairSecret, UserScope
from ai.backend.manager.query.model import Condition, Junction, ListQuery, OrderBy
from ai.backend.manager.resource_groups.model import Beneficiary, ResourceGroup
from ai.backend.manager.resources.model import ResourcePreset
from ai.backend.manager.sessions.changes import Change, ObservationAck
from ai.backend.manager.sessions.memory import Memory
from ai.backend.manager.sessions.model import OwnerLimits, SessionQuery
from ai.backend.simulator.stores import make_stores
from tests.contract.store.builders import (
    AGENT,
    KEY,
    NOW,
    SLOTS,
    ended,
    event,
    make_agent,
    make_network,
    make_session,
    placed,
)
from tests.support.migrated import migrated
from tests.support.postgres import emptied, migrated_template, shared_server
from tests.support.repeating import RepeatingDatabase

CALL = uuid4()


class StoreContract:
    """Override ``stores`` with an implementation."""

    @pytest.fixture
    def stores(self) -> Stores:
        raise NotImplementedError

    # ---- sessions ----

    async def test_a_session_comes_back_as_it_went_in(self, stores: Stores) -> None:
        session = make_session(size=2, dependencies=(SessionId(uuid4()),))
        await stores.sessions.insert(session, events=[event(session, "session_enqueued")])
        assert await stores.sessions.get(session.id) == session
        assert await stores.sessions.get(SessionId(uuid4())) is None
        assert await stores.sessions.get_many([session.id, session.id]) == [session]
        assert await stores.sessions.dependents(session.dependencies[0]) == [session]

    async def test_live_names_are_unique_for_each_owner(self, stores: Stores) -> None:
        first = make_session("same")
        await stores.sessions.insert(first, events=[])
        with pytest.raises(SessionAlreadyExists) as caught:
            await stores.sessions.insert(make_session("same"), events=[])
        assert caught.value.data == {"existingSessionId": str(first.id)}
        await stores.sessions.insert(make_session("same", access_key=AccessKey("AKIAOTHER")), events=[])
        await stores.sessions.save([ended(first)])
        second = make_session("same", at=NOW + timedelta(seconds=1))
        await stores.sessions.insert(second, events=[])
        assert await stores.sessions.newest_named(KEY, "same") == second
        other = make_session("other")
        await stores.sessions.insert(other, events=[])
        with pytest.raises(SessionAlreadyExists) as caught:
            await stores.sessions.save([Change(old=other, new=replace(other, name="same"))])
        assert caught.value.data == {"existingSessionId": str(second.id)}

    async def test_an_id_gives_one_session(self, stores: Stores) -> None:
        """Also one that has ended: a repeated call must not create its session again."""
        first = make_session("one")
        await stores.sessions.insert(first, events=[])
        second = make_session("two", id=first.id)
        for _ in ("live", "ended"):
            with pytest.raises(SessionAlreadyExists) as caught:
                await stores.sessions.insert(second, events=[event(second)])
            assert caught.value.data == {"existingSessionId": str(first.id)}
            saved = await stores.sessions.get(first.id)
            assert saved is not None
            assert saved.name == "one"
            if not saved.status.is_final:
                await stores.sessions.save([ended(first)])
        assert await stores.sessions.last_event_id() == 0, "nothing of a refused insert is written"

    async def test_a_stale_writer_writes_nothing(self, stores: Stores) -> None:
        await stores.agents.put_agent(make_agent())
        session, other = make_session("one"), make_session("two")
        for s in (session, other):
            await stores.sessions.insert(s, events=[])
        change = placed(session)
        await stores.sessions.save([change])
        now = await stores.sessions.get(session.id)
        assert now == replace(change.new, version=2)
        with pytest.raises(StaleVersion):
            await stores.sessions.save([placed(other), placed(session)])
        assert await stores.sessions.get(other.id) == other
        assert await stores.sessions.last_event_id() == 1
        agent = await stores.agents.agent(AGENT)
        assert agent is not None
        assert agent.occupied_slots == SLOTS

    async def test_slots_move_with_the_status(self, stores: Stores) -> None:
        await stores.agents.put_agent(make_agent())
        session = make_session(size=2)
        await stores.sessions.insert(session, events=[])
        await stores.sessions.save([placed(session)])
        agent = await stores.agents.agent(AGENT)
        assert agent is not None
        assert agent.occupied_slots == SLOTS * 2
        assert [(h.agent, h.slots, h.devices) for h in await stores.sessions.held([AGENT])] == [
            (AGENT, SLOTS, {"cuda.shares": {"gpu0": "0.3"}})
        ] * 2
        assert (await stores.sessions.audit()).is_clean
        await stores.agents.put_agent(make_agent(generation=2))
        now = await stores.sessions.get(session.id)
        assert now is not None
        await stores.sessions.save([ended(now)])
        agent = await stores.agents.agent(AGENT)
        assert agent is not None
        assert agent.generation == 2
        assert agent.occupied_slots == ResourceSlot()
        assert await stores.sessions.held([AGENT]) == []

    async def test_no_two_sessions_have_a_network_of_one_number(self, stores: Stores) -> None:
        await stores.agents.put_agent(make_agent())
        agent = await stores.agents.agent(AGENT)
        assert agent is not None
        assert agent.overlay == make_agent().overlay
        first, second = make_session("first"), make_session("second")
        for session in (first, second):
            await stores.sessions.insert(session, events=[])
        given = [placed(s) for s in (first, second)]
        given = [replace(c, new=replace(c.new, vni=77, network=make_network())) for c in given]
        await stores.sessions.save(given[:1])
        with pytest.raises(StaleVersion, match="number"):
            await stores.sessions.save(given[1:])
        assert await stores.sessions.get(second.id) == second
        assert await stores.sessions.networks() == [(77, make_network())]
        now = await stores.sessions.get(first.id)
        assert now is not None
        await stores.sessions.save([Change(old=now, new=replace(now, status=SessionStatus.TERMINATING))])
        assert await stores.sessions.networks() == [(77, replace(make_network(), lines={}))], "lines that agents leave"
        now = await stores.sessions.get(first.id)
        assert now is not None
        assert now.network == make_network()
        change = ended(now)
        await stores.sessions.save([replace(change, new=replace(change.new, vni=None, network=None))])
        assert await stores.sessions.networks() == []
        await stores.sessions.save(given[1:])

    async def test_no_agent_is_overcommitted(self, stores: Stores) -> None:
        await stores.agents.put_agent(make_agent())
        session = make_session(size=3)
        await stores.sessions.insert(session, events=[])
        with pytest.raises(InsufficientResource):
            await stores.sessions.save([placed(session)])
        assert await stores.sessions.get(session.id) == session
        assert (await stores.sessions.audit()).is_clean

    async def test_what_is_held_of_a_failed_device_leaves_room_on_the_others(self, stores: Stores) -> None:
        slots = [{"slot_name": "cuda.shares", "slot_type": "count", "amount": "1"}]
        failed = {"device_id": "0", "health": "unhealthy", "slots": slots}
        available = ResourceSlot({"cpu": Decimal(100), "cuda.shares": Decimal("0.5")})
        await stores.agents.put_agent(make_agent(available_slots=available, devices=(failed, {"device_id": "?"})))
        first, second = make_session("first", size=3), make_session("second", size=3)
        for session in (first, second):
            await stores.sessions.insert(session, events=[])
        await stores.sessions.save([placed(first)])
        with pytest.raises(InsufficientResource):
            await stores.sessions.save([placed(second)])
        agent = await stores.agents.agent(AGENT)
        assert agent is not None
        assert agent.occupied_slots == SLOTS * 3

    async def test_concurrent_writers_lose_nothing(self, stores: Stores) -> None:
        available = ResourceSlot({"cpu": Decimal(100), "cuda.shares": Decimal(100)})
        await stores.agents.put_agent(make_agent(available_slots=available))
        sessions = [make_session(f"s-{i}") for i in range(20)]
        await asyncio.gather(*(stores.sessions.insert(s, events=[]) for s in sessions))
        await asyncio.gather(*(stores.sessions.save([placed(s)]) for s in sessions))
        agent = await stores.agents.agent(AGENT)
        assert agent is not None
        assert agent.occupied_slots == SLOTS * 20

    async def test_events_are_in_order_and_resumable(self, stores: Stores) -> None:
        session = make_session()
        await stores.sessions.insert(session, events=[event(session, "a"), event(session, "b")])
        await stores.sessions.save([Change(old=session, new=replace(session, tag="x"), events=(event(session, "c"),))])
        seen = await stores.sessions.events_after(0)
        assert [e.name for e in seen] == ["a", "b", "c"]
        assert (seen[0].user_id, seen[0].access_key, seen[0].payload) == (
            session.user_id, KEY, {"sessionId": str(session.id)},
        )  # fmt: skip
        assert [e.name for e in await stores.sessions.events_after(seen[0].id, limit=1)] == ["b"]
        assert await stores.sessions.events_of(session.id, limit=2) == seen[-2:]
        assert await stores.sessions.purge(before=NOW + timedelta(days=1)) == 3
        again = replace(session, version=2)
        await stores.sessions.save([Change(old=again, new=replace(again, tag="y"), events=(event(session, "d"),))])
        assert (await stores.sessions.events_after(0))[0].id > seen[-1].id, "an id is never used again"

    async def test_acknowledgements_go_with_the_changes(self, stores: Stores) -> None:
        await stores.sessions.insert(session := make_session(), events=[])
        assert await stores.sessions.acked(AGENT) is None
        stale = Change(old=replace(session, version=5), new=session)
        first = ObservationAck(agent_id=AGENT, epoch=3, seq=9)
        for applied in (first, replace(first, epoch=1, seq=2)):  # without its data, an agent begins its epochs anew
            await stores.sessions.save([], ack=applied)
            with pytest.raises(StaleVersion):
                await stores.sessions.save([stale], ack=replace(applied, seq=10))
            assert await stores.sessions.acked(AGENT) == applied

    async def test_finding_live_sessions(self, stores: Stores) -> None:
        a = make_session("alpha", id=UUID("aaaaaaaa-0000-4000-8000-000000000001"))
        b = make_session("alpha-2", at=NOW + timedelta(seconds=1))
        c = make_session("al_ha")
        theirs = make_session(str(b.id), access_key=AccessKey("AKIAOTHER"), at=NOW + timedelta(seconds=2))
        for s in (a, b, c, theirs):
            await stores.sessions.insert(s, events=[])
        assert await stores.sessions.find_live(KEY, "alpha") == [a], "an exact name wins over prefixes"
        assert await stores.sessions.find_live(KEY, "alph") == [a, b]
        assert await stores.sessions.find_live(KEY, "AAAAaaaa") == [a]
        assert await stores.sessions.find_live(KEY, str(a.id)) == [a]
        assert await stores.sessions.find_live(KEY, "al_h") == [c], "wildcards of a pattern mean themselves"
        assert await stores.sessions.find_live(KEY, "%") == []
        assert [await stores.sessions.find_live(None, ref) for ref in ("alph", str(b.id))] == [[a, b], [b, theirs]]
        assert await stores.sessions.count_live() == {KEY: 3, "AKIAOTHER": 1}
        assert await stores.sessions.live_statuses() == {SessionStatus.PENDING: (4, a.starts_at)}
        await stores.sessions.save([ended(a)])
        assert await stores.sessions.find_live(KEY, str(a.id)) == []

    async def test_kernels_lead_to_their_sessions(self, stores: Stores) -> None:
        session = make_session(size=2)
        await stores.sessions.insert(session, events=[])
        assert await stores.sessions.of_kernels([session.kernels[1].id]) == [session]
        assert await stores.sessions.on_agent(AGENT) == []
        await stores.agents.put_agent(make_agent())
        await stores.sessions.save([placed(session)])
        assert [s.id for s in await stores.sessions.on_agent(AGENT)] == [session.id]
        assert [s.id for s in await stores.sessions.by_status([SessionStatus.SCHEDULED])] == [session.id]

    async def test_what_is_known_at_its_version_is_not_read_again(self, stores: Stores) -> None:
        sessions = [make_session(f"s-{i}", at=NOW + timedelta(minutes=i)) for i in range(4)]
        for session in sessions:
            await stores.sessions.insert(session, events=[])
        await stores.agents.put_agent(make_agent())
        await stores.sessions.save([placed(sessions[0])])
        renamed = replace(sessions[1], name="renamed", version=2)
        await stores.sessions.save([Change(old=sessions[1], new=renamed)])
        known = {s.id: s for s in sessions[:3]}
        found = await stores.sessions.refreshed([SessionStatus.PENDING], known.get)
        assert found == [renamed, sessions[2], sessions[3]]

    async def test_searching_pages_filters_and_orders(self, stores: Stores) -> None:
        for i in range(5):
            session = make_session(f"name-{i}", at=NOW + timedelta(minutes=i), tag=None if i % 2 else f"t{i}")
            await stores.sessions.insert(session, events=[])

        async def names(query: SessionQuery) -> list[str]:
            page = await stores.sessions.search(query)
            return [s.name[-1] for s in page.items]

        assert await names(SessionQuery(limit=2, offset=1)) == ["3", "2"], "the newest first"
        assert (await stores.sessions.search(SessionQuery(limit=2, offset=1))).total_count == 5
        by_name = (OrderBy(field="name"),)
        like = Condition(field="name", op="ilike", value="NAME-%")
        some = Condition(field="name", op="in", value=("name-1", "name-4"))
        assert await names(SessionQuery(order=by_name, filter=Junction(kind="&", terms=(like, some)))) == ["1", "4"]
        late = Condition(field="created_at", op=">", value=(NOW + timedelta(minutes=2)).isoformat())
        tagless = Condition(field="tag", op="is", value=None)
        assert await names(SessionQuery(order=by_name, filter=late)) == ["3", "4"]
        assert await names(SessionQuery(order=by_name, filter=tagless)) == ["1", "3"]
        assert await stores.sessions.count_by_status(SessionQuery(filter=tagless, statuses=())) == {"PENDING": 2}
        either = Junction(kind="|", terms=(tagless, Condition(field="tag", op="contains", value="2")))
        assert await names(SessionQuery(order=by_name, filter=either)) == ["1", "2", "3"]
        status = Condition(field="status", op="==", value="pending")
        assert await names(SessionQuery(order=(OrderBy(field="name", descending=True),), filter=status, limit=1)) == [
            "4"
        ]
        assert await names(SessionQuery(order=by_name, access_key=KEY, group_id=str(UUID(int=7)), limit=1)) == ["0"]
        assert await names(SessionQuery(statuses=(SessionStatus.RUNNING,))) == []
        assert await names(SessionQuery(domain_name="elsewhere")) == []
        for bad in (Condition(field="nonsense", op="==", value=1), Condition(field="status", op="==", value="WILD")):
            with pytest.raises(InvalidInput):
                await stores.sessions.search(SessionQuery(filter=bad))

    async def test_side_fields_need_no_version(self, stores: Stores) -> None:
        session = make_session()
        await stores.sessions.insert(session, events=[])
        await stores.sessions.bump({session.id: 2}, {session.main.id: {"mem": {"current": "1"}}})
        await stores.sessions.save([Change(old=session, new=replace(session, tag="later"))])
        now = await stores.sessions.get(session.id)
        assert now is not None
        assert (now.num_queries, now.main.last_stat, now.tag) == (2, {"mem": {"current": "1"}}, "later")

    async def test_logs_are_kept_and_purged(self, stores: Stores) -> None:
        session = make_session()
        await stores.sessions.insert(session, events=[])
        await stores.sessions.put_log(session.main.id, b"one")
        await stores.sessions.put_log(session.main.id, b"two")
        assert await stores.sessions.get_log(session.main.id) == b"two"
        await stores.sessions.purge(before=NOW + timedelta(days=1))
        assert await stores.sessions.get_log(session.main.id) == b"two", "a live session keeps its log"
        await stores.sessions.save([ended(session)])
        await stores.sessions.purge(before=NOW + timedelta(days=1))
        assert await stores.sessions.get_log(session.main.id) is None

    async def test_no_more_live_sessions_than_allowed(self, stores: Stores) -> None:
        """Many creations at once do not exceed the limit; ended sessions and those of others do not count."""
        one, three = OwnerLimits(max_live=1), OwnerLimits(max_live=3)
        await stores.sessions.insert(make_session("theirs", access_key=AccessKey("AKIAOTHER")), events=[], limits=one)
        many = [make_session(f"s-{i}") for i in range(20)]
        made = await asyncio.gather(
            *(stores.sessions.insert(s, events=[event(s)], limits=three) for s in many),
            return_exceptions=True,
        )
        refused = [r for r in made if r is not None]
        assert len(refused) == 17
        assert all(isinstance(r, LimitExceeded) and r.data == {"concurrency": 3} for r in refused)
        assert await stores.sessions.count_live([KEY]) == {KEY: 3}
        assert len(await stores.sessions.events_after(0)) == 3, "a refused session leaves nothing"
        lucky = next(s for s, r in zip(many, made, strict=True) if r is None)
        with pytest.raises(SessionAlreadyExists):  # a repetition is recognised also at the limit
            await stores.sessions.insert(make_session("again", id=lucky.id), events=[], limits=three)
        await stores.sessions.save([ended(lucky)])
        await stores.sessions.insert(make_session("next"), events=[], limits=three)

    async def test_no_more_waits_than_allowed(self, stores: Stores) -> None:
        """Sessions that wait are counted, and what they ask for; others of the owner do not count."""
        limits = OwnerLimits(max_pending=2, max_pending_slots=ResourceSlot.parse({"cpu": "5"}))
        await stores.agents.put_agent(make_agent())
        running = make_session("running")
        await stores.sessions.insert(running, events=[], limits=limits)
        await stores.sessions.save([placed(running)])
        each = running.requested_slots["cpu"]
        await stores.sessions.insert(make_session("first"), events=[], limits=limits)
        await stores.sessions.insert(make_session("second"), events=[], limits=limits)
        with pytest.raises(LimitExceeded) as caught:
            await stores.sessions.insert(make_session("third"), events=[], limits=limits)
        assert caught.value.data == {"pending": 2}
        slots = OwnerLimits(max_pending_slots=ResourceSlot({"cpu": 4 * each}))
        with pytest.raises(LimitExceeded) as caught:
            await stores.sessions.insert(make_session("large", size=3), events=[], limits=slots)
        assert list(caught.value.data) == ["pending_slots"]
        await stores.sessions.insert(make_session("fits", size=2), events=[], limits=slots)

    async def test_what_is_occupied_is_counted_by_whom(self, stores: Stores) -> None:
        await stores.agents.put_agent(make_agent())
        mine, theirs = make_session("mine"), make_session("theirs", access_key=AccessKey("AKIAOTHER"))
        for session in (mine, theirs, make_session("waits")):
            await stores.sessions.insert(session, events=[])
        await stores.sessions.save([placed(mine), placed(theirs)])
        each = placed(mine).new.occupying_slots
        assert len(each)
        occupied = stores.sessions.occupied
        assert await occupied(access_key=KEY) == each
        assert await occupied(group_id=mine.group_id, domain_name=mine.domain_name) in (each, each + each)
        assert await occupied() == each + each
        assert await occupied(domain_name=DomainName("elsewhere")) == ResourceSlot()

    async def test_callbacks_are_owed_in_order(self, stores: Stores) -> None:
        """Only of sessions with a URL, only of the session as a whole, of each session the first one."""
        store = stores.sessions
        one, two = make_session("one", callback_url="http://one/"), make_session("two", callback_url="http://two/")
        kernel = replace(event(one, "kernel_started"), kernel_id=one.main.id)
        told = [event(one, "session_enqueued"), kernel]
        await store.insert(one, events=told)
        await store.insert(two, events=[event(two, "session_enqueued")])
        quiet = make_session("quiet")
        await store.insert(quiet, events=[event(quiet)])
        change = replace(ended(one), events=(replace(event(one, "session_terminated"), payload={"reason": "r"}),))
        await store.save([change])

        async def due(at: datetime = NOW) -> list[tuple[str, str]]:
            return [(c.url, c.body["event"]) for c in await store.due_callbacks(at, limit=9)]

        assert await due() == [("http://one/", "enqueued"), ("http://two/", "enqueued")]
        assert await due(NOW - timedelta(seconds=1)) == []
        first, second = await store.due_callbacks(NOW, limit=9)
        assert (first.session_id, first.access_key, first.attempts) == (one.id, KEY, 0)
        await store.put_off_callback(first.id, attempts=1, due_at=NOW + timedelta(seconds=5))
        await store.drop_callback(second.id)
        assert await due() == [], "a later one does not overtake"
        assert [c.attempts for c in await store.due_callbacks(NOW + timedelta(seconds=5), limit=9)] == [1]
        await store.drop_callback(first.id)
        (last,) = await store.due_callbacks(NOW, limit=9)
        assert last.body == {
            "type": "session_lifecycle", "event": "terminated", "session_id": str(one.id), "when": NOW.isoformat(),
            "reason": "r",
        }  # fmt: skip

    # ---- answers ----

    async def test_an_answer_is_kept_until_it_is_forgotten(self, stores: Stores) -> None:
        answers, since = stores.answers, NOW - timedelta(hours=1)
        assert await answers.begin(KEY, "t", "f1", call_id=CALL, now=NOW, since=since) is None
        assert await answers.begin(KEY, "t", "f2", call_id=uuid4(), now=NOW, since=since) == KnownCall(
            fingerprint="f1", call_id=CALL, answer=None
        )
        told = Answer(status=409, headers={"Content-Type": "a/b"}, body=b"\0\xff")
        await answers.finish(KEY, "t", told)
        known = await answers.begin(KEY, "t", "f1", call_id=CALL, now=NOW, since=since)
        assert known == KnownCall(fingerprint="f1", call_id=CALL, answer=told)
        assert await answers.begin("AKIAOTHER", "t", "f1", call_id=CALL, now=NOW, since=since) is None
        later = NOW + timedelta(hours=2)
        assert await answers.begin(KEY, "t", "f3", call_id=CALL, now=later, since=later - timedelta(hours=1)) is None, (
            "it is too old"
        )
        await answers.finish(KEY, "t", Answer(status=204, headers={}, body=None))
        known = await answers.begin(KEY, "t", "f3", call_id=CALL, now=later, since=since)
        assert known == KnownCall(fingerprint="f3", call_id=CALL, answer=Answer(status=204, headers={}, body=None))
        await answers.forget(KEY, "t")
        await answers.forget(KEY, "t")
        assert await answers.begin(KEY, "t", "f4", call_id=CALL, now=later, since=since) is None
        await answers.purge(before=later)
        assert await answers.begin("AKIAOTHER", "t", "f5", call_id=CALL, now=later, since=since) is None

    @pytest.mark.parametrize(("limit", "value"), [("MAX_KEPT_CALLS", 3), ("MAX_KEPT_BYTES", 35)])
    async def test_the_oldest_answers_go_first(
        self, stores: Stores, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
    ) -> None:
        monkeypatch.setattr(f"ai.backend.manager.idempotency.sql.{limit}", value)
        since = NOW - timedelta(hours=1)
        for i in range(6):
            for key in (KEY, "AKIAOTHER"):
                await stores.answers.begin(key, f"t{i}", "f", call_id=CALL, now=NOW + timedelta(seconds=i), since=since)
                if i != 1:
                    await stores.answers.finish(key, f"t{i}", Answer(status=200, headers={}, body=b"0123456789"))
        await stores.answers.purge(before=since)
        for key in (KEY, "AKIAOTHER"):
            known = [
                await stores.answers.begin(key, f"t{i}", "g", call_id=CALL, now=NOW, since=since) for i in range(6)
            ]
            assert [k is not None for k in known] == [False, True, False, True, True, True], "what is at work stays"

    # ---- agents ----

    async def test_agents_come_back_and_change(self, stores: Stores) -> None:
        agent = make_agent()
        await stores.agents.put_agent(agent)
        assert await stores.agents.agent(AGENT) == agent
        await stores.agents.put_agent(make_agent("agent-0", scaling_group=ResourceGroupName("other")))
        assert [a.id for a in await stores.agents.agents()] == ["agent-0", "agent-1"]
        assert [a.id for a in await stores.agents.agents(scaling_group="other")] == ["agent-0"]
        assert (await stores.agents.underlays())[AGENT] == agent.overlay
        await stores.agents.set_status(AGENT, AgentStatus.LOST, at=(later := NOW + timedelta(minutes=1)))
        assert dict(await stores.agents.count_by_status()) == {AgentStatus.ALIVE: 1, AgentStatus.LOST: 1}
        assert list(await stores.agents.underlays()) == ["agent-0"]
        await stores.agents.change(AGENT, schedulable=False)
        await stores.agents.change(AGENT, last_heartbeat=later)
        lost = await stores.agents.agent(AGENT)
        assert lost is not None
        assert (lost.status, lost.lost_at, lost.schedulable, lost.last_heartbeat) == (
            AgentStatus.LOST, later, False, later,
        )  # fmt: skip
        page = await stores.agents.page(ListQuery(limit=1), status="LOST", scaling_group=None)
        assert ([a.id for a in page.items], page.total_count) == (["agent-1"], 1)
        assert await stores.agents.agent(AgentId("nobody")) is None

    async def test_slot_types_accumulate(self, stores: Stores) -> None:
        cpu = SlotTypeInfo(slot_name=SlotName("cpu"), slot_type=SlotType.COUNT)
        mem = SlotTypeInfo(slot_name=SlotName("mem"), slot_type=SlotType.BYTES, display={"unit": "GiB"})
        await stores.agents.add_slot_types([mem])
        await stores.agents.add_slot_types([cpu, replace(mem, display={"unit": "MiB"})])
        assert await stores.agents.slot_types() == [cpu, replace(mem, display={"unit": "MiB"})]
        preset = ResourcePreset(name="small", resource_slots=SLOTS, shared_memory=1, device_requests=("has(id)",))
        await stores.presets.put_preset(preset)
        await stores.presets.put_preset(preset)
        assert await stores.presets.presets() == [preset]

    # ---- identities ----

    async def test_people_and_what_bounds_them(self, stores: Stores) -> None:
        ids = stores.identities
        domain = Domain(name=DomainName("default"), created_at=NOW, allowed_vfolder_hosts={"local:v": ["upload-file"]})
        await ids.put(domain)
        group = Group(id=GroupId(uuid4()), name="default", domain_name=DomainName("default"), created_at=NOW)
        await ids.put(group)
        await ids.put(ResourcePolicy(name="default", created_at=NOW, total_resource_slots=SLOTS))
        user = User(
            uuid=UserId(uuid4()),
            username="user",
            email="user@local",
            role=UserRole.USER,
            domain_name=DomainName("default"),
            created_at=NOW,
            modified_at=NOW,
        )
        pair = Keypair(access_key=KEY, user_id=user.uuid, user_email=user.email, created_at=NOW, modified_at=NOW)
        secret = KeypairSecret(keypair=pair, secret_key="s3cret")
        await ids.put_user(user, password_hash=None, groups=[group.id], keypair=secret)
        with pytest.raises(Conflict):
            await ids.put_user(replace(user, uuid=UserId(uuid4())), password_hash=None, groups=[], keypair=secret)
        found = await ids.user(email="user@local")
        assert found is not None
        assert [g.name for g in found.groups] == ["default"]
        assert await ids.groups(user_id=user.uuid) == [group]
        assert await ids.groups(user_id=UserId(uuid4())) == []
        [policy] = await ids.policies(name="default")
        assert policy.total_resource_slots == SLOTS
        around = await ids.user_scope("default", user.uuid, "default")
        assert around == UserScope(domain=domain, groups=(group,), policy=policy)
        nothing = await ids.user_scope("elsewhere", UserId(uuid4()), "none")
        assert nothing == UserScope(domain=None, groups=(), policy=None)
        credentials = await ids.credentials(KEY)
        assert credentials is not None
        assert (credentials.secret_key, credentials.is_active) == ("s3cret", True)
        assert await ids.active_keys({KEY, "AKIANOBODY"}) == {KEY}
        assert "s3cret" not in repr(credentials)
        await ids.touch({KEY: (NOW, 3)})
        assert await ids.change_keypair(KEY, is_active=False)
        assert await ids.change_keypair("AKIANOBODY", is_active=False) is None
        keypair = await ids.keypair(KEY)
        assert keypair is not None
        assert (keypair.num_queries, keypair.last_used, keypair.is_active) == (3, NOW, False)
        credentials = await ids.credentials(KEY)
        assert credentials is not None
        assert not credentials.is_active
        assert await ids.active_keys({KEY}) == set()
        assert (await ids.keypairs(ListQuery(), email="user@local")).total_count == 1
        assert (await ids.users(ListQuery(), domain_name="default", status="active")).total_count == 1

    async def test_policies_members_and_model_stores(self, stores: Stores) -> None:
        ids = stores.identities
        home = DomainName("default")
        user = User(
            uuid=UserId(uuid4()),
            username="user",
            email="user@local",
            role=UserRole.USER,
            domain_name=home,
            created_at=NOW,
            modified_at=NOW,
            resource_policy="small",
        )
        pair = Keypair(access_key=KEY, user_id=user.uuid, user_email=user.email, created_at=NOW, modified_at=NOW)
        await ids.put_user(user, password_hash=None, groups=[], keypair=KeypairSecret(keypair=pair, secret_key="s"))
        small = StoragePolicy(kind=QuotaScopeKind.USER, name="small", created_at=NOW, max_quota_scope_size=1 << 40)
        other = replace(small, kind=QuotaScopeKind.PROJECT)
        for policy in (replace(small, max_vfolder_count=3), small, other):
            await ids.put(policy)
        assert await ids.storage_policies(QuotaScopeKind.USER) == [small]
        store = Group(id=GroupId(uuid4()), name="store", domain_name=home, created_at=NOW, type=GroupType.MODEL_STORE)
        plain = Group(id=GroupId(uuid4()), name="plain", domain_name=home, created_at=NOW)
        for group in (store, plain, replace(store, id=GroupId(uuid4()), name="closed", is_active=False)):
            await ids.put(group)
        around = await ids.user_scope("default", user.uuid, "none")
        assert around == UserScope(domain=None, groups=(), policy=None, storage_policy=small, model_stores=(store,))
        await ids.change_members(plain.id, add=[user.uuid])
        await ids.change_members(plain.id, add=[user.uuid, user.uuid])
        await ids.change_members(store.id, add=[user.uuid])
        assert [g.name for g in (await ids.user_scope("default", user.uuid, "none")).groups] == ["plain", "store"]
        await ids.change_members(plain.id, remove=[user.uuid])
        assert [g.name for g in await ids.groups(user_id=user.uuid)] == ["store"]
        with pytest.raises(Conflict):
            await ids.delete_policy(QuotaScopeKind.USER, "small")
        assert await ids.delete_policy(QuotaScopeKind.PROJECT, "small")
        assert not await ids.delete_policy(QuotaScopeKind.PROJECT, "small")
        for name in ("default", "spare"):
            await ids.put(ResourcePolicy(name=name, created_at=NOW))
        with pytest.raises(Conflict):
            await ids.delete_policy(None, "default")
        assert (await ids.delete_policy(None, "spare"), await ids.delete_policy(None, "spare")) == (True, False)
        await ids.put(Domain(name=DomainName("zoo"), created_at=NOW))
        await ids.put(Domain(name=home, created_at=NOW))
        assert [d.name for d in await ids.domains()] == ["default", "zoo"]

    async def test_people_change_and_go(self, stores: Stores) -> None:
        ids, home = stores.identities, DomainName("default")
        await ids.put(Domain(name=home, created_at=NOW))
        groups = [Group(id=GroupId(uuid4()), name=name, domain_name=home, created_at=NOW) for name in "ab"]
        for group in groups:
            await ids.put(group)

        async def make(name: str, role: UserRole) -> User:
            key = AccessKey(f"AKIA{name.upper()}")
            user = User(
                uuid=UserId(uuid4()),
                username=name,
                email=f"{name}@local",
                role=role,
                domain_name=home,
                created_at=NOW,
                modified_at=NOW,
                main_access_key=key,
            )
            pair = Keypair(access_key=key, user_id=user.uuid, user_email=user.email, created_at=NOW, modified_at=NOW)
            secret = KeypairSecret(keypair=pair, secret_key=f"secret of {name}")
            await ids.put_user(user, password_hash=None, groups=[groups[0].id], keypair=secret)
            return user

        boss, ann = await make("boss", UserRole.SUPERADMIN), await make("ann", UserRole.USER)
        changed = await ids.change_user(
            ann.uuid, groups=[groups[1].id], password_hash="h", status=UserStatus.INACTIVE, full_name="Ann"
        )
        assert changed is not None
        assert ([g.name for g in changed.groups], changed.full_name) == (["b"], "Ann")
        assert await ids.user(uuid=ann.uuid) == changed
        assert await ids.password_hash("ann@local") == "h"
        assert await ids.password_hash("boss@local") is None
        assert await ids.change_user(UserId(uuid4()), full_name="x") is None
        with pytest.raises(Conflict):
            await ids.change_user(ann.uuid, username="boss")
        credentials = await ids.credentials("AKIAANN")
        assert credentials is not None
        assert not credentials.is_active

        for attempt in (
            ids.change_user(boss.uuid, role=UserRole.ADMIN),
            ids.change_user(boss.uuid, status=UserStatus.DELETED),
            ids.change_user(boss.uuid, keypairs={"is_active": False}),
            ids.change_keypair("AKIABOSS", is_active=False),
            ids.delete_user(boss.uuid),
        ):
            with pytest.raises(Conflict) as caught:
                await attempt
            assert caught.value.data == {"admin": "the last one"}
        assert await ids.user(uuid=boss.uuid) == replace(boss, groups=(GroupRef(id=groups[0].id, name="a"),))

        spare = Keypair(
            access_key=AccessKey("AKIASPARE"), user_id=ann.uuid, user_email="", created_at=NOW, modified_at=NOW
        )
        await ids.put_keypair(KeypairSecret(keypair=spare, secret_key="s"))
        assert await ids.keys_of(user_id=ann.uuid) == ["AKIAANN", "AKIASPARE"]
        assert await ids.keys_of(domain_name="default") == ["AKIAANN", "AKIABOSS", "AKIASPARE"]
        with pytest.raises(Conflict):
            await ids.delete_keypair("AKIAANN")
        assert (await ids.delete_keypair("AKIASPARE"), await ids.delete_keypair("AKIASPARE")) == (True, False)
        keys = [AccessKey("AKIAANN"), AccessKey("AKIABOSS"), AccessKey("AKIANOBODY")]
        assert await ids.keys_of_deleted_users(keys) == set()
        await ids.change_user(ann.uuid, status=UserStatus.DELETED, keypairs={"is_active": False})
        assert await ids.keys_of_deleted_users(keys) == {"AKIAANN"}
        with pytest.raises(Conflict):
            await ids.delete_domain("default")
        assert (await ids.delete_user(ann.uuid), await ids.delete_user(ann.uuid)) == (True, False)
        assert await ids.credentials("AKIAANN") is None
        assert [await ids.delete_group(g.id) for g in (*groups, groups[0])] == [True, True, False]
        await ids.put(Domain(name=DomainName("empty"), created_at=NOW))
        assert (await ids.delete_domain("empty"), await ids.delete_domain("empty")) == (True, False)

    async def test_nobody_signs_in_an_inactive_domain_but_superadmins(self, stores: Stores) -> None:
        ids, home = stores.identities, DomainName("default")
        await ids.put(Domain(name=home, created_at=NOW, is_active=False))
        for name, role in (("boss", UserRole.SUPERADMIN), ("ann", UserRole.ADMIN)):
            user = User(
                uuid=UserId(uuid4()),
                username=name,
                email=f"{name}@local",
                role=role,
                domain_name=home,
                created_at=NOW,
                modified_at=NOW,
            )
            key = AccessKey(f"AKIA{name.upper()}")
            pair = Keypair(access_key=key, user_id=user.uuid, user_email=user.email, created_at=NOW, modified_at=NOW)
            await ids.put_user(user, password_hash=None, groups=[], keypair=KeypairSecret(keypair=pair, secret_key="s"))
            credentials = await ids.credentials(key)
            assert credentials is not None
            assert credentials.is_active is (role is UserRole.SUPERADMIN)
            assert (key in await ids.active_keys({key})) is (role is UserRole.SUPERADMIN)

    async def test_what_is_new_and_what_changes(self, stores: Stores) -> None:
        ids = stores.identities
        home = DomainName("default")
        domain, policy = Domain(name=home, created_at=NOW), ResourcePolicy(name="p", created_at=NOW)
        group = Group(id=GroupId(uuid4()), name="one", domain_name=home, created_at=NOW)
        await ids.put(domain, only_new=True)
        await ids.put(policy, only_new=True)
        await ids.put(group, only_new=True)
        await ids.put(replace(group, id=GroupId(uuid4()), name="two"), only_new=True)
        for again in (
            ids.put(domain, only_new=True),
            ids.put(policy, only_new=True),
            ids.put(replace(group, id=GroupId(uuid4())), only_new=True),
            ids.change(Group, group.id, name="two"),
        ):
            with pytest.raises(Conflict):
                await again
        assert await ids.change(Domain, "default", description="home") == replace(domain, description="home")
        await asyncio.gather(
            ids.change(ResourcePolicy, "p", idle_timeout=5), ids.change(ResourcePolicy, "p", max_vfolder_count=7)
        )
        assert await ids.policies(name="p") == [replace(policy, idle_timeout=5, max_vfolder_count=7)]
        hosts = {"local:v": ["upload-file"]}
        changed = await ids.change(Group, group.id, allowed_vfolder_hosts=hosts, type=GroupType.MODEL_STORE)
        assert changed is not None
        assert changed == replace(group, allowed_vfolder_hosts=hosts, type=GroupType.MODEL_STORE)
        assert await ids.change(Domain, "nowhere", description="x") is None
        assert await ids.change(ResourcePolicy, "nothing") is None

    async def test_resource_groups_open_by_association(self, stores: Stores) -> None:
        store, domain, keypair = stores.resource_groups, Beneficiary.domain("default"), Beneficiary.keypair(KEY)
        for name, public in ((ResourceGroupName("open"), True), (ResourceGroupName("closed"), False)):
            await store.put_resource_group(ResourceGroup(name=name, is_public=public, created_at=NOW))
        assert [g.name for g in await store.resource_groups()] == ["closed", "open"]
        assert [g.name for g in await store.resource_groups([domain])] == ["open"]
        await store.associate("closed", keypair)
        await store.associate("closed", keypair)
        assert [g.name for g in await store.resource_groups([keypair])] == ["closed", "open"]
        assert [g.name for g in await store.resource_groups([domain])] == ["open"]
        with pytest.raises(Conflict):
            await store.put_resource_group(ResourceGroup(name=ResourceGroupName("open"), created_at=NOW), only_new=True)
        changed = await store.change_resource_group("open", scheduler="drf", scheduler_opts={"pending_timeout": 5})
        assert changed is not None
        assert await store.resource_group("open") == changed
        assert (changed.scheduler, changed.scheduler_opts) == ("drf", {"pending_timeout": 5})
        assert await store.change_resource_group("nowhere", scheduler="drf") is None
        await store.associate("closed", domain)
        assert await store.dissociate("open", domain) == 0
        assert await store.dissociate("closed", keypair) == 1
        assert await store.dissociate(None, domain) == 1
        assert [g.name for g in await store.resource_groups([domain, keypair])] == ["open"]
        await store.associate("closed", keypair)
        assert await store.delete_resource_group("closed")
        assert not await store.delete_resource_group("closed")
        await store.put_resource_group(ResourceGroup(name=ResourceGroupName("closed"), is_public=False, created_at=NOW))
        assert [g.name for g in await store.resource_groups([keypair])] == ["open"], "without its associations"

    async def test_associations_are_removed_with_their_target(self, stores: Stores) -> None:
        ids, store, name = stores.identities, stores.resource_groups, ResourceGroupName("closed")
        domain, group_id = DomainName("short-lived"), GroupId(uuid4())
        await store.put_resource_group(ResourceGroup(name=name, is_public=False, created_at=NOW))
        await ids.put(Domain(name=domain, created_at=NOW))
        await ids.put(Group(id=group_id, name="g", domain_name=domain, created_at=NOW))
        of_domain, of_group = Beneficiary.domain(domain), Beneficiary.group(group_id)
        await store.associate(name, of_domain)
        await store.associate(name, of_group)
        with pytest.raises(Conflict):
            await ids.delete_domain(domain)
        assert await store.resource_groups([of_domain]) != [], "a refused deletion removes no association"
        assert await ids.delete_group(group_id)
        assert await store.resource_groups([of_group]) == []
        assert await ids.delete_domain(domain)
        assert await store.resource_groups([of_domain]) == []


class TestSql(StoreContract):
    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[Stores]:
        database = Database(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
        yield Stores.sql(database)
        await database.close()


class TestSqlRepeated(StoreContract):
    """Every transaction runs twice: what it does outside of its connection must not add up."""

    @pytest.fixture
    async def stores(self, tmp_path: Path) -> AsyncIterator[Stores]:
        database = RepeatingDatabase(f"sqlite:///{migrated(tmp_path / 'manager.db')}")
        yield Stores.sql(database)
        await database.close()


@pytest.mark.needs("postgres")
class TestPostgres(StoreContract):
    @pytest.fixture
    async def stores(self) -> AsyncIterator[Stores]:
        server = shared_server()
        database = Database(server.url(emptied(server, migrated_template())))
        yield Stores.sql(database)
        await database.close()


class TestMemory(StoreContract):
    @pytest.fixture
    def stores(self) -> Stores:
        return make_stores(Memory(), lambda: NOW)
