"""`backend.ai mgr secrets`: the keys that secrets in the database are sealed with (ADR 0180)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from ai.backend.common.errors import BackendError
from ai.backend.infra.database import Database
from ai.backend.manager.adapters.db import sealed_rows
from ai.backend.manager.adapters.db.sealing import Sealer, add_key, keep_first_key, load_or_make_keys, read_keys
from ai.backend.manager.adapters.system import SystemClock, SystemMinter
from ai.backend.manager.config.settings import ManagerSettings

T = TypeVar("T")
OpenDatabase = Callable[[ManagerSettings], Database]


def key_file(settings: ManagerSettings) -> Path:
    return (settings.secrets.key_file or settings.data_dir / "secrets.key").expanduser()


def sealer_of(settings: ManagerSettings) -> Sealer:
    """With the keys of the key file, which is made if it is not there.

    Raises:
        InvalidInput: the file is no key file, or open to others.
        OSError: it can be neither read nor made.
    """
    path = key_file(settings)
    return Sealer(load_or_make_keys(path), reload=lambda: read_keys(path))


def secrets_group(open_database: OpenDatabase) -> click.Group:
    """The commands, over the database that the settings name."""

    @click.group("secrets")
    def secrets() -> None:
        """The keys that seal secrets in the database, such as those of keypairs."""

    def run(settings: ManagerSettings, work: Callable[[Database, Sealer], Awaitable[T]]) -> T:
        async def main() -> T:
            database = open_database(settings)
            try:
                return await work(database, sealer_of(settings))
            finally:
                await database.close()

        try:
            return asyncio.run(main())
        except (BackendError, OSError) as e:
            raise click.ClickException(str(e)) from e

    @secrets.command("new-key")
    @click.pass_obj
    def new_key(settings: ManagerSettings) -> None:
        """Add a key to the key file. Copy the file to every manager, restart them, then run `seal`."""
        try:
            key = add_key(key_file(settings))
        except (BackendError, OSError) as e:
            raise click.ClickException(str(e)) from e
        click.echo(f"{key_file(settings)} begins with the new key {key.id}")

    @secrets.command("seal")
    @click.pass_obj
    def seal(settings: ManagerSettings) -> None:
        """Seal every secret with the first key of the key file."""
        click.echo(f"{run(settings, sealed_rows.seal_rows)} secrets were sealed")

    @secrets.command("drop-old-keys")
    @click.pass_obj
    def drop_old_keys(settings: ManagerSettings) -> None:
        """Seal every secret with the first key, and remove all others from the key file."""
        run(settings, sealed_rows.seal_rows)
        try:
            keep_first_key(key_file(settings))
        except (BackendError, OSError) as e:
            raise click.ClickException(str(e)) from e
        click.echo(f"{key_file(settings)} has one key")

    @secrets.command("reissue")
    @click.pass_obj
    def reissue(settings: ManagerSettings) -> None:
        """Give new secrets to keypairs whose old ones cannot be opened any more, and print them."""
        minter = SystemMinter()

        async def work(database: Database, sealer: Sealer) -> list[tuple[str, str, str]]:
            made = await sealed_rows.reissue(database, sealer, lambda: minter.token(48), at=SystemClock().now())
            return [(email, str(access_key), secret) for email, access_key, secret in made]

        for email, access_key, secret in run(settings, work):
            click.echo(f"# {email}\nBACKEND_ACCESS_KEY={access_key}\nBACKEND_SECRET_KEY={secret}")

    return secrets
