"""Opens databases and configurations for commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from ai.backend.common.errors import BackendError, NotFound, Unavailable
from ai.backend.common.wire.link import AgentCommands
from ai.backend.infra.config_store import ConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database, current_revision
from ai.backend.manager.composition.backing_services import config_store, default_database, sealer_of
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.secrets.config import SealedConfigStore

T = TypeVar("T")


def run(work: Callable[[], Awaitable[T]]) -> T:
    """``work``, with what goes wrong told in one line."""

    async def main() -> T:
        return await work()

    try:
        return asyncio.run(main())
    except (BackendError, OSError) as e:
        raise click.ClickException(str(e)) from e


async def existing(database: Database) -> None:
    """Raises NotFound unless it is the database of a manager; a file that is not there is not made."""
    if not _may_be_there(database) or await current_revision(database) is None:
        raise NotFound(
            f"{database.location.render_as_string()} is no database of a manager: name the "
            "manager's settings (mgr --config FILE), or its database (BACKEND_MANAGER_DATABASE__URL); "
            "`mgr schema oneshot` makes a new one"
        )


def _may_be_there(database: Database) -> bool:
    return database.is_shared or Path(database.location.database or "").is_file()


def on_database(settings: ManagerSettings, work: Callable[[Database], Awaitable[T]], *, is_new: bool = False) -> T:
    """``work`` on the database that the settings name, which must be there unless ``is_new``."""

    async def main() -> T:
        database = default_database(settings)
        try:
            if not is_new:
                await existing(database)
            return await work(database)
        finally:
            await database.close()

    return run(main)


def on_config(settings: ManagerSettings, work: Callable[[ConfigStore], Awaitable[T]], *, is_raw: bool = False) -> T:
    """``work`` on the shared configuration, in etcd or in the database.

    Unless ``is_raw``, secrets are sealed when they are written; reads tell them as they lie.
    """

    async def main() -> T:
        database = default_database(settings)
        store = config_store(settings, database)
        try:
            if isinstance(store, SQLiteConfigStore):
                await existing(database)
                await store.setup()
            if not is_raw:
                return await work(SealedConfigStore(store, sealer_of(settings), opens=False))
            return await work(store)
        finally:
            close = getattr(store, "close", None)
            if close is not None:
                await close()
            await database.close()

    return run(main)


class NoAgents:
    """A gateway for commands that talk to no agent."""

    def agent(self, agent_id: str) -> AgentCommands:
        raise Unavailable(f"agent {agent_id} is not connected")
