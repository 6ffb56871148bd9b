"""Declares the store of sessions. One contract suite (tests/contract/store) runs on every implementation.

Every method is one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from ai.backend.common.ids import AccessKey, AgentId, DomainName, GroupId, KernelId, SessionId
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import SessionStatus
from ai.backend.manager.agents.model import KernelOccupancy
from ai.backend.manager.query.model import Page
from ai.backend.manager.sessions.changes import Change, Event, EventDraft, ObservationAck, Webhook
from ai.backend.manager.sessions.claims.store import ClaimStore
from ai.backend.manager.sessions.model import (
    KernelWorkload,
    OwnerLimits,
    Session,
    SessionNetwork,
    SessionQuery,
    SlotAudit,
)

UNLIMITED = OwnerLimits()


class SessionStore(ClaimStore, Protocol):
    """Stores sessions with their kernels, the outbox of events, and logs."""

    async def insert(self, session: Session, *, events: Sequence[EventDraft], limits: OwnerLimits = UNLIMITED) -> None:
        """Writes a new session with all its rows, or writes nothing. Raises SessionAlreadyExists for an existing id, or
        a live session of the owner with that name (``data.existingSessionId``), LimitExceeded, and NotFound for a
        device claim that does not exist or is to be deleted.
        """

    async def save(self, changes: Sequence[Change], *, ack: ObservationAck | None = None) -> None:
        """Stores all changes or none, together with the occupied slots of the agents concerned. Raises StaleVersion if
        a session was changed meanwhile or its network's number is taken, InsufficientResource if an agent would hold
        more than it has, SessionAlreadyExists for a rename to the name of a live session.
        """

    async def get(self, session_id: SessionId) -> Session | None: ...
    async def get_many(self, ids: Iterable[SessionId]) -> list[Session]: ...

    async def live_named(self, access_key: AccessKey, name: str) -> Session | None: ...

    async def find_live(self, access_key: AccessKey | None, ref: str, *, limit: int = 10) -> list[Session]:
        """Returns the live sessions that ``ref`` names, of one owner or, if ``access_key`` is None, of every owner.
        ``ref`` names a session by its name or id. If no session has this name or id, the sessions are returned whose
        name or id starts with ``ref``.
        """
        ...

    async def newest_named(self, access_key: AccessKey, name: str) -> Session | None:
        """Returns the newest session of a name, live or ended."""
        ...

    async def by_status(self, statuses: Collection[SessionStatus]) -> list[Session]:
        """Returns sessions in any of the statuses, oldest first."""
        ...

    async def refreshed(
        self, statuses: Collection[SessionStatus], find_cached: Callable[[SessionId], Session | None]
    ) -> list[Session]:
        """Returns the sessions in the given statuses, oldest first, taking unchanged sessions from a cache.

        Only sessions that ``find_cached`` does not return in the stored version are read.
        """
        ...

    async def of_kernels(self, kernel_ids: Collection[KernelId]) -> list[Session]: ...

    async def on_agent(self, agent_id: AgentId) -> list[Session]:
        """Returns live sessions with a kernel on the agent."""
        ...

    async def held(self, agent_ids: Collection[AgentId]) -> list[KernelOccupancy]:
        """Returns the kernels and device claims that occupy slots of these agents. The slots of a claim are not counted
        again in the kernels that hold the claim.
        """
        ...

    async def workloads(self) -> list[KernelWorkload]:
        """Returns, by kernel, the workloads of live kernels whose agent has reported the id of the workload."""
        ...

    async def networks(self) -> list[tuple[int, SessionNetwork]]:
        """Returns the networks of sessions that span several agents, each with its number.

        Those of ending sessions have no ``lines``, since their agents leave them one after the other.
        """
        ...

    async def search(self, query: SessionQuery) -> Page[Session]: ...

    async def count_by_status(self, query: SessionQuery) -> Mapping[str, int]:
        """Returns the number of sessions in each status, among the first 10,000 sessions that match a query. The
        statuses and the page of the query are ignored.
        """
        ...

    async def dependents(self, session_id: SessionId) -> list[Session]:
        """Returns live sessions that depend directly on a session."""
        ...

    async def live_statuses(self) -> Mapping[SessionStatus, tuple[int, datetime]]:
        """Returns, for each live status, the number of its sessions and since when the oldest one has had it.

        For a session with a start time this is the start time, which may lie in the future.
        """
        ...

    async def count_live(self, access_keys: Collection[AccessKey] | None = None) -> Mapping[AccessKey, int]: ...

    async def occupied(
        self,
        *,
        access_key: AccessKey | None = None,
        group_id: GroupId | None = None,
        domain_name: DomainName | None = None,
    ) -> ResourceSlot:
        """Returns the slots that the kernels and device claims of an access key, project and domain occupy. An argument
        that is None does not restrict.
        """
        ...

    async def bump(self, queries: Mapping[SessionId, int], stats: Mapping[KernelId, Mapping[str, Any]]) -> None:
        """Adds to ``num_queries`` of sessions and replaces ``last_stat`` of kernels; versions stay."""

    async def put_log(self, kernel_id: KernelId, tail: bytes) -> None: ...
    async def get_log(self, kernel_id: KernelId) -> bytes | None: ...

    async def acked(self, agent_id: AgentId) -> ObservationAck | None:
        """Returns the epoch and the number up to which an agent's observations are applied, or None
        before the first.
        """
        ...

    async def audit(self) -> SlotAudit:
        """Computes every agent's occupied slots from kernels and claims, and compares them with the stored slots."""
        ...

    async def purge(self, *, before: datetime) -> int:
        """Deletes events and logs older than ``before``; returns the number of events."""
        ...

    async def events_after(self, after_id: int, *, limit: int = 1000) -> list[Event]: ...
    async def events_of(self, session_id: SessionId, *, limit: int) -> list[Event]:
        """Returns the newest events of a session and its kernels, the oldest first."""
        ...

    async def last_event_id(self) -> int: ...

    async def due_callbacks(self, now: datetime, *, limit: int) -> list[Webhook]:
        """Returns the first pending webhook of each session, unless it is not due yet. ``insert`` and ``save`` write
        webhooks with the events.
        """
        ...

    async def put_off_callback(self, callback_id: int, *, attempts: int, due_at: datetime) -> None: ...
    async def drop_callback(self, callback_id: int) -> None: ...
