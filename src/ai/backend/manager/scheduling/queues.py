"""Caches the scheduler's input and result for each resource group, for at most a second."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from ai.backend.common.ids import SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.index.agent_state import NodeClassCache
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import PendingSession, Quota, Snapshot
from ai.backend.core.scheduling.trial import Trial, TrialScheduler
from ai.backend.infra.clock import Clock
from ai.backend.infra.process.memory import collector_paused
from ai.backend.manager.resources.quotas import quota_names
from ai.backend.manager.scheduling.claims import add_claim
from ai.backend.manager.scheduling.reading import SnapshotReader
from ai.backend.manager.scheduling.snapshot import pending_session
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.transitions import MAX_RETRY_AFTER_S

_MAX_IMAGES = 64
_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(eq=False, repr=False)
class QueueState:
    """Holds the scheduler's input of one resource group as it was last read, with the waiting sessions.

    Sessions that wait before another attempt are not in ``snapshot``, as in the passes of the loop.
    """

    name: str
    scheduler: TrialScheduler
    read_at: float = 0.0
    at: datetime = _NEVER
    images: frozenset[str] = frozenset()
    snapshot: Snapshot | None = None
    policy: Policy = field(default_factory=Policy)
    sessions: Mapping[SessionId, Session] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    whole: Trial | None = None
    """The result of a pass over the queue without other sessions."""

    def run(self, tried_sessions: Sequence[PendingSession] = (), quotas: Mapping[str, Quota] | None = None) -> Trial:
        """Returns the result of a trial pass in which ``tried_sessions`` are added to the end of the queue.

        ``quotas`` are the quotas that count these sessions.
        """
        assert self.snapshot is not None
        snapshot = self.snapshot
        if quotas:
            snapshot = replace(snapshot, quotas=_merge_quotas(snapshot.quotas, quotas))
        return self._run(snapshot, tried_sessions=tried_sessions)

    def watch(self, session_id: SessionId) -> Trial:
        """Returns the result of a pass that reports on one waiting session of the queue."""
        assert self.snapshot is not None
        return self._run(self.snapshot, watched_ids=[session_id])

    def run_unchanged(self) -> Trial:
        """Returns the result of a pass over the unchanged queue, which is computed only once."""
        if self.whole is None:
            assert self.snapshot is not None
            self.whole = self._run(self.snapshot)
        return self.whole

    def _run(
        self,
        snapshot: Snapshot,
        *,
        tried_sessions: Sequence[PendingSession] = (),
        watched_ids: Sequence[SessionId] = (),
    ) -> Trial:
        with collector_paused():
            return self.scheduler.run(
                snapshot, self.policy, now=self.at, rng=random.Random(0), tried=tried_sessions, watched=watched_ids
            )


def _merge_quotas(quotas: Mapping[str, Quota], other_quotas: Mapping[str, Quota]) -> dict[str, Quota]:
    """Returns the quotas of both maps; a quota that is in both maps gets the limits of both.

    The limits of one quota do not conflict, since each map has the limits of other slots.
    """
    merged_quotas = dict(quotas)
    for name, quota in other_quotas.items():
        known_quota = merged_quotas.get(name)
        limit = ResourceSlot({**known_quota.limit, **quota.limit}) if known_quota is not None else quota.limit
        merged_quotas[name] = replace(quota, limit=limit)
    return merged_quotas


@dataclass(eq=False, repr=False)
class QueueReader:
    """Reads the queues of resource groups; simultaneous readers of one group share one read.

    Attributes:
        keep_s: how long what was read is used, in seconds.
    """

    reader: SnapshotReader
    clock: Clock
    keep_s: float = 1.0
    _states: dict[str, QueueState] = field(default_factory=dict, init=False)
    _node_classes: NodeClassCache = field(default_factory=NodeClassCache, init=False)

    async def state(self, group: str, *, images: frozenset[str] = frozenset(), force_read: bool = False) -> QueueState:
        """Returns the queue state of an existing resource group, read anew if it is old or ``force_read`` is True.

        The state counts agents that may fetch one of ``images``, and is read anew if it was read without one of
        these.
        """
        state = self._states.get(group)
        if state is None:
            state = self._states[group] = QueueState(group, TrialScheduler(self._node_classes))
        async with state.lock:
            is_fresh = (
                not force_read and state.snapshot is not None and self.clock.monotonic() - state.read_at < self.keep_s
            )
            if not is_fresh or not images <= state.images:
                kept_images = state.images if is_fresh and len(state.images) < _MAX_IMAGES else frozenset()
                await self._read(state, images | kept_images)
        return state

    async def _read(self, state: QueueState, images: frozenset[str]) -> None:
        now = self.clock.now()
        pending_sessions = await self.reader.sessions.by_status([SessionStatus.PENDING])
        group_sessions = [session for session in pending_sessions if session.scaling_group == state.name]
        tried_sessions = [session for session in group_sessions if not is_delayed(session, now)]
        state.snapshot, state.policy = await self.reader.snapshot(state.name, tried_sessions, images=sorted(images))
        state.images, state.at, state.read_at = images, now, self.clock.monotonic()
        state.sessions = {session.id: session for session in group_sessions}
        state.whole = None

    async def quotas_of(self, session: Session) -> Mapping[str, Quota]:
        """Returns the quotas against which a session counts, by their names."""
        claims = await self.reader.named_claims([session])
        return await self.reader.quotas.quotas([session], claims.slots_of([session]))

    async def to_pending_session(self, session: Session, quotas: Mapping[str, Quota]) -> PendingSession:
        """Converts a session that is not in the queue to the form that the scheduler takes."""
        dependencies = {
            dependency.id: dependency for dependency in await self.reader.sessions.get_many(session.dependencies)
        }
        unclaimed_session = pending_session(
            session, dependencies, [name for name in quota_names(session) if name in quotas]
        )
        claims, snapshot = await self.reader.named_claims([session]), self._states[session.scaling_group].snapshot
        agent_views = {view.agent_id: view for view in snapshot.agents} if snapshot is not None else {}
        return add_claim(unclaimed_session, session, claims, agent_views)


def is_delayed(session: Session, now: datetime) -> bool:
    """Returns True if the loop skips a session because an attempt to start it failed shortly before."""
    not_before = session.not_before
    return not_before is not None and now < not_before <= now + timedelta(seconds=MAX_RETRY_AFTER_S)
