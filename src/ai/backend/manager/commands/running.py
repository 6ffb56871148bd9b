"""Opens the database and the shared configuration for commands, and writes their results."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ai.backend.common.errors import NotFound, Unavailable
from ai.backend.common.wire.link import AgentCommands
from ai.backend.infra.config_store import ConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database, current_revision
from ai.backend.infra.process.daemon import reported_errors
from ai.backend.manager.composition.backing_services import config_store, default_database, sealer_of
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.secrets.config import SealedConfigStore

T = TypeVar("T")


def read_json(file: Path) -> Any:
    """Returns the JSON in a file; ``-`` is standard input."""
    try:
        return json.loads(sys.stdin.read() if str(file) == "-" else file.read_text())
    except (OSError, ValueError) as e:
        raise click.ClickException(f"{file} cannot be read as JSON: {e}") from None


def write_text(text: str, output: Path | None) -> None:
    """Writes a document to a file, or prints it."""
    if output is None:
        click.echo(text)
    else:
        output.write_text(text.rstrip("\n") + "\n")


output_option = click.option(
    "-o", "--output", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="A file; unset: print it."
)


async def require_database(database: Database) -> None:
    """Raises NotFound unless ``database`` is the database of a manager. Does not create a missing file."""
    if not _may_exist(database) or await current_revision(database) is None:
        raise NotFound(
            f"{database.location.render_as_string()} is no database of a manager: name the "
            "manager's settings (mgr --config FILE), or its database (BACKEND_MANAGER_DATABASE__URL); "
            "`mgr schema oneshot` makes a new one"
        )


def _may_exist(database: Database) -> bool:
    return database.is_shared or Path(database.location.database or "").is_file()


def run_on_database(settings: ManagerSettings, work: Callable[[Database], Awaitable[T]], *, is_new: bool = False) -> T:
    """Opens the database that the settings name, runs ``work`` on the database, and returns the result.

    The database must exist unless ``is_new``.
    """

    async def main() -> T:
        database = default_database(settings)
        try:
            if not is_new:
                await require_database(database)
            return await work(database)
        finally:
            await database.close()

    with reported_errors():
        return asyncio.run(main())


def run_on_config(settings: ManagerSettings, work: Callable[[ConfigStore], Awaitable[T]], *, is_raw: bool = False) -> T:
    """Opens the shared configuration, in etcd or in the database, runs ``work`` on it, and returns the result.

    Unless ``is_raw``, secrets are encrypted when they are written; reads return them encrypted.
    """

    async def with_store(database: Database) -> T:
        store = config_store(settings, database)
        try:
            if isinstance(store, SQLiteConfigStore):
                await require_database(database)
                await store.setup()
            return await work(store if is_raw else SealedConfigStore(store, sealer_of(settings), opens=False))
        finally:
            close_store = getattr(store, "close", None)
            if close_store is not None:
                await close_store()

    return run_on_database(settings, with_store, is_new=True)


class NoAgents:
    """A gateway for commands that call no agent."""

    def agent(self, agent_id: str) -> AgentCommands:
        raise Unavailable(f"agent {agent_id} is not connected")
