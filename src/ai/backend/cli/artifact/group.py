"""The groups of `backend.ai artifact` and `backend.ai admin artifact`, and what their commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from ai.backend.cli.framework.lazy import Entry, LazyGroup, Leaf, ListCommand
from ai.backend.cli.framework.values import readable_size

TYPE = click.Choice(["MODEL", "PACKAGE", "IMAGE"], case_sensitive=False)
STATUS = click.Choice(["SCANNED", "PULLING", "PULLED", "AVAILABLE"], case_sensitive=False)

artifact = LazyGroup("artifact", help="Models, packages and images that sessions can mount.")
admin_artifact = LazyGroup(
    "artifact",
    help="Where artifacts come from: registries, scans, imports.",
    entries={"registry": Entry("ai.backend.cli.artifact.admin:registry", "The registries themselves.")},
)


def command(name: str, *, of: LazyGroup = artifact) -> Callable[[Callable[..., None]], click.Command]:
    """Declare a command of a group."""
    return of.command(name, cls=Leaf)


def list_command(name: str, *, of: LazyGroup = artifact) -> Callable[[Callable[..., None]], click.Command]:
    """Declare a command of a group that prints a list."""
    return of.command(name, cls=ListCommand)


def size_of(revision: Mapping[str, Any]) -> str | None:
    return readable_size(revision["size"]) if revision["size"] is not None else None


def format_revisions(revisions: Sequence[Mapping[str, Any]]) -> str:
    """Return a line with the status of each revision."""
    return "\n".join(
        f"{r['artifact']}@{r['version']} is {r['status']}" + (f": {r['status_info']}" if r["status_info"] else "")
        for r in revisions
    )
