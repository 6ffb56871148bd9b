"""`backend.ai start`: starts a session that runs until it is ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import run_and_exit
from ai.backend.cli.framework.lazy import LeafCommand, screen_of
from ai.backend.cli.framework.output import MutedScreen
from ai.backend.cli.session.explain import print_dry_run
from ai.backend.cli.session.options import create_options_of, creation_options

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession


@click.command(cls=LeafCommand)
@click.argument("image")
@click.option(
    "--type",
    "type_",
    type=click.Choice(["interactive", "batch"]),
    default="interactive",
    show_default=True,
    help="What ends it.",
)
@click.option("-c", "--startup-command", metavar="CMD", help="The program of a batch session.")
@click.option(
    "--batch-timeout", metavar="TIME", help="End the program of a batch session after seconds, or 30m, 2h, 1d."
)
@click.option("--enqueue-only", is_flag=True, help="Return once the session is queued.")
@click.option("--dry-run", is_flag=True, help="Only say whether it would start now, and if not, what would.")
@click.option(
    "--count", type=click.IntRange(1, 100), default=1, show_default=True, help="With --dry-run: how many such sessions."
)
@click.option("-q", "--quiet", is_flag=True, help="Print no progress.")
@click.option("--max-wait", type=click.IntRange(0), default=0, metavar="SECONDS", help="Wait no longer for the start.")
@creation_options
def start(
    image: str, enqueue_only: bool, dry_run: bool, count: int, quiet: bool, max_wait: int, **options: Any
) -> None:
    """Start a session of IMAGE and leave it running.

    Exits with 1 if it does not start, and with 124 if --max-wait runs out first (it stays in the queue then). With
    --dry-run nothing is created, and 0 means that it would start now.

    \b
      backend.ai start -t mysession -r cpu=1 -r mem=256m python
    """
    screen = screen_of()
    progress_screen = MutedScreen(screen.mode) if quiet else screen
    create_options = create_options_of(options)
    if create_options["type_"] == "batch" and not create_options["startup_command"]:
        raise click.UsageError("a batch session needs --startup-command")
    if create_options["batch_timeout"] and create_options["type_"] != "batch":
        raise click.UsageError("--batch-timeout is for batch sessions (--type batch)")

    if count > 1 and not dry_run:
        raise click.UsageError("--count is for --dry-run; `backend.ai submit` makes arrays of sessions")

    async def start_session(api: AsyncSession) -> int:
        if dry_run:
            return await print_dry_run(api, screen, image, create_options, count)
        from ai.backend.cli.session.progress import SessionNotStarted, create_running, print_start

        if enqueue_only:
            session = await api.ComputeSession.get_or_create(image, **create_options | {"enqueue_only": True})
        else:
            try:
                session = await create_running(api, progress_screen, image, create_options, max_wait=max_wait)
            except SessionNotStarted as error:
                screen.error(str(error), code="not-started")
                return 124 if error.is_timeout else 1
            await print_start(session, progress_screen)
        if screen.is_json:
            document = {"id": session.id, "name": session.name, "status": session.status, "created": session.created}
            screen.print_json({**document, "service_ports": session.service_ports})
        elif enqueue_only:
            screen.print_line(f"session {session.name} ({session.id}) is {session.status or 'queued'}")
        else:
            screen.print_line(f"session {session.name} is {session.status}")
            services = ", ".join(str(service.get("name")) for service in session.service_ports)
            if services:
                screen.print_line(f"services: {services}")
            next_commands = ("logs --follow", "watch", "rm") if create_options["type_"] == "batch" else ("info", "rm")
            progress_screen.inform(
                "next: " + " | ".join(f"backend.ai {command} {session.name}" for command in next_commands)
            )
        return 0

    run_and_exit(screen, start_session)
