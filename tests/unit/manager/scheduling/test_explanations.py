"""When the loop stores why sessions wait."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, cast

from ai.backend.common.ids import SessionId
from ai.backend.core.scheduling.plan import Skip, SkipReason
from ai.backend.manager.scheduling.loop import ScheduleLoop
from ai.backend.manager.sessions.changes import Change
from ai.backend.manager.sessions.model import Session
from tests.contract.store.builders import NOW, make_session


class Recorder:
    """Takes changes as a :class:`SessionWriter`."""

    def __init__(self) -> None:
        self.commits: list[Sequence[Change]] = []

    async def commit(self, changes: Sequence[Change], *, point: str) -> list[Session]:
        self.commits.append(changes)
        return [change.new for change in changes]


class Queue:
    """Sessions that wait, and the loop that explains it."""

    def __init__(self, count: int) -> None:
        nothing = cast("Any", None)
        self.writer = Recorder()
        self.loop = cast("Any", ScheduleLoop)(*[nothing] * 4, self.writer, *[nothing] * 7)
        waiting = [make_session(name=f"session-{number}", status_data={}) for number in range(count)]
        self.sessions: dict[SessionId, Session] = {session.id: session for session in waiting}

    async def explain(self, reason: SkipReason, message: str, at: datetime) -> int:
        """Returns how many sessions were changed."""
        del self.writer.commits[:]
        skips = [Skip(session_id=session_id, reason=reason, message=message) for session_id in self.sessions]
        await self.loop._store_explanations(skips, self.sessions, at)
        changes = [change for commit in self.writer.commits for change in commit]
        self.sessions.update((change.new.id, change.new) for change in changes)
        return len(changes)


async def test_a_new_text_of_the_same_reason_waits() -> None:
    queue = Queue(1)
    reason, later = SkipReason.INSUFFICIENT_RESOURCE, NOW + timedelta(seconds=1)
    assert await queue.explain(reason, "1 cpu is free", NOW) == 1
    assert await queue.explain(reason, "2 cpu are free", later) == 0
    assert await queue.explain(SkipReason.QUOTA_EXCEEDED, "your keypair has no more", later) == 1
    assert await queue.explain(SkipReason.QUOTA_EXCEEDED, "your keypair has 1 more", NOW + timedelta(seconds=20)) == 1
    assert await queue.explain(reason, "3 cpu are free", NOW - timedelta(hours=1)) == 1, "the clock was set back"
    assert await queue.explain(reason, "4 cpu are free", NOW - timedelta(hours=2)) == 1


async def test_a_long_queue_is_explained_in_few_transactions() -> None:
    queue = Queue(1_200)
    assert await queue.explain(SkipReason.NO_AGENT, "no agent is there", NOW) == 1_200
    assert len(queue.writer.commits) == 3
    assert await queue.explain(SkipReason.NO_AGENT, "two are gone", NOW + timedelta(minutes=1)) == 200
