"""`backend.ai vfolder`: whole folders (spec 03-11, "Storage Management"); files and shares have their own modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli import vfolder_files, vfolder_sharing
from ai.backend.cli.calling import call
from ai.backend.cli.lazy import screen_of
from ai.backend.cli.transfer_bar import TransferBar, readable_size
from ai.backend.cli.vfolder_group import PERMISSION, command, show, tell, vfolder

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

__all__ = ["vfolder", "vfolder_files", "vfolder_sharing"]
_USAGE = click.Choice(["general", "data", "model"])
_COLUMNS = [
    ("name", "Name"),
    ("host", "Host"),
    ("ownership_type", "Owner type"),
    ("user_email", "Owner"),
    ("group_name", "Group"),
    ("permission", "Permission"),
    ("usage_mode", "Usage"),
    ("created_at", "Created"),
    ("id", "ID"),
]


@command("list")
@click.option("-a", "--list-all", is_flag=True, help="Those of all users; for superadmins.")
@click.option("--trash", is_flag=True, help="Those that were deleted and can be restored.")
def list_(list_all: bool, trash: bool) -> None:
    """List the folders that you may use."""
    list_folders(list_all, trash)


def list_folders(list_all: bool, trash: bool) -> None:
    """Those that the caller may use, or with ``list_all`` those of all users."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.VFolder.list(list_all, trash=trash)
        show(screen, found, _COLUMNS, "the trash is empty" if trash else "there are no folders")

    call(screen, work)


def _add_list(kind: str, what: str) -> None:
    def list_some(filter_: str | None, order: str | None) -> None:
        screen = screen_of()

        async def work(api: AsyncSession) -> None:
            found: list[dict[str, Any]] = []
            total = 1
            while len(found) < total:
                page = await api.VFolder.paginated_list(
                    root=f"vfolder_{kind}_list", page_offset=len(found), page_size=100, filter=filter_, order=order
                )
                total = page.total_count if page.items else 0
                found += page.items
            columns = [pair for pair in _COLUMNS if pair[0] not in ("user_email", "group_name")]
            show(screen, found, columns, "there are no folders")

        call(screen, work)

    list_some.__doc__ = f"List {what}."
    option = click.option("--filter", "filter_", help="Such as 'name ilike \"data%\"'.")
    command(f"list-{kind}")(option(click.option("--order", help="Such as name or -created_at.")(list_some)))


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
            screen.note("no storage host is open to you")

    call(screen, work)


@command("list-allowed-types")
def list_allowed_types() -> None:
    """List whose folders can be made."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        types = list(await api.VFolder.list_allowed_types())
        tell(screen, types, "\n".join(types))

    call(screen, work)


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
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        made = await api.VFolder.create(name, host, **options)
        tell(screen, made, f"created {made['name']} on {made['host']} ({made['id']})")

    call(screen, work)


@command("info")
@click.argument("name")
def info(name: str) -> None:
    """Show what is known about a folder, and how much is in it."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        found = await api.VFolder(name).info()
        if screen.is_json:
            screen.json(found)
            return
        used = found.get("used_bytes")
        screen.facts(
            [
                ("Name", found["name"]),
                ("ID", found["id"]),
                ("Host", found["host"]),
                ("Status", found["status"]),
                ("Owner", found.get("user_email") or found.get("group_name")),
                ("You are the owner", found["is_owner"]),
                ("Permission", found["permission"]),
                ("Usage", found["usage_mode"]),
                ("Cloneable", found["cloneable"]),
                ("Files", found.get("num_files")),
                ("Used", readable_size(used) if used is not None else None),
                ("Created", found["created_at"]),
                ("Last used", found.get("last_used")),
            ]
        )

    call(screen, work)


@command("rename")
@click.argument("old_name")
@click.argument("new_name")
def rename(old_name: str, new_name: str) -> None:
    """Give a folder another name."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.VFolder(old_name).rename(new_name)
        tell(screen, {"renamed": new_name}, f"renamed {old_name} to {new_name}")

    call(screen, work)


@command("update-options")
@click.argument("name")
@click.option("-p", "--permission", type=PERMISSION, help="What members of the group may do.")
@click.option("-m", "--usage-mode", type=_USAGE, help="What it is for.")
@click.option("--set-cloneable", type=bool, metavar="true|false", help="Whether copies may be made.")
def update_options(name: str, permission: str | None, usage_mode: str | None, set_cloneable: bool | None) -> None:
    """Change the options of a folder."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        await api.VFolder(name).update_options(cloneable=set_cloneable, permission=permission, usage_mode=usage_mode)
        tell(screen, {"updated": name}, f"updated {name}")

    call(screen, work)


def _each(names: Sequence[str], done: str, method: str) -> None:
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        for name in names:
            await getattr(api.VFolder(name), method)()
            screen.say(f"{done} {name}")
        if screen.is_json:
            screen.json({done: list(names)})

    call(screen, work)


@command("delete")
@click.argument("names", nargs=-1, required=True)
def delete(names: tuple[str, ...]) -> None:
    """Move folders into the trash. `restore` takes them out, `purge` removes them for ever."""
    _each(names, "deleted", "delete")


@command("restore")
@click.argument("names", nargs=-1, required=True)
def restore(names: tuple[str, ...]) -> None:
    """Take folders out of the trash."""
    _each(names, "restored", "restore")


vfolder.add_command(restore, "recover")


@command("purge")
@click.argument("names", nargs=-1, required=True)
def purge(names: tuple[str, ...]) -> None:
    """Remove folders from the trash for ever, with all their files."""
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
        made = await api.VFolder(name).clone(target_name, target_host, permission=permission, usage_mode=usage_mode)
        with TransferBar(screen) as bar:
            async for step in api.BackgroundTask(made["bgtask_id"]).progress():
                bar.update(target_name, int(step.current), int(step.total))
                if step.is_final and step.state != "done":
                    bar.close()
                    screen.fail(f"the clone is {step.state}: {step.message}")
                if step.is_final:
                    break
        tell(screen, await api.VFolder(made["id"]).info(), f"cloned {name} to {target_name}")

    call(screen, work)
