"""Recent usage of a resource group, for fair share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ai.backend.common.slots import ResourceSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHistory:
    """``used``: scope (``domain``, ``domain/project``, ``domain/project/user``) -> the decayed average of its slots,
    as of ``at``; see :func:`ai.backend.core.scheduling.ordering.fair_share.decayed`."""

    used: Mapping[str, ResourceSlot]
    at: datetime
