"""The store of recent usage. One contract suite (tests/contract/store) runs on every implementation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ai.backend.common.slots import ResourceSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHistory:
    """The recent usage of a resource group. ``used``: scope (``domain``, ``domain/project``, ``domain/project/user``)
    -> the decayed average of its slots as of ``at``, see
    :func:`ai.backend.core.scheduling.ordering.fair_share.decayed`."""

    used: Mapping[str, ResourceSlot]
    at: datetime


class ShareStore(Protocol):
    """Stores recent usage by resource group. Every method is one transaction."""

    async def history(self, resource_group: str) -> ShareHistory | None:
        """Returns the latest history of a resource group, or None."""
        ...

    async def put_history(self, resource_group: str, history: ShareHistory) -> None:
        """Replaces the history of a resource group."""
