"""The groups of `backend.ai artifact` and `backend.ai admin artifact`, and what their commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.lazy import Entry, LazyGroup, Leaf
from ai.backend.cli.output import Screen
from ai.backend.cli.transfer_bar import readable_size

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

TYPE = click.Choice(["MODEL", "PACKAGE", "IMAGE"], case_sensitive=False)
STATUS = click.Choice(["SCANNED", "PULLING", "PULLED", "AVAILABLE"], case_sensitive=False)

artifact = LazyGroup("artifact", help="Models, packages and images that sessions can mount.")
admin_artifact = LazyGroup(
    "artifact",
    help="Where artifacts come from: registries, scans, imports.",
    entries={"registry": Entry("ai.backend.cli.artifact_admin:registry", "The registries themselves.")},
)


def command(name: str, *, of: LazyGroup = artifact) -> Callable[[Callable[..., None]], click.Command]:
    """Declare a command of a group."""
    return of.command(name, cls=Leaf)


def tell(screen: Screen, value: Any, text: str) -> None:
    """A result: a document or lines."""
    if screen.is_json:
        screen.json(value)
    elif text:
        screen.say(text)


def size_of(revision: Mapping[str, Any]) -> str | None:
    return readable_size(revision["size"]) if revision["size"] is not None else None


def said(revisions: Sequence[Mapping[str, Any]]) -> str:
    """A line for each."""
    return "\n".join(
        f"{r['artifact']}@{r['version']} is {r['status']}" + (f": {r['status_info']}" if r["status_info"] else "")
        for r in revisions
    )


async def follow_task(api: AsyncSession, screen: Screen, task_id: str) -> str:
    """Tell the steps of a background task; its last message. Fails the command as the task failed."""
    last = ""
    async for step in api.BackgroundTask(task_id).progress():
        if step.is_final:
            if step.state != "done":
                ended = "failed" if step.state == "failed" else f"was {step.state}"
                screen.fail(f"the scan {ended}: {step.message}")
            return step.message or ""
        told = f"{step.message}: {int(step.current)} artifacts"
        if step.message and told != last:
            screen.note(told)
            last = told
    return ""
