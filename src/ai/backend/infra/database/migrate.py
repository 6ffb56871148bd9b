"""Runs Alembic migrations from code when a daemon starts."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from ai.backend.common.errors import Conflict, Unavailable
from ai.backend.infra.database import fresh, online_indexes

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

    from ai.backend.infra.database.engine import Database

log = logging.getLogger(__name__)
VERSION_TABLE = "alembic_version"
_LOCK_WAIT_MS, _PAUSE_S, _TRIES = 500, 1.0, 40
_LOCK_NOT_AVAILABLE = "55P03"


def _load_scripts(folder: Path) -> ScriptDirectory:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return ScriptDirectory.from_config(config)


def _read_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()


async def current_revision(database: Database) -> str | None:
    """Returns the revision of the database schema. Returns None for an empty database."""
    return await database.run_read(_read_revision)


def history(location: Path) -> list[dict[str, str | None]]:
    """Returns (revision, previous revision, description) of each migration, oldest first."""
    scripts = reversed(list(_load_scripts(location).walk_revisions()))
    return [
        {
            "revision": script.revision,
            "down_revision": script.down_revision,  # type: ignore[dict-item]  # a name: the line has no branches
            "message": (script.doc or "").split("\n")[0],
        }
        for script in scripts
    ]


def _revision_error(scripts: ScriptDirectory, revision: str) -> Conflict:
    """Returns the error for a database whose revision does not belong to these migrations. Revisions are numbers of one
    width.

    The first migration may name in ``previous_program`` what brings an older database to its revision.
    """
    *_, is_older = scripts.walk_revisions()
    if revision > is_older.revision:
        return Conflict(f"the database is of a newer version than this program: it is at revision {revision}")
    previous_revision = getattr(is_older.module, "previous_program", "an earlier version")
    return Conflict(
        f"the database is at revision {revision}, and this program upgrades from {is_older.revision} on:"
        f" upgrade it first with {previous_revision}, by `backend.ai mgr schema upgrade` or a start"
    )


async def upgrade(database: Database, location: Path, *, head: str | None = None) -> str:
    """Runs the migrations in ``location/versions`` in one transaction, and returns the newest revision.

    On PostgreSQL the indexes of :mod:`~ai.backend.infra.database.online_indexes` come after the commit, and a
    transaction that waits for somebody's lock for half a second gives up and is tried again: whoever comes behind it
    would wait as well. ``head`` is the newest revision: if the database has it already, or is an empty one of SQLite
    (:mod:`~ai.backend.infra.database.fresh`), alembic is not loaded, which takes longer than everything else of a
    start. Raises Conflict if the database is newer than this program or older than its first migration, and Unavailable
    if its tables are in use for a minute.
    """
    old_revision = await current_revision(database)
    if head is not None and old_revision == head:
        await online_indexes.create_noted_indexes(database)
        return head
    if (
        head is not None
        and old_revision is None
        and not database.is_shared
        and await database.run_write(lambda connection: fresh.create_tables(connection, location, VERSION_TABLE, head))
    ):
        return head
    scripts = _load_scripts(location)
    newest_revision = scripts.get_current_head()
    if newest_revision is None or (head is not None and newest_revision != head):
        raise Conflict(f"the migrations end at {newest_revision}, not at {head}")

    def migrate(connection: Connection) -> None:
        from alembic.migration import MigrationContext
        from alembic.operations import Operations
        from alembic.util import CommandError

        def steps(revision: tuple[str, ...], _: object) -> object:
            try:
                return scripts._upgrade_revs(newest_revision, revision)  # type: ignore[arg-type]  # alembic accepts a tuple
            except CommandError:
                raise _revision_error(scripts, revision[0]) from None

        context = MigrationContext.configure(connection, opts={"fn": steps, "render_as_batch": True})
        if database.is_shared:
            connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_WAIT_MS}ms'"))
        with Operations.context(context):
            context.run_migrations()

    for tries_left in range(_TRIES, -1, -1):
        try:
            await database.run_write(migrate)
            break
        except DBAPIError as e:
            if getattr(e.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
            if tries_left == 0:
                raise Unavailable("The tables of the database are in use: it cannot be upgraded now.") from None
            log.info("the tables of the database are in use, the migration is tried again")
        await asyncio.sleep(_PAUSE_S)
    await online_indexes.create_noted_indexes(database)
    return newest_revision
