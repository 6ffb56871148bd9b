"""`backend.ai admin vfolder`, `admin storage` and `admin permission`: folders of all users, and the volumes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import LazyGroup, Leaf, ListCommand, screen_of
from ai.backend.cli.framework.objects import change, list_them, print_reply, show_one
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.values import readable_size
from ai.backend.cli.vfolder.commands import list_folders
from ai.backend.cli.vfolder.group import PERMISSION, folder_id
from ai.backend.cli.vfolder.sharing import list_shares

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

vfolder = LazyGroup("vfolder", help="Folders of all users.")
storage = LazyGroup("storage", help="The volumes of the storage proxies.")
permission = LazyGroup("permission", help="What may be done on a storage host.")

_VOLUME_COLUMNS = [
    Column("id", "Host"),
    Column("backend", "Backend"),
    Column("path", "Path"),
    Column("capabilities", "Capabilities", is_wide=True),
]


@vfolder.command("list", cls=ListCommand)
@click.option("-a", "--list-all", is_flag=True, hidden=True, help="As it is anyhow; the published command has it.")
@click.option("--trash", is_flag=True, help="Those that were deleted and can be restored.")
def list_all_folders(list_all: bool, trash: bool) -> None:
    """List the folders of all users."""
    list_folders(True, trash)


@vfolder.command("list-hosts", cls=Leaf)
def list_hosts() -> None:
    """List all storage hosts of the cluster."""
    print_reply(lambda api: api.VFolder.list_all_hosts(), lambda hosts: "\n".join(hosts["allowed"]))


@vfolder.command("change-vfolder-ownership", cls=Leaf)
@click.argument("vfolder_id")
@click.argument("user_email")
def change_ownership(vfolder_id: str, user_email: str) -> None:
    """Give the folder VFOLDER_ID to the user USER_EMAIL. Its files stay where they are."""

    async def work(api: AsyncSession) -> dict[str, Any]:
        full_id = await folder_id(api, vfolder_id, is_of_anybody=True)
        await api.VFolder.change_ownership(full_id, user_email)
        return {"vfolder": full_id}

    change(work, {"owner": user_email}, f"{vfolder_id} is now of {user_email}")


@vfolder.command("perf-metric", cls=Leaf)
@click.argument("vfolder_host")
def perf_metric(vfolder_host: str) -> None:
    """Show what the volume VFOLDER_HOST has read and written."""
    show_one(lambda api: api.Storage.performance_metric(vfolder_host), f"there is no volume {vfolder_host}")


@vfolder.command("list-mounts", cls=Leaf)
def list_mounts() -> None:
    """Show what the volumes of each storage proxy lie on."""

    def describe(mounts: Mapping[str, Any]) -> str:
        nodes = mounts["storage_proxy"].items()
        return "\n".join(f"{proxy}: {line}" for proxy, node in nodes for line in node["mounts"])

    print_reply(lambda api: api.Storage.list_mounts(), describe)


@vfolder.command("update-shared-vf-permission", cls=Leaf)
@click.argument("vfolder_id")
@click.argument("user_id")
@click.option("-p", "--permission", "perm", type=PERMISSION, required=True, help="What they may do.")
def update_shared(vfolder_id: str, user_id: str, perm: str) -> None:
    """Change what the user USER_ID may do with the folder VFOLDER_ID."""
    _set_share(vfolder_id, user_id, perm)


@vfolder.command("remove-shared-vf-permission", cls=Leaf)
@click.argument("vfolder_id")
@click.argument("user_id")
def remove_shared(vfolder_id: str, user_id: str) -> None:
    """End the share of the user USER_ID in the folder VFOLDER_ID."""
    _set_share(vfolder_id, user_id, None)


def _set_share(vfolder_id: str, user_id: str, perm: str | None) -> None:

    async def work(api: AsyncSession) -> dict[str, Any]:
        full_id = await folder_id(api, vfolder_id, is_of_anybody=True)
        await api.VFolder.update_shared(full_id, user_id, perm)
        return {"vfolder": full_id}

    done = "changed" if perm is not None else "ended"
    change(work, {"user": user_id, "perm": perm}, f"the share is {done}")


@vfolder.command("shared-vfolder-info", cls=ListCommand)
@click.argument("vfolder_id")
def shared_info(vfolder_id: str) -> None:
    """Show who shares the folder VFOLDER_ID."""
    list_shares(vfolder_id)


@vfolder.command("list-shared-vfolders", cls=ListCommand)
def list_shared() -> None:
    """List who shares your folders."""
    list_shares(None)


@storage.command("list", cls=ListCommand)
@click.option("--filter", "filter_", help="Such as 'backend == \"xfs\"'.")
@click.option("--order", help="Such as id or -id.")
def storage_list(filter_: str | None, order: str | None) -> None:
    """List the volumes."""

    async def load(api: AsyncSession) -> list[dict[str, Any]]:
        return list((await api.Storage.paginated_list(page_size=100, filter=filter_, order=order)).items)

    list_them(load, _VOLUME_COLUMNS, "there are no volumes")


@storage.command("info", cls=Leaf)
@click.argument("vfolder_host")
def storage_info(vfolder_host: str) -> None:
    """Show one volume."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        volume: dict[str, Any] | None = await api.Storage.detail(vfolder_host)
        if volume is None:
            screen.fail(f"there is no volume {vfolder_host}")
        elif screen.is_json:
            screen.json(volume)
        else:
            screen.facts(_flatten(volume))

    call(screen, work)


def _flatten(volume: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each fact, also those of documents inside; bytes in human units."""
    for name, value in volume.items():
        inner = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
        if isinstance(inner, dict):
            yield from _flatten(inner)
        elif "bytes" in name and isinstance(inner, int):
            yield name.replace("_bytes", "").replace("_", " "), readable_size(inner)
        else:
            yield name.replace("_", " "), inner


@permission.command("list", cls=Leaf)
def permission_list() -> None:
    """List the permissions that --vfolder-host-perms takes."""

    async def load(api: AsyncSession) -> dict[str, Any]:
        reply = await api.Admin.query("{ vfolder_host_permissions { vfolder_host_permission_list } }")
        return dict(reply["vfolder_host_permissions"])

    print_reply(load, lambda permissions: "\n".join(permissions["vfolder_host_permission_list"]))
