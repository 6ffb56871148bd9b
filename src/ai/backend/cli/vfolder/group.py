"""The group of `backend.ai vfolder`, and what its commands share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import LazyGroup, Leaf, ListCommand
from ai.backend.cli.framework.objects import change
from ai.backend.cli.framework.references import resolve

if TYPE_CHECKING:
    from ai.backend.client.func.vfolder import AsyncVFolder
    from ai.backend.client.session import AsyncSession

PERMISSION = click.Choice(["ro", "rw", "wd"])

vfolder = LazyGroup("vfolder", help="Virtual folders: make, share and fill them.")


def command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Declare a command of the group."""
    return vfolder.command(name, cls=Leaf)


def list_command(name: str) -> Callable[[Callable[..., None]], click.Command]:
    """Declare a command of the group that prints a list."""
    return vfolder.command(name, cls=ListCommand)


async def open_folder(api: AsyncSession, reference: str) -> AsyncVFolder:
    """Return the folder of this name, id or beginning of an id.

    Raises:
        click.ClickException: several ids begin so.
    """
    return api.VFolder(await folder_id(api, reference))


def change_folder(
    reference: str, act: Callable[[AsyncVFolder], Awaitable[Any]], document: Mapping[str, Any], text: str
) -> None:
    """Do something to a folder and print that it is done."""

    async def work(api: AsyncSession) -> None:
        await act(await open_folder(api, reference))

    change(work, document, text)


async def folder_id(api: AsyncSession, reference: str, *, is_of_anybody: bool = False) -> str:
    """Return the name, or the whole id, that a folder is meant by.

    Raises:
        click.ClickException: several ids begin so.
    """

    async def load() -> Sequence[dict[str, Any]]:
        rows = await api.VFolder.list(is_of_anybody)
        return [*rows, *await api.VFolder.list(is_of_anybody, trash=True)]

    return await resolve(reference, load, kind="folder")
