"""Defines changes of sessions, with the events and webhooks that report the changes to clients.

The slots of agents follow from the kernels alone: a store computes :func:`slot_deltas` of every change and applies them
in the same transaction, so recorded slots cannot drift. Source of the events: client wire contract 2.4, peer facts 4.9
and 4.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from ai.backend.common.ids import AccessKey, AgentId, DomainName, GroupId, KernelId, SessionId, UserId
from ai.backend.common.slots import ResourceSlot
from ai.backend.core.lifecycle.effects import Command
from ai.backend.manager.sessions.claims.model import ClaimChange, claim_deltas
from ai.backend.manager.sessions.model import Session


class EventDraft(msgspec.Struct, frozen=True, kw_only=True):
    """Represents an event without an id, to be written in the transaction of the change that it reports."""

    name: str
    session_id: SessionId
    kernel_id: KernelId | None = None
    payload: Mapping[str, Any]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a session or kernel. ``id`` increases over all events; clients resume after it (Last-Event-ID).
    ``payload`` is sent to clients as JSON."""

    id: int
    name: str
    session_id: SessionId
    kernel_id: KernelId | None
    access_key: AccessKey
    domain_name: DomainName
    group_id: GroupId
    user_id: UserId
    at: datetime
    payload: Mapping[str, Any]

    @property
    def scope(self) -> Literal["session", "kernel"]:
        return "kernel" if self.name.startswith("kernel_") else "session"


_PAYLOAD_FIELDS = ("reason", "result", "exitCode")


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """An event that has not been posted to a session's ``callback_url`` yet. The events of a session are posted in the
    order of ``id``, not before ``due_at``; ``attempts`` is the number of failed posts. ``trace`` is the
    ``traceparent`` of the session."""

    id: int
    session_id: SessionId
    access_key: AccessKey
    url: str
    body: Mapping[str, Any]
    attempts: int
    due_at: datetime
    trace: str | None = None


def callback_body(event: EventDraft, happened_at: datetime) -> dict[str, Any]:
    """Returns the body of the webhook of an event, without facts that only the owner may know.

    Source: docs/decisions/0044; ``type``, ``event``, ``session_id`` and ``when`` are the published manager's.
    """
    public_payload = {name: event.payload[name] for name in _PAYLOAD_FIELDS if name in event.payload}
    return {
        "type": "session_lifecycle",
        "event": event.name.removeprefix("session_"),
        "session_id": str(event.session_id),
        "when": happened_at.isoformat(),
        **public_payload,
    }


def event_rows(session: Session, drafts: Iterable[EventDraft], happened_at: datetime) -> list[dict[str, Any]]:
    """Returns rows of the event table for new events of a session, without their ids."""
    owner_fields = {"access_key": session.access_key, "domain_name": session.domain_name, "group_id": session.group_id}
    return [
        {**owner_fields, "user_id": session.user_id, "at": happened_at}
        | {
            "name": draft.name,
            "session_id": draft.session_id,
            "kernel_id": draft.kernel_id,
            "payload": dict(draft.payload),
        }
        for draft in drafts
    ]


def webhook_rows(session: Session, drafts: Iterable[EventDraft], happened_at: datetime) -> list[dict[str, Any]]:
    """Returns rows, without ids, of the webhook table for those new events that change the session's status."""
    shared_fields = {"session_id": session.id, "access_key": session.access_key, "url": session.callback_url}
    shared_fields["trace"] = session.trace
    return [
        {**shared_fields, "body": callback_body(draft, happened_at), "attempts": 0, "due_at": happened_at}
        for draft in drafts
        if draft.kernel_id is None and session.callback_url
    ]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Replaces the session ``old`` by ``new`` if the stored version still equals the version of ``old``. ``events`` are
    for the clients; ``commands`` are executed once the change is stored. The store sets ``new.version`` to
    ``old.version + 1``. Side fields (``num_queries``, ``last_stat``) that a loop does not change must be equal in both.
    ``cause`` is the ``traceparent`` of the span in which an agent observed what changes. ``claim`` changes the
    session's device claim in the same transaction.
    """

    old: Session
    new: Session
    events: tuple[EventDraft, ...] = ()
    commands: tuple[Command, ...] = ()
    claim: ClaimChange | None = None
    cause: str | None = None

    @property
    def is_stored(self) -> bool:
        """Returns True if the change must be saved, and False if it only has commands to execute."""
        return self.new is not self.old or bool(self.events) or self.claim is not None


class ObservationAck(msgspec.Struct, frozen=True, kw_only=True):
    """Records, in the same transaction, that an agent's observations up to ``seq`` of ``epoch`` are applied."""

    agent_id: AgentId
    epoch: int
    seq: int


def claim_changes(changes: Iterable[Change]) -> list[ClaimChange]:
    """Returns the changes of device claims."""
    return [change.claim for change in changes if change.claim is not None]


def slot_deltas(changes: Sequence[Change]) -> dict[AgentId, ResourceSlot]:
    """Returns the change of each agent's occupied slots; agents without a change are left out."""
    deltas = claim_deltas(claim_changes(changes))
    for change in changes:
        for sign, session in ((-1, change.old), (1, change.new)):
            for kernel in session.kernels:
                held_slots = kernel.holds
                if kernel.agent is not None and len(held_slots):
                    deltas[kernel.agent] = deltas.get(kernel.agent, ResourceSlot()) + held_slots * sign
    return {agent: changed_slots for agent, delta in deltas.items() if len(changed_slots := delta.nonzero())}
