"""Runs Alembic migrations from code when a daemon starts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from ai.backend.common.errors import Conflict

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

    from ai.backend.infra.database.engine import Database

_VERSION_TABLE = "alembic_version"


def _load_scripts(folder: Path) -> ScriptDirectory:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return ScriptDirectory.from_config(config)


def _read_revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalar_one_or_none()


async def current_revision(database: Database) -> str | None:
    """Returns the revision of the schema; None for an empty database."""
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


async def upgrade(database: Database, location: Path, *, head: str | None = None) -> str:
    """Runs the migrations in ``location/versions`` in one transaction, and returns the newest revision.

    ``head`` is the newest revision: if the database has it already, alembic is not loaded, which takes longer than
    everything else of a start. Raises Conflict if the database is newer than this program.
    """
    current = await current_revision(database)
    if head is not None and current == head:
        return head
    scripts = _load_scripts(location)
    newest = scripts.get_current_head()
    if newest is None or (head is not None and newest != head):
        raise Conflict(f"the migrations end at {newest}, not at {head}")

    def migrate(connection: Connection) -> None:
        from alembic.migration import MigrationContext
        from alembic.operations import Operations
        from alembic.util import CommandError

        def steps(revision: tuple[str, ...], _: object) -> object:
            try:
                return scripts._upgrade_revs(newest, revision)  # type: ignore[arg-type]  # alembic accepts a tuple
            except CommandError as e:
                raise Conflict(f"the database is of a newer version than this program: {e}") from None

        context = MigrationContext.configure(connection, opts={"fn": steps, "render_as_batch": True})
        with Operations.context(context):
            context.run_migrations()

    await database.run_write(migrate)
    return newest
