"""Sessions from being enqueued to being scheduled, end to end on a real PostgreSQL that writes to its disk."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, func, select, text

from ai.backend.common.errors import Unavailable
from ai.backend.common.ids import (
    AccessKey,
    AgentId,
    DomainName,
    GroupId,
    KernelId,
    ResourceGroupName,
    SessionId,
    UserId,
)
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus, SessionStatus, SessionType
from ai.backend.common.wire.reports import ImageReport, PluginReport
from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database, Pool
from ai.backend.infra.process.memory import collect_rarely
from ai.backend.manager.agents.model import Agent
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.sessions import tables as sessions_tables
from ai.backend.manager.sessions.model import Kernel, Session
from ai.backend.manager.sessions.store import UNLIMITED
from bench.figures import Figure, benchmark
from tests.support.postgres import PostgresServer, why_not

AGENTS = 1_000
SESSIONS = 4_000
CALLERS = 1_000
TARGET = 1_000.0
UNBATCHED = 700.0


class _Silent:
    """Agents that never answer: what is measured ends when a session is scheduled."""

    def agent(self, agent_id: str) -> Any:
        raise Unavailable(f"agent {agent_id} is simulated")


def _agent(number: int, at: datetime) -> Agent:
    return Agent(
        id=AgentId(f"i-{number:04}"),
        status=AgentStatus.ALIVE,
        status_changed=at,
        architecture="x86_64",
        scaling_group=ResourceGroupName("default"),
        available_slots=ResourceSlot({"cpu": Decimal(64), "mem": Decimal(256 << 30)}),
        first_contact=at,
        last_heartbeat=at,
        plugins=(PluginReport(name="cpu", version="1"), PluginReport(name="mem", version="1")),
        images=(ImageReport(name="host/python", architecture="x86_64", aliases=["python"]),),
    )


def _session(number: int, at: datetime) -> Session:
    """Of 200 shapes: 1 to 8 cores, and 25 sizes of memory."""
    session_id = SessionId(uuid4())
    amounts = {"cpu": Decimal(1 + number % 8), "mem": Decimal((1 + number // 8 % 25) << 28)}
    slots = ResourceSlot(amounts)
    kernel = Kernel(
        id=KernelId(session_id),
        session_id=session_id,
        local_rank=0,
        image="host/python",
        architecture="x86_64",
        status_changed=at,
        requested_slots=slots,
        created_at=at,
    )
    return Session(
        id=session_id,
        name=f"bench-{number}",
        type=SessionType.BATCH,
        status=SessionStatus.PENDING,
        status_changed=at,
        domain_name=DomainName("default"),
        group_id=GroupId(UUID(int=1)),
        group_name="default",
        user_id=UserId(UUID(int=2)),
        user_email="user@local",
        access_key=AccessKey("AKIABENCH"),
        created_by=AccessKey("AKIABENCH"),
        image="host/python",
        architecture="x86_64",
        requested_slots=slots,
        scaling_group=ResourceGroupName("default"),
        created_at=at,
        kernels=(kernel,),
    )


async def _measure(database: Database, sessions: int) -> dict[str, float]:
    manager = Manager(ManagerSettings(), database, Bus(), _Silent())
    await manager.migrate()
    await manager.bootstrap.run()
    agents, now = manager.stores.agents, datetime.now(UTC)
    await asyncio.gather(*(agents.put_agent(_agent(number, now)) for number in range(AGENTS)))
    scheduled = asyncio.Event()
    numbers = iter(range(sessions))

    async def call() -> None:
        for number in numbers:
            session = _session(number, datetime.now(UTC))
            await manager.services.writer.insert(session, [], limits=UNLIMITED)

    async def schedule() -> None:
        while await _count(database, SessionStatus.PENDING) or await _count(database, None) < sessions:
            await manager.loops.schedule.once()
        scheduled.set()

    vars(manager.loops.launch)["push"] = lambda _: None  # there is nobody to create them
    before = await database.run_read(_commits)
    started, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(schedule(), *(call() for _ in range(CALLERS)))
    took_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    placed = await _count(database, SessionStatus.SCHEDULED)
    audit = await manager.stores.sessions.audit()
    commits = await database.run_read(_commits)
    await manager.stop()
    if placed != sessions or not audit.is_clean:
        raise AssertionError(f"{placed} of {sessions} are scheduled, and the books are clean: {audit.is_clean}")
    return {"rate": sessions / took_s, "seconds": took_s, "cpu": cpu_s, "commits": commits - before}


async def _count(database: Database, status: SessionStatus | None) -> int:
    query = select(func.count()).select_from(sessions_tables.sessions)
    if status is not None:
        query = query.where(sessions_tables.sessions.c.status == status)
    return await database.run_read(lambda s: int(s.execute(query).scalar_one()))


def _commits(s: Connection) -> float:
    query = text("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    return float(s.execute(query).scalar_one())


@benchmark("enqueue", f"enqueue -> scheduled on PostgreSQL with fsync, {AGENTS:,} simulated agents")
def enqueue() -> Sequence[Figure]:
    reason = why_not()
    if reason is not None:
        raise FileNotFoundError(reason)
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(Path(folder), durable=True)
        server.make()
        server.start()
        try:

            async def run() -> dict[str, float]:
                database = Database(server.url(server.create()), pool=Pool(10))
                try:
                    return await _measure(database, SESSIONS)
                finally:
                    await database.close()

            collect_rarely()  # as a manager's daemon does
            measured = asyncio.run(run())
        finally:
            server.stop()
    return [
        Figure(
            name="enqueue-to-scheduled",
            value=measured["rate"],
            unit="1/s",
            reference=UNBATCHED,
            reference_is="commits of one disk, one for each change",
            target=f">= {TARGET:,.0f}/s",
            holds=measured["rate"] >= TARGET,
            detail={"sessions": SESSIONS, **{name: measured[name] for name in ("seconds", "cpu", "commits")}},
        )
    ]
