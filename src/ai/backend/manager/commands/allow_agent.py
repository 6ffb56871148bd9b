"""`backend.ai mgr allow-agent`: an agent and its key become known to the managers."""

from __future__ import annotations

import click

from ai.backend.common.errors import BackendError
from ai.backend.manager.composition.backing_services import agent_keys_folder, link_key_file
from ai.backend.manager.config.settings import ManagerSettings


@click.command("allow-agent")
@click.argument("agent_id")
@click.argument("public_key")
@click.pass_obj
def allow_agent(settings: ManagerSettings, agent_id: str, public_key: str) -> None:
    """Let the agent of this id connect with this CURVE key, and print the manager's own public key."""
    from ai.backend.infra.rpc.zmq.keys import AgentKeyDirectory, load_or_generate_keypair

    try:
        AgentKeyDirectory(agent_keys_folder(settings)).allow(agent_id, public_key)
        click.echo(load_or_generate_keypair(link_key_file(settings)).public)
    except (BackendError, OSError) as e:
        raise click.ClickException(str(e)) from e
