"""All use cases in one value, as the API receives them (``Manager.services``)."""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.infra.clock import Clock
from ai.backend.infra.http.client_tokens import ClientTokens
from ai.backend.manager.services.administration import AdministrationService
from ai.backend.manager.services.artifacts.bundle import Artifacts
from ai.backend.manager.services.cluster import ClusterService
from ai.backend.manager.services.config import ConfigService
from ai.backend.manager.services.equipment import EquipmentService
from ai.backend.manager.services.error_log import ErrorLogService
from ai.backend.manager.services.execution import ExecutionService
from ai.backend.manager.services.folders.bundle import Folders
from ai.backend.manager.services.identity import IdentityService
from ai.backend.manager.services.idle import IdleService
from ai.backend.manager.services.images.bundle import Images
from ai.backend.manager.services.journal import AuditService, EventService, TaskService
from ai.backend.manager.services.passwords import PasswordService
from ai.backend.manager.services.people import PeopleService
from ai.backend.manager.services.resource_groups import ResourceGroupService
from ai.backend.manager.services.service_ports import ServicePorts
from ai.backend.manager.services.session_defaults import SessionDefaults
from ai.backend.manager.services.sessions import SessionService
from ai.backend.manager.services.slot_catalogue import SlotCatalogue
from ai.backend.manager.services.ssh_keys import SshKeyService
from ai.backend.manager.services.state import ManagerState
from ai.backend.manager.services.templates.service import TemplateService
from ai.backend.manager.services.tunnels import TunnelService
from ai.backend.manager.services.usage import UsageService
from ai.backend.manager.services.watchers import WatcherService


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    sessions: SessionService
    execution: ExecutionService
    tunnels: TunnelService
    service_ports: ServicePorts
    identity: IdentityService
    administration: AdministrationService
    people: PeopleService
    passwords: PasswordService
    ssh_keys: SshKeyService
    equipment: EquipmentService
    resource_groups: ResourceGroupService
    cluster: ClusterService
    events: EventService
    tasks: TaskService
    audit: AuditService
    config: ConfigService
    watchers: WatcherService
    slots: SlotCatalogue
    client_tokens: ClientTokens
    defaults: SessionDefaults
    templates: TemplateService
    state: ManagerState
    idle: IdleService
    errors: ErrorLogService
    clock: Clock
    folders: Folders | None = None
    """None where nothing keeps them."""
    artifacts: Artifacts | None = None
    """None where nothing keeps them."""
    images: Images | None = None
    """None where nothing keeps them: then there are those of agents."""
    usage: UsageService | None = None
    """None where no history is kept."""
