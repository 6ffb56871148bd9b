"""``backend.ai mgr``: the commands of the manager daemon."""

from __future__ import annotations

from pathlib import Path

import click

from ai.backend.common.errors import BackendError
from ai.backend.infra.process.daemon import config_option, log_level_option
from ai.backend.infra.settings.check import config as config_group
from ai.backend.manager.commands.api import api
from ai.backend.manager.commands.backup import backup, import_sqlite, restore
from ai.backend.manager.commands.bootstrap import bootstrap
from ai.backend.manager.commands.diagnose import diagnose
from ai.backend.manager.commands.etcd import etcd
from ai.backend.manager.commands.fixture import fixture
from ai.backend.manager.commands.image import image
from ai.backend.manager.commands.keys import allow_agent, generate_rpc_keypair
from ai.backend.manager.commands.pki import pki
from ai.backend.manager.commands.scheduler import scheduler
from ai.backend.manager.commands.schema import clear_history, dbshell, schema
from ai.backend.manager.commands.secrets import secrets
from ai.backend.manager.commands.start_server import start_server
from ai.backend.manager.config.settings import ManagerSettings


@click.group()
@config_option("manager")
@log_level_option
@click.pass_context
def main(context: click.Context, config: Path | None, log_level: str | None) -> None:
    """The manager daemon."""
    from ai.backend.infra.settings import load_settings
    from ai.backend.infra.telemetry import configure_logging

    configure_logging("manager", level=log_level or "INFO")
    if context.invoked_subcommand == config_group.name:
        return  # its file need not be the manager's, and that may be the one to check
    try:
        context.obj = load_settings(ManagerSettings, name="manager", path=config, env_prefix="BACKEND_MANAGER_")
    except BackendError as e:
        raise click.ClickException(str(e)) from e


for _command in (
    *(start_server, bootstrap, schema, fixture, clear_history, dbshell, etcd, image, secrets, scheduler, api),
    *(allow_agent, generate_rpc_keypair, diagnose, config_group, backup, restore, import_sqlite, pki),
):
    main.add_command(_command)
