"""`backend.ai mgr bootstrap`: what a new installation begins with."""

from __future__ import annotations

import click

from ai.backend.infra.bus import Bus
from ai.backend.manager.commands.running import NoAgents, run
from ai.backend.manager.composition.backing_services import default_database, sealer_of
from ai.backend.manager.composition.manager import Manager
from ai.backend.manager.config.settings import ManagerSettings


@click.command("bootstrap")
@click.option("--resource-group", default="default", show_default=True)
@click.option("--vfolder-host", "hosts", multiple=True, help="A storage host (PROXY:VOLUME) that the domain may use.")
@click.pass_obj
def bootstrap(settings: ManagerSettings, resource_group: str, hosts: tuple[str, ...]) -> None:
    """Make the default domain, group, resource group, an admin and a user, and print the keys of those that are new."""

    async def work() -> None:
        database = default_database(settings)
        manager = Manager(settings, database, Bus(), NoAgents(), sealer=sealer_of(settings))
        try:
            await manager.migrate()
            made = await manager.bootstrap.run(resource_group=resource_group, vfolder_hosts=hosts)
        finally:
            await database.close()
        for who, pair in (("admin", made.admin), ("user", made.user)):
            if pair is None:
                click.echo(f"# {who}: exists already, its secret is not told again")
            else:
                click.echo(f"# {who}")
                click.echo(f"BACKEND_ACCESS_KEY={pair.access_key}\nBACKEND_SECRET_KEY={pair.secret_key}")

    run(work)
