"""Values of resource groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ai.backend.common.ids import ResourceGroupName


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceGroup:
    """A set of agents to schedule onto, called scaling group on the wire."""

    name: ResourceGroupName
    description: str = ""
    is_active: bool = True
    is_public: bool = True
    created_at: datetime
    driver: str = "static"
    driver_opts: Mapping[str, Any] = field(default_factory=dict)
    scheduler: str = "fifo"
    scheduler_opts: Mapping[str, Any] = field(default_factory=dict)
    use_host_network: bool = False
    wsproxy_addr: str | None = None
    wsproxy_api_token: str | None = None
