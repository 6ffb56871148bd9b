"""Implements `backend.ai mgr backup` and `restore`, which keep the installation in one file (docs/howto/back-up.md)."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TypeVar

import click

from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.infra.clock import SystemClock
from ai.backend.infra.config_store import ConfigStore, SQLiteConfigStore
from ai.backend.infra.database import Database, upgrade
from ai.backend.infra.database.migrate import history
from ai.backend.infra.process.daemon import reported_errors
from ai.backend.infra.settings import search_path
from ai.backend.manager.backup.archive import KeyFile, Passphrase, Secret
from ai.backend.manager.backup.service import Backups, KeyPaths, entries_of, put_entries, read_settings
from ai.backend.manager.backup.sql_import import SqliteImport
from ai.backend.manager.backup.sql_postgres import PostgresCopier
from ai.backend.manager.backup.sql_sqlite import SqliteCopier
from ai.backend.manager.backup.store import DatabaseCopier
from ai.backend.manager.composition.backing_services import (
    agent_keys_folder,
    default_database,
    etcd_store,
    link_key_file,
    secrets_file,
)
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.db import MIGRATIONS, SCHEMA_HEAD, metadata

T = TypeVar("T")
_PASSPHRASE_VARIABLE = "BACKENDAI_BACKUP_PASSPHRASE"

_file_argument = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
_key_option = click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Keys in place of a passphrase: 64 hexadecimal digits a line, readable by the owner alone.",
)
_passphrase_option = click.option(
    "--passphrase-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The passphrase is its first line, readable by the owner alone; "
    f"else it is ${_PASSPHRASE_VARIABLE}, or asked for.",
)


def _secret(key_file: Path | None, passphrase_file: Path | None, *, is_new: bool) -> Secret:
    """Returns the passphrase or key file that seals or opens a backup. Raises InvalidInput, OSError."""
    if key_file is not None:
        return KeyFile(key_file)
    if passphrase_file is not None:
        if passphrase_file.stat().st_mode & 0o077:
            raise InvalidInput(f"{passphrase_file} must be for its owner only: chmod 600 {passphrase_file}")
        return Passphrase(_text_of(passphrase_file).partition("\n")[0])
    passphrase = os.environ.get(_PASSPHRASE_VARIABLE, "")
    return Passphrase(passphrase or click.prompt("Passphrase", hide_input=True, confirmation_prompt=is_new))


def _key_paths(settings: ManagerSettings) -> KeyPaths:
    link_key = link_key_file(settings)
    manager_settings = settings.manager
    files = {
        "secrets": secrets_file(settings),
        "link": link_key,
        "link-public": link_key.with_name(f"{link_key.name}.pub"),
    }
    if manager_settings.ssl_cert is not None and manager_settings.ssl_privkey is not None:
        files |= {"tls-certificate": Path(manager_settings.ssl_cert), "tls-key": Path(manager_settings.ssl_privkey)}
    return KeyPaths(files=files, agent_keys=agent_keys_folder(settings))


def _run_on_backups(settings: ManagerSettings, workspace: Path, work: Callable[[Backups], Awaitable[T]]) -> T:
    """Runs ``work`` on the backups of the installation that the settings describe."""

    async def main() -> T:
        database, config = default_database(settings), etcd_store(settings)
        copier: DatabaseCopier = PostgresCopier(database) if database.is_shared else SqliteCopier(database, workspace)
        try:
            return await work(Backups(database=copier, config=config, keys=_key_paths(settings)))
        finally:
            await database.close()
            if config is not None:
                await config.close()

    with reported_errors():
        return asyncio.run(main())


def _settings_text(context: click.Context) -> str:
    """Returns the text of the manager's settings file, empty without one."""
    given_path = context.parent.params.get("config") if context.parent is not None else None
    path = given_path or next(
        (candidate_path for candidate_path in search_path("manager") if candidate_path.is_file()), None
    )
    return _text_of(Path(path)) if path is not None else ""


def _text_of(path: Path) -> str:
    """Returns the text of a file. Raises InvalidInput, OSError."""
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is no text in UTF-8") from None


def _version() -> str:
    try:
        return version_of("backendai")
    except PackageNotFoundError:
        return "0"


@click.command("backup")
@_file_argument
@_key_option
@_passphrase_option
@click.pass_context
def backup(context: click.Context, file: Path, key_file: Path | None, passphrase_file: Path | None) -> None:
    """Write the database, the shared configuration and the keys to FILE, while managers run.

    Keys and configuration are sealed with a passphrase or a key, which nobody can replace: keep it elsewhere.
    """
    settings: ManagerSettings = context.obj
    with reported_errors():
        secret, settings_text = _secret(key_file, passphrase_file, is_new=True), _settings_text(context)
    sealed_part = _run_on_backups(
        settings,
        file.absolute().parent,
        lambda backups: backups.back_up(
            file, secret, version=_version(), now=SystemClock().now(), settings=settings_text
        ),
    )
    click.echo(
        f"{file} has the database ({sealed_part.database_bytes >> 10} KiB), {len(sealed_part.files)} keys"
        + (f" and {len(sealed_part.configuration)} values of the shared configuration" if settings.etcd else "")
    )


@click.command("restore")
@_file_argument
@_key_option
@_passphrase_option
@click.option("--print-settings", is_flag=True, help="Print the manager.toml of the backup, and change nothing.")
@click.option(
    "--without-database", is_flag=True, help="The database was restored by other means, as to a point in time."
)
@click.pass_obj
def restore(
    settings: ManagerSettings,
    file: Path,
    key_file: Path | None,
    passphrase_file: Path | None,
    print_settings: bool,
    without_database: bool,
) -> None:
    """Restore the backup in FILE into an empty installation. No manager may run.

    Agents and storage proxies may run. Their sessions that are in the backup are found again when a manager starts;
    newer ones are ended.
    """
    with reported_errors():
        secret = _secret(key_file, passphrase_file, is_new=False)
        if print_settings:
            click.echo(read_settings(file, secret), nl=False)
            return
        revisions = [str(step["revision"]) for step in history(MIGRATIONS)]

    async def work(backups: Backups) -> None:
        await backups.restore(file, secret, revisions=revisions, with_database=not without_database, report=click.echo)

    _run_on_backups(settings, file.absolute().parent, work)
    click.echo("Start the managers: they bring the tables up to date, and find the sessions of the agents.")


@click.command("import-sqlite")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def import_sqlite(settings: ManagerSettings, file: Path) -> None:
    """Fill the empty PostgreSQL database of the settings with what the SQLite database FILE has.

    So an installation that began with `backend.ai up` goes on as services of its own. No manager may run. The key
    `secrets.key` beside FILE, which opens the secrets in it, is copied too; FILE stays as it is.
    """

    path = file.absolute()

    async def fill(config: ConfigStore, source: Database, target: Database) -> int:
        sqlite_import = SqliteImport(source, target, metadata)
        await sqlite_import.check(SCHEMA_HEAD)
        _copy_secrets_key(path.with_name("secrets.key"), secrets_file(settings))
        await upgrade(target, MIGRATIONS, head=SCHEMA_HEAD)
        await sqlite_import.check_target_is_empty()
        source_config = SQLiteConfigStore(source)
        for store in (source_config, config):
            if isinstance(store, SQLiteConfigStore):
                await store.setup()
        await put_entries(config, await entries_of(source_config))
        return await sqlite_import.run(path.parent)

    async def main() -> int:
        source, target = Database(f"sqlite:///{path}"), default_database(settings)
        etcd = etcd_store(settings)
        try:
            return await fill(etcd or SQLiteConfigStore(target), source, target)
        finally:
            await source.close()
            await target.close()
            if etcd is not None:
                await etcd.close()

    with reported_errors():
        row_count = asyncio.run(main())
    click.echo(f"{row_count} rows and the shared configuration are copied. Start the managers.")


def _copy_secrets_key(source_path: Path, target_path: Path) -> None:
    """Copies the key that opens the secrets of a database. Raises Conflict if another key is there."""
    if not source_path.is_file():
        return
    if target_path.exists():
        if target_path.read_bytes() != source_path.read_bytes():
            raise Conflict(f"{target_path} does not open the secrets that {source_path} opens: move it away")
        return
    target_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(target_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as output, source_path.open("rb") as source:
        shutil.copyfileobj(source, output)
