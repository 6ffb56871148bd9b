"""Implements `backend.ai mgr generate-rpc-keypair` and `allow-agent` for CURVE keys.

The keys are those of managers and agents (spec 03-02).
"""

from __future__ import annotations

from pathlib import Path

import click

from ai.backend.common.names import check_slug
from ai.backend.infra.process.daemon import reported_errors
from ai.backend.manager.composition.backing_services import agent_keys_folder, link_key_file
from ai.backend.manager.config.settings import ManagerSettings


@click.command("generate-rpc-keypair")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("name")
@click.option("--overwrite", is_flag=True, help="Replace a pair of that name; whoever knows the old one is cut off.")
def generate_rpc_keypair(folder: Path, name: str, overwrite: bool) -> None:
    """Create the CURVE keys NAME.key (public) and NAME.key_secret in FOLDER.

    The secret one is `rpc-auth-manager-keypair` of manager.toml, the same for all managers; agents get the public one
    by `link.manager-key-file`.
    """
    from ai.backend.infra.rpc.zmq.keys import generate_keypair, load_keypair

    with reported_errors():
        secret = folder / f"{check_slug(name, what='name', allow_dots=True)}.key_secret"
        public = secret.with_name(f"{name}.key")
        if secret.exists() and not overwrite:
            raise click.ClickException(f"{secret} is there already")
        keypair = generate_keypair(secret)
        secret.with_name(f"{secret.name}.pub").replace(public)
        load_keypair(secret)
    click.echo(f"Public Key: {keypair.public} (stored at {public})")
    click.echo(f"The secret key is stored at {secret}.")


@click.command("allow-agent")
@click.argument("agent_id")
@click.argument("public_key")
@click.option("--keep-earlier", is_flag=True, help="Allow the agent's present key too, until the next `allow-agent`.")
@click.pass_obj
def allow_agent(settings: ManagerSettings, agent_id: str, public_key: str, keep_earlier: bool) -> None:
    """Let the agent of this id connect with this CURVE key, and print the manager's own public key."""
    from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, load_or_generate_keypair

    with reported_errors():
        AgentKeyDirectory(agent_keys_folder(settings)).allow(agent_id, public_key, keeps_earlier=keep_earlier)
        click.echo(load_or_generate_keypair(link_key_file(settings)).public)
