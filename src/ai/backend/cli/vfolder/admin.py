"""`backend.ai admin vfolder`, `admin storage` and `admin permission`: folders of all users, and the volumes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import LazyGroup, ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import parse_json_values, print_reply, show_object
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.values import readable_size
from ai.backend.cli.vfolder.commands import list_folders
from ai.backend.cli.vfolder.group import PERMISSION, folder_id
from ai.backend.cli.vfolder.sharing import list_shares

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

vfolder = LazyGroup("vfolder", help="Folders of all users.")
storage = LazyGroup("storage", help="The volumes of the storage proxies.")
permission = LazyGroup("permission", help="What may be done on a storage host.")
_HOST_ARGUMENT = click.argument("vfolder_host")
_FOLDER_ARGUMENT = click.argument("vfolder_id")
_USER_ARGUMENT = click.argument("user_id")


@vfolder.command("list", cls=ListCommand)
@click.option("-a", "--list-all", is_flag=True, hidden=True, help="As it is anyhow; the published command has it.")
@click.option("--trash", is_flag=True, help="Those that were deleted and can be restored.")
async def list_all_folders(api: AsyncSession, list_all: bool, trash: bool) -> None:
    """List the folders of all users."""
    await list_folders(api, True, trash)


@vfolder.command("list-hosts")
def list_hosts() -> None:
    """List all storage hosts of the cluster."""
    print_reply(lambda api: api.VFolder.list_all_hosts(), lambda hosts: "\n".join(hosts["allowed"]))


@vfolder.command("change-vfolder-ownership")
@_FOLDER_ARGUMENT
@click.argument("user_email")
async def change_ownership(api: AsyncSession, vfolder_id: str, user_email: str) -> Outcome:
    """Give the folder VFOLDER_ID to the user USER_EMAIL. Its files stay where they are."""
    full_id = await folder_id(api, vfolder_id, is_of_anybody=True)
    await api.VFolder.change_ownership(full_id, user_email)
    return {"owner": user_email, "vfolder": full_id}, f"{vfolder_id} is now of {user_email}"


@vfolder.command("perf-metric")
@_HOST_ARGUMENT
def perf_metric(vfolder_host: str) -> None:
    """Show the read and write counters of the volume VFOLDER_HOST."""
    show_object(lambda api: api.Storage.performance_metric(vfolder_host), f"there is no volume {vfolder_host}")


@vfolder.command("list-mounts")
def list_mounts() -> None:
    """Show the mounts under the volumes of each storage proxy."""

    def describe(mounts: Mapping[str, Any]) -> str:
        proxies = mounts["storage_proxy"].items()
        return "\n".join(
            f"{proxy_name}: {mount}" for proxy_name, proxy_mounts in proxies for mount in proxy_mounts["mounts"]
        )

    print_reply(lambda api: api.Storage.list_mounts(), describe)


@vfolder.command("update-shared-vf-permission")
@_FOLDER_ARGUMENT
@_USER_ARGUMENT
@click.option("-p", "--permission", "perm", type=PERMISSION, required=True, help="What they may do.")
async def update_shared(api: AsyncSession, vfolder_id: str, user_id: str, perm: str) -> Outcome:
    """Change what the user USER_ID may do with the folder VFOLDER_ID."""
    return await _change_share(api, vfolder_id, user_id, perm)


@vfolder.command("remove-shared-vf-permission")
@_FOLDER_ARGUMENT
@_USER_ARGUMENT
async def remove_shared(api: AsyncSession, vfolder_id: str, user_id: str) -> Outcome:
    """End the share of the user USER_ID in the folder VFOLDER_ID."""
    return await _change_share(api, vfolder_id, user_id, None)


async def _change_share(api: AsyncSession, vfolder_id: str, user_id: str, perm: str | None) -> Outcome:
    full_id = await folder_id(api, vfolder_id, is_of_anybody=True)
    await api.VFolder.update_shared(full_id, user_id, perm)
    result_text = f"the share is {'changed' if perm is not None else 'ended'}"
    return {"user": user_id, "perm": perm, "vfolder": full_id}, result_text


@vfolder.command("shared-vfolder-info", cls=ListCommand)
@_FOLDER_ARGUMENT
async def shared_info(api: AsyncSession, vfolder_id: str) -> None:
    """Show who shares the folder VFOLDER_ID."""
    await list_shares(api, vfolder_id)


@vfolder.command("list-shared-vfolders", cls=ListCommand)
async def list_shared(api: AsyncSession) -> None:
    """List who shares your folders."""
    await list_shares(api, None)


@storage.command("list", cls=ListCommand)
@click.option("--filter", "filter", help="Such as 'backend == \"xfs\"'.")
@click.option("--order", help="Such as id or -id.")
async def storage_list(api: AsyncSession, **query: Any) -> None:
    """List the volumes."""
    page = await api.Storage.paginated_list(page_size=100, **query)
    volume_columns = columns("id: Host | backend | path | capabilities/wide")
    screen_of().print_rows(list(map(parse_json_values, page.items)), volume_columns, "there are no volumes")


@storage.command("info")
@_HOST_ARGUMENT
async def storage_info(api: AsyncSession, vfolder_host: str) -> None:
    """Show one volume."""
    screen = screen_of()
    volume = await api.Storage.detail(vfolder_host)
    if volume is None:
        screen.fail(f"there is no volume {vfolder_host}")
    elif screen.is_json:
        screen.print_json(volume)
    else:
        screen.print_facts(_flatten_volume(volume))


def _flatten_volume(volume: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the name and value of each property of a volume, also of nested ones; bytes in human units."""
    for name, value in volume.items():
        parsed_value = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
        if isinstance(parsed_value, dict):
            yield from _flatten_volume(parsed_value)
        elif "bytes" in name and isinstance(parsed_value, int):
            yield name.replace("_bytes", "").replace("_", " "), readable_size(parsed_value)
        else:
            yield name.replace("_", " "), parsed_value


@permission.command("list")
async def permission_list(api: AsyncSession) -> Outcome:
    """List the permissions that --vfolder-host-perms takes, by storage host."""
    permissions = await api.Admin.select("vfolder_host_permissions", ["vfolder_host_permission_list"])
    screen_of().inform(
        "`admin etcd set volumes/blocked/HOST` takes these words, and clone-vfolder, for what nobody may do"
    )
    return permissions, "\n".join(permissions["vfolder_host_permission_list"])
