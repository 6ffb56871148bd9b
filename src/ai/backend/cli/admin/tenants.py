"""`backend.ai admin domain` and `backend.ai admin group`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ai.backend.cli.framework.confirmation import confirm, yes_option
from ai.backend.cli.framework.lazy import LazyGroup, Leaf, ListCommand
from ai.backend.cli.framework.objects import change, given, list_them, show_one, some_changes
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.params import json_option
from ai.backend.cli.framework.references import resolve
from ai.backend.cli.framework.values import describe_slots, short_id

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

domain = LazyGroup("domain", help="Domains.")
group = LazyGroup("group", help="Groups, also called projects.")
_NAME = click.argument("name")
COLUMNS = [
    Column("name", "Name"),
    Column("description", "Description"),
    Column("is_active", "Active"),
    Column("slots", "Resource Slots"),
    Column("allowed_vfolder_hosts", "Storage Hosts", is_wide=True),
]
GROUP_COLUMNS = [
    Column("name", "Name"),
    Column("id", "ID", short_id),
    Column("domain_name", "Domain"),
    *COLUMNS[1:],
]
HOST_PERMISSIONS = json_option(
    "--vfolder-host-perms",
    "--vfolder-host-permissions",
    "--vfhost-perms",
    "--allowed-vfolder-hosts",
    "allowed_vfolder_hosts",
    help='What may be done on which host: \'{"local:volume1": ["create-vfolder", "mount-in-session"]}\'.',
)


def _bounds(command: Any) -> Any:
    for option in (
        click.option("--integration-id", help="What other systems call it."),
        HOST_PERMISSIONS,
        json_option("--total-resource-slots", help='What its sessions may have together: \'{"cpu": "64"}\'.'),
        click.option("-d", "--description", help="What it is for."),
    ):
        command = option(command)
    return command


def _describe(tenant: dict[str, Any]) -> dict[str, Any]:
    return {**tenant, "slots": describe_slots(tenant.get("total_resource_slots"))}


# ---- domains ----


@domain.command("list", cls=ListCommand)
def domain_list() -> None:
    """List domains."""
    list_them(lambda api: api.Domain.list(), COLUMNS, "there are no domains", describe=_describe)


@domain.command("info", cls=Leaf)
@_NAME
def domain_info(name: str) -> None:
    """Show the domain NAME."""
    show_one(lambda api: api.Domain.detail(name), f"there is no domain {name}")


@domain.command("add", cls=Leaf)
@_NAME
@click.option("--inactive", is_flag=True, help="Nobody signs in yet.")
@_bounds
def domain_add(name: str, inactive: bool, **props: Any) -> None:
    """Make the domain NAME."""
    values = given(is_active=not inactive, **props)
    change(lambda api: api.Domain.create(name, **values), {"added": name}, f"added {name}")


@domain.command("update", cls=Leaf)
@_NAME
@click.option("--is-active", type=bool, help="Whether its users sign in.")
@_bounds
def domain_update(name: str, **props: Any) -> None:
    """Change the domain NAME; what is not named stays as it is."""
    values = some_changes(props, "--description")
    change(lambda api: api.Domain.update(name, **values), {"updated": name}, f"updated {name}")


@domain.command("delete", cls=Leaf)
@_NAME
def domain_delete(name: str) -> None:
    """Make the domain NAME inactive: its users sign in no more."""
    change(lambda api: api.Domain.delete(name), {"deleted": name}, f"{name} is inactive; `purge` removes it")


@domain.command("purge", cls=Leaf)
@_NAME
@yes_option
def domain_purge(name: str, yes: bool) -> None:
    """Remove the domain NAME for good; it must have neither users nor groups."""
    confirm(f"Remove the domain {name} for good", is_confirmed=yes)
    change(lambda api: api.Domain.purge(name), {"purged": name}, f"purged {name}")


# ---- groups ----


@group.command("list", cls=ListCommand)
@click.option("-d", "--domain-name", help="Only those of one domain.")
def group_list(domain_name: str | None) -> None:
    """List groups."""
    list_them(lambda api: api.Group.list(domain_name), GROUP_COLUMNS, "there are no groups", describe=_describe)


@group.command("info", cls=Leaf)
@click.argument("group")
def group_info(group: str) -> None:
    """Show GROUP (an id or a name)."""

    async def load(api: AsyncSession) -> dict[str, Any] | None:
        return await api.Group.detail(await group_id(api, group))

    show_one(load, f"there is no group {group}")


@group.command("add", cls=Leaf)
@click.argument("domain_name")
@_NAME
@click.option("-i", "--inactive", is_flag=True, help="Nobody makes sessions in it yet.")
@click.option("--type", "type_", type=click.Choice(["GENERAL", "MODEL_STORE"]), help="GENERAL by default.")
@click.option("--resource-policy", help="The project resource policy.")
@_bounds
def group_add(domain_name: str, name: str, inactive: bool, type_: str | None, **props: Any) -> None:
    """Make the group NAME of a domain."""
    values = given(is_active=not inactive, type=type_, **props)
    change(lambda api: api.Group.create(domain_name, name, **values), {"added": name}, f"added {name}")


@group.command("update", cls=Leaf)
@click.argument("group")
@click.option("-n", "--name", help="Another name.")
@click.option("--is-active", type=bool, help="Whether sessions may be made in it.")
@click.option("--resource-policy", help="The project resource policy.")
@_bounds
def group_update(group: str, **props: Any) -> None:
    """Change GROUP (an id or a name); what is not named stays as it is."""
    values = some_changes(props, "--description")

    async def work(api: AsyncSession) -> None:
        await api.Group.update(await group_id(api, group), **values)

    change(work, {"updated": group}, f"updated {group}")


@group.command("delete", cls=Leaf)
@click.argument("group")
def group_delete(group: str) -> None:
    """Make GROUP (an id or a name) inactive: nobody makes sessions in it any more."""

    async def work(api: AsyncSession) -> None:
        await api.Group.delete(await group_id(api, group))

    change(work, {"deleted": group}, f"{group} is inactive; `purge` removes it")


@group.command("purge", cls=Leaf)
@click.argument("group")
@yes_option
def group_purge(group: str, yes: bool) -> None:
    """Remove GROUP (an id or a name) for good, with its folders; none of its sessions may live."""
    confirm(f"Remove the group {group} with its folders for good", is_confirmed=yes)

    async def work(api: AsyncSession) -> None:
        await api.Group.purge(await group_id(api, group))

    change(work, {"purged": group}, f"purged {group}")


@group.command("add-users", cls=Leaf)
@click.argument("group")
@click.argument("users", nargs=-1, required=True)
def add_users(group: str, users: tuple[str, ...]) -> None:
    """Let USERS (ids or e-mail addresses) join GROUP."""

    async def work(api: AsyncSession) -> None:
        await api.Group.add_users(await group_id(api, group), [await _user_id(api, user) for user in users])

    change(work, {"group": group, "added": list(users)}, f"{', '.join(users)} joined {group}")


@group.command("remove-users", cls=Leaf)
@click.argument("group")
@click.argument("users", nargs=-1, required=True)
def remove_users(group: str, users: tuple[str, ...]) -> None:
    """Let USERS (ids or e-mail addresses) leave GROUP; their sessions go on."""

    async def work(api: AsyncSession) -> None:
        await api.Group.remove_users(await group_id(api, group), [await _user_id(api, user) for user in users])

    change(work, {"group": group, "removed": list(users)}, f"{', '.join(users)} left {group}")


async def group_id(api: AsyncSession, ref: str) -> str:
    """Return the id of a group by its name, its id or a beginning of its id.

    Raises:
        click.ClickException: there is none, or several.
    """
    ref = await resolve(ref, api.Group.list, kind="group")
    try:
        return str(UUID(ref))
    except ValueError:
        pass
    groups = await api.Group.from_name(ref, fields=["id"])
    if not groups:
        raise click.ClickException(f"there is no group {ref!r}")
    if len(groups) > 1:
        raise click.ClickException(f"{len(groups)} groups are called {ref!r}: use an id")
    return str(groups[0]["id"])


async def _user_id(api: AsyncSession, ref: str) -> str:
    return str((await api.User.detail(ref, ["uuid"]))["uuid"]) if "@" in ref else ref
