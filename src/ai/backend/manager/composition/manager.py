"""The whole manager, wired: :class:`Manager`, for whoever embeds it and for the daemon.

This is the composition root, the only file that knows every adapter.
"""

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
from ai.backend.manager.agents.assignments import Assignments
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.gateway import AgentGateway
from ai.backend.manager.agents.registration import AgentRegistry
from ai.backend.manager.agents.service import AgentService
from ai.backend.manager.agents.slots import SlotCatalogue
from ai.backend.manager.agents.watcher import WatcherService
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
from ai.backend.manager.identity.password_hash import hash_password, verify_password
from ai.backend.manager.identity.passwords import PasswordService
from ai.backend.manager.identity.service import IdentityService
from ai.backend.manager.identity.ssh_keys import SshKeyService
from ai.backend.manager.identity.tenants import TenantService
from ai.backend.manager.identity.users import UserService
from ai.backend.manager.idle.activity import ActivityTracker
from ai.backend.manager.idle.loop import IdleLoop
from ai.backend.manager.idle.service import IdleService
from ai.backend.manager.images.client.scanner import HttpRegistryScanner
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
_BURY_S = 30.0


class Manager:
    """All of the manager but its HTTP server, which :func:`ai.backend.manager.composition.app.build_app` makes of it.

    Args:
        settings: see ``manager.toml``.
        stores: a :class:`Database` or stores of one's own.
        bus: in-process hints, shared with whoever wants to listen.
        gateway: the manager's end of the agent link; the caller starts it with :attr:`reports`.
        storage: the storage proxies; by default those that the shared configuration names.
        artifacts: where artifacts are kept; by default in the same storage proxies.
        reservoirs: other installations.
        clock, id_generator, rng: the sources of time, identifiers and random numbers; the system's by default.
        callbacks: sends callbacks to the URLs that sessions name; over HTTP by default.
        sealer: seals the secrets in the database; by default they are plain.
        config: the shared configuration; by default it lies in the database.
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
        kept = self._stores
        self._stats = LiveMetrics(kept.sessions)
        self._devices = DeviceReader()
        self.metrics.expose(self._stats.families)
        self._slots = SlotCatalogue(kept.agents, LiveSlotUse(kept.sessions))
        is_shared = kept.leases is not None
        self._writer = SessionWriter(kept.sessions, bus, on_end=self._forget, is_shared=is_shared)
        self._identity = IdentityService(kept.identities, kept.sessions, clock, id_generator)
        self.bootstrap = Bootstrap(kept.identities, kept.resource_groups, self._identity, clock, id_generator)
        self._resource_groups = ResourceGroupService(
            kept.resource_groups,
            kept.identities,
            self._identity,
            ResourceGroupSessions(kept.agents, kept.sessions),
            clock,
        )
        self._hash_password = hash_password
        self._passwords = PasswordService(kept.identities, self._identity, clock, hash_password, verify_password)
        self._assignments = Assignments(kept.config)
        self._owners = DeletedUsersLoop(kept.sessions, kept.identities, self._writer, clock)
        self._activity = ActivityTracker(kept.activities, clock)
        self._idle = IdleService(kept.activities, self._activity, kept.identities, kept.config, self._stats, clock)
        self._defaults = DotfileService(
            kept.dotfiles, self._identity, max_script_bytes=settings.sessions.max_script_bytes
        )
        self._proxies = StorageProxies(kept.config)
        self._storage: FolderGateway = storage or StorageProxyFolders(self._proxies)
        self._volumes: VolumeGateway = storage or StorageProxyVolumes(self._proxies)
        if artifacts is None and storage is None:
            artifacts = StorageProxyArtifacts(self._proxies, settings.artifacts)
        self._depot, self._reservoirs = artifacts, reservoirs or SdkReservoirs()
        finder = SessionFinder(kept.sessions, self._writer, self._identity)
        self._services = self._make_services(gateway, finder, clock, id_generator)
        self._registry = AgentRegistry(
            agents=kept.agents,
            resource_groups=kept.resource_groups,
            slots=self._slots,
            presence=KernelReconciler(kept.sessions, self._writer, clock, settings.agents),
            bus=bus,
            clock=clock,
            settings=settings.agents,
            assignments=self._assignments,
        )
        self._reports = ObservationService(
            sessions=kept.sessions,
            registry=self._registry,
            writer=self._writer,
            stats=self._stats,
            clock=clock,
            log_tail_bytes=settings.sessions.log_tail_bytes,
            is_shared=is_shared,
        )
        self._make_loops(gateway, clock, callbacks, rng)
        self._tasks: list[asyncio.Task[None]] = []
        self._leading: list[asyncio.Task[None]] = []
        self._leadership: Leadership | None = None
        if kept.leases is not None:
            self._leadership = Leadership(
                kept.leases,
                clock,
                holder=str(id_generator.uuid()),
                ttl_s=settings.manager.lease_s,
                begin=self._begin,
                end=self._end,
            )
            self._registry.leads = lambda: self._leadership is not None and self._leadership.leads
            self._services.tasks.manager = self._leadership.holder

    def _make_images(
        self, tasks: TaskService, finder: SessionFinder, gateway: AgentGateway, clock: Clock, id_generator: IdGenerator
    ) -> tuple[Images | None, CommitService | None]:
        kept = self._stores
        if kept.images is None:
            return None, None
        config = SealedConfigStore(kept.config, self._sealer, opens=True)
        images = Images.build(
            kept.images,
            HttpRegistryScanner(),
            config=config,
            agents=kept.agents,
            identities=kept.identities,
            resource_groups=self._resource_groups,
            gateway=gateway,
            tasks=tasks,
            clock=clock,
            id_generator=id_generator,
        )
        commits = CommitService(kept.images, images.registries, finder, gateway, tasks, config, clock, id_generator)
        return images, commits

    def _make_services(
        self, gateway: AgentGateway, finder: SessionFinder, clock: Clock, id_generator: IdGenerator
    ) -> Services:
        kept, settings = self._stores, self.settings
        tasks = TaskService(kept.tasks, self._bus, clock, id_generator)
        folders = None
        if kept.folders is not None:
            folders = Folders.build(
                kept.folders,
                self._storage,
                self._volumes,
                kept.identities,
                tasks,
                clock,
                id_generator,
                settings.folders,
            )
        artifacts = None
        if kept.artifacts is not None and self._depot is not None:
            artifacts = Artifacts.build(
                kept.artifacts, self._depot, self._reservoirs, tasks, settings.artifacts, clock, id_generator
            )
        images, commits = self._make_images(tasks, finder, gateway, clock, id_generator)
        self._images = images
        state = ManagerState(kept.config, clock)
        factory = SessionFactory(
            kept.sessions,
            kept.agents,
            kept.identities,
            kept.resource_groups,
            self._slots,
            settings.sessions,
            clock,
            id_generator,
            self._devices,
            SessionMounts(folders.mounts, artifacts.mounts if artifacts is not None else None)
            if folders is not None
            else None,
            self._defaults,
            state,
            images.catalogue if images is not None else None,
        )
        sessions = SessionService(
            store=kept.sessions,
            writer=self._writer,
            factory=factory,
            finder=finder,
            identity=self._identity,
            stats=self._stats,
            bus=self._bus,
            clock=clock,
            settings=settings.sessions,
        )
        owned_sessions = OwnerSessions(kept.sessions, sessions)
        leaving = folders.leaving if folders is not None else None
        return Services(
            sessions=sessions,
            defaults=self._defaults,
            templates=TemplateService(kept.templates, kept.identities, self._identity, sessions, clock, id_generator),
            state=state,
            idle=self._idle,
            errors=ErrorLogService(kept.errors),
            clock=clock,
            execution=ExecutionService(
                store=kept.sessions,
                finder=finder,
                gateway=gateway,
                stats=self._stats,
                id_generator=id_generator,
                files=settings.files,
                sessions=settings.sessions,
                activity=self._activity,
            ),
            service_ports=ServicePorts(finder, gateway),
            tunnels=TunnelService(finder, gateway, settings.tunnels, self._activity),
            identity=self._identity,
            administration=TenantService(
                kept.identities,
                self._identity,
                owned_sessions,
                leaving,
                clock,
                id_generator,
                (folders.quota_loop,) if folders is not None else (),
            ),
            agents=AgentService(
                kept.agents, kept.sessions, kept.resource_groups, self._assignments, self._stats, gateway
            ),
            people=UserService(
                kept.identities,
                self._identity,
                owned_sessions,
                leaving,
                clock,
                id_generator,
                self._hash_password,
                self._owners,
            ),
            passwords=self._passwords,
            ssh_keys=SshKeyService(kept.identities, self._identity, clock),
            resource_groups=self._resource_groups,
            resources=ResourceService(
                kept.agents,
                kept.sessions,
                self._identity,
                self._resource_groups,
                self._slots,
                kept.presets,
                self._devices,
            ),
            presets=PresetService(kept.presets),
            events=EventService(kept.sessions, finder, self._bus),
            tasks=tasks,
            audit=AuditService(kept.audit, clock),
            config=ConfigService(SealedConfigStore(kept.config, self._sealer, opens=False)),
            watchers=WatcherService(kept.agents, kept.config, HttpWatcherGateway()),
            slots=self._slots,
            client_tokens=ClientTokens(
                kept.answers, window=timedelta(hours=settings.retention.tokens_hours), clock=clock.now
            ),
            folders=folders,
            artifacts=artifacts,
            images=images,
            commits=commits,
            volumes=VolumeService(self._volumes),
            usage=UsageService(kept.usage, self._identity, clock) if kept.usage is not None else None,
        )

    def _make_loops(
        self, gateway: AgentGateway, clock: Clock, callbacks: WebhookSender | None, rng: random.Random | None
    ) -> None:
        kept, settings = self._stores, self.settings
        images = self._images
        self._launch = LaunchLoop(
            kept.sessions,
            self._writer,
            gateway,
            clock,
            settings.sessions,
            self._defaults,
            images.provision if images is not None else None,
            derive=self._sealer.derive,
        )
        self._schedule = ScheduleLoop(
            kept.sessions,
            kept.agents,
            kept.identities,
            kept.resource_groups,
            self._writer,
            clock,
            settings.sessions,
            kept.shares,
            self._devices,
            rng,
            images=images.catalogue if images is not None else None,
            key_id=self._sealer.newest_id,
        )
        self._services.resource_groups.after_change.append(self._schedule)
        self._services.agents.after_change.append(self._schedule)
        self._terminate = TerminateLoop(
            kept.sessions, kept.agents, self._writer, gateway, clock, settings.sessions, settings.agents
        )
        self._sweep = WatchdogLoop(
            sessions=kept.sessions,
            agents=kept.agents,
            resource_groups=kept.resource_groups,
            writer=self._writer,
            registry=self._registry,
            clock=clock,
            session_settings=settings.sessions,
            agent_settings=settings.agents,
        )
        self._idle_loop = IdleLoop(kept.sessions, self._idle, self._writer, clock)
        self._callbacks = WebhookLoop(
            kept.sessions,
            callbacks
            or HttpCallbackSender(
                refused_networks=settings.callbacks.refused_networks, timeout_s=settings.callbacks.timeout_s
            ),
            clock,
            settings.callbacks,
        )
        self._retention = RetentionLoop(kept.sessions, kept.answers, clock, settings.retention, kept.errors)
        self._hints = LoopWakeups(
            self._bus,
            self._writer,
            schedule=self._schedule,
            launch=self._launch,
            terminate=self._terminate,
            callbacks=self._callbacks,
        )

    @property
    def services(self) -> Services:
        """Every use case, for the API."""
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
        return bool(self._leading)

    @property
    def loops(self) -> tuple[PeriodicLoop, ...]:
        """For tests and simulations, which run ``once`` by hand."""
        kept = self._services.folders
        folders = (kept.loop, kept.quota_loop) if kept is not None else ()
        rest = (self._terminate, self._sweep, self._idle_loop, self._owners, self._callbacks, self._retention)
        artifacts = (self._services.artifacts.loop,) if self._services.artifacts is not None else ()
        return self._schedule, self._launch, *rest, *folders, *artifacts

    async def migrate(self) -> None:
        """Bring the schema up to date; nothing to do without a database."""
        if self._database is not None:
            await upgrade(self._database, MIGRATIONS, head=SCHEMA_HEAD)
            await seal_rows(self._database, self._sealer)
        if isinstance(self._stores.config, SQLiteConfigStore):
            await self._stores.config.setup()
        try:
            await seal_config(self._stores.config, self._sealer)
        except Unavailable as e:
            log.warning("passwords of container registries are looked at with the next start: %s", e)

    async def start(self) -> None:
        """Migrate and run the loops, or wait for one's turn to. What a former life left half-way goes on at once."""
        await self.migrate()
        await self._slots.load()
        if self._leadership is None:
            await self._services.tasks.recover()
            await self._begin()
        else:
            await self._leadership.announce()
        side = [self._identity.run(), self._stats.run(), self._services.audit.run(), self._activity.run()]
        if self._leadership is not None:
            side += [self._leadership.run(), self._services.tasks.run()]
        self._tasks = [asyncio.create_task(work) for work in side]
        await asyncio.sleep(0)

    async def _begin(self) -> None:
        """Run the loops."""
        self._registry.become_leader()
        work = [self._hints.run(), *(loop.run() for loop in self.loops)]
        if self._leadership is not None:
            work.append(self._bury(self._leadership))
        self._leading = [asyncio.create_task(loop) for loop in work]

    async def _end(self) -> None:
        """Run them no more; what is under way goes on where they run next."""
        tasks, self._leading = self._leading, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._launch.stop()
        await self._terminate.stop()
        await self._callbacks.stop()
        if self._services.folders is not None:
            await self._services.folders.loop.stop()
        if self._services.artifacts is not None:
            await self._services.artifacts.loop.stop()

    async def _bury(self, leadership: Leadership) -> None:
        """Fail the background tasks of managers that are gone, from time to time."""
        while True:
            try:
                await self._services.tasks.recover(but=await leadership.living())
            except Exception:  # the next round does it
                log.exception("background tasks of other managers could not be looked after")
            await asyncio.sleep(_BURY_S)

    async def stop(self) -> None:
        """End the loops and write what is pending. Sessions run on. Safe without ``start`` and twice."""
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
                log.exception("could not write what was pending")

    def _forget(self, ended: Session) -> None:
        self._stats.forget(k.id for k in ended.kernels)
        self._activity.forget(ended)

    async def _resign(self) -> None:
        if self._leadership is not None:
            await self._leadership.stop()

    async def audit(self) -> SlotAudit:
        """Recompute what the agents' books should say and compare."""
        return await self._stores.sessions.audit()

    async def scheduling(self, resource_group: str) -> tuple[Snapshot, Policy]:
        """What the scheduler would decide on now, and how. Raises NotFound."""
        if await self._stores.resource_groups.resource_group(resource_group) is None:
            known = ", ".join(sorted(g.name for g in await self._stores.resource_groups.resource_groups())) or "none"
            raise NotFound(f"there is no resource group {resource_group[:64]}; there are: {known}")
        return await self._schedule.dump(resource_group)

    async def called(self, session: str) -> list[Session]:
        """The live sessions of this name or id, or whose name or id starts so; anybody's. Raises NotFound."""
        found = await self._stores.sessions.find_live(None, session)
        if not found:
            raise NotFound(f"no live session is called {session[:64]}; `backend.ai ps` lists them")
        return found
