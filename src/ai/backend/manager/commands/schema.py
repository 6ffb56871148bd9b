"""Implements `backend.ai mgr schema`, `dbshell` and `clear-history`, which maintain the database (spec 03-02)."""

from __future__ import annotations

import json
import os
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from sqlalchemy import delete
from sqlalchemy.engine import URL

from ai.backend.infra.database import Database, current_revision, upgrade
from ai.backend.infra.database.migrate import history
from ai.backend.infra.database.programs import connection_environment, connection_options, find_program
from ai.backend.manager.commands.running import output_option, run_on_database, write_text
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.db import MIGRATIONS, SCHEMA_HEAD
from ai.backend.manager.maintenance.history import History
from ai.backend.manager.maintenance.parquet import ParquetArchive
from ai.backend.manager.maintenance.sql_history import SqlHistoryStore
from ai.backend.manager.maintenance.store import HistoryKind
from ai.backend.manager.tasks.sql import tasks

_UNIT_DAYS = {"d": 1.0, "h": 1 / 24, "w": 7.0, "m": 30.0, "y": 365.0}


@click.group("schema")
def schema() -> None:
    """Manage the tables of the database."""


@schema.command("show")
@click.pass_obj
def show(settings: ManagerSettings) -> None:
    """Print the revision of the database and the newest one of this program."""
    revision = run_on_database(settings, current_revision)
    click.echo(f"the database is at {revision}, this program at {SCHEMA_HEAD}")
    if revision != SCHEMA_HEAD:
        raise click.ClickException("`mgr schema upgrade` brings the database up to date")


@schema.command("oneshot")
@click.pass_obj
def oneshot(settings: ManagerSettings) -> None:
    """Create the tables in a new database, or bring existing ones up to date."""
    revision = run_on_database(settings, lambda database: upgrade(database, MIGRATIONS), is_new=True)
    click.echo(f"the database is at {revision}")


@schema.command("upgrade")
@click.pass_obj
def upgrade_(settings: ManagerSettings) -> None:
    """Bring the tables up to date, all or nothing. Managers do it at their start as well."""

    async def upgrade_database(database: Database) -> tuple[str | None, str]:
        return await current_revision(database), await upgrade(database, MIGRATIONS)

    old_revision, new_revision = run_on_database(settings, upgrade_database)
    click.echo(
        f"the database is at {new_revision}" + ("" if old_revision == new_revision else f", it was at {old_revision}")
    )


@schema.command("apply-missing-revisions", hidden=True)
@click.argument("version")
@click.pass_context
def apply_missing(context: click.Context, version: str) -> None:
    """Bring the tables up to date, as `upgrade` does; revisions form one line, so none can be missing."""
    context.invoke(upgrade_)


schema.add_command(apply_missing, "apply-mission-revisions")  # the guide's spelling (03-02:2384)


@schema.command("dump-history")
@output_option
def dump_history(output: Path | None) -> None:
    """Print every revision, oldest first, as JSON."""
    write_text(json.dumps({"head": SCHEMA_HEAD, "revisions": history(MIGRATIONS)}, indent=2), output)


@click.command("dbshell")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def dbshell(settings: ManagerSettings, arguments: tuple[str, ...]) -> None:
    """Open psql (or sqlite3) on the database of the settings; ARGUMENTS after -- are passed to that program."""

    async def url_of(database: Database) -> URL:
        return database.location

    url = run_on_database(settings, url_of)
    is_sqlite = url.get_backend_name() == "sqlite"
    program_name = "sqlite3" if is_sqlite else "psql"
    program = shutil.which(program_name) or (None if is_sqlite else find_program(program_name))
    if program is None:
        raise click.ClickException(f"{program_name} is not installed")
    if is_sqlite:
        os.execv(program, [program_name, str(url.database), *arguments])
    os.execve(program, [program_name, *connection_options(url), *arguments], dict(connection_environment(url)))


def _parse_days(_: click.Context, __: click.Parameter, value: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z])?[a-z]*", value.strip().lower())
    if match is None or (match[2] or "d") not in _UNIT_DAYS:
        raise click.BadParameter("a number and a unit: 30d, 2w, 6m, 1y")
    return float(match[1]) * _UNIT_DAYS[match[2] or "d"]


@click.command("clear-history")
@click.option(
    "-r", "--retention", default="1y", show_default=True, callback=_parse_days, help="How long the past is kept."
)
@click.option(
    "--archive",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for Parquet files of what is deleted. [default: retention.archive-dir, if set]",
)
@click.option("--vacuum-full", is_flag=True, help="Give the room back to the disk; locks the database meanwhile.")
@click.pass_obj
def clear_history(settings: ManagerSettings, retention: float, archive: Path | None, vacuum_full: bool) -> None:
    """Delete sessions that ended before the retention period, with their kernels, logs, events and audit records.

    The periods in which device claims held devices go with them.
    It works in small batches beside a running manager, and may be interrupted and run again.
    """
    cutoff = datetime.now(UTC) - timedelta(days=retention)
    archive_folder = archive or settings.retention.archive_dir
    is_final_task = tasks.c.status.in_(["bgtask_done", "bgtask_failed", "bgtask_cancelled"])

    async def remove_history(database: Database) -> dict[str, int]:
        store = SqlHistoryStore(database)
        history = History(store, ParquetArchive(archive_folder, store.columns) if archive_folder is not None else None)
        counts = {"events": 0, "sessions": 0, "records": 0, "claim spans": 0}
        for kind in HistoryKind:
            counts |= await history.remove(kind, before=cutoff)
        counts["tasks"] = await database.run_write(
            lambda conn: conn.execute(delete(tasks).where(is_final_task, tasks.c.updated_at < cutoff)).rowcount
        )
        if vacuum_full:
            await database.vacuum()
        return counts

    for name, count in run_on_database(settings, remove_history).items():
        click.echo(f"{count} {name} were removed")
