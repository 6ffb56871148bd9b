"""`backend.ai vfolder`: whole folders (spec 03-11, "Storage Management"); files and shares have their own modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import follow_task, print_reply
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import confirm, options, yes_option
from ai.backend.cli.framework.progress import TransferBar
from ai.backend.cli.framework.values import readable_size
from ai.backend.cli.vfolder import files, sharing
from ai.backend.cli.vfolder.group import FOLDER_NAME, FOLDER_NAMES, PERMISSION, change_folder, open_folder, vfolder

if TYPE_CHECKING:
    from ai.backend.client.func.bgtask import Progress
    from ai.backend.client.session import AsyncSession

__all__ = ["files", "sharing", "vfolder"]
_MODES = click.Choice(["general", "data", "model"])
_PERMISSION_OPTION = click.option(
    "-p", "--permission", type=PERMISSION, default="rw", show_default=True, help="What members may do."
)
COLUMNS = columns(
    "name | id/short: ID | host | ownership_type/wide: Owner Type | owner | permission: Access | "
    "usage_mode/wide: Usage | created_at/time: Created"
)


@vfolder.command("list", cls=ListCommand)
@click.option("-a", "--list-all", is_flag=True, help="Those of all users; for superadmins.")
@click.option("--trash", is_flag=True, help="Those that were deleted and can be restored.")
async def list_(api: AsyncSession, list_all: bool, trash: bool) -> None:
    """List the folders that you may use."""
    await list_folders(api, list_all, trash)


def _describe_folder(folder: dict[str, Any]) -> dict[str, Any]:
    return {**folder, "owner": folder.get("user_email") or folder.get("group_name")}


async def list_folders(api: AsyncSession, list_all: bool, trash: bool) -> None:
    """Prints the folders that the caller may use, or with ``list_all`` those of all users."""
    folders = await api.VFolder.list(list_all, trash=trash)
    empty_hint = "the trash is empty" if trash else "there are no folders"
    screen_of().print_rows(folders, COLUMNS, empty_hint, describe=_describe_folder)


def _add_list_command(kind: str, folders_help: str) -> None:
    async def list_kind(api: AsyncSession, **query: Any) -> None:
        folders: list[dict[str, Any]] = []
        total_count, root_field = 1, f"vfolder_{kind}_list"
        while len(folders) < total_count:
            page = await api.VFolder.paginated_list(root=root_field, page_offset=len(folders), page_size=100, **query)
            total_count = page.total_count if page.items else 0
            folders += page.items
        shown_columns = [column for column in COLUMNS if column.key != "owner"]
        screen_of().print_rows(folders, shown_columns, "there are no folders")

    declare_options = options(
        click.option("--filter", "filter", help="Such as 'name ilike \"data%\"'."),
        click.option("--order", help="Such as name or -created_at."),
    )
    vfolder.command(f"list-{kind}", cls=ListCommand, help=f"List {folders_help}.")(declare_options(list_kind))


_add_list_command("own", "your own folders")
_add_list_command("invited", "folders that others share with you")
_add_list_command("project", "folders of your groups")


@vfolder.command("list-hosts")
async def list_hosts(api: AsyncSession) -> None:
    """List the storage hosts that you may use."""
    screen = screen_of()
    hosts = await api.VFolder.list_hosts()
    if screen.is_json:
        screen.print_json(hosts)
    for host in hosts["allowed"]:
        screen.print_line(f"{host} (default)" if host == hosts["default"] else host)
    if not hosts["allowed"]:
        screen.inform("no storage host is open to you")


@vfolder.command("list-allowed-types")
def list_allowed_types() -> None:
    """List the kinds of owners (user, group) that new folders can have."""
    print_reply(lambda api: api.VFolder.list_allowed_types(), "\n".join)


@vfolder.command("create")
@FOLDER_NAME
@click.argument("host", required=False)
@click.option("-g", "--group", metavar="GROUP", help="Make it a folder of this group; for administrators.")
@click.option("-m", "--usage-mode", type=_MODES, default="general", show_default=True, help="What it is for.")
@_PERMISSION_OPTION
@click.option("-q", "--quota", metavar="SIZE", help="Such as 10g, where the storage host has quotas.")
@click.option("--cloneable", is_flag=True, help="Let others who use it make copies.")
@click.option("--unmanaged-path", metavar="PATH", help="A directory of the nodes instead; for superadmins.")
async def create(api: AsyncSession, name: str, host: str | None, **props: Any) -> Outcome:
    """Make a folder NAME on HOST, by default the default host."""
    folder = await api.VFolder.create(name, host, **props)
    return folder, f"created {folder['name']} on {folder['host']} ({folder['id']})"


@vfolder.command("info")
@FOLDER_NAME
async def info(api: AsyncSession, name: str) -> None:
    """Show the details of a folder, and how much is in it."""
    screen = screen_of()
    folder = await (await open_folder(api, name)).info()
    if screen.is_json:
        screen.print_json(folder)
        return
    used_bytes = folder.get("used_bytes")
    screen.print_facts(
        [
            ("Name", folder["name"]),
            ("ID", folder["id"]),
            ("Host", folder["host"]),
            ("Status", folder["status"]),
            ("Owner", folder.get("user_email") or folder.get("group_name")),
            ("You are the owner", folder["is_owner"]),
            ("Permission", folder["permission"]),
            ("Usage", folder["usage_mode"]),
            ("Cloneable", folder["cloneable"]),
            ("Files", folder.get("num_files")),
            ("Used", readable_size(used_bytes) if used_bytes is not None else None),
            ("Created", folder["created_at"]),
            ("Last used", folder.get("last_used")),
        ]
    )


@vfolder.command("rename")
@click.argument("old_name")
@click.argument("new_name")
def rename(old_name: str, new_name: str) -> None:
    """Give a folder another name."""
    result_text = f"renamed {old_name} to {new_name}"
    change_folder(old_name, lambda folder: folder.rename(new_name), {"renamed": new_name}, result_text)


@vfolder.command("update-options")
@FOLDER_NAME
@click.option("-p", "--permission", type=PERMISSION, help="What members of the group may do.")
@click.option("-m", "--usage-mode", type=_MODES, help="What it is for.")
@click.option("--set-cloneable", "cloneable", type=bool, metavar="true|false", help="Whether copies may be made.")
def update_options(name: str, **props: Any) -> None:
    """Change the options of a folder."""
    change_folder(name, lambda folder: folder.update_options(**props), {"updated": name}, f"updated {name}")


async def _for_each_folder(api: AsyncSession, names: Sequence[str], past_verb: str, method: str) -> Outcome:
    """Calls ``method`` of each folder, and prints each result at once."""
    screen = screen_of()
    for name in names:
        await getattr(await open_folder(api, name), method)()
        screen.print_line(f"{past_verb} {name}")
    return {past_verb: list(names)}, ""


@vfolder.command("delete")
@FOLDER_NAMES
async def delete(api: AsyncSession, names: tuple[str, ...]) -> Outcome:
    """Move folders into the trash. `restore` takes them out, `purge` removes them for good."""
    return await _for_each_folder(api, names, "deleted", "delete")


@vfolder.command("restore")
@FOLDER_NAMES
async def restore(api: AsyncSession, names: tuple[str, ...]) -> Outcome:
    """Take folders out of the trash."""
    return await _for_each_folder(api, names, "restored", "restore")


@vfolder.command("purge")
@FOLDER_NAMES
@yes_option
async def purge(api: AsyncSession, names: tuple[str, ...], yes: bool) -> Outcome:
    """Remove folders from the trash for good, with all their files."""
    confirm(f"Remove {', '.join(names)} with all files for good", is_confirmed=yes)
    return await _for_each_folder(api, names, "purged", "purge")


vfolder.add_command(restore, "recover")
vfolder.add_command(purge, "delete-trash")


@vfolder.command("clone")
@FOLDER_NAME
@click.argument("target_name")
@click.argument("target_host", required=False)
@click.option("-m", "--usage-mode", type=_MODES, default="general", show_default=True, help="What the copy is for.")
@_PERMISSION_OPTION
async def clone(api: AsyncSession, name: str, target_name: str, target_host: str | None, **props: Any) -> Outcome:
    """Make a folder TARGET_NAME with the files of NAME."""
    cloned_folder = await (await open_folder(api, name)).clone(target_name, target_host, **props)
    with TransferBar(screen_of()) as bar:

        def show_step(step: Progress) -> None:
            bar.update(target_name, int(step.current), int(step.total))

        await follow_task(api, cloned_folder["bgtask_id"], name="the clone", on_step=show_step)
    return await api.VFolder(cloned_folder["id"]).info(), f"cloned {name} to {target_name}"
