"""Implements `backend.ai mgr scheduler`, which dumps, replays and explains decisions of the scheduler."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path

import click

from ai.backend.common.states import SessionStatus
from ai.backend.common.structs import replace
from ai.backend.core.scheduling.decide import decide
from ai.backend.core.scheduling.plan import describe
from ai.backend.core.scheduling.policy import ORDERS, PLACEMENTS, Policy
from ai.backend.core.scheduling.snapshot import Snapshot, dump_json, load_json
from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.infra.process.daemon import reported_errors
from ai.backend.manager.commands.running import NoAgents, run_on_database
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.resource_groups.order_plugins import load_order_plugin
from ai.backend.manager.resource_groups.placement_plugins import load_placement_plugin
from ai.backend.manager.sessions.model import Session


@click.group("scheduler")
def scheduler() -> None:
    """Inspect the decisions of the scheduler, on the database of a live manager or on a dump of it."""


@scheduler.command("dump")
@click.option("--resource-group", default="default", show_default=True)
@click.pass_obj
def scheduler_dump(settings: ManagerSettings, resource_group: str) -> None:
    """Print the scheduler's input of a resource group as JSON."""

    async def read_snapshot(database: Database) -> tuple[Snapshot, Policy]:
        return await Manager(settings, database, Bus(), NoAgents()).scheduling(resource_group)

    snapshot, policy = run_on_database(settings, read_snapshot)
    click.echo(dump_json(replace(snapshot, policy=policy.dump())).decode())


@scheduler.command("replay")
@click.argument("dump", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--order", type=click.Choice(sorted(ORDERS)), help="[default: as dumped]")
@click.option("--placement", type=click.Choice(sorted(PLACEMENTS)), help="[default: as dumped]")
@click.option("--now", type=click.DateTime(), default=None, help="UTC; the present time if not given.")
@click.option("--seed", type=int, default=0, show_default=True)
def scheduler_replay(dump: Path, order: str | None, placement: str | None, now: datetime | None, seed: int) -> None:
    """Decide on a dump again: print where each session is placed, or why not. Equal arguments give equal results."""
    with reported_errors():
        snapshot = load_json(dump.read_bytes())
        decision_time = now.replace(tzinfo=UTC) if now else datetime.now(UTC)
        policy = Policy.of(snapshot.policy, order=order, placement=placement)
        if policy.placement not in PLACEMENTS:
            policy = replace(policy, plugged=load_placement_plugin(policy.placement))
        if policy.order not in ORDERS:
            policy = replace(policy, plugged_order=load_order_plugin(policy.order))
        plan = decide(snapshot, policy, now=decision_time, rng=random.Random(seed))
    click.echo(describe(snapshot, plan))


@scheduler.command("explain")
@click.argument("session")
@click.pass_obj
def scheduler_explain(settings: ManagerSettings, session: str) -> None:
    """Print on which agents a pending session would be placed now, or why it waits.

    SESSION is the name or the id of the session.
    """

    async def explain(database: Database) -> list[str]:
        manager = Manager(settings, database, Bus(), NoAgents())
        return [await _explanation(manager, match) for match in await manager.live_sessions(session)]

    click.echo("\n".join(run_on_database(settings, explain)))


async def _explanation(manager: Manager, session: Session) -> str:
    if session.status is not SessionStatus.PENDING:
        agents = ", ".join(sorted({kernel.agent for kernel in session.kernels if kernel.agent is not None}))
        return f"{session.name} does not wait: it is {session.status}" + (f" on {agents}" if agents else "")
    snapshot, policy = await manager.scheduling(session.scaling_group)
    plan = decide(snapshot, policy, now=datetime.now(UTC), rng=random.Random(0))
    return describe(snapshot, plan, only_session_id=session.id)
