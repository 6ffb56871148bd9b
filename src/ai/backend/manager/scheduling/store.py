"""Declares the store of recent usage for fair share. One contract suite (tests/contract/store) runs on every
implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Protocol

import msgspec

from ai.backend.common.slots import ResourceSlot


class ShareHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The decayed usage of each domain, project and user in a resource group, for fair share.

    ``used``: scope (``domain``, ``domain/project``, ``domain/project/user``) -> the decayed average of its slots as
    of ``at``, see :func:`ai.backend.core.scheduling.ordering.fair_share.decay_averages`.
    """

    used: Mapping[str, ResourceSlot]
    at: datetime


class ShareStore(Protocol):
    """Stores recent usage by resource group. Every method is one transaction."""

    async def history(self, resource_group: str) -> ShareHistory | None:
        """Returns the latest history of a resource group, or None."""
        ...

    async def put_history(self, resource_group: str, history: ShareHistory) -> None:
        """Replaces the history of a resource group."""
