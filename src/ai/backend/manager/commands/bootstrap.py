"""Implements `backend.ai mgr bootstrap`, which creates the default objects of a new installation."""

from __future__ import annotations

import click

from ai.backend.infra.bus import Bus
from ai.backend.infra.database import Database
from ai.backend.manager.commands.running import NoAgents, run_on_database
from ai.backend.manager.composition.backing_services import sealer_of
from ai.backend.manager.composition.bootstrap import BootstrapResult
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings


@click.command("bootstrap")
@click.option("--resource-group", default="default", show_default=True)
@click.option("--vfolder-host", "hosts", multiple=True, help="A storage host (PROXY:VOLUME) that the domain may use.")
@click.pass_obj
def bootstrap(settings: ManagerSettings, resource_group: str, hosts: tuple[str, ...]) -> None:
    """Create the default domain, group, resource group, an admin and a user, and print the keys of the new ones."""

    async def run_bootstrap(database: Database) -> BootstrapResult:
        manager = Manager(settings, database, Bus(), NoAgents(), sealer=sealer_of(settings))
        await manager.migrate()
        return await manager.bootstrap.run(resource_group=resource_group, vfolder_hosts=hosts)

    result = run_on_database(settings, run_bootstrap, is_new=True)
    for role, keypair in (("admin", result.admin), ("user", result.user)):
        if keypair is None:
            click.echo(f"# {role}: exists already, its secret is not told again")
        else:
            click.echo(f"# {role}\nBACKEND_ACCESS_KEY={keypair.access_key}\nBACKEND_SECRET_KEY={keypair.secret_key}")
