"""Implements `backend.ai mgr pki`, which issues certificates of servers by an authority of the installation."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import click

from ai.backend.infra.clock import SystemClock
from ai.backend.infra.process.daemon import reported_errors
from ai.backend.infra.tls.authority import Authority, expiry_of
from ai.backend.manager.config.settings import ManagerSettings

_folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the authority is kept; `pki` in the manager's data directory if not given.",
)


def _authority(settings: ManagerSettings, folder: Path | None) -> Authority:
    return Authority(folder or settings.data_dir.expanduser() / "pki")


@click.group("pki")
def pki() -> None:
    """Certificates of servers by an authority of your own."""


@pki.command("init")
@_folder_option
@click.option("--name", default="Backend.AI", show_default=True, help="The name of the authority; the date is added.")
@click.option("--days", type=click.IntRange(1, 7300), default=3650, show_default=True, help="How long it is valid.")
@click.option("--replace", is_flag=True, help="Make another; the earlier stays trusted until it expires.")
@click.pass_obj
def init(settings: ManagerSettings, folder: Path | None, name: str, days: int, replace: bool) -> None:
    """Make an authority. Clients trust its file authorities.pem: SSL_CERT_FILE."""
    with reported_errors():
        authority = _authority(settings, folder)
        authority.create(name, lifetime=timedelta(days=days), now=SystemClock().now(), replace=replace)
    click.echo(f"clients trust {authority.trusted_file}")


@pki.command("issue")
@click.argument("name")
@click.option("--host", "hosts", multiple=True, required=True, help="A host name or address of the server; repeatable.")
@click.option("--days", type=click.IntRange(1, 825), default=90, show_default=True, help="How long it is valid.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The folder of NAME.pem and NAME-key.pem; the present one if not given.",
)
@_folder_option
@click.pass_obj
def issue(
    settings: ManagerSettings, name: str, hosts: tuple[str, ...], days: int, output: Path, folder: Path | None
) -> None:
    """Issue a certificate for the server NAME, or another in its place: a server that runs takes it in use."""
    with reported_errors():
        authority, lifetime = _authority(settings, folder), timedelta(days=days)
        certificate_paths = authority.issue(name, hosts, lifetime=lifetime, now=SystemClock().now(), folder=output)
    click.echo(
        f"ssl-cert = {str(certificate_paths[0].absolute())!r}\nssl-privkey = {str(certificate_paths[1].absolute())!r}"
    )


@pki.command("expiry")
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--within", type=int, default=14, show_default=True, help="Fail if one expires within so many days.")
def expiry(files: tuple[Path, ...], within: int) -> None:
    """Print when the certificates in FILES expire."""
    expiry_limit, is_late = SystemClock().now() + timedelta(days=within), False
    with reported_errors():
        for file in files:
            expires_at = expiry_of(file)
            is_late |= expires_at < expiry_limit
            click.echo(f"{expires_at:%Y-%m-%d %H:%M}  {file}")
    if is_late:
        raise click.ClickException(f"one expires within {within} days: `backend.ai mgr pki issue` makes another")
