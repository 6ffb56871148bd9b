"""`backend.ai admin user` and `backend.ai admin keypair`, for administrators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.confirmation import confirm, yes_option
from ai.backend.cli.framework.lazy import LazyGroup, Leaf, ListCommand
from ai.backend.cli.framework.objects import change, given, page_them, paging, show_one, some_changes
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.values import relative_time

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

user = LazyGroup("user", help="Users.")
_EMAIL = click.argument("email")
_STATUS = "active, inactive, deleted or before-verification."
USER_COLUMNS = [
    Column("email", "Email"),
    Column("username", "Username", is_wide=True),
    Column("full_name", "Full Name"),
    Column("role", "Role"),
    Column("status", "Status"),
    Column("domain_name", "Domain"),
    Column("groups", "Groups", is_wide=True),
    Column("uuid", "UUID", is_wide=True),
]
KEYPAIR_COLUMNS = [
    Column("user_id", "User"),
    Column("access_key", "Access Key"),
    Column("is_active", "Active"),
    Column("is_admin", "Admin", is_wide=True),
    Column("resource_policy", "Policy"),
    Column("rate_limit", "Rate Limit", is_wide=True),
    Column("concurrency_used", "Sessions", is_number=True),
    Column("last_used", "Last Used", relative_time),
]


def _networks(_ctx: click.Context, _param: click.Parameter, value: str | None) -> list[str] | None:
    return [part.strip() for part in value.split(",") if part.strip()] if value is not None else None


def _described(command: Any) -> Any:
    """Options of `user add` and `user update`."""
    for option in (
        click.option("--resource-policy", help="The user resource policy."),
        click.option(
            "--allowed-ip",
            "allowed_client_ip",
            callback=_networks,
            help="Networks or addresses that they may come from, with commas; an empty text: from anywhere.",
        ),
        click.option("--description", help="What is to be known about them."),
        click.option("-s", "--status", help=_STATUS),
        click.option("-r", "--role", help="user, admin, superadmin or monitor."),
        click.option("-n", "--full-name", help="Their name."),
        click.option("-u", "--username", help="By default what of the address is one."),
    ):
        command = option(command)
    return command


@user.command("list", cls=ListCommand)
@click.option("-s", "--status", help=f"Only those of one status: {_STATUS}")
@click.option("-g", "--group", metavar="UUID", help="Only members of a group (project), by its id.")
@paging
def user_list(
    status: str | None, group: str | None, filter_: str | None, order: str | None, offset: int, limit: int
) -> None:
    """List users."""

    def load(api: AsyncSession) -> Any:
        return api.User.paginated_list(status, group, page_offset=offset, page_size=limit, filter=filter_, order=order)

    page_them(load, USER_COLUMNS, "there are no such users", describe=_describe_user)


def _describe_user(user: dict[str, Any]) -> dict[str, Any]:
    return {**user, "groups": [group.get("name") for group in user.get("groups") or ()]}


@user.command("info", cls=Leaf)
@click.option("-e", "--email", help="Yourself by default.")
def user_info(email: str | None) -> None:
    """Show a user."""
    show_one(lambda api: api.User.detail(email), "there is no such user")


@user.command("add", cls=Leaf)
@click.argument("domain_name")
@_EMAIL
@click.argument("password")
@click.option("--need-password-change", is_flag=True, default=None, help="They are to choose another password.")
@click.option("-g", "--group", "group_ids", metavar="UUID", multiple=True, help="A group to join; `default` if none.")
@_described
def user_add(domain_name: str, email: str, password: str, group_ids: tuple[str, ...], **props: Any) -> None:
    """Make a user of a domain, with a keypair. A PASSWORD of - is asked for."""
    if password == "-":  # a mark and no password
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    values = given(**props, group_ids=list(group_ids) or None)
    change(lambda api: api.User.create(domain_name, email, password, **values), {"added": email}, f"added {email}")


@user.command("update", cls=Leaf)
@_EMAIL
@click.option("-p", "--password", help="A new password.")
@click.option("-d", "--domain-name", help="Another domain; they leave the groups of the old one.")
@click.option("--need-password-change", type=bool, help="Whether they are to choose another password.")
@click.option("--main-access-key", help="Which of their keypairs stands for them.")
@_described
def user_update(email: str, **props: Any) -> None:
    """Change the user EMAIL; what is not named stays as it is."""
    values = some_changes(props, "--role")
    change(lambda api: api.User.update(email, **values), {"updated": email}, f"updated {email}")


@user.command("delete", cls=Leaf)
@_EMAIL
def user_delete(email: str) -> None:
    """Delete the user EMAIL: keypairs are inactive at once and sessions end; the rest is kept until `purge`."""
    change(lambda api: api.User.delete(email), {"deleted": email}, f"deleted {email}; `purge` removes the rest")


@user.command("purge", cls=Leaf)
@_EMAIL
@click.option("--purge-shared-vfolders", is_flag=True, help="Remove folders that others share too.")
@yes_option
def user_purge(email: str, purge_shared_vfolders: bool, yes: bool) -> None:
    """Remove the user EMAIL for good, with sessions and folders. Folders that others share become yours."""
    confirm(f"Remove {email} with all sessions and folders for good", is_confirmed=yes)
    props = {"purge_shared_vfolders": purge_shared_vfolders}
    change(lambda api: api.User.purge(email, **props), {"purged": email}, f"purged {email}")


# ---- keypairs; the group is in group.py, with the commands that everybody has ---------------------------


@click.command("list", cls=ListCommand)
@click.option("-u", "--user-id", metavar="EMAIL", help="Only those of one user.")
@click.option("--is-active", type=bool, help="Only active ones, or only others.")
@paging
def keypair_list(
    user_id: str | None, is_active: bool | None, filter_: str | None, order: str | None, offset: int, limit: int
) -> None:
    """List keypairs."""

    def load(api: AsyncSession) -> Any:
        return api.KeyPair.paginated_list(
            is_active=is_active, user_id=user_id, page_offset=offset, page_size=limit, filter=filter_, order=order
        )

    page_them(load, KEYPAIR_COLUMNS, "there are no such keypairs")


@click.command("add", cls=Leaf)
@click.argument("user_id")
@click.argument("resource_policy")
@click.option("-a", "--admin", is_flag=True, default=None, help="Tell clients that it is an administrator's.")
@click.option("-i", "--inactive", is_flag=True, help="Make it inactive.")
@click.option("-r", "--rate-limit", type=click.IntRange(0), help="Requests in 15 minutes; 0: any number.")
def keypair_add(user_id: str, resource_policy: str, admin: bool | None, inactive: bool, rate_limit: int | None) -> None:
    """Make a keypair of the user USER_ID (an e-mail address) and print it. The secret key is never shown again."""
    props = given(is_admin=admin, is_active=not inactive, resource_policy=resource_policy, rate_limit=rate_limit)
    change(lambda api: api.KeyPair.create(user_id, **props), {"added": user_id}, "", lines=_new_keypair)


def _new_keypair(made: dict[str, Any]) -> str:
    return f"Access Key: {made['access_key']}\nSecret Key: {made['secret_key']}"


@click.command("update", cls=Leaf)
@click.argument("access_key")
@click.option("--resource-policy", help="Another resource policy.")
@click.option("--is-admin", type=bool, help="Whether clients are told that it is an administrator's.")
@click.option("--is-active", type=bool, help="Whether it signs.")
@click.option("-r", "--rate-limit", type=click.IntRange(0), help="Requests in 15 minutes; 0: any number.")
def keypair_update(access_key: str, **props: Any) -> None:
    """Change a keypair; what is not named stays as it is."""
    values = some_changes(props, "--resource-policy")
    change(lambda api: api.KeyPair.update(access_key, **values), {"updated": access_key}, f"updated {access_key}")


@click.command("activate", cls=Leaf)
@click.argument("access_key")
def keypair_activate(access_key: str) -> None:
    """Let a keypair sign again."""
    change(lambda api: api.KeyPair.activate(access_key), {"activated": access_key}, f"activated {access_key}")


@click.command("deactivate", cls=Leaf)
@click.argument("access_key")
def keypair_deactivate(access_key: str) -> None:
    """Refuse what a keypair signs."""
    change(lambda api: api.KeyPair.deactivate(access_key), {"deactivated": access_key}, f"deactivated {access_key}")


@click.command("delete", cls=Leaf)
@click.argument("access_key")
@yes_option
def keypair_delete(access_key: str, yes: bool) -> None:
    """Remove a keypair for good; not the main one of its user."""
    confirm(f"Remove the keypair {access_key} for good", is_confirmed=yes)
    change(lambda api: api.KeyPair.delete(access_key), {"deleted": access_key}, f"deleted {access_key}")
