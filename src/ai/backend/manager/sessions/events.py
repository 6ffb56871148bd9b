"""Events of sessions and kernels.

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
    """An event before it is written, in the same transaction as its change."""

    name: str
    session_id: SessionId
    kernel_id: KernelId | None = None
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of a session or kernel.

    ``id`` increases over all events; clients resume after it (Last-Event-ID).
    ``payload`` is sent to clients as JSON.
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
