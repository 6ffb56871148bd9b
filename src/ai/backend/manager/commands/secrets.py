"""Implements `backend.ai mgr secrets`, which manages the keys that encrypt secrets in the database (ADR 0180)."""

from __future__ import annotations

import click

from ai.backend.infra.clock import RandomIds, SystemClock
from ai.backend.infra.database import Database
from ai.backend.infra.process.daemon import reported_errors
from ai.backend.manager.commands.running import run_on_config, run_on_database
from ai.backend.manager.composition.backing_services import sealer_of, secrets_file
from ai.backend.manager.composition.stores import FEATURE_SECRETS
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.maintenance import sql
from ai.backend.manager.secrets.config import forget_lost, seal_config
from ai.backend.manager.secrets.sealer import add_key, keep_first_key, move_to_front


@click.group("secrets")
def secrets() -> None:
    """The keys that seal secrets in the database, such as those of keypairs."""


@secrets.command("new-key")
@click.option("--standby", is_flag=True, help="Open with it, but go on sealing with the present key: see `use-key`.")
@click.pass_obj
def new_key(settings: ManagerSettings, standby: bool) -> None:
    """Add a key to the key file; a manager that runs takes it in use within a second.

    Where there are several managers, add it with --standby, copy the file to each, run `use-key`, and copy it again.
    """
    with reported_errors():
        key = add_key(secrets_file(settings), is_standby=standby)
    click.echo(f"{secrets_file(settings)} {'ends' if standby else 'begins'} with the new key {key.id}")


@secrets.command("use-key")
@click.argument("key_id")
@click.pass_obj
def use_key(settings: ManagerSettings, key_id: str) -> None:
    """Encrypt secrets with the key KEY_ID of the key file from now on; the other keys still decrypt."""
    with reported_errors():
        move_to_front(secrets_file(settings), key_id)
    click.echo(f"{secrets_file(settings)} begins with the key {key_id}")


def _seal_secrets(settings: ManagerSettings) -> int:
    sealer = sealer_of(settings)
    row_count = run_on_database(settings, lambda database: sql.seal_rows(database, sealer, FEATURE_SECRETS))
    return row_count + run_on_config(settings, lambda config: seal_config(config, sealer), is_raw=True)


@secrets.command("seal")
@click.pass_obj
def seal(settings: ManagerSettings) -> None:
    """Seal every secret with the first key of the key file."""
    click.echo(f"{_seal_secrets(settings)} secrets were sealed")


@secrets.command("drop-old-keys")
@click.pass_obj
def drop_old_keys(settings: ManagerSettings) -> None:
    """Encrypt every secret with the first key of the key file, and remove all other keys from the file."""
    _seal_secrets(settings)
    with reported_errors():
        keep_first_key(secrets_file(settings))
    click.echo(f"{secrets_file(settings)} has one key")


@secrets.command("reissue")
@click.pass_obj
def reissue(settings: ManagerSettings) -> None:
    """Replace and print the secrets of keypairs that cannot be decrypted any more, and delete such other secrets."""
    id_generator = RandomIds()

    async def reissue_keypairs(database: Database) -> list[tuple[str, str, str]]:
        sealer, now = sealer_of(settings), SystemClock().now()
        keypairs = await sql.reissue_secrets(
            database, sealer, lambda: id_generator.token(48), at=now, other_secrets=FEATURE_SECRETS
        )
        return [(email, str(access_key), secret) for email, access_key, secret in keypairs]

    for email, access_key, secret in run_on_database(settings, reissue_keypairs):
        click.echo(f"# {email}\nBACKEND_ACCESS_KEY={access_key}\nBACKEND_SECRET_KEY={secret}")
    lost_keys = run_on_config(settings, lambda config: forget_lost(config, sealer_of(settings)), is_raw=True)
    if lost_keys:
        click.echo(f"# {lost_keys} passwords of container registries are forgotten: set them again")
