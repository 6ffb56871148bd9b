"""The whole agent: :class:`Agent` for whoever embeds it, ``backend.ai ag start-server`` as a process of its own."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import click

from ai.backend.agent.composition import Agent
from ai.backend.agent.config.settings import AgentSettings
from ai.backend.agent.devices.survey import PluginInspection as PluginInspection  # noqa: PLC0414  # shown to the command line
from ai.backend.agent.devices.survey import survey
from ai.backend.agent.runtimes import load_runtime
from ai.backend.infra.process.daemon import config_option, log_level_option, run_daemon

log = logging.getLogger(__name__)


async def serve(settings: AgentSettings, stop: asyncio.Event) -> None:
    """Run an agent that is connected by ZeroMQ to every manager until ``stop`` is set. Its workloads run on.

    Raises:
        InvalidInput: settings are missing or wrong. Conflict: another agent uses the data directory.
    """
    from ai.backend.agent.link.managers import SharedConfiguration, named_managers
    from ai.backend.infra.process.memory import trimmed
    from ai.backend.infra.rpc.fanout import ManagerFanout
    from ai.backend.infra.rpc.zmq.agent import ZmqAgentEndpoint
    from ai.backend.infra.rpc.zmq.keys import load_or_generate_keypair

    shared = SharedConfiguration(settings)
    keys_file = settings.link.keypair_file or settings.data_dir / "agent.key"
    keys_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    keypair = load_or_generate_keypair(keys_file)

    def make(address: str, key: str) -> ZmqAgentEndpoint:
        return ZmqAgentEndpoint(connect=address, agent_id=settings.agent.id, keypair=keypair, manager_key=key)

    managers = named_managers(settings.link) or await shared.managers()
    settings = await shared.merged(settings)
    endpoint = ManagerFanout(make, managers)
    agent = Agent(settings, load_runtime(settings), endpoint.reports)
    following: asyncio.Task[None] | None = None
    try:
        await agent.start()
        await endpoint.start(agent.commands)
        if not named_managers(settings.link):
            following = asyncio.create_task(shared.follow(endpoint))
        log.info("the agent %s serves the managers at %s", agent.agent_id, ", ".join(managers))
        async with trimmed():
            await stop.wait()
    finally:
        if following is not None:
            following.cancel()
        await endpoint.stop()
        await agent.stop()
        await shared.close()


def survey_node(config: Path | None, only: str | None = None) -> list[PluginInspection]:
    """What the plugins of this node say, see :func:`ai.backend.agent.devices.survey.survey`.

    Raises:
        InvalidInput: bad settings.
    """
    from ai.backend.infra.settings import load_settings

    settings = load_settings(AgentSettings, name="agent", path=config, env_prefix="BACKEND_AGENT_")
    return asyncio.run(survey(settings, only))


class _Group(click.Group):
    """The watcher has a server, which an agent does not load."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), "watcher"])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name != "watcher":
            return super().get_command(ctx, cmd_name)
        from ai.backend.agent.watcher_daemon.command import watcher

        return watcher


@click.group(cls=_Group)
def main() -> None:
    """The agent daemon."""


@main.command("start-server")
@config_option("agent")
@log_level_option
def start_server(config: Path | None, log_level: str | None) -> None:
    """Serve a manager with the devices of this node."""
    from ai.backend.infra.process.memory import share_one_heap
    from ai.backend.infra.process.pid_file import PidFile
    from ai.backend.infra.settings import load_settings
    from ai.backend.infra.telemetry import log_as_configured

    share_one_heap()

    async def work(stop: asyncio.Event) -> None:
        settings = load_settings(AgentSettings, name="agent", path=config, env_prefix="BACKEND_AGENT_")
        log_as_configured("agent", settings.logging, level=log_level)
        with PidFile(settings.agent.pid_file):
            await serve(settings, stop)

    run_daemon(work)
