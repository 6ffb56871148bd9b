"""`backend.ai session commit`: a session becomes an archive on its agent, or an image of a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import Leaf, screen_of
from ai.backend.cli.framework.printing import follow_task, print_result

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession


@click.command("commit", cls=Leaf)
@click.argument("session")
@click.option("--image", "name", default=None, help="Push an image with NAME in its tag instead, which only you use.")
@click.option("--no-wait", is_flag=True, help="Do not wait until it is done.")
def commit(session: str, name: str | None, no_wait: bool) -> None:
    """Keep the root file system of SESSION. Its home and folders are not a part of it."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        kernel = api.ComputeSession(session)
        begun = await (kernel.imagify(name) if name else kernel.commit())
        if no_wait:
            print_result(screen, begun, f"{session} becomes {begun['path']} (background task {begun['bgtask_id']})")
        else:
            message = await follow_task(api, screen, begun["bgtask_id"], name="the commit")
            print_result(screen, {"task_id": str(begun["bgtask_id"]), "message": message}, message or "done")

    call(screen, work)
