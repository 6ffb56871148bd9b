"""The group of `backend.ai vfolder`, and the functions that its commands share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.completion import CompletedType
from ai.backend.cli.framework.lazy import LazyGroup
from ai.backend.cli.framework.objects import change
from ai.backend.cli.framework.references import resolve

if TYPE_CHECKING:
    from ai.backend.client.func.vfolder import AsyncVFolder
    from ai.backend.client.session import AsyncSession

vfolder = LazyGroup("vfolder", help="Virtual folders: make, share and fill them.")
PERMISSION = click.Choice(["ro", "rw", "wd"])
FOLDER_NAME = click.argument("name", type=CompletedType("folder"))
FOLDER_NAMES = click.argument("names", nargs=-1, required=True, type=CompletedType("folder"))
PERM_OPTION = click.option("-p", "--perm", type=PERMISSION, default="rw", show_default=True, help="What they may do.")


async def open_folder(api: AsyncSession, reference: str) -> AsyncVFolder:
    """Returns the folder of a name, an id or a beginning of an id. Raises click.ClickException if several ids fit."""
    return api.VFolder(await folder_id(api, reference))


def change_folder(
    reference: str, action: Callable[[AsyncVFolder], Awaitable[Any]], document: Mapping[str, Any], result_text: str
) -> None:
    """Applies ``action`` to the folder that ``reference`` means, and prints ``document`` or ``result_text``."""

    async def apply_action(api: AsyncSession) -> None:
        await action(await open_folder(api, reference))

    change(apply_action, document, result_text)


async def folder_id(api: AsyncSession, reference: str, *, is_of_anybody: bool = False) -> str:
    """Returns the name, or the whole id, of the folder that a reference means.

    Raises click.ClickException if several ids begin so.
    """

    async def load() -> Sequence[dict[str, Any]]:
        rows = await api.VFolder.list(is_of_anybody)
        return [*rows, *await api.VFolder.list(is_of_anybody, trash=True)]

    return await resolve(reference, load, kind="folder")
