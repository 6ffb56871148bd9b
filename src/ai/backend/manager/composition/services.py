"""All use cases in one value, as the API receives them (``Manager.services``)."""

from __future__ import annotations

from dataclasses import dataclass

from ai.backend.infra.clock import Clock
from ai.backend.infra.http.client_tokens import ClientTokens
from ai.backend.manager.agents.service import AgentService, WatcherService
from ai.backend.manager.agents.slots import SlotCatalogue
from ai.backend.manager.artifacts.facade import Artifacts
from ai.backend.manager.dotfiles.service import DotfileService
from ai.backend.manager.events.service import EventService
from ai.backend.manager.execution.commits import CommitService
from ai.backend.manager.execution.service import ExecutionService
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.identity.passwords import PasswordService
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.ssh_keys import SshKeyService
from ai.backend.manager.identity.tenants import TenantService
from ai.backend.manager.identity.users import UserService
from ai.backend.manager.idle.service import IdleService
from ai.backend.manager.images.facade import Images
from ai.backend.manager.logs.audit import AuditService
from ai.backend.manager.logs.errors import ErrorLogService
from ai.backend.manager.resource_groups.service import ResourceGroupService
from ai.backend.manager.resources.presets import PresetService
from ai.backend.manager.resources.service import ResourceService
from ai.backend.manager.service_ports.service import ServicePorts
from ai.backend.manager.service_ports.tunnels import TunnelService
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.system.configuration import ConfigService
from ai.backend.manager.system.service import ManagerState
from ai.backend.manager.tasks.service import TaskService
from ai.backend.manager.templates.service import TemplateService
from ai.backend.manager.usage.service import UsageService
from ai.backend.manager.volumes.service import VolumeService


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The use cases of the manager."""

    sessions: SessionService
    execution: ExecutionService
    tunnels: TunnelService
    service_ports: ServicePorts
    identity: IdentityService
    administration: TenantService
    people: UserService
    passwords: PasswordService
    ssh_keys: SshKeyService
    agents: AgentService
    resource_groups: ResourceGroupService
    resources: ResourceService
    presets: PresetService
    events: EventService
    tasks: TaskService
    audit: AuditService
    config: ConfigService
    watchers: WatcherService
    slots: SlotCatalogue
    client_tokens: ClientTokens
    defaults: DotfileService
    templates: TemplateService
    state: ManagerState
    idle: IdleService
    errors: ErrorLogService
    clock: Clock
    volumes: VolumeService
    folders: Folders | None = None
    """None without a store."""
    artifacts: Artifacts | None = None
    """None without a store."""
    images: Images | None = None
    """None without a store of images; then the images of agents are used."""
    commits: CommitService | None = None
    usage: UsageService | None = None
    """None without a store of history."""
