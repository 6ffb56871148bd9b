"""The composition root of the manager: :class:`Manager` builds every adapter, service and loop."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import timedelta

from ai.backend.common.errors import NotFound, Unavailable
from ai.backend.core.scheduling.policy import Policy
from ai.backend.core.scheduling.snapshot import Snapshot
from ai.backend.infra.bus import Bus
from ai.backend.infra.clock import Clock, IdGenerator, RandomIds, SystemClock
from ai.backend.infra.config_store import ConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database, upgrade
from ai.backend.infra.http.client_tokens import ClientTokens
from ai.backend.infra.loop import PeriodicLoop
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.registration import AgentRegistry, Assignments
from ai.backend.manager.agents.service import AgentService, WatcherService
from ai.backend.manager.agents.slots import SlotCatalogue
from ai.backend.manager.agents.store import AgentGateway
from ai.backend.manager.agents.watcher_client import HttpWatcherGateway
from ai.backend.manager.artifacts.client import StorageProxyArtifacts
from ai.backend.manager.artifacts.facade import Artifacts
from ai.backend.manager.artifacts.gateway import ArtifactGateway, Reservoirs
from ai.backend.manager.artifacts.reservoir_client import SdkReservoirs
from ai.backend.manager.composition.bootstrap import Bootstrap
from ai.backend.manager.composition.services import Services
from ai.backend.manager.composition.stores import Stores
from ai.backend.manager.composition.wakeups import LoopWakeups
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.db import MIGRATIONS, SCHEMA_HEAD
from ai.backend.manager.dotfiles.service import DotfileService
from ai.backend.manager.events.service import EventService
from ai.backend.manager.events.webhook_client import HttpCallbackSender
from ai.backend.manager.events.webhook_gateway import WebhookSender
from ai.backend.manager.events.webhook_loop import WebhookLoop
from ai.backend.manager.execution.commits import CommitService
from ai.backend.manager.execution.service import ExecutionService
from ai.backend.manager.folders.client import StorageProxyFolders
from ai.backend.manager.folders.facade import Folders
from ai.backend.manager.folders.gateway import FolderGateway, StorageGateway
from ai.backend.manager.identity.passwords import PasswordService, hash_password, verify_password
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.ssh_keys import SshKeyService
from ai.backend.manager.identity.tenants import TenantService
from ai.backend.manager.identity.users import UserService
from ai.backend.manager.idle.activity import ActivityTracker
from ai.backend.manager.idle.loop import IdleLoop
from ai.backend.manager.idle.service import IdleService
from ai.backend.manager.images.client.scanner import scan_registry
from ai.backend.manager.images.facade import Images
from ai.backend.manager.leadership.service import Leadership
from ai.backend.manager.logs.audit import AuditService
from ai.backend.manager.logs.errors import ErrorLogService
from ai.backend.manager.maintenance.loop import RetentionLoop
from ai.backend.manager.maintenance.sql import seal_rows
from ai.backend.manager.metrics.live import LiveMetrics
from ai.backend.manager.resource_groups.service import ResourceGroupService
from ai.backend.manager.resources.presets import PresetService
from ai.backend.manager.resources.service import ResourceService
from ai.backend.manager.scheduling.loop import ScheduleLoop
from ai.backend.manager.secrets.config import SealedConfigStore, seal_config
from ai.backend.manager.secrets.sealer import Sealer
from ai.backend.manager.service_ports.service import ServicePorts
from ai.backend.manager.service_ports.tunnels import TunnelService
from ai.backend.manager.sessions.creation.factory import SessionFactory
from ai.backend.manager.sessions.creation.mounts import SessionMounts
from ai.backend.manager.sessions.lifecycle.deleted_users import DeletedUsersLoop
from ai.backend.manager.sessions.lifecycle.launch import LaunchLoop
from ai.backend.manager.sessions.lifecycle.observations import ObservationService
from ai.backend.manager.sessions.lifecycle.reconcile import KernelReconciler
from ai.backend.manager.sessions.lifecycle.terminate import TerminateLoop
from ai.backend.manager.sessions.lifecycle.watchdog import WatchdogLoop
from ai.backend.manager.sessions.lookup import LiveSlotUse, SessionFinder
from ai.backend.manager.sessions.model import Session, SlotAudit
from ai.backend.manager.sessions.ownership import OwnerSessions, ResourceGroupSessions
from ai.backend.manager.sessions.service import SessionService
from ai.backend.manager.sessions.writer import SessionWriter
from ai.backend.manager.storage_proxy import StorageProxies
from ai.backend.manager.system.configuration import ConfigService
from ai.backend.manager.system.service import ManagerState
from ai.backend.manager.tasks.service import TaskService
from ai.backend.manager.templates.service import TemplateService
from ai.backend.manager.usage.service import UsageService
from ai.backend.manager.volumes.client import StorageProxyVolumes
from ai.backend.manager.volumes.gateway import VolumeGateway
from ai.backend.manager.volumes.service import VolumeService

log = logging.getLogger(__name__)
_LOST_TASKS_S = 30.0


class Manager:
    """The manager without its HTTP server, which :func:`ai.backend.manager.composition.app.build_app` builds.

    Args:
        settings: see ``manager.toml``.
        stores: a :class:`Database`, or the stores themselves.
        bus: the in-process bus of notifications.
        gateway: the manager's end of the agent link; the caller starts it with :attr:`reports`.
        storage: the storage proxies; by default those that the shared configuration names.
        artifacts, reservoirs: the storage of artifacts, and other installations; by default the same storage proxies.
        clock, id_generator, rng: the sources of time, identifiers and random numbers; the system's by default.
        callbacks: sends webhooks; over HTTP by default.
        sealer, config: encrypts secrets, by default not at all; the shared configuration, by default in the database.
    """

    def __init__(
        self,
        settings: ManagerSettings,
        stores: Database | Stores,
        bus: Bus,
        gateway: AgentGateway,
        *,
        storage: StorageGateway | None = None,
        artifacts: ArtifactGateway | None = None,
        reservoirs: Reservoirs | None = None,
        clock: Clock | None = None,
        id_generator: IdGenerator | None = None,
        metrics: Metrics | None = None,
        hash_password: Callable[[str], str] = hash_password,
        verify_password: Callable[[str, str], bool] = verify_password,
        sealer: Sealer | None = None,
        config: ConfigStore | None = None,
        callbacks: WebhookSender | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics or Metrics("manager")
        self._database = stores if isinstance(stores, Database) else None
        self._sealer = sealer or Sealer()
        self._stores = Stores.sql(stores, self._sealer, config) if isinstance(stores, Database) else stores
        self._bus = bus
        clock, id_generator = clock or SystemClock(), id_generator or RandomIds()
        self._stats = LiveMetrics(self._stores.sessions)
        self._devices = DeviceReader()
        self.metrics.expose(self._stats.families)
        self._slots = SlotCatalogue(self._stores.agents, LiveSlotUse(self._stores.sessions))
        is_shared = self._stores.leases is not None
        self._writer = SessionWriter(self._stores.sessions, bus, on_end=self._on_session_end, is_shared=is_shared)
        self._identity = IdentityService(self._stores.identities, self._stores.sessions, clock, id_generator)
        self.bootstrap = Bootstrap(
            self._stores.identities, self._stores.resource_groups, self._identity, clock, id_generator
        )
        group_use = ResourceGroupSessions(self._stores.agents, self._stores.sessions)
        self._resource_groups = ResourceGroupService(
            self._stores.resource_groups, self._stores.identities, self._identity, group_use, clock
        )
        self._hash_password = hash_password
        self._passwords = PasswordService(
            self._stores.identities, self._identity, clock, hash_password, verify_password
        )
        self._assignments = Assignments(self._stores.config)
        self._owners = DeletedUsersLoop(self._stores.sessions, self._stores.identities, self._writer, clock)
        self._activity = ActivityTracker(self._stores.activities, clock)
        self._idle = IdleService(
            self._stores.activities, self._activity, self._stores.identities, self._stores.config, self._stats, clock
        )
        self._dotfiles = DotfileService(
            self._stores.dotfiles,
            self._identity,
            max_script_bytes=settings.sessions.max_script_bytes,
        )
        self._proxies = StorageProxies(self._stores.config)
        self._storage: FolderGateway = storage or StorageProxyFolders(self._proxies)
        self._volumes: VolumeGateway = storage or StorageProxyVolumes(self._proxies)
        if artifacts is None and storage is None:
            artifacts = StorageProxyArtifacts(self._proxies, settings.artifacts)
        self._artifact_gateway, self._reservoirs = artifacts, reservoirs or SdkReservoirs()
        finder = SessionFinder(self._stores.sessions, self._writer, self._identity)
        self._services = self._make_services(gateway, finder, clock, id_generator)
        self._registry = AgentRegistry(
            agents=self._stores.agents,
            resource_groups=self._stores.resource_groups,
            slots=self._slots,
            presence=KernelReconciler(self._stores.sessions, self._writer, clock, settings.agents),
            bus=bus,
            clock=clock,
            settings=settings.agents,
            assignments=self._assignments,
        )
        self._reports = ObservationService(
            sessions=self._stores.sessions,
            registry=self._registry,
            writer=self._writer,
            stats=self._stats,
            clock=clock,
            log_tail_bytes=settings.sessions.log_tail_bytes,
            is_shared=is_shared,
        )
        self._make_loops(gateway, clock, callbacks, rng)
        self._tasks: list[asyncio.Task[None]] = []
        self._leader_tasks: list[asyncio.Task[None]] = []
        self._leadership: Leadership | None = None
        if self._stores.leases is not None:
            self._leadership = Leadership(
                self._stores.leases,
                clock,
                holder=str(id_generator.uuid()),
                ttl_s=settings.manager.lease_s,
                begin=self._begin,
                end=self._end,
            )
            self._registry.leads = lambda: self._leadership is not None and self._leadership.leads
            self._services.tasks.manager = self._leadership.holder

    def _make_folders(self, tasks: TaskService, clock: Clock, id_generator: IdGenerator) -> Folders | None:
        stores = self._stores
        if stores.folders is None:
            return None
        return Folders.build(
            stores.folders,
            self._storage,
            self._volumes,
            stores.identities,
            tasks,
            clock,
            id_generator,
            self.settings.folders,
        )

    def _make_artifacts(self, tasks: TaskService, clock: Clock, id_generator: IdGenerator) -> Artifacts | None:
        store, gateway = self._stores.artifacts, self._artifact_gateway
        if store is None or gateway is None:
            return None
        return Artifacts.build(store, gateway, self._reservoirs, tasks, self.settings.artifacts, clock, id_generator)

    def _make_images(
        self, tasks: TaskService, finder: SessionFinder, gateway: AgentGateway, clock: Clock, id_generator: IdGenerator
    ) -> tuple[Images | None, CommitService | None]:
        stores = self._stores
        if stores.images is None:
            return None, None
        config = SealedConfigStore(stores.config, self._sealer, opens=True)
        images = Images.build(
            stores.images,
            scan_registry,
            config=config,
            agents=stores.agents,
            identities=stores.identities,
            resource_groups=self._resource_groups,
            gateway=gateway,
            tasks=tasks,
            clock=clock,
            id_generator=id_generator,
        )
        commits = CommitService(stores.images, images.registries, finder, gateway, tasks, config, clock, id_generator)
        return images, commits

    def _make_sessions(
        self,
        folders: Folders | None,
        artifacts: Artifacts | None,
        images: Images | None,
        state: ManagerState,
        finder: SessionFinder,
        clock: Clock,
        id_generator: IdGenerator,
    ) -> SessionService:
        stores, settings = self._stores, self.settings
        mounts = None
        if folders is not None:
            mounts = SessionMounts(folders.mounts, artifacts.mounts if artifacts is not None else None)
        factory = SessionFactory(
            stores.sessions,
            stores.agents,
            stores.identities,
            stores.resource_groups,
            self._slots,
            settings.sessions,
            clock,
            id_generator,
            self._devices,
            mounts,
            self._dotfiles,
            state,
            images.service if images is not None else None,
        )
        return SessionService(
            store=stores.sessions,
            writer=self._writer,
            factory=factory,
            finder=finder,
            identity=self._identity,
            stats=self._stats,
            bus=self._bus,
            clock=clock,
            settings=settings.sessions,
        )

    def _make_services(
        self, gateway: AgentGateway, finder: SessionFinder, clock: Clock, id_generator: IdGenerator
    ) -> Services:
        stores, settings = self._stores, self.settings
        tasks = TaskService(stores.tasks, self._bus, clock, id_generator)
        folders = self._make_folders(tasks, clock, id_generator)
        artifacts = self._make_artifacts(tasks, clock, id_generator)
        images, commits = self._make_images(tasks, finder, gateway, clock, id_generator)
        self._images = images
        state = ManagerState(stores.config, clock)
        sessions = self._make_sessions(folders, artifacts, images, state, finder, clock, id_generator)
        owned_sessions = OwnerSessions(stores.sessions, sessions)
        leaving = folders.leaving if folders is not None else None
        service_ports = ServicePorts(finder, gateway)
        return Services(
            sessions=sessions,
            defaults=self._dotfiles,
            templates=TemplateService(
                stores.templates, stores.identities, self._identity, sessions, clock, id_generator
            ),
            state=state,
            idle=self._idle,
            errors=ErrorLogService(stores.errors),
            clock=clock,
            execution=ExecutionService(
                store=stores.sessions,
                finder=finder,
                gateway=gateway,
                stats=self._stats,
                id_generator=id_generator,
                files=settings.files,
                sessions=settings.sessions,
                activity=self._activity,
            ),
            service_ports=service_ports,
            tunnels=TunnelService(service_ports, settings.tunnels, self._activity),
            identity=self._identity,
            administration=TenantService(
                stores.identities,
                self._identity,
                owned_sessions,
                leaving,
                clock,
                id_generator,
                (folders.quota_loop,) if folders is not None else (),
            ),
            agents=AgentService(
                stores.agents, stores.sessions, stores.resource_groups, self._assignments, self._stats, gateway
            ),
            people=UserService(
                stores.identities,
                self._identity,
                owned_sessions,
                leaving,
                clock,
                id_generator,
                self._hash_password,
                self._owners,
            ),
            passwords=self._passwords,
            ssh_keys=SshKeyService(stores.identities, self._identity, clock),
            resource_groups=self._resource_groups,
            resources=ResourceService(
                stores.agents,
                stores.sessions,
                self._identity,
                self._resource_groups,
                self._slots,
                stores.presets,
                self._devices,
            ),
            presets=PresetService(stores.presets),
            events=EventService(stores.sessions, finder, self._bus),
            tasks=tasks,
            audit=AuditService(stores.audit, clock),
            config=ConfigService(SealedConfigStore(stores.config, self._sealer, opens=False)),
            watchers=WatcherService(stores.agents, stores.config, HttpWatcherGateway()),
            slots=self._slots,
            client_tokens=ClientTokens(
                stores.answers, window=timedelta(hours=settings.retention.tokens_hours), clock=clock.now
            ),
            folders=folders,
            artifacts=artifacts,
            images=images,
            commits=commits,
            volumes=VolumeService(self._volumes),
            usage=UsageService(stores.usage, self._identity, clock) if stores.usage is not None else None,
        )

    def _make_loops(
        self, gateway: AgentGateway, clock: Clock, callbacks: WebhookSender | None, rng: random.Random | None
    ) -> None:
        stores, settings = self._stores, self.settings
        images = self._images
        self._launch = LaunchLoop(
            stores.sessions,
            self._writer,
            gateway,
            clock,
            settings.sessions,
            self._dotfiles,
            images.pulls if images is not None else None,
            derive=self._sealer.derive,
        )
        self._schedule = ScheduleLoop(
            stores.sessions,
            stores.agents,
            stores.identities,
            stores.resource_groups,
            self._writer,
            clock,
            settings.sessions,
            stores.shares,
            self._devices,
            rng,
            images=images.service if images is not None else None,
            key_id=self._sealer.newest_id,
        )
        self._services.resource_groups.after_change.append(self._schedule)
        self._services.agents.after_change.append(self._schedule)
        self._terminate = TerminateLoop(
            stores.sessions, stores.agents, self._writer, gateway, clock, settings.sessions, settings.agents
        )
        self._sweep = WatchdogLoop(
            sessions=stores.sessions,
            agents=stores.agents,
            resource_groups=stores.resource_groups,
            writer=self._writer,
            registry=self._registry,
            clock=clock,
            session_settings=settings.sessions,
            agent_settings=settings.agents,
        )
        self._idle_loop = IdleLoop(stores.sessions, self._idle, self._writer, clock)
        self._webhooks = WebhookLoop(
            stores.sessions,
            callbacks
            or HttpCallbackSender(
                refused_networks=settings.callbacks.refused_networks, timeout_s=settings.callbacks.timeout_s
            ),
            clock,
            settings.callbacks,
        )
        self._retention = RetentionLoop(stores.sessions, stores.answers, clock, settings.retention, stores.errors)
        self._wakeups = LoopWakeups(
            self._bus,
            self._writer,
            schedule=self._schedule,
            launch=self._launch,
            terminate=self._terminate,
            callbacks=self._webhooks,
        )

    @property
    def services(self) -> Services:
        """The use cases, as the API needs them."""
        return self._services

    @property
    def reports(self) -> ObservationService:
        """Receives the reports of agents; hand it to the link."""
        return self._reports

    @property
    def registry(self) -> AgentRegistry:
        """The agents that this process has heard of."""
        return self._registry

    @property
    def leads(self) -> bool:
        """True while this manager runs the loops."""
        return bool(self._leader_tasks)

    @property
    def loops(self) -> tuple[PeriodicLoop, ...]:
        """The loops, for tests and simulations that call ``once`` themselves."""
        services = self._services
        folders = (services.folders.loop, services.folders.quota_loop) if services.folders is not None else ()
        rest = (self._terminate, self._sweep, self._idle_loop, self._owners, self._webhooks, self._retention)
        artifacts = (services.artifacts.loop,) if services.artifacts is not None else ()
        return self._schedule, self._launch, *rest, *folders, *artifacts

    async def migrate(self) -> None:
        """Upgrade the schema and encrypt plain secrets; does nothing without a database."""
        if self._database is not None:
            await upgrade(self._database, MIGRATIONS, head=SCHEMA_HEAD)
            await seal_rows(self._database, self._sealer)
        if isinstance(self._stores.config, SQLiteConfigStore):
            await self._stores.config.setup()
        try:
            await seal_config(self._stores.config, self._sealer)
        except Unavailable as e:
            log.warning("passwords of container registries stay as they are until the next start: %s", e)

    async def start(self) -> None:
        """Migrate, and run the loops at once or when this manager becomes the leader. Unfinished work continues."""
        await self.migrate()
        await self._slots.load()
        if self._leadership is None:
            await self._services.tasks.recover()
            await self._begin()
        else:
            await self._leadership.announce()
        background = [self._identity.run(), self._stats.run(), self._services.audit.run(), self._activity.run()]
        if self._leadership is not None:
            background += [self._leadership.run(), self._services.tasks.run()]
        self._tasks = [asyncio.create_task(work) for work in background]
        await asyncio.sleep(0)

    async def _begin(self) -> None:
        """Start the loops."""
        self._registry.become_leader()
        work = [self._wakeups.run(), *(loop.run() for loop in self.loops)]
        if self._leadership is not None:
            work.append(self._fail_lost_tasks(self._leadership))
        self._leader_tasks = [asyncio.create_task(loop) for loop in work]

    async def _end(self) -> None:
        """Stop the loops; the next leader continues unfinished work."""
        tasks, self._leader_tasks = self._leader_tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._launch.stop()
        await self._terminate.stop()
        await self._webhooks.stop()
        if self._services.folders is not None:
            await self._services.folders.loop.stop()
        if self._services.artifacts is not None:
            await self._services.artifacts.loop.stop()

    async def _fail_lost_tasks(self, leadership: Leadership) -> None:
        """Mark background tasks of stopped managers as failed, periodically."""
        while True:
            try:
                await self._services.tasks.recover(but=await leadership.living())
            except Exception:  # the next round tries again
                log.exception("could not check the background tasks of other managers")
            await asyncio.sleep(_LOST_TASKS_S)

    async def stop(self) -> None:
        """Stop the loops and write pending data; sessions keep running. Safe without ``start`` and twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._end()
        await self._services.tasks.stop()
        await self._proxies.close()
        for flush in (
            self._identity.flush,
            self._stats.flush,
            self._services.audit.flush,
            self._activity.flush,
            self._resign,
        ):
            try:
                await flush()
            except Exception:  # the other writes must still be tried
                log.exception("could not write pending data")

    def _on_session_end(self, ended: Session) -> None:
        self._stats.forget(k.id for k in ended.kernels)
        self._activity.forget(ended)

    async def _resign(self) -> None:
        if self._leadership is not None:
            await self._leadership.stop()

    async def audit(self) -> SlotAudit:
        """Recompute the occupied slots of every agent and compare."""
        return await self._stores.sessions.audit()

    async def scheduling(self, resource_group: str) -> tuple[Snapshot, Policy]:
        """Return the input of the scheduler and the policy of a resource group. Raises NotFound."""
        if await self._stores.resource_groups.resource_group(resource_group) is None:
            existing = ", ".join(sorted(g.name for g in await self._stores.resource_groups.resource_groups())) or "none"
            raise NotFound(f"there is no resource group {resource_group[:64]}; there are: {existing}")
        return await self._schedule.dump(resource_group)

    async def called(self, session: str) -> list[Session]:
        """Return the live sessions of any owner whose name or id is or starts with ``session``. Raises NotFound."""
        sessions = await self._stores.sessions.find_live(None, session)
        if not sessions:
            raise NotFound(f"no live session is called {session[:64]}; `backend.ai ps` lists them")
        return sessions
