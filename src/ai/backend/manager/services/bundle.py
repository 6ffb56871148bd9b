"""All use cases in one value, as the API receives them (``Manager.services``)."""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.manager.services.cluster import ClusterService
from ai.backend.manager.services.config import ConfigService
from ai.backend.manager.services.execution import ExecutionService
from ai.backend.manager.services.identity import IdentityService
from ai.backend.manager.services.journal import AuditService, EventService, TaskService
from ai.backend.manager.services.sessions import SessionService


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    sessions: SessionService
    execution: ExecutionService
    identity: IdentityService
    cluster: ClusterService
    events: EventService
    tasks: TaskService
    audit: AuditService
    config: ConfigService
