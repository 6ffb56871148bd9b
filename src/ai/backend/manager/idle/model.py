"""What is kept of a session so that it can be judged idle, also by the next manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ai.backend.common.ids import SessionId


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """``last_access``: when its user was last heard of; None if never. ``usage`` is a window of
    :mod:`ai.backend.core.idle.window` as JSON."""

    session_id: SessionId
    last_access: datetime | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
