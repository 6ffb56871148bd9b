"""`backend.ai dotfile`."""

from __future__ import annotations

from typing import IO, Any

import click

from ai.backend.cli.framework.lazy import LazyGroup, Leaf, ListCommand
from ai.backend.cli.framework.objects import change, list_them
from ai.backend.cli.framework.output import Column
from ai.backend.cli.template.commands import _PATH, _PERMISSION, _TEXT

dotfile = LazyGroup("dotfile", help="Small files that are in the home directory of every new session.")


def _owned(command: Any) -> Any:
    """Options that say whose dotfile it is; one's own without them."""
    for option in (
        click.option("-d", "--domain", default=None, help="Of a domain, for its administrators."),
        click.option("-g", "--group", default=None, help="Of a group, for its administrators."),
    ):
        command = option(command)
    return command


@dotfile.command("create", cls=Leaf)
@_PATH
@_TEXT
@_PERMISSION
@_owned
def dotfile_create(path: str, source: IO[str], perm: str, **owner: str | None) -> None:
    """Keep a dotfile; it is in sessions that start from now on."""
    data = source.read()
    change(lambda api: api.Dotfile.create(path, data, perm, **owner), {"path": path}, f"{path} is kept.")


@dotfile.command("update", cls=Leaf)
@_PATH
@_TEXT
@_PERMISSION
@_owned
def dotfile_update(path: str, source: IO[str], perm: str, **owner: str | None) -> None:
    """Replace a dotfile; sessions that run keep theirs."""
    data = source.read()
    change(lambda api: api.Dotfile.update(path, data, perm, **owner), {"path": path}, f"{path} is changed.")


@dotfile.command("get", cls=Leaf)
@_PATH
@_owned
def dotfile_get(path: str, **owner: str | None) -> None:
    """Print a dotfile."""
    change(lambda api: api.Dotfile.get(path, **owner), {}, "", lines=lambda dotfile: dotfile["data"].rstrip("\n"))


@dotfile.command("list", cls=ListCommand)
@_owned
def dotfile_list(**owner: str | None) -> None:
    """List dotfiles."""
    columns = (Column("path", "Path"), Column("permission", "Permission"))
    list_them(lambda api: api.Dotfile.paginated_list(**owner), columns, "there are no dotfiles")


@dotfile.command("delete", cls=Leaf)
@_PATH
@_owned
def dotfile_delete(path: str, **owner: str | None) -> None:
    """Forget a dotfile; sessions that run keep theirs."""
    change(lambda api: api.Dotfile.delete(path, **owner), {"path": path}, f"{path} is gone.")
