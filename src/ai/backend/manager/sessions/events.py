"""Events, background tasks and audit records: what is told about the past.

Source: client wire contract 2.4, peer facts 4.9 and 4.10.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from ai.backend.common.ids import AccessKey, DomainName, GroupId, KernelId, SessionId, UserId


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """An event before it is written. Written in the same transaction as the change that it tells."""

    name: str
    session_id: SessionId
    kernel_id: KernelId | None = None
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a session or kernel.

    ``id`` grows monotonically over all events, hence also per session; clients resume after it (Last-Event-ID).
    ``payload`` is what the client sees as JSON.
    """

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
