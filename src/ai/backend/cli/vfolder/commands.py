"""`backend.ai vfolder`: whole folders (spec 03-11, "Storage Management"); files and shares have their own modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.confirmation import confirm, yes_option
from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import screen_of
from ai.backend.cli.framework.objects import print_reply
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.printing import follow_task, print_result, print_rows
from ai.backend.cli.framework.progress import TransferBar
from ai.backend.cli.framework.values import readable_size, relative_time, short_id
from ai.backend.cli.vfolder import files, sharing
from ai.backend.cli.vfolder.group import PERMISSION, change_folder, command, list_command, open_folder, vfolder

if TYPE_CHECKING:
    from ai.backend.client.func.bgtask import Progress
    from ai.backend.client.func.vfolder import AsyncVFolder
    from ai.backend.client.session import AsyncSession

__all__ = ["files", "sharing", "vfolder"]
_USAGE = click.Choice(["general", "data", "model"])
COLUMNS = [
    Column("name", "Name"),
    Column("id", "ID", short_id),
    Column("host", "Host"),
    Column("ownership_type", "Owner Type", is_wide=True),
    Column("owner", "Owner"),
    Column("permission", "Access"),
    Column("usage_mode", "Usage", is_wide=True),
    Column("created_at", "Created", relative_time),
]


@list_command("list")
@click.option("-a", "--list-all", is_flag=True, help="Those of all users; for superadmins.")
@click.option("--trash", is_flag=True, help="Those that were deleted and can be restored.")
def list_(list_all: bool, trash: bool) -> None:
    """List the folders that you may use."""
    list_folders(list_all, trash)


def _describe(folder: dict[str, Any]) -> dict[str, Any]:
    return {**folder, "owner": folder.get("user_email") or folder.get("group_name")}


def list_folders(list_all: bool, trash: bool) -> None:
    """Print the folders that the caller may use, or with ``list_all`` those of all users."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        folders = await api.VFolder.list(list_all, trash=trash)
        empty = "the trash is empty" if trash else "there are no folders"
        print_rows(screen, folders, COLUMNS, empty, describe=_describe)

    call(screen, work)


def _add_list(kind: str, what: str) -> None:
    def list_some(filter_: str | None, order: str | None) -> None:
        screen = screen_of()

        async def work(api: AsyncSession) -> None:
            folders: list[dict[str, Any]] = []
            total = 1
            while len(folders) < total:
                page = await api.VFolder.paginated_list(
                    root=f"vfolder_{kind}_list", page_offset=len(folders), page_size=100, filter=filter_, order=order
                )
                total = page.total_count if page.items else 0
                folders += page.items
            columns = [column for column in COLUMNS if column.key != "owner"]
            print_rows(screen, folders, columns, "there are no folders")

        call(screen, work)

    list_some.__doc__ = f"List {what}."
    option = click.option("--filter", "filter_", help="Such as 'name ilike \"data%\"'.")
    list_command(f"list-{kind}")(option(click.option("--order", help="Such as name or -created_at.")(list_some)))


_add_list("own", "your own folders")
_add_list("invited", "folders that others share with you")
_add_list("project", "folders of your groups")


@command("list-hosts")
def list_hosts() -> None:
    """List the storage hosts that you may use."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        hosts = await api.VFolder.list_hosts()
        if screen.is_json:
            screen.json(hosts)
        for host in hosts["allowed"]:
            screen.say(f"{host} (default)" if host == hosts["default"] else host)
        if not hosts["allowed"]:
            screen.inform("no storage host is open to you")

    call(screen, work)


@command("list-allowed-types")
def list_allowed_types() -> None:
    """List whose folders can be made."""
    print_reply(lambda api: api.VFolder.list_allowed_types(), "\n".join)


@command("create")
@click.argument("name")
@click.argument("host", required=False)
@click.option("-g", "--group", metavar="GROUP", help="Make it a folder of this group; for administrators.")
@click.option("-m", "--usage-mode", type=_USAGE, default="general", show_default=True, help="What it is for.")
@click.option("-p", "--permission", type=PERMISSION, default="rw", show_default=True, help="What members may do.")
@click.option("-q", "--quota", metavar="SIZE", help="Such as 10g, where the storage host has quotas.")
@click.option("--cloneable", is_flag=True, help="Let others who use it make copies.")
@click.option("--unmanaged-path", metavar="PATH", help="A directory of the nodes instead; for superadmins.")
def create(name: str, host: str | None, **options: Any) -> None:
    """Make a folder NAME on HOST, by default the default host."""
    print_reply(
        lambda api: api.VFolder.create(name, host, **options),
        lambda made: f"created {made['name']} on {made['host']} ({made['id']})",
    )


@command("info")
@click.argument("name")
def info(name: str) -> None:
    """Show the details of a folder, and how much is in it."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        folder = await (await open_folder(api, name)).info()
        if screen.is_json:
            screen.json(folder)
            return
        used = folder.get("used_bytes")
        screen.facts(
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
                ("Used", readable_size(used) if used is not None else None),
                ("Created", folder["created_at"]),
                ("Last used", folder.get("last_used")),
            ]
        )

    call(screen, work)


@command("rename")
@click.argument("old_name")
@click.argument("new_name")
def rename(old_name: str, new_name: str) -> None:
    """Give a folder another name."""
    text = f"renamed {old_name} to {new_name}"
    change_folder(old_name, lambda folder: folder.rename(new_name), {"renamed": new_name}, text)


@command("update-options")
@click.argument("name")
@click.option("-p", "--permission", type=PERMISSION, help="What members of the group may do.")
@click.option("-m", "--usage-mode", type=_USAGE, help="What it is for.")
@click.option("--set-cloneable", type=bool, metavar="true|false", help="Whether copies may be made.")
def update_options(name: str, permission: str | None, usage_mode: str | None, set_cloneable: bool | None) -> None:
    """Change the options of a folder."""

    async def act(folder: AsyncVFolder) -> None:
        await folder.update_options(cloneable=set_cloneable, permission=permission, usage_mode=usage_mode)

    change_folder(name, act, {"updated": name}, f"updated {name}")


def _each(names: Sequence[str], done: str, method: str) -> None:
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        for name in names:
            await getattr(await open_folder(api, name), method)()
            screen.say(f"{done} {name}")
        if screen.is_json:
            screen.json({done: list(names)})

    call(screen, work)


@command("delete")
@click.argument("names", nargs=-1, required=True)
def delete(names: tuple[str, ...]) -> None:
    """Move folders into the trash. `restore` takes them out, `purge` removes them for good."""
    _each(names, "deleted", "delete")


@command("restore")
@click.argument("names", nargs=-1, required=True)
def restore(names: tuple[str, ...]) -> None:
    """Take folders out of the trash."""
    _each(names, "restored", "restore")


vfolder.add_command(restore, "recover")


@command("purge")
@click.argument("names", nargs=-1, required=True)
@yes_option
def purge(names: tuple[str, ...], yes: bool) -> None:
    """Remove folders from the trash for good, with all their files."""
    confirm(f"Remove {', '.join(names)} with all files for good", is_confirmed=yes)
    _each(names, "purged", "purge")


vfolder.add_command(purge, "delete-trash")


@command("clone")
@click.argument("name")
@click.argument("target_name")
@click.argument("target_host", required=False)
@click.option("-m", "--usage-mode", type=_USAGE, default="general", show_default=True, help="What the copy is for.")
@click.option("-p", "--permission", type=PERMISSION, default="rw", show_default=True, help="What members may do.")
def clone(name: str, target_name: str, target_host: str | None, usage_mode: str, permission: str) -> None:
    """Make a folder TARGET_NAME with the files of NAME."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        folder = await open_folder(api, name)
        made = await folder.clone(target_name, target_host, permission=permission, usage_mode=usage_mode)
        with TransferBar(screen) as bar:

            def show(step: Progress) -> None:
                bar.update(target_name, int(step.current), int(step.total))

            await follow_task(api, screen, made["bgtask_id"], name="the clone", on_step=show)
        print_result(screen, await api.VFolder(made["id"]).info(), f"cloned {name} to {target_name}")

    call(screen, work)
