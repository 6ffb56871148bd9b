"""What the manager keeps. One contract suite (tests/contract/store) runs on every implementation.

Every method is one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from ai.backend.common.ids import (
    AccessKey,
    AgentId,
    DomainName,
    GroupId,
    KernelId,
    ResourceGroupName,
    SessionId,
    TaskId,
)
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, SessionStatus
from ai.backend.common.wire.reports import OverlayReport
from ai.backend.infra.http import client_tokens
from ai.backend.manager.model.callback import Callback
from ai.backend.manager.model.changes import Change, ObservationAck
from ai.backend.manager.model.cluster import Agent, ResourcePreset, SlotTypeInfo
from ai.backend.manager.model.journal import AuditRecord, Event, EventDraft, Task
from ai.backend.manager.model.network import SessionNetwork
from ai.backend.manager.model.query import ListQuery, Page, SessionQuery
from ai.backend.manager.model.session import Holding, OwnerLimits, Session, SlotAudit

UNLIMITED = OwnerLimits()
KEPT_CALLS = 1_000
KEPT_BYTES = 33_554_432


class SessionStore(Protocol):
    """Sessions with their kernels, the events outbox and kept logs."""

    async def insert(
        self,
        session: Session,
        *,
        events: Sequence[EventDraft],
        limits: OwnerLimits = UNLIMITED,
    ) -> None:
        """Write a new session, or nothing.

        Raises:
            SessionAlreadyExists: there is a session of that id, or the owner has a live one of that name
                (``data.existingSessionId``).
            LimitExceeded: the access key would have more sessions than its limits allow.
        """

    async def save(self, changes: Sequence[Change], *, ack: ObservationAck | None = None) -> None:
        """Apply all changes or none, with the slots of their agents.

        Raises:
            StaleVersion: one of the sessions was changed meanwhile, or another one has the number of its new network.
            InsufficientResource: an agent would hold more than it has.
            SessionAlreadyExists: a rename met a live session of that name.
        """

    async def get(self, session_id: SessionId) -> Session | None: ...
    async def get_many(self, ids: Iterable[SessionId]) -> list[Session]: ...

    async def find_live(self, access_key: AccessKey | None, ref: str, *, limit: int = 10) -> list[Session]:
        """Live sessions whose name or id is ``ref``; if none, those whose name or id starts with it. None: any
        owner."""
        ...

    async def newest_named(self, access_key: AccessKey, name: str) -> Session | None:
        """The newest session of that name, live or not."""
        ...

    async def by_status(self, statuses: Collection[SessionStatus]) -> list[Session]:
        """Oldest first."""
        ...

    async def refreshed(
        self, statuses: Collection[SessionStatus], known: Callable[[SessionId], Session | None]
    ) -> list[Session]:
        """As ``by_status``; of those that ``known`` has at the version that is stored, its copy."""
        ...

    async def of_kernels(self, kernel_ids: Collection[KernelId]) -> list[Session]: ...

    async def on_agent(self, agent_id: AgentId) -> list[Session]:
        """Live sessions with a kernel there."""
        ...

    async def held(self, agent_ids: Collection[AgentId]) -> list[Holding]:
        """Every kernel that holds slots there."""
        ...

    async def networks(self) -> list[tuple[int, SessionNetwork]]:
        """Those over several agents that sessions have now, each with its number. Those of sessions that end are
        without their ``lines``: agents are about to leave these, and would not agree with others on where they are."""
        ...

    async def search(self, query: SessionQuery) -> Page[Session]: ...

    async def dependents(self, session_id: SessionId) -> list[Session]:
        """Live sessions that depend on it directly."""
        ...

    async def count_live(self, access_keys: Collection[AccessKey] | None = None) -> Mapping[AccessKey, int]: ...

    async def occupied(
        self,
        *,
        access_key: AccessKey | None = None,
        group_id: GroupId | None = None,
        domain_name: DomainName | None = None,
    ) -> ResourceSlot:
        """What the kernels within these bounds hold on agents."""
        ...

    async def bump(self, queries: Mapping[SessionId, int], stats: Mapping[KernelId, Mapping[str, Any]]) -> None:
        """Add to ``num_queries`` and replace ``last_stat`` without touching versions."""

    async def put_log(self, kernel_id: KernelId, tail: bytes) -> None: ...
    async def get_log(self, kernel_id: KernelId) -> bytes | None: ...

    async def acked(self, agent_id: AgentId, epoch: int) -> int:
        """The highest observation sequence applied for this epoch; 0 for none."""
        ...

    async def audit(self) -> SlotAudit:
        """Recompute every agent's occupied slots from the kernels and compare."""
        ...

    async def purge(self, *, before: datetime) -> int:
        """Forget events and logs older than ``before``; returns how many events."""
        ...

    async def events_after(self, after_id: int, *, limit: int = 1000) -> list[Event]: ...
    async def last_event_id(self) -> int: ...

    async def due_callbacks(self, now: datetime, *, limit: int) -> list[Callback]:
        """Of each session the first callback that it owes, if that is due by now. ``insert`` and ``save`` write them
        with the events."""
        ...

    async def put_off_callback(self, callback_id: int, *, attempts: int, due_at: datetime) -> None: ...
    async def drop_callback(self, callback_id: int) -> None: ...


class AgentStore(Protocol):
    """Agents, slot types, presets. ``occupied_slots`` belongs to SessionStore and is never written here."""

    async def put_agent(self, agent: Agent) -> None: ...
    async def set_status(self, agent_id: AgentId, status: AgentStatus, *, at: datetime) -> None: ...
    async def set_schedulable(self, agent_id: AgentId, schedulable: bool) -> None: ...
    async def set_resource_group(self, agent_id: AgentId, name: ResourceGroupName) -> None: ...
    async def beat(self, agent_id: AgentId, *, at: datetime) -> None:
        """Only the time of the last heartbeat."""

    async def agent(self, agent_id: AgentId) -> Agent | None: ...
    async def agents(self, *, scaling_group: str | None = None) -> list[Agent]: ...
    async def underlays(self) -> dict[AgentId, OverlayReport]:
        """How those that live take part in networks over several agents; without those that say nothing of it."""
        ...

    async def page(self, query: ListQuery, *, status: str | None, scaling_group: str | None) -> Page[Agent]: ...
    async def add_slot_types(self, slots: Iterable[SlotTypeInfo]) -> None: ...
    async def slot_types(self) -> list[SlotTypeInfo]: ...
    async def presets(self) -> list[ResourcePreset]: ...
    async def put_preset(self, preset: ResourcePreset) -> None: ...
    async def delete_preset(self, name: str) -> bool:
        """False if there is none."""
        ...


class TaskStore(Protocol):
    """A task is open until its status is final."""

    async def add_task(self, task: Task) -> None:
        """Raises Conflict, with the id as ``task`` in its data: an open task has its subject."""

    async def put_task(self, task: Task) -> None:
        """Change one that is there."""

    async def task(self, task_id: TaskId) -> Task | None: ...
    async def open_task(self, subject: str) -> Task | None: ...

    async def ask_to_cancel(self, task_id: TaskId) -> None: ...

    async def asked_to_cancel(self, task_ids: Collection[TaskId]) -> Collection[TaskId]:
        """Those of them that somebody wants to end."""
        ...

    async def fail_open_tasks(self, *, at: datetime, message: str, but: Collection[str] = ()) -> int:
        """End the tasks that managers left unfinished; those of the managers ``but`` go on."""
        ...


class AnswerStore(client_tokens.AnswerStore, Protocol):
    """Answers to calls with a client token: of each access key the newest :data:`KEPT_CALLS`, and no more than
    :data:`KEPT_BYTES` of bodies. Calls that are not answered are not counted."""

    async def purge(self, *, before: datetime) -> None:
        """Forget what began before, and whatever is beyond the limits."""


class AuditStore(Protocol):
    async def append(self, records: Sequence[AuditRecord]) -> None: ...
    async def recent(self, limit: int) -> list[AuditRecord]: ...
