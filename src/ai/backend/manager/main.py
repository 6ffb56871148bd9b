"""The composition root of the manager: the only file that knows every adapter."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from argon2 import PasswordHasher

from ai.backend.core.lifecycle.effects import DestroyKernels
from ai.backend.infra.bus import Bus
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

    @classmethod
    def sql(cls, database: Database) -> Stores:
        journal = SqlJournalStore(database)
        return cls(
            sessions=SqlSessionStore(database),
            agents=SqlAgentStore(database),
            identities=SqlIdentityStore(database),
            tasks=journal,
            audit=journal,
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
        self._writer = SessionWriter(kept.sessions, bus, clock)
        self._stats = StatBoard(kept.sessions)
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
            session = self._writer.recent(payload)
            if session is not None:
                self._launch.push(session)
        elif isinstance(payload, DestroyKernels):
            self._terminate.push(payload)
        else:
            self._terminate.wake()


def default_database(settings: ManagerSettings) -> Database:
    """The database that the settings name; SQLite in the data directory without a name."""
    path = Path(settings.data_dir).absolute() / "manager.db"
    return Database(settings.database.url or f"sqlite+aiosqlite:///{path}")
