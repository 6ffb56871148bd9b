"""`backend.ai mgr generate-rpc-keypair` (spec 03-02, "Install Backend.AI Manager")."""

from __future__ import annotations

from pathlib import Path

import click

from ai.backend.common.errors import BackendError
from ai.backend.common.names import check_slug


@click.command("generate-rpc-keypair")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("name")
@click.option("--overwrite", is_flag=True, help="Replace a pair of that name; whoever knows the old one is cut off.")
def generate_rpc_keypair(folder: Path, name: str, overwrite: bool) -> None:
    """Make the CURVE keys NAME.key (public) and NAME.key_secret in FOLDER.

    The secret one is `rpc-auth-manager-keypair` of manager.toml, the same for all managers; agents are given the public
    one by `link.manager-key-file`.
    """
    from ai.backend.infra.rpc.zmq.keys import generate_keypair, load_keypair

    try:
        secret = folder / f"{check_slug(name, what='name', allow_dots=True)}.key_secret"
        public = secret.with_name(f"{name}.key")
        if secret.exists() and not overwrite:
            raise click.ClickException(f"{secret} is there already")
        pair = generate_keypair(secret)
        secret.with_name(f"{secret.name}.pub").replace(public)
        load_keypair(secret)
    except (BackendError, OSError) as e:
        raise click.ClickException(str(e)) from e
    click.echo(f"Public Key: {pair.public} (stored at {public})")
    click.echo(f"The secret key is stored at {secret}.")
