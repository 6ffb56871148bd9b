"""The whole manager: :class:`Manager` for whoever embeds it, ``backend.ai mgr start-server`` as a process of its own.

This is the composition root, the only file that knows every adapter.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.wire.link import AgentCommands
from ai.backend.core.lifecycle.effects import DestroyKernels
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.policy import ORDERS, PLACEMENTS, Policy
from ai.backend.core.scheduling.report import describe
from ai.backend.core.scheduling.snapshot import Snapshot, dump_json, load_json
from ai.backend.infra.bus import Bus
from ai.backend.infra.config_store import ConfigStore, MemoryConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database, upgrade
from ai.backend.infra.heap import share_one_heap
from ai.backend.infra.http.client_tokens import ClientTokens
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.adapters.artifact_depot import ProxyArtifactDepot
from ai.backend.manager.adapters.backing import Backing, advertised, default_database
from ai.backend.manager.adapters.callbacks import HttpCallbackSender
from ai.backend.manager.adapters.commands.etcd import etcd
from ai.backend.manager.adapters.commands.fixture import fixture
from ai.backend.manager.adapters.commands.image import image
from ai.backend.manager.adapters.commands.keys import generate_rpc_keypair
from ai.backend.manager.adapters.commands.running import existing
from ai.backend.manager.adapters.commands.schema import clear_history, dbshell, schema
from ai.backend.manager.adapters.db import MIGRATIONS, SCHEMA_HEAD
from ai.backend.manager.adapters.db.activity_store import SqlActivityStore, SqlErrorLogStore
from ai.backend.manager.adapters.db.answer_store import SqlAnswerStore
from ai.backend.manager.adapters.db.artifact_store import SqlArtifactStore
from ai.backend.manager.adapters.db.cluster_store import SqlAgentStore, SqlJournalStore
from ai.backend.manager.adapters.db.folder_store import SqlFolderStore
from ai.backend.manager.adapters.db.identity_store import SqlIdentityStore
from ai.backend.manager.adapters.db.image_store import SqlImageStore
from ai.backend.manager.adapters.db.lease_store import SqlLeaseStore
from ai.backend.manager.adapters.db.sealed_rows import seal_rows
from ai.backend.manager.adapters.db.sealing import Sealer
from ai.backend.manager.adapters.db.session_default_store import SqlDotfileStore, SqlTemplateStore
from ai.backend.manager.adapters.db.session_store import SqlSessionStore
from ai.backend.manager.adapters.db.share_store import SqlShareStore
from ai.backend.manager.adapters.memory.answer_store import MemoryAnswerStore
from ai.backend.manager.adapters.memory.session_default_store import (
    MemoryActivityStore,
    MemoryDotfileStore,
    MemoryErrorLogStore,
    MemoryTemplateStore,
)
from ai.backend.manager.adapters.memory.share_store import MemoryShareStore
from ai.backend.manager.adapters.passwords import hash_password, verify_password
from ai.backend.manager.adapters.registries.scanner import HttpRegistryScanner
from ai.backend.manager.adapters.reservoirs import SdkReservoirs
from ai.backend.manager.adapters.secret_commands import sealer_of, secrets_group
from ai.backend.manager.adapters.storage_proxy import StorageProxies
from ai.backend.manager.adapters.system import SystemClock, SystemMinter
from ai.backend.manager.api.dumping import api
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.model.session import SlotAudit
from ai.backend.manager.ports.activity_store import ActivityStore
from ai.backend.manager.ports.artifact_depot import ArtifactDepot, Reservoirs
from ai.backend.manager.ports.artifact_store import ArtifactStore
from ai.backend.manager.ports.error_log_store import ErrorLogStore
from ai.backend.manager.ports.folder_store import FolderStore
from ai.backend.manager.ports.identity_store import IdentityStore
from ai.backend.manager.ports.images import ImageStore
from ai.backend.manager.ports.leases import LeaseStore
from ai.backend.manager.ports.session_defaults import DotfileStore, TemplateStore
from ai.backend.manager.ports.share_store import ShareStore
from ai.backend.manager.ports.storage import StorageGateway
from ai.backend.manager.ports.stores import AgentStore, AnswerStore, AuditStore, SessionStore, TaskStore
from ai.backend.manager.ports.world import AgentGateway, Clock, Minter
from ai.backend.manager.services.activity import ActivityBoard
from ai.backend.manager.services.administration import AdministrationService
from ai.backend.manager.services.artifacts.bundle import Artifacts
from ai.backend.manager.services.bundle import Services
from ai.backend.manager.services.cluster import ClusterService
from ai.backend.manager.services.config import ConfigService
from ai.backend.manager.services.creation import SessionFactory
from ai.backend.manager.services.equipment import Assignments, EquipmentService
from ai.backend.manager.services.error_log import ErrorLogService
from ai.backend.manager.services.execution import ExecutionService
from ai.backend.manager.services.folders.bundle import Folders
from ai.backend.manager.services.identity import IdentityService
from ai.backend.manager.services.idle import IdleService
from ai.backend.manager.services.images.bundle import Images
from ai.backend.manager.services.journal import AuditService, EventService, TaskService
from ai.backend.manager.services.leadership import Leadership
from ai.backend.manager.services.lookup import SessionFinder
from ai.backend.manager.services.loops.callbacks import CallbackLoop
from ai.backend.manager.services.loops.idle import IdleLoop
from ai.backend.manager.services.loops.launch import LaunchLoop
from ai.backend.manager.services.loops.owners import OwnersLoop
from ai.backend.manager.services.loops.retention import RetentionLoop
from ai.backend.manager.services.loops.running import Loop
from ai.backend.manager.services.loops.schedule import ScheduleLoop
from ai.backend.manager.services.loops.sweep import SweepLoop
from ai.backend.manager.services.loops.terminate import TerminateLoop
from ai.backend.manager.services.mounts import SessionMounts
from ai.backend.manager.services.passwords import PasswordService
from ai.backend.manager.services.people import PeopleService
from ai.backend.manager.services.presence import PresenceCheck
from ai.backend.manager.services.reports import ReportsService
from ai.backend.manager.services.resource_groups import ResourceGroupService
from ai.backend.manager.services.service_ports import ServicePorts
from ai.backend.manager.services.session_defaults import SessionDefaults
from ai.backend.manager.services.sessions import SessionService
from ai.backend.manager.services.slot_catalogue import SlotCatalogue
from ai.backend.manager.services.state import ManagerState
from ai.backend.manager.services.statistics import StatBoard
from ai.backend.manager.services.templates.service import TemplateService
from ai.backend.manager.services.tunnels import TunnelService
from ai.backend.manager.services.writer import CALLBACK, LAUNCH, SCHEDULE, TERMINATE, SessionWriter

log = logging.getLogger(__name__)
_BURY_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Where the manager keeps things; one database in production, memory in simulations."""

    sessions: SessionStore
    agents: AgentStore
    identities: IdentityStore
    tasks: TaskStore
    audit: AuditStore
    config: ConfigStore = field(default_factory=MemoryConfigStore)
    answers: AnswerStore = field(default_factory=MemoryAnswerStore)
    templates: TemplateStore = field(default_factory=MemoryTemplateStore)
    dotfiles: DotfileStore = field(default_factory=MemoryDotfileStore)
    activities: ActivityStore = field(default_factory=MemoryActivityStore)
    errors: ErrorLogStore = field(default_factory=MemoryErrorLogStore)
    shares: ShareStore = field(default_factory=MemoryShareStore)
    folders: FolderStore | None = None
    artifacts: ArtifactStore | None = None
    images: ImageStore | None = None
    leases: LeaseStore | None = None
    """Where several managers share the stores, and one of them runs the loops."""

    @classmethod
    def sql(cls, database: Database, sealer: Sealer | None = None, config: ConfigStore | None = None) -> Stores:
        journal = SqlJournalStore(database)
        return cls(
            leases=SqlLeaseStore(database) if database.is_shared else None,
            sessions=SqlSessionStore(database),
            agents=SqlAgentStore(database),
            identities=SqlIdentityStore(database, sealer),
            tasks=journal,
            audit=journal,
            config=config or SQLiteConfigStore(database),
            answers=SqlAnswerStore(database),
            templates=SqlTemplateStore(database),
            dotfiles=SqlDotfileStore(database),
            activities=SqlActivityStore(database),
            errors=SqlErrorLogStore(database),
            shares=SqlShareStore(database),
            folders=SqlFolderStore(database),
            artifacts=SqlArtifactStore(database, sealer),
            images=SqlImageStore(database),
        )


class Manager:
    """All of the manager but its HTTP server, which :func:`ai.backend.manager.api.app.build_app` makes of it.

    Args:
        settings: see ``manager.toml``.
        stores: a :class:`Database` or stores of one's own.
        bus: in-process hints, shared with whoever wants to listen.
        gateway: the manager's end of the agent link; the caller starts it with :attr:`reports`.
        storage: the storage proxies; by default those that the shared configuration names.
        artifacts: where artifacts are kept; by default in the same storage proxies.
        reservoirs: other installations.
        clock, minter: time and identity; the system's by default.
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
        artifacts: ArtifactDepot | None = None,
        reservoirs: Reservoirs | None = None,
        clock: Clock | None = None,
        minter: Minter | None = None,
        metrics: Metrics | None = None,
        hash_password: Callable[[str], str] = hash_password,
        verify_password: Callable[[str, str], bool] = verify_password,
        sealer: Sealer | None = None,
        config: ConfigStore | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = metrics or Metrics("manager")
        self._database = stores if isinstance(stores, Database) else None
        self._sealer = sealer or Sealer()
        self._stores = Stores.sql(stores, self._sealer, config) if isinstance(stores, Database) else stores
        self._bus = bus
        clock, minter = clock or SystemClock(), minter or SystemMinter()
        kept = self._stores
        self._stats = StatBoard(kept.sessions)
        self.metrics.expose(self._stats.families)
        self._slots = SlotCatalogue(kept.agents, kept.sessions)
        is_shared = kept.leases is not None
        self._writer = SessionWriter(kept.sessions, bus, on_end=self._stats.forget, is_shared=is_shared)
        self._identity = IdentityService(kept.identities, kept.sessions, clock, minter)
        self._hash_password = hash_password
        self._passwords = PasswordService(kept.identities, self._identity, clock, hash_password, verify_password)
        self._assignments = Assignments(kept.config)
        self._owners = OwnersLoop(kept.sessions, kept.identities, self._writer, clock)
        self._activity = ActivityBoard(kept.activities, clock)
        self._idle = IdleService(kept.activities, self._activity, kept.identities, kept.config, self._stats, clock)
        self._defaults = SessionDefaults(
            kept.dotfiles, kept.identities, self._identity, max_script_bytes=settings.sessions.max_script_bytes
        )
        self._storage = storage or StorageProxies(kept.config)
        if artifacts is None and isinstance(self._storage, StorageProxies):
            artifacts = ProxyArtifactDepot(self._storage, settings.artifacts)
        self._depot, self._reservoirs = artifacts, reservoirs or SdkReservoirs()
        finder = SessionFinder(kept.sessions, self._writer, self._identity)
        self._services = self._make_services(gateway, finder, clock, minter)
        self._presence = PresenceCheck(kept.sessions, self._writer, clock, settings.agents)
        self._reports = ReportsService(
            sessions=kept.sessions,
            agents=kept.agents,
            identities=kept.identities,
            slots=self._slots,
            writer=self._writer,
            stats=self._stats,
            presence=self._presence,
            bus=bus,
            clock=clock,
            settings=settings.agents,
            assignments=self._assignments,
            log_tail_bytes=settings.sessions.log_tail_bytes,
            is_shared=is_shared,
        )
        self._make_loops(gateway, clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._leading: list[asyncio.Task[None]] = []
        self._leadership: Leadership | None = None
        if kept.leases is not None:
            self._leadership = Leadership(
                kept.leases,
                clock,
                holder=str(minter.uuid()),
                ttl_s=settings.manager.lease_s,
                begin=self._begin,
                end=self._end,
            )
            self._reports.leads = lambda: self._leadership is not None and self._leadership.leads
            self._services.tasks.manager = self._leadership.holder

    def _make_images(
        self, tasks: TaskService, finder: SessionFinder, gateway: AgentGateway, clock: Clock, minter: Minter
    ) -> Images | None:
        kept = self._stores
        if kept.images is None:
            return None
        return Images.over(
            kept.images,
            HttpRegistryScanner(),
            config=kept.config,
            agents=kept.agents,
            identities=kept.identities,
            identity=self._identity,
            finder=finder,
            gateway=gateway,
            tasks=tasks,
            clock=clock,
            minter=minter,
        )

    def _make_services(self, gateway: AgentGateway, finder: SessionFinder, clock: Clock, minter: Minter) -> Services:
        kept, settings = self._stores, self.settings
        tasks = TaskService(kept.tasks, self._bus, clock, minter)
        folders = None
        if kept.folders is not None:
            folders = Folders.over(kept.folders, self._storage, kept.identities, tasks, clock, minter, settings.folders)
        artifacts = None
        if kept.artifacts is not None and self._depot is not None:
            artifacts = Artifacts.over(
                kept.artifacts, self._depot, self._reservoirs, tasks, settings.artifacts, clock, minter
            )
        images = self._images = self._make_images(tasks, finder, gateway, clock, minter)
        state = ManagerState(kept.config, clock)
        factory = SessionFactory(
            kept.sessions,
            kept.agents,
            kept.identities,
            self._slots,
            settings.sessions,
            clock,
            minter,
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
        leaving = folders.leaving if folders is not None else None
        return Services(
            sessions=sessions,
            defaults=self._defaults,
            templates=TemplateService(kept.templates, kept.identities, self._identity, sessions, clock, minter),
            state=state,
            idle=self._idle,
            errors=ErrorLogService(kept.errors),
            clock=clock,
            execution=ExecutionService(
                store=kept.sessions,
                finder=finder,
                gateway=gateway,
                stats=self._stats,
                minter=minter,
                files=settings.files,
                sessions=settings.sessions,
                activity=self._activity,
            ),
            service_ports=ServicePorts(finder, gateway),
            tunnels=TunnelService(finder, gateway, settings.tunnels, self._activity),
            identity=self._identity,
            administration=AdministrationService(
                kept.identities,
                self._identity,
                kept.sessions,
                leaving,
                clock,
                minter,
                (folders.quota_loop,) if folders is not None else (),
            ),
            equipment=EquipmentService(kept.agents, kept.identities, self._assignments),
            people=PeopleService(
                kept.identities,
                self._identity,
                sessions,
                leaving,
                clock,
                minter,
                self._hash_password,
                self._owners,
            ),
            passwords=self._passwords,
            resource_groups=ResourceGroupService(kept.identities, kept.agents, kept.sessions, clock),
            cluster=ClusterService(kept.agents, kept.sessions, self._identity, self._slots, self._stats, gateway),
            events=EventService(kept.sessions, finder, self._bus),
            tasks=tasks,
            audit=AuditService(kept.audit, clock),
            config=ConfigService(kept.config),
            slots=self._slots,
            client_tokens=ClientTokens(
                kept.answers, window=timedelta(hours=settings.retention.tokens_hours), clock=clock.now
            ),
            folders=folders,
            artifacts=artifacts,
            images=images,
        )

    def _make_loops(self, gateway: AgentGateway, clock: Clock) -> None:
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
        )
        self._schedule = ScheduleLoop(
            kept.sessions,
            kept.agents,
            kept.identities,
            self._writer,
            self._launch,
            clock,
            settings.sessions,
            kept.shares,
            images=images.catalogue if images is not None else None,
        )
        self._services.resource_groups.after_change.append(self._schedule)
        self._services.equipment.after_change.append(self._schedule)
        self._terminate = TerminateLoop(
            kept.sessions, kept.agents, self._writer, gateway, clock, settings.sessions, settings.agents
        )
        self._sweep = SweepLoop(
            sessions=kept.sessions,
            agents=kept.agents,
            identities=kept.identities,
            writer=self._writer,
            reports=self._reports,
            clock=clock,
            session_settings=settings.sessions,
            agent_settings=settings.agents,
        )
        self._idle_loop = IdleLoop(kept.sessions, self._idle, self._writer, clock)
        self._callbacks = CallbackLoop(
            kept.sessions,
            HttpCallbackSender(
                refused_networks=settings.callbacks.refused_networks, timeout_s=settings.callbacks.timeout_s
            ),
            clock,
            settings.callbacks,
        )
        self._retention = RetentionLoop(kept.sessions, kept.answers, clock, settings.retention, kept.errors)

    @property
    def services(self) -> Services:
        """Every use case, for the API."""
        return self._services

    @property
    def reports(self) -> ReportsService:
        """What agents report to; hand it to the link."""
        return self._reports

    @property
    def loops(self) -> tuple[Loop, ...]:
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

    async def start(self) -> None:
        """Migrate and run the loops, or wait for one's turn to. What a former life left half-way goes on at once."""
        await self.migrate()
        await self._slots.load()
        side = [self._identity.run(), self._stats.run(), self._services.audit.run(), self._activity.run()]
        if self._leadership is None:
            await self._services.tasks.recover()
            await self._begin()
        else:
            await self._leadership.announce()
            side.append(self._leadership.run())
        self._tasks = [asyncio.create_task(work) for work in side]
        await asyncio.sleep(0)

    async def _begin(self) -> None:
        """Run the loops."""
        self._reports.lead()
        work = [self._listen(), *(loop.run() for loop in self.loops)]
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
        if isinstance(self._storage, StorageProxies):
            await self._storage.close()
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

    async def _resign(self) -> None:
        if self._leadership is not None:
            await self._leadership.stop()

    async def audit(self) -> SlotAudit:
        """Recompute what the agents' books should say and compare."""
        return await self._stores.sessions.audit()

    async def scheduling(self, resource_group: str) -> tuple[Snapshot, Policy]:
        """What the scheduler would decide on now, and how."""
        return await self._schedule.dump(resource_group)

    async def _listen(self) -> None:
        """Turn hints into work."""
        with self._bus.subscribe(SCHEDULE, LAUNCH, TERMINATE, CALLBACK, limit=10_000) as hints:
            while True:
                topic, payload = await hints.get()
                self._dispatch(topic, payload)

    def _dispatch(self, topic: str, payload: Any) -> None:
        if topic == SCHEDULE:
            self._schedule.wake()
        elif topic == CALLBACK:
            self._callbacks.wake()
        elif topic == LAUNCH:
            session = self._writer.written(payload) if payload is not None else None
            if session is not None:
                self._launch.push(session)
            else:
                self._launch.wake()
        elif isinstance(payload, DestroyKernels):
            self._terminate.push(payload)
        else:
            self._terminate.wake()


async def serve(settings: ManagerSettings, stop: asyncio.Event, *, ready: Callable[[str], None] = log.info) -> None:
    """Run a manager that agents reach by ZeroMQ and clients by HTTP until ``stop`` is set. Sessions run on.

    Raises:
        OSError: an address cannot be bound. BackendError: the database cannot be used.
    """
    from ai.backend.infra.http.server import make_runner, serve_on
    from ai.backend.infra.rpc.keys import AgentKeyDirectory, load_or_generate_keypair
    from ai.backend.infra.rpc.zmq_manager import ZmqManagerEndpoint
    from ai.backend.manager.api.app import build_app

    backing = Backing.of(settings)
    keypair = load_or_generate_keypair(_key_file(settings))
    endpoint = ZmqManagerEndpoint(
        bind=settings.agent_link.bind, keypair=keypair, agent_keys=AgentKeyDirectory(_agent_keys(settings))
    )
    sealer = sealer_of(settings)
    manager = Manager(settings, backing.database, backing.bus, endpoint, sealer=sealer, config=backing.config)
    runner = make_runner(build_app(manager, limiter=backing.limiter))
    try:
        await backing.start()
        await manager.start()
        await endpoint.start(manager.reports)
        host, port = await serve_on(runner, (settings.listen.host, settings.listen.port))
        address = advertised(settings, endpoint.address)
        await backing.tell_agents(address.rpartition("://")[2].replace("/", "_"), address, keypair.public)
        ready(f"the manager listens on http://{host}:{port} and for agents on {endpoint.address}")
        await stop.wait()
    finally:
        await runner.cleanup()
        await endpoint.stop()
        await manager.stop()
        await backing.stop()


def _key_file(settings: ManagerSettings) -> Path:
    path = settings.agent_link.key_file or settings.data_dir / "manager.key"
    path.expanduser().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path.expanduser()


def _agent_keys(settings: ManagerSettings) -> Path:
    path = (settings.agent_link.agent_keys or settings.data_dir / "agent-keys").expanduser()
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


@click.group()
@click.option("-f", "--config", "config", type=click.Path(path_type=Path), help="manager.toml; searched if not given.")
@click.option("--log-level", default="info", show_default=True, help="debug, info, warning or error.")
@click.pass_context
def main(context: click.Context, config: Path | None, log_level: str) -> None:
    """The manager daemon."""
    from ai.backend.infra.settings import load_settings
    from ai.backend.infra.telemetry import configure_logging

    configure_logging("manager", level=log_level.upper())
    try:
        context.obj = load_settings(ManagerSettings, name="manager", path=config, env_prefix="BACKEND_MANAGER_")
    except BackendError as e:
        raise click.ClickException(str(e)) from e


def _run(work: Awaitable[None]) -> None:
    async def run() -> None:
        await work

    try:
        asyncio.run(run())
    except (BackendError, OSError) as e:
        raise click.ClickException(str(e)) from e


@main.command("start-server")
@click.pass_obj
def start_server(settings: ManagerSettings) -> None:
    """Serve the API and the agents."""

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await serve(settings, stop)

    share_one_heap()
    _run(run())


@main.command("bootstrap")
@click.option("--resource-group", default="default", show_default=True)
@click.option("--vfolder-host", "hosts", multiple=True, help="A storage host (PROXY:VOLUME) that the domain may use.")
@click.pass_obj
def bootstrap(settings: ManagerSettings, resource_group: str, hosts: tuple[str, ...]) -> None:
    """Make the default domain, group, resource group, an admin and a user, and print the keys of those that are new."""

    async def run() -> None:
        database = default_database(settings)
        manager = Manager(settings, database, Bus(), _NoAgents(), sealer=sealer_of(settings))
        try:
            await manager.migrate()
            made = await manager.services.identity.bootstrap(resource_group=resource_group, vfolder_hosts=hosts)
        finally:
            await database.close()
        for who, pair in (("admin", made.admin), ("user", made.user)):
            if pair is None:
                click.echo(f"# {who}: exists already, its secret is not told again")
            else:
                click.echo(f"# {who}")
                click.echo(f"BACKEND_ACCESS_KEY={pair.access_key}\nBACKEND_SECRET_KEY={pair.secret_key}")

    _run(run())


main.add_command(secrets_group(default_database))
for _command in (etcd, image, schema, fixture, api, dbshell, clear_history, generate_rpc_keypair):
    main.add_command(_command)


@main.group("scheduler")
def scheduler() -> None:
    """Look at what the scheduler decides, on the database of a live manager or on a dump of it."""


def _scheduling(settings: ManagerSettings, resource_group: str) -> tuple[Snapshot, Policy]:
    async def load() -> None:
        database = default_database(settings)
        try:
            await existing(database)
            found.append(await Manager(settings, database, Bus(), _NoAgents()).scheduling(resource_group))
        finally:
            await database.close()

    found: list[tuple[Snapshot, Policy]] = []
    _run(load())
    return found[0]


@scheduler.command("dump")
@click.option("--resource-group", default="default", show_default=True)
@click.pass_obj
def scheduler_dump(settings: ManagerSettings, resource_group: str) -> None:
    """Print what the scheduler sees of a resource group as JSON."""
    snapshot, _ = _scheduling(settings, resource_group)
    click.echo(dump_json(snapshot).decode())


@scheduler.command("replay")
@click.argument("dump", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--order", type=click.Choice(sorted(ORDERS)), default=Policy().order, show_default=True)
@click.option("--placement", type=click.Choice(sorted(PLACEMENTS)), default=Policy().placement, show_default=True)
@click.option("--now", type=click.DateTime(), default=None, help="UTC; the present time if not given.")
@click.option("--seed", type=int, default=0, show_default=True)
def scheduler_replay(dump: Path, order: str, placement: str, now: datetime | None, seed: int) -> None:
    """Decide on a dump again: where each session goes, or why not. Equal arguments give equal answers."""
    try:
        snapshot = load_json(dump.read_bytes())
        when = now.replace(tzinfo=UTC) if now else datetime.now(UTC)
        plan = decide(snapshot, Policy(order=order, placement=placement), now=when, rng=random.Random(seed))
    except BackendError as e:
        raise click.ClickException(str(e)) from e
    click.echo(describe(snapshot, plan))


@scheduler.command("explain")
@click.argument("session")
@click.option("--resource-group", default="default", show_default=True)
@click.pass_obj
def scheduler_explain(settings: ManagerSettings, session: str, resource_group: str) -> None:
    """Say where a pending session, by its name or id, would go now, or why it waits."""
    snapshot, policy = _scheduling(settings, resource_group)
    named = [s for s in snapshot.pending if session in (s.name, str(s.session_id))]
    if not named:
        raise click.ClickException(f"no pending session of resource group {resource_group} is called {session}")
    plan = decide(snapshot, policy, now=datetime.now(UTC), rng=random.Random(0))
    for found in named:
        click.echo(describe(snapshot, plan, only=found.session_id))


@main.command("allow-agent")
@click.argument("agent_id")
@click.argument("public_key")
@click.pass_obj
def allow_agent(settings: ManagerSettings, agent_id: str, public_key: str) -> None:
    """Let the agent of this id connect with this CURVE key, and print the manager's own public key."""
    from ai.backend.infra.rpc.keys import AgentKeyDirectory, load_or_generate_keypair

    try:
        AgentKeyDirectory(_agent_keys(settings)).allow(agent_id, public_key)
        click.echo(load_or_generate_keypair(_key_file(settings)).public)
    except (BackendError, OSError) as e:
        raise click.ClickException(str(e)) from e


class _NoAgents:
    """A gateway for commands that talk to no agent."""

    def agent(self, agent_id: str) -> AgentCommands:
        raise Unavailable(f"agent {agent_id} is not connected")
