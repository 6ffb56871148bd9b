"""What a manager remembers of the sessions that it wrote."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from ai.backend.common.ids import AgentId, SessionId
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.lifecycle.effects import DestroyKernels
from ai.backend.core.lifecycle.events import (
    SessionDestroyRequested,
    SessionEvent,
    SessionRestartRequested,
    SessionScheduled,
)
from ai.backend.core.lifecycle.transition import InvalidTransition
from ai.backend.infra.bus import Bus
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.transitions import advance
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.manager.topics import LAUNCH, TERMINATE
from tests.contract.store.builders import NOW, make_session

AGENT = AgentId("agent-1")


def sessions(count: int, status: SessionStatus) -> Iterator[Session]:
    for number in range(count):
        made = make_session(name=f"session-{number}")
        yield replace(made, status=status, kernels=tuple(replace(k, agent=AGENT) for k in made.kernels))


def test_of_those_that_run_only_some_are_kept_and_where_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SessionWriter(cast("Any", None), Bus(), on_end=lambda _: None)
    moving = list(sessions(100, SessionStatus.PREPARING))
    running = list(sessions(100, SessionStatus.RUNNING))
    first, *others = running
    writer.cache([*moving, first])
    for session in others:
        assert writer.recent_session(first.id) is first  # who is asked for stays
        writer.cache([session])
    assert [s for s in moving if writer.recent_session(s.id) is None] == []
    kept = [s for s in running if writer.recent_session(s.id) is not None]
    assert kept == [first, *running[-len(kept) + 1 :]]
    assert len(kept) < 100
    gone = running[1].main
    waiting = list(sessions(20, SessionStatus.PENDING))
    monkeypatch.setattr("ai.backend.manager.sessions.writer._MAX_PLACES", len([*moving, *running]))
    writer.cache(replace(s, kernels=(replace(s.main, agent=None),)) for s in waiting)
    assert all(writer.is_on(s.main.id, AGENT) for s in (*moving, *running)), (
        "those that wait take no place from those that run"
    )
    writer.cache(waiting)
    assert writer.is_on(waiting[0].main.id, AGENT)
    writer.cache([replace(waiting[0], kernels=(replace(waiting[0].main, agent=None),))])
    assert not writer.is_on(waiting[0].main.id, AGENT)
    writer.cache(running)
    assert writer.recent_session_of_kernel(gone.id) is None
    assert writer.is_on(gone.id, AGENT)
    assert not writer.is_on(gone.id, AgentId("agent-2"))
    writer.cache([replace(running[1], status=SessionStatus.TERMINATED)])
    assert not writer.is_on(gone.id, AGENT)


class Store:
    """A store of one session that counts its writes."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.writes = 0

    async def get(self, session_id: SessionId) -> Session | None:
        return self.session if self.session.id == session_id else None

    async def save(self, changes: Sequence[Change], *, ack: object = None) -> None:
        (change,) = changes
        self.session = replace(change.new, version=change.old.version + 1)
        self.writes += 1


async def test_the_commands_of_a_change_are_executed_once_it_is_stored() -> None:
    store, bus = Store(make_session()), Bus()
    writer = SessionWriter(cast("Any", store), bus, on_end=lambda _: None)
    session = store.session

    async def apply(event: SessionEvent) -> Session:
        return await writer.transition(session.id, lambda s: advance(s, event, now=NOW), point="commit-test")

    with bus.subscribe(LAUNCH, TERMINATE) as commands:
        await apply(SessionScheduled(agents={k.id: AGENT for k in session.kernels}))
        assert commands.drain() == [(LAUNCH, session.id)]
        await apply(SessionDestroyRequested())
        ((topic, destroy),) = commands.drain()
        assert (topic, destroy.forced) == (TERMINATE, False)
        writes = store.writes
        await apply(SessionDestroyRequested())
        assert commands.drain() == []
        await apply(SessionDestroyRequested(forced=True))
        ((topic, again),) = commands.drain()
        assert isinstance(again, DestroyKernels)
        assert (topic, again.forced, again.targets) == (TERMINATE, True, destroy.targets)
        assert store.writes == writes, "there was nothing to store"


async def test_the_story_of_an_illegal_request_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(make_session())
    writer = SessionWriter(cast("Any", store), Bus(), on_end=lambda _: None)
    ended = SessionDestroyRequested(stimulus_id="idle checks")
    request = SessionRestartRequested(stimulus_id="request of AKIA")
    await writer.transition(store.session.id, lambda s: advance(s, ended, now=NOW), point="commit-test")
    with caplog.at_level(logging.INFO), pytest.raises(InvalidTransition) as refused:
        await writer.transition(store.session.id, lambda s: advance(s, request, now=NOW), point="commit-test")
    assert refused.value.state == "CANCELLED"
    assert "restart-requested (request of AKIA)" in caplog.text
    assert "PENDING -> CANCELLED by destroy-requested (idle checks)" in caplog.text
