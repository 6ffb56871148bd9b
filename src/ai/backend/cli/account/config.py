"""`backend.ai config`: what the client would use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ai.backend.cli.framework.invoke import call, env_file_hint
from ai.backend.cli.framework.lazy import Leaf, screen_of

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession


@click.command(cls=Leaf)
def config() -> None:
    """Show the configuration in force, and whether the cluster answers. Secrets are not shown."""
    screen = screen_of()

    async def work(api: AsyncSession) -> int:
        from ai.backend.client.config import get_config
        from ai.backend.client.exceptions import BackendError

        conf = get_config()
        try:
            versions = await api.System.get_versions()
            server = f"manager {versions.get('manager', '?')}, API {versions.get('version', '?')}"
        except BackendError as error:
            server = f"does not answer: {error}"
        facts = {
            "endpoint": ", ".join(str(url) for url in conf.endpoints),
            "endpoint_type": conf.endpoint_type,
            "server": server,
            "api_version": conf.version,
            "access_key": conf.access_key if conf.has_credentials else f"not set: {env_file_hint()}",
            "secret_key": "is set" if conf.has_credentials else "not set",
            "domain": conf.domain,
            "group": conf.group,
            "hash_type": conf.hash_type,
            "vfolder_mounts": list(conf.vfolder_mounts),
            "skip_sslcert_validation": conf.skip_sslcert_validation,
            "connection_timeout": conf.connection_timeout,
            "read_timeout": conf.read_timeout,
        }
        if screen.is_json:
            screen.json(facts)
        else:
            screen.facts((name.replace("_", " "), value) for name, value in facts.items())
        return 0

    call(screen, work, needs_keys=False)
