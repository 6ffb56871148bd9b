"""What a manager remembers of the sessions that it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from ai.backend.common.ids import AgentId
from ai.backend.common.states import SessionStatus
from ai.backend.infra.bus import Bus
from ai.backend.manager.model.session import Session
from ai.backend.manager.services.writer import SessionWriter
from tests.contract.store.builders import make_session

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
    writer.note([*moving, first])
    for session in others:
        assert writer.recent(first.id) is first  # who is asked for stays
        writer.note([session])
    assert [s for s in moving if writer.recent(s.id) is None] == []
    kept = [s for s in running if writer.recent(s.id) is not None]
    assert kept == [first, *running[-len(kept) + 1 :]]
    assert len(kept) < 100
    gone = running[1].main
    waiting = list(sessions(20, SessionStatus.PENDING))
    monkeypatch.setattr("ai.backend.manager.services.writer._KEPT_PLACES", len([*moving, *running]))
    writer.note(replace(s, kernels=(replace(s.main, agent=None),)) for s in waiting)
    assert all(writer.is_on(s.main.id, AGENT) for s in (*moving, *running)), (
        "those that wait take no place from those that run"
    )
    writer.note(waiting)
    assert writer.is_on(waiting[0].main.id, AGENT)
    writer.note([replace(waiting[0], kernels=(replace(waiting[0].main, agent=None),))])
    assert not writer.is_on(waiting[0].main.id, AGENT)
    writer.note(running)
    assert writer.recent_of_kernel(gone.id) is None
    assert writer.is_on(gone.id, AGENT)
    assert not writer.is_on(gone.id, AgentId("agent-2"))
    writer.note([replace(running[1], status=SessionStatus.TERMINATED)])
    assert not writer.is_on(gone.id, AGENT)
