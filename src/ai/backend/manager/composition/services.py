"""Builds all services of the manager and holds them in one object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from ai.backend.common.states import SessionType
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock, IdGenerator
from ai.backend.infra.http.client_tokens import ClientTokens
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.fleet import FleetService
from ai.backend.manager.agents.registration import AgentRegistry, Assignments
from ai.backend.manager.agents.service import AgentService, WatcherService
from ai.backend.manager.agents.slots import SlotCatalogue
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.agents.watcher_client import HttpWatcherGateway
from ai.backend.manager.arrays.service import ArrayService
from ai.backend.manager.artifacts.facade import Artifacts
from ai.backend.manager.artifacts.gateway import ArtifactGateway, Reservoirs
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.dotfiles.service import DotfileService
from ai.backend.manager.events.agent_changes import AgentChanges
from ai.backend.manager.events.service import EventService
from ai.backend.manager.execution.commits import CommitService
from ai.backend.manager.execution.service import ExecutionService
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.folders.gateway import FolderGateway
from ai.backend.manager.hooks import load_hooks
from ai.backend.manager.identity.members import MemberService
from ai.backend.manager.identity.passwords import PasswordService
from ai.backend.manager.identity.proofs import ProofService
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.sign_in import SignInService, SpentTokens
from ai.backend.manager.identity.sign_up import SignUpService
from ai.backend.manager.identity.site_users import SiteUsers
from ai.backend.manager.identity.ssh_keys import SshKeyService
from ai.backend.manager.identity.tenants import TenantService
from ai.backend.manager.identity.totp import TotpService
from ai.backend.manager.identity.totp_registration import TotpRegistration
from ai.backend.manager.identity.users import UserService
from ai.backend.manager.idle.activity import ActivityTracker
from ai.backend.manager.idle.service import IdleService
from ai.backend.manager.images.client.scanner import scan_registry
from ai.backend.manager.images.facade import Images
from ai.backend.manager.logs.audit import AuditService
from ai.backend.manager.logs.errors import ErrorLogService
from ai.backend.manager.maintenance.history import History
from ai.backend.manager.maintenance.parquet import ParquetArchive
from ai.backend.manager.metrics.history import MetricHistory
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.monitoring.reports import SessionReports
from ai.backend.manager.monitoring.state import InstallationState
from ai.backend.manager.monitoring.targets import ScrapeTargets
from ai.backend.manager.resource_groups.service import ResourceGroupService
from ai.backend.manager.resources.presets import PresetService
from ai.backend.manager.resources.service import ResourceService
from ai.backend.manager.scheduling.explanations import ExplanationService
from ai.backend.manager.scheduling.overview import SchedulingOverview
from ai.backend.manager.scheduling.queues import QueueReader
from ai.backend.manager.scheduling.reading import SnapshotReader
from ai.backend.manager.scheduling.replay import Replays
from ai.backend.manager.secrets.config import SealedConfigStore
from ai.backend.manager.secrets.sealer import Sealer
from ai.backend.manager.service_ports.app_proxies import AppProxies, EndedAppsLoop
from ai.backend.manager.service_ports.app_proxy_client import HttpCoordinators
from ai.backend.manager.service_ports.app_proxy_overview import AppProxyOverview
from ai.backend.manager.service_ports.service import ServicePorts
from ai.backend.manager.service_ports.tunnels import TunnelService
from ai.backend.manager.serving.app_proxy_client import HttpEndpointCoordinators
from ai.backend.manager.serving.facade import Serving
from ai.backend.manager.sessions.claims.creation import ClaimFactory
from ai.backend.manager.sessions.claims.service import ClaimService
from ai.backend.manager.sessions.creation.factory import SessionFactory
from ai.backend.manager.sessions.creation.mounts import SessionMounts
from ai.backend.manager.sessions.lifecycle.deleted_users import DeletedUsersLoop
from ai.backend.manager.sessions.lifecycle.drain import DeviceDrainage
from ai.backend.manager.sessions.lifecycle.observations import ObservationService
from ai.backend.manager.sessions.lifecycle.reconcile import KernelReconciler
from ai.backend.manager.sessions.lookup import LiveSlotUse, SessionFinder
from ai.backend.manager.sessions.model import Session
from ai.backend.manager.sessions.ownership import OwnerSessions, ResourceGroupSessions
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.manager.storage_proxy import StorageProxies
from ai.backend.manager.system.configuration import ConfigService
from ai.backend.manager.system.service import ManagerState
from ai.backend.manager.tasks.service import TaskService
from ai.backend.manager.templates.service import TemplateService
from ai.backend.manager.topics import ARRAY, SERVING
from ai.backend.manager.usage.service import UsageService
from ai.backend.manager.volumes.gateway import VolumeGateway
from ai.backend.manager.volumes.service import VolumeService


@dataclass(eq=False, repr=False, kw_only=True)
class Services:
    """Holds the services of a manager, which are built from its settings, stores and gateways. ``folders``,
    ``artifacts``, ``images``, ``commits``, ``serving`` and ``usage`` are None without their stores.
    """

    settings: ManagerSettings
    stores: Stores
    bus: Bus
    gateway: AgentGateway
    folder_gateway: FolderGateway
    volume_gateway: VolumeGateway
    artifact_gateway: ArtifactGateway | None
    reservoirs: Reservoirs
    sealer: Sealer
    clock: Clock
    id_generator: IdGenerator
    hash_password: Callable[[str], str]
    verify_password: Callable[[str, str], bool]
    storage_proxies: StorageProxies | None = None

    def __post_init__(self) -> None:
        self._build_installation()
        self._build_resources()
        self._build_folders_and_images()
        self._build_sessions()
        self._build_session_access()
        self._build_serving()
        self._build_owners()
        self._build_registry()

    @property
    def is_shared(self) -> bool:
        """Returns True if several managers use the same stores."""
        return self.stores.leases is not None

    def _build_installation(self) -> None:
        stores, clock = self.stores, self.clock
        self.state = ManagerState(stores.config, clock)
        self.tasks = TaskService(stores.tasks, self.bus, clock, self.id_generator)
        self.audit = AuditService(stores.audit, clock)
        self.errors = ErrorLogService(stores.errors)
        self.config = ConfigService(SealedConfigStore(stores.config, self.sealer, opens=False))
        self.watchers = WatcherService(stores.agents, stores.config, HttpWatcherGateway())
        self.history = self._history()
        token_window = timedelta(hours=self.settings.retention.tokens_hours)
        self.client_tokens = ClientTokens(stores.answers, window=token_window, clock=clock.now)
        self.identity = IdentityService(stores.identities, stores.sessions, clock, self.id_generator)
        self.ssh_keys = SshKeyService(stores.identities, self.identity, clock)
        self.hooks = load_hooks(self.settings.hooks)
        self._build_accounts()

    def _history(self) -> History | None:
        store, folder = self.stores.history, self.settings.retention.archive_dir
        if store is None:
            return None
        return History(store, ParquetArchive(folder, store.columns) if folder is not None else None)

    def _build_accounts(self) -> None:
        stores, clock, settings = self.stores, self.clock, self.settings.accounts
        users, identity, hooks = stores.identities, self.identity, self.hooks
        self.totp = TotpService(stores.accounts, clock, settings.totp)
        self.registration = TotpRegistration(users, self.totp, self.sealer, clock, settings.totp)
        self.passwords = PasswordService(
            users, identity, clock, self.hash_password, self.verify_password, settings.passwords, self.totp
        )
        site_users = SiteUsers(users, identity)
        self.proofs = ProofService(
            users, self.passwords, self.totp, site_users, hooks, self.sealer, clock, settings.proof
        )
        self.sign_in = SignInService(
            users,
            stores.accounts,
            identity,
            self.passwords,
            self.totp,
            self.registration,
            site_users,
            hooks,
            self.sealer,
            clock,
            SpentTokens(stores.answers, clock, self.client_tokens.window),
        )
        self.sign_up = SignUpService(users, identity, self.passwords, hooks, self.sealer, settings.sign_up, clock)

    def _build_resources(self) -> None:
        stores = self.stores
        history = MetricHistory(max_bytes=self.settings.metrics.history_mib << 20)
        self.stats = LiveMetrics(stores.sessions, history=history)
        self.fleet = FleetService(stores.agents, stores.sessions, self.clock)
        self.devices = DeviceReader()
        self.slots = SlotCatalogue(stores.agents, LiveSlotUse(stores.sessions))
        self.assignments = Assignments(stores.config)
        self.agents = AgentService(
            stores.agents, stores.sessions, stores.resource_groups, self.assignments, self.stats, self.gateway, self.bus
        )
        group_sessions = ResourceGroupSessions(stores.agents, stores.sessions)
        self.resource_groups = ResourceGroupService(
            stores.resource_groups, stores.identities, self.identity, group_sessions, self.clock
        )
        self.resources = ResourceService(
            stores.agents,
            stores.sessions,
            self.identity,
            self.resource_groups,
            self.slots,
            stores.presets,
            self.devices,
        )
        self.presets = PresetService(stores.presets)
        self.usage = UsageService(stores.usage, self.identity, self.clock) if stores.usage is not None else None

    def _build_folders_and_images(self) -> None:
        stores, tasks, clock, id_generator = self.stores, self.tasks, self.clock, self.id_generator
        self.volumes = VolumeService(self.volume_gateway)
        self.folders: Folders | None = None
        if stores.folders is not None:
            self.folders = Folders.build(
                stores.folders,
                self.folder_gateway,
                self.volume_gateway,
                stores.identities,
                tasks,
                clock,
                id_generator,
                self.settings.folders,
            )
        self.artifacts: Artifacts | None = None
        if stores.artifacts is not None and self.artifact_gateway is not None:
            gateway, settings = self.artifact_gateway, self.settings.artifacts
            self.artifacts = Artifacts.build(
                stores.artifacts, gateway, self.reservoirs, tasks, settings, clock, id_generator
            )
        self.images: Images | None = None
        if stores.images is not None:
            self.images = Images.build(
                stores.images,
                scan_registry,
                config=SealedConfigStore(stores.config, self.sealer, opens=True),
                verifies_tls=self.settings.docker_registry.ssl_verify,
                agents=stores.agents,
                identities=stores.identities,
                resource_groups=self.resource_groups,
                gateway=self.gateway,
                tasks=tasks,
                clock=clock,
                id_generator=id_generator,
            )

    def _build_sessions(self) -> None:
        stores, settings, clock = self.stores, self.settings.sessions, self.clock
        self.activity = ActivityTracker(stores.activities, clock)
        self.writer = SessionWriter(stores.sessions, self.bus, on_end=self._forget_session, is_shared=self.is_shared)
        self.agents.drainage = DeviceDrainage(stores.sessions, self.writer, self.clock)
        self.finder = SessionFinder(stores.sessions, self.writer, self.identity)
        self.dotfiles = DotfileService(stores.dotfiles, self.identity, max_script_bytes=settings.max_script_bytes)
        folders, artifacts, mounts = self.folders, self.artifacts, None
        if folders is not None:
            mounts = SessionMounts(folders.mounts, artifacts.mounts if artifacts is not None else None)
        factory = SessionFactory(
            stores.sessions,
            stores.agents,
            stores.identities,
            stores.resource_groups,
            self.slots,
            settings,
            clock,
            self.id_generator,
            self.devices,
            mounts,
            self.dotfiles,
            self.state,
            self.images.service if self.images is not None else None,
        )
        self.sessions = SessionService(
            store=stores.sessions,
            writer=self.writer,
            factory=factory,
            finder=self.finder,
            identity=self.identity,
            stats=self.stats,
            clock=clock,
            settings=settings,
            hooks=self.hooks,
        )
        self.templates = TemplateService(
            stores.templates, stores.identities, self.identity, self.sessions, clock, self.id_generator
        )

        self.claims = ClaimService(
            store=stores.sessions,
            factory=ClaimFactory(factory),
            agents=stores.agents,
            devices=self.devices,
            identity=self.identity,
            bus=self.bus,
            clock=clock,
        )
        self._build_explanations(factory)
        self.arrays: ArrayService | None = None
        if stores.arrays is not None:
            self.arrays = ArrayService(
                store=stores.arrays,
                sessions=self.sessions,
                factory=factory,
                writer=self.writer,
                identity=self.identity,
                bus=self.bus,
                clock=clock,
                id_generator=self.id_generator,
                settings=settings,
            )

    def _build_explanations(self, factory: SessionFactory) -> None:
        stores = self.stores
        reader = SnapshotReader(
            stores.sessions,
            stores.agents,
            stores.identities,
            stores.resource_groups,
            self.clock,
            stores.shares,
            self.devices,
            self.images.service if self.images is not None else None,
        )
        queues = QueueReader(reader, self.clock)
        self.explanations = ExplanationService(
            queues=queues, factory=factory, finder=self.finder, identity=self.identity, clock=self.clock
        )
        self.reports_of_sessions = SessionReports(stores.sessions, self.finder, self.explanations, self.gateway)
        self.replays = Replays(queues, self.resource_groups)
        self.scheduling = SchedulingOverview(
            queues=queues, resource_groups=self.resource_groups, identities=stores.identities, clock=self.clock
        )

    def _forget_session(self, session: Session) -> None:
        if session.array_parallel is not None:
            self.bus.publish(ARRAY)
        if session.type is SessionType.INFERENCE:
            self.bus.publish(SERVING)
        self.stats.forget(kernel.id for kernel in session.kernels)
        self.activity.forget(session)
        self.ended_apps.wake()
        self.state_of_installation.count_end(session)

    def _build_session_access(self) -> None:
        stores, finder, gateway = self.stores, self.finder, self.gateway
        self.events = EventService(stores.sessions, finder, self.bus)
        self.agent_changes = AgentChanges(stores.agents, self.bus, self.clock)
        self.coordinators = HttpCoordinators()
        self.targets = ScrapeTargets(stores.agents, stores.resource_groups, self.storage_proxies, self.coordinators)
        self.state_of_installation = InstallationState(stores.sessions, self.agents, stores.leases, self.clock)
        self.ended_apps = EndedAppsLoop(stores.resource_groups, stores.sessions, self.coordinators)
        app_proxies = AppProxies(stores.resource_groups, self.coordinators)
        self.app_proxies = AppProxyOverview(stores.resource_groups, self.coordinators)
        self.service_ports = ServicePorts(finder, gateway, app_proxies)
        self.tunnels = TunnelService(self.service_ports, self.settings.tunnels, self.activity)
        self.idle = IdleService(
            stores.activities, self.activity, stores.identities, stores.config, self.stats, self.clock
        )
        self.execution = ExecutionService(
            store=stores.sessions,
            finder=finder,
            gateway=gateway,
            stats=self.stats,
            id_generator=self.id_generator,
            files=self.settings.files,
            activity=self.activity,
        )
        self.commits: CommitService | None = None
        if stores.images is not None and self.images is not None:
            config = SealedConfigStore(stores.config, self.sealer, opens=True)
            registries = self.images.registries
            self.commits = CommitService(
                stores.images, registries, finder, gateway, self.tasks, config, self.clock, self.id_generator
            )

    def _build_serving(self) -> None:
        stores = self.stores
        self.serving: Serving | None = None
        if stores.serving is None or stores.endpoint_usage is None or self.folders is None:
            return
        self.serving = Serving.build(
            store=stores.serving,
            usage=stores.endpoint_usage,
            sessions=stores.sessions,
            creation=self.sessions,
            writer=self.writer,
            folders=self.folders.files,
            identity=self.identity,
            resource_groups=stores.resource_groups,
            coordinators=HttpEndpointCoordinators(self.coordinators),
            gateway=self.gateway,
            tasks=self.tasks,
            bus=self.bus,
            clock=self.clock,
            id_generator=self.id_generator,
            settings=self.settings.serving,
            sealer=self.sealer,
            stats=self.stats,
        )

    def _build_owners(self) -> None:
        stores, folders = self.stores, self.folders
        owned_sessions = OwnerSessions(stores.sessions, self.sessions)
        owner_removal = folders.owner_removal if folders is not None else None
        self.deleted_users = DeletedUsersLoop(stores.sessions, stores.identities, self.writer, self.clock)
        common_arguments = (
            stores.identities,
            self.identity,
            owned_sessions,
            owner_removal,
            self.clock,
            self.id_generator,
        )
        self.tenants = TenantService(*common_arguments, (folders.quota_loop,) if folders is not None else ())
        self.users = UserService(*common_arguments, self.passwords, self.totp, self.deleted_users)
        self.members = MemberService(stores.identities, self.identity, owned_sessions)

    def _build_registry(self) -> None:
        stores, clock, settings = self.stores, self.clock, self.settings
        self.registry = AgentRegistry(
            agents=stores.agents,
            resource_groups=stores.resource_groups,
            slots=self.slots,
            presence=KernelReconciler(stores.sessions, self.writer, clock, settings.agents),
            bus=self.bus,
            clock=clock,
            settings=settings.agents,
            assignments=self.assignments,
        )
        self.reports = ObservationService(
            sessions=stores.sessions,
            registry=self.registry,
            writer=self.writer,
            stats=self.stats,
            clock=clock,
            log_tail_bytes=settings.sessions.log_tail_bytes,
            is_shared=self.is_shared,
        )
