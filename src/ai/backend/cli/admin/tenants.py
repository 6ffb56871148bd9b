"""`backend.ai admin domain` and `backend.ai admin group`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ai.backend.cli.framework.lazy import LazyGroup, ListCommand
from ai.backend.cli.framework.objects import (
    NamedObjects,
    add_object_commands,
    change,
    given_options,
    list_objects,
    list_page,
    required_changes,
    show_object,
)
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import confirm, json_option, negated_flag, options, paging, yes_option
from ai.backend.cli.framework.references import resolve
from ai.backend.cli.framework.values import describe_slots

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

domain = LazyGroup("domain", help="Domains.")
group = LazyGroup("group", help="Groups, also called projects.")
_NAME_ARGUMENT = click.argument("name")
_GROUP_ARGUMENT = click.argument("group")
_USERS_ARGUMENT = click.argument("users", nargs=-1, required=True)
_POLICY_OPTION = click.option("--resource-policy", help="The project resource policy.")
MEMBER_COLUMNS = columns(
    "email | full_name | status | is_admin: Administrator | live_sessions/number: Sessions | uuid/wide: UUID"
)
COLUMNS = columns(
    "name | description | is_active: Active | slots: Resource Slots | allowed_vfolder_hosts/wide: Storage Hosts"
)
GROUP_COLUMNS = [*columns("name | id/short: ID | domain_name: Domain"), *COLUMNS[1:]]
HOST_PERMISSIONS = json_option(
    "--vfolder-host-perms",
    "--vfolder-host-permissions",
    "--vfhost-perms",
    "--allowed-vfolder-hosts",
    "allowed_vfolder_hosts",
    help='What may be done on which host: \'{"local:volume1": ["create-vfolder", "mount-in-session"]}\'.',
)
_tenant_options = options(
    click.option("-d", "--description", help="What it is for."),
    json_option("--total-resource-slots", help='What its sessions may have together: \'{"cpu": "64"}\'.'),
    HOST_PERMISSIONS,
    click.option("--integration-id", help="What other systems call it."),
)


def _tenant_row(tenant: dict[str, Any]) -> dict[str, Any]:
    return {**tenant, "slots": describe_slots(tenant.get("total_resource_slots"))}


add_object_commands(
    domain,
    NamedObjects(
        area="Domain",
        noun=("domain", "domains"),
        columns=COLUMNS,
        has_detail=True,
        add_options=negated_flag("--inactive", "is_active", help="Nobody signs in yet."),
        update_options=click.option("--is-active", type=bool, help="Whether its users sign in."),
        options=_tenant_options,
        example="--description",
        describe=_tenant_row,
        delete_help="Make the domain NAME inactive: its users sign in no more.",
        deleted="{name} is inactive; `purge` removes it",
    ),
)


@domain.command("purge")
@_NAME_ARGUMENT
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
    list_objects(lambda api: api.Group.list(domain_name), GROUP_COLUMNS, "there are no groups", describe=_tenant_row)


def _request_with_group(reference: str, action: Callable[[AsyncSession, str], Awaitable[Any]]) -> Any:
    """Returns a request that calls ``action`` with the id of the group that ``reference`` means."""

    async def call_action(api: AsyncSession) -> Any:
        return await action(api, await group_id(api, reference))

    return call_action


@group.command("info")
@_GROUP_ARGUMENT
def group_info(group: str) -> None:
    """Show GROUP (an id or a name)."""
    show_object(_request_with_group(group, lambda api, gid: api.Group.detail(gid)), f"there is no group {group}")


@group.command("add")
@click.argument("domain_name")
@_NAME_ARGUMENT
@negated_flag("-i", "--inactive", "is_active", help="Nobody makes sessions in it yet.")
@click.option("--type", "type", type=click.Choice(["GENERAL", "MODEL_STORE"]), help="GENERAL by default.")
@_POLICY_OPTION
@_tenant_options
def group_add(domain_name: str, name: str, **props: Any) -> None:
    """Make the group NAME of a domain."""
    given_values = given_options(**props)
    change(lambda api: api.Group.create(domain_name, name, **given_values), {"added": name}, f"added {name}")


@group.command("update")
@_GROUP_ARGUMENT
@click.option("-n", "--name", help="Another name.")
@click.option("--is-active", type=bool, help="Whether sessions may be made in it.")
@_POLICY_OPTION
@_tenant_options
def group_update(group: str, **props: Any) -> None:
    """Change GROUP (an id or a name); what is not named stays as it is."""
    changed_values = required_changes(props, "--description")
    send_update = _request_with_group(group, lambda api, gid: api.Group.update(gid, **changed_values))
    change(send_update, {"updated": group}, f"updated {group}")


@group.command("delete")
@_GROUP_ARGUMENT
def group_delete(group: str) -> None:
    """Make GROUP (an id or a name) inactive: nobody makes sessions in it any more."""
    delete_request = _request_with_group(group, lambda api, gid: api.Group.delete(gid))
    change(delete_request, {"deleted": group}, f"{group} is inactive; `purge` removes it")


@group.command("purge")
@_GROUP_ARGUMENT
@yes_option
def group_purge(group: str, yes: bool) -> None:
    """Remove GROUP (an id or a name) for good, with its folders; none of its sessions may live."""
    confirm(f"Remove the group {group} with its folders for good", is_confirmed=yes)
    change(_request_with_group(group, lambda api, gid: api.Group.purge(gid)), {"purged": group}, f"purged {group}")


@group.command("members", cls=ListCommand)
@_GROUP_ARGUMENT
@paging
def group_members(group: str, **page: Any) -> None:
    """List the members of GROUP (an id or a name), and what they have at work in it."""
    members_request = _request_with_group(group, lambda api, gid: api.Group.members(gid, **page))
    list_page(members_request, MEMBER_COLUMNS, "it has no members")


@group.command("add-users")
@_GROUP_ARGUMENT
@_USERS_ARGUMENT
def add_users(group: str, users: tuple[str, ...]) -> None:
    """Let USERS (ids or e-mail addresses) join GROUP."""
    _change_members(group, users, "added", f"{', '.join(users)} joined {group}")


@group.command("remove-users")
@_GROUP_ARGUMENT
@_USERS_ARGUMENT
def remove_users(group: str, users: tuple[str, ...]) -> None:
    """Let USERS (ids or e-mail addresses) leave GROUP: they start no more sessions in it and lose its folders; sessions
    that they have go on."""
    _change_members(group, users, "removed", f"{', '.join(users)} left {group}")


@group.command("add-admins")
@_GROUP_ARGUMENT
@_USERS_ARGUMENT
def add_admins(group: str, users: tuple[str, ...]) -> None:
    """Let members USERS (ids or e-mail addresses) administrate GROUP: its members, folders and dotfiles."""
    _change_members(group, users, "admins", f"{', '.join(users)} administrate {group}")


@group.command("remove-admins")
@_GROUP_ARGUMENT
@_USERS_ARGUMENT
def remove_admins(group: str, users: tuple[str, ...]) -> None:
    """Make USERS (ids or e-mail addresses), who administrate GROUP, plain members."""
    _change_members(group, users, "members", f"{', '.join(users)} are plain members of {group}")


def _change_members(group: str, users: tuple[str, ...], past_verb: str, result_text: str) -> None:
    async def change_group(api: AsyncSession, group_uuid: str) -> None:
        group_api = api.Group
        methods_by_verb = {
            "added": group_api.add_users,
            "removed": group_api.remove_users,
            "admins": group_api.add_admins,
        }
        await methods_by_verb.get(past_verb, group_api.remove_admins)(group_uuid, users)

    change(_request_with_group(group, change_group), {"group": group, past_verb: list(users)}, result_text)


async def group_id(api: AsyncSession, reference: str) -> str:
    """Returns the id of a group by its name, its id or a beginning of its id.

    Raises click.ClickException if there is none, or several.
    """
    reference = await resolve(reference, api.Group.list, kind="group")
    try:
        return str(UUID(reference))
    except ValueError:
        pass  # it is a name
    groups = await api.Group.from_name(reference, fields=["id"])
    if not groups:
        raise click.ClickException(f"there is no group {reference!r}")
    if len(groups) > 1:
        raise click.ClickException(f"{len(groups)} groups are called {reference!r}: use an id")
    return str(groups[0]["id"])
