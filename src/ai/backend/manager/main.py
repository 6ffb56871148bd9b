"""The whole manager: :class:`Manager` for whoever embeds it, ``backend.ai mgr start-server`` as a process of its own.

This is the composition root, the only file that knows every adapter.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from argon2 import PasswordHasher

from ai.backend.common.errors import BackendError, Unavailable
from ai.backend.common.wire.link import AgentCommands
from ai.backend.core.lifecycle.effects import DestroyKernels
from ai.backend.infra.bus import Bus
from ai.backend.infra.config_store import ConfigStore, MemoryConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database, upgrade
from ai.backend.infra.telemetry import Metrics
from ai.backend.manager.adapters.db import MIGRATIONS, SCHEMA_HEAD
from ai.backend.manager.adapters.db.cluster_store import SqlAgentStore, SqlJournalStore
from ai.backend.manager.adapters.db.identity_store import SqlIdentityStore
from ai.backend.manager.adapters.db.session_store import SqlSessionStore
from ai.backend.manager.adapters.system import SystemClock, SystemMinter
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.model.session import SlotAudit
from ai.backend.manager.ports.identity_store import IdentityStore
from ai.backend.manager.ports.stores import AgentStore, AuditStore, SessionStore, TaskStore
from ai.backend.manager.ports.world import AgentGateway, Clock, Minter
from ai.backend.manager.services.bundle import Services
from ai.backend.manager.services.cluster import ClusterService
from ai.backend.manager.services.config import ConfigService
from ai.backend.manager.services.creation import SessionFactory
from ai.backend.manager.services.execution import ExecutionService
from ai.backend.manager.services.identity import IdentityService
from ai.backend.manager.services.journal import AuditService, EventService, TaskService
from ai.backend.manager.services.lookup import SessionFinder
from ai.backend.manager.services.loops.launch import LaunchLoop
from ai.backend.manager.services.loops.retention import RetentionLoop
from ai.backend.manager.services.loops.running import Loop
from ai.backend.manager.services.loops.schedule import ScheduleLoop
from ai.backend.manager.services.loops.sweep import SweepLoop
from ai.backend.manager.services.loops.terminate import TerminateLoop
from ai.backend.manager.services.presence import PresenceCheck
from ai.backend.manager.services.reports import ReportsService
from ai.backend.manager.services.sessions import SessionService
from ai.backend.manager.services.statistics import StatBoard
from ai.backend.manager.services.writer import LAUNCH, SCHEDULE, TERMINATE, SessionWriter

log = logging.getLogger(__name__)


def _hash_password(password: str) -> str:
    return PasswordHasher().hash(password)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """Where the manager keeps things; one database in production, memory in simulations."""

    sessions: SessionStore
    agents: AgentStore
    identities: IdentityStore
    tasks: TaskStore
    audit: AuditStore
    config: ConfigStore = field(default_factory=MemoryConfigStore)

    @classmethod
    def sql(cls, database: Database) -> Stores:
        journal = SqlJournalStore(database)
        return cls(
            sessions=SqlSessionStore(database),
            agents=SqlAgentStore(database),
            identities=SqlIdentityStore(database),
            tasks=journal,
            audit=journal,
            config=SQLiteConfigStore(database),
        )


class Manager:
    """All of the manager but its HTTP server, which :func:`ai.backend.manager.api.app.build_app` makes of it.

    Args:
        settings: see ``manager.toml``.
        stores: a :class:`Database` or stores of one's own.
        bus: in-process hints, shared with whoever wants to listen.
        gateway: the manager's end of the agent link; the caller starts it with :attr:`reports`.
        clock, minter: time and identity; the system's by default.
    """

    def __init__(
        self,
        settings: ManagerSettings,
        stores: Database | Stores,
        bus: Bus,
        gateway: AgentGateway,
        *,
        clock: Clock | None = None,
        minter: Minter | None = None,
        metrics: Metrics | None = None,
        hash_password: Callable[[str], str] = _hash_password,
    ) -> None:
        self.settings = settings
        self.metrics = metrics or Metrics("manager")
        self._database = stores if isinstance(stores, Database) else None
        self._stores = Stores.sql(stores) if isinstance(stores, Database) else stores
        self._bus = bus
        clock, minter = clock or SystemClock(), minter or SystemMinter()
        kept = self._stores
        self._stats = StatBoard(kept.sessions)
        self._writer = SessionWriter(kept.sessions, bus, on_end=self._stats.forget)
        self._identity = IdentityService(kept.identities, kept.sessions, clock, minter, hash_password)
        finder = SessionFinder(kept.sessions, self._writer, self._identity)
        self._services = self._make_services(gateway, finder, clock, minter)
        self._presence = PresenceCheck(kept.sessions, self._writer, clock, settings.agents)
        self._reports = ReportsService(
            sessions=kept.sessions,
            agents=kept.agents,
            identities=kept.identities,
            writer=self._writer,
            stats=self._stats,
            presence=self._presence,
            bus=bus,
            clock=clock,
            settings=settings.agents,
            log_tail_bytes=settings.sessions.log_tail_bytes,
        )
        self._make_loops(gateway, clock)
        self._tasks: list[asyncio.Task[None]] = []

    def _make_services(self, gateway: AgentGateway, finder: SessionFinder, clock: Clock, minter: Minter) -> Services:
        kept, settings = self._stores, self.settings
        factory = SessionFactory(kept.sessions, kept.agents, kept.identities, settings.sessions, clock, minter)
        return Services(
            sessions=SessionService(
                store=kept.sessions,
                writer=self._writer,
                factory=factory,
                finder=finder,
                identity=self._identity,
                stats=self._stats,
                bus=self._bus,
                clock=clock,
                settings=settings.sessions,
            ),
            execution=ExecutionService(
                store=kept.sessions,
                finder=finder,
                gateway=gateway,
                stats=self._stats,
                minter=minter,
                files=settings.files,
                sessions=settings.sessions,
            ),
            identity=self._identity,
            cluster=ClusterService(kept.agents, kept.sessions, self._identity, self._stats),
            events=EventService(kept.sessions, finder, self._bus),
            tasks=TaskService(kept.tasks, self._bus, clock, minter),
            audit=AuditService(kept.audit, clock),
            config=ConfigService(kept.config),
        )

    def _make_loops(self, gateway: AgentGateway, clock: Clock) -> None:
        kept, settings = self._stores, self.settings
        self._launch = LaunchLoop(kept.sessions, self._writer, gateway, clock, settings.sessions)
        self._schedule = ScheduleLoop(
            kept.sessions, kept.agents, kept.identities, self._writer, self._launch, clock, settings.sessions
        )
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
        self._retention = RetentionLoop(kept.sessions, clock, settings.retention)

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
        return self._schedule, self._launch, self._terminate, self._sweep, self._retention

    async def migrate(self) -> None:
        """Bring the schema up to date; nothing to do without a database."""
        if self._database is not None:
            await upgrade(self._database, MIGRATIONS, head=SCHEMA_HEAD)
        if isinstance(self._stores.config, SQLiteConfigStore):
            await self._stores.config.setup()

    async def start(self) -> None:
        """Migrate and run the loops. What a former life left half-way goes on at once."""
        await self.migrate()
        await self._services.tasks.recover()
        loops = [loop.run() for loop in self.loops]
        side = [self._listen(), self._identity.run(), self._stats.run(), self._services.audit.run()]
        self._tasks = [asyncio.create_task(work) for work in (*loops, *side)]
        await asyncio.sleep(0)

    async def stop(self) -> None:
        """End the loops and write what is pending. Sessions run on. Safe without ``start`` and twice."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await self._launch.stop()
        await self._terminate.stop()
        await self._services.tasks.stop()
        for flush in (self._identity.flush, self._stats.flush, self._services.audit.flush):
            try:
                await flush()
            except Exception:  # the other writes must still be tried
                log.exception("could not write what was pending")

    async def audit(self) -> SlotAudit:
        """Recompute what the agents' books should say and compare."""
        return await self._stores.sessions.audit()

    async def _listen(self) -> None:
        """Turn hints into work."""
        with self._bus.subscribe(SCHEDULE, LAUNCH, TERMINATE, limit=10_000) as hints:
            while True:
                topic, payload = await hints.get()
                self._dispatch(topic, payload)

    def _dispatch(self, topic: str, payload: Any) -> None:
        if topic == SCHEDULE:
            self._schedule.wake()
        elif topic == LAUNCH:
            session = self._writer.recent(payload) if payload is not None else None
            if session is not None:
                self._launch.push(session)
            else:
                self._launch.wake()
        elif isinstance(payload, DestroyKernels):
            self._terminate.push(payload)
        else:
            self._terminate.wake()


def default_database(settings: ManagerSettings) -> Database:
    """The database that the settings name; SQLite in the data directory without a name."""
    directory = settings.data_dir.expanduser().absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = directory / "manager.db"
    return Database(settings.database.url or f"sqlite+aiosqlite:///{path}")


async def serve(settings: ManagerSettings, stop: asyncio.Event, *, ready: Callable[[str], None] = log.info) -> None:
    """Run a manager that agents reach by ZeroMQ and clients by HTTP until ``stop`` is set. Sessions run on.

    Raises:
        OSError: an address cannot be bound.
    """
    from ai.backend.infra.http.server import make_runner, serve_on
    from ai.backend.infra.rpc.keys import AgentKeyDirectory, load_or_generate_keypair
    from ai.backend.infra.rpc.zmq_manager import ZmqManagerEndpoint
    from ai.backend.manager.api.app import build_app

    database = default_database(settings)
    endpoint = ZmqManagerEndpoint(
        bind=settings.agent_link.bind,
        keypair=load_or_generate_keypair(_key_file(settings)),
        agent_keys=AgentKeyDirectory(_agent_keys(settings)),
    )
    manager = Manager(settings, database, Bus(), endpoint)
    runner = make_runner(build_app(manager))
    try:
        await manager.start()
        await endpoint.start(manager.reports)
        host, port = await serve_on(runner, (settings.listen.host, settings.listen.port))
        ready(f"the manager listens on http://{host}:{port} and for agents on {endpoint.address}")
        await stop.wait()
    finally:
        await runner.cleanup()
        await endpoint.stop()
        await manager.stop()
        await database.close()


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

    _run(run())


@main.command("bootstrap")
@click.option("--resource-group", default="default", show_default=True)
@click.pass_obj
def bootstrap(settings: ManagerSettings, resource_group: str) -> None:
    """Make the default domain, group, resource group, an admin and a user, and print the keys of those that are new."""

    async def run() -> None:
        database = default_database(settings)
        manager = Manager(settings, database, Bus(), _NoAgents())
        try:
            await manager.migrate()
            made = await manager.services.identity.bootstrap(resource_group=resource_group)
        finally:
            await database.close()
        for who, pair in (("admin", made.admin), ("user", made.user)):
            if pair is None:
                click.echo(f"# {who}: exists already, its secret is not told again")
            else:
                click.echo(f"# {who}")
                click.echo(f"BACKEND_ACCESS_KEY={pair.access_key}\nBACKEND_SECRET_KEY={pair.secret_key}")

    _run(run())


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
