"""`backend.ai admin user` and the groups `keypair`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import Entry, LazyGroup, ListCommand, Outcome
from ai.backend.cli.framework.objects import change, given_options, list_page, required_changes, show_object
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import confirm, negated_flag, options, paging, yes_option

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

user = LazyGroup("user", help="Users.")
admin_keypair = LazyGroup("keypair", help="Keypairs.")
keypair = LazyGroup(
    "keypair",
    help="Your own keypair.",
    entries={"ssh-key": Entry("ai.backend.cli.account:ssh_key", "The SSH key that opens your sessions.")},
)
_EMAIL_ARGUMENT = click.argument("email")
_ACCESS_KEY_ARGUMENT = click.argument("access_key")
_RATE_LIMIT = click.option("-r", "--rate-limit", type=click.IntRange(0), help="Requests in 15 minutes; 0: any number.")
_STATUS_HELP = "active, inactive, deleted or before-verification."
USER_COLUMNS = columns(
    "email | username/wide | full_name | role | status | domain_name: Domain | groups/wide | uuid/wide: UUID"
)
KEYPAIR_COLUMNS = columns(
    "user_id: User | access_key | is_active: Active | is_admin/wide: Admin | resource_policy: Policy | "
    "rate_limit/wide | concurrency_used/number: Sessions | last_used/time"
)


def _parse_networks(_ctx: click.Context, _param: click.Parameter, value: str | None) -> list[str] | None:
    return [network.strip() for network in value.split(",") if network.strip()] if value is not None else None


_user_options = options(
    click.option("-u", "--username", help="By default what of the address is one."),
    click.option("-n", "--full-name", help="Their name."),
    click.option("-r", "--role", help="user, admin, superadmin or monitor."),
    click.option("-s", "--status", help=_STATUS_HELP),
    click.option("--description", help="What is to be known about them."),
    click.option(
        "--allowed-ip",
        "allowed_client_ip",
        callback=_parse_networks,
        help="Networks or addresses that they may come from, with commas; an empty text: from anywhere.",
    ),
    click.option("--resource-policy", help="The user resource policy."),
    click.option(
        "--sudo-session-enabled", type=bool, help="Whether their sessions are told that they may become root."
    ),
)
_KEYPAIR_NETWORKS = click.option(
    "--allowed-ip",
    "allowed_client_ip",
    callback=_parse_networks,
    help="Networks or addresses that it may sign from, with commas; an empty text: from anywhere.",
)


@user.command("list", cls=ListCommand)
@click.option("-s", "--status", help=f"Only those of one status: {_STATUS_HELP}")
@click.option("-g", "--group", metavar="UUID", help="Only members of a group (project), by its id.")
@paging
def user_list(status: str | None, group: str | None, **page: Any) -> None:
    """List users."""
    empty_hint = "there are no such users"
    list_page(
        lambda api: api.User.paginated_list(status, group, **page), USER_COLUMNS, empty_hint, describe=_describe_user
    )


def _describe_user(user: dict[str, Any]) -> dict[str, Any]:
    return {**user, "groups": [group.get("name") for group in user.get("groups") or ()]}


@user.command("info")
@click.option("-e", "--email", help="Yourself by default.")
def user_info(email: str | None) -> None:
    """Show a user."""
    show_object(lambda api: api.User.detail(email), "there is no such user")


@user.command("add")
@click.argument("domain_name")
@_EMAIL_ARGUMENT
@click.argument("password")
@click.option("--need-password-change", is_flag=True, default=None, help="They are to choose another password.")
@click.option("-g", "--group", "group_ids", metavar="UUID", multiple=True, help="A group to join; `default` if none.")
@_user_options
def user_add(domain_name: str, email: str, password: str, group_ids: tuple[str, ...], **props: Any) -> None:
    """Make a user of a domain, with a keypair. A PASSWORD of - is asked for."""
    if password == "-":  # a mark and no password
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    given_values = given_options(**props, group_ids=list(group_ids) or None)
    change(
        lambda api: api.User.create(domain_name, email, password, **given_values), {"added": email}, f"added {email}"
    )


@user.command("update")
@_EMAIL_ARGUMENT
@click.option("-p", "--password", help="A new password.")
@click.option("-d", "--domain-name", help="Another domain; they leave the groups of the old one.")
@click.option("--need-password-change", type=bool, help="Whether they are to choose another password.")
@click.option("--main-access-key", help="Which of their keypairs stands for them.")
@_user_options
def user_update(email: str, **props: Any) -> None:
    """Change the user EMAIL; what is not named stays as it is."""
    changed_values = required_changes(props, "--role")
    change(lambda api: api.User.update(email, **changed_values), {"updated": email}, f"updated {email}")


@user.command("reset-totp")
@_EMAIL_ARGUMENT
@yes_option
def user_reset_totp(email: str, yes: bool) -> None:
    """Take one-time passwords away from the user EMAIL, who has lost them."""
    confirm(f"Let {email} sign in by the password alone", is_confirmed=yes)
    changed_fields = {"totp_activated": False}
    change(
        lambda api: api.User.update(email, **changed_fields),
        {"reset": email},
        f"{email} signs in by the password alone",
    )


@user.command("delete")
@_EMAIL_ARGUMENT
def user_delete(email: str) -> None:
    """Delete the user EMAIL: keypairs are inactive at once and sessions end; the rest is kept until `purge`."""
    change(lambda api: api.User.delete(email), {"deleted": email}, f"deleted {email}; `purge` removes the rest")


@user.command("purge")
@_EMAIL_ARGUMENT
@click.option("--purge-shared-vfolders", is_flag=True, help="Remove folders that others share too.")
@yes_option
def user_purge(email: str, yes: bool, **props: bool) -> None:
    """Remove the user EMAIL for good, with sessions and folders. Folders that others share become yours."""
    confirm(f"Remove {email} with all sessions and folders for good", is_confirmed=yes)
    change(lambda api: api.User.purge(email, **props), {"purged": email}, f"purged {email}")


# ---- keypairs ----


@keypair.command("info")
def keypair_info() -> None:
    """Show your own keypair."""
    show_object(lambda api: api.KeyPair.info(), "you have no keypair")


admin_keypair.add_command(keypair_info)


@keypair.command("rotate")
@yes_option
async def keypair_rotate(api: AsyncSession, yes: bool) -> Outcome:
    """Give your own keypair a new secret key and print it. The old one is refused at once; sessions go on."""
    confirm("Refuse the present secret key from now on", is_confirmed=yes)
    key_pair = await api.Auth.rotate_keypair()
    return {"rotated": key_pair["access_key"], **key_pair}, _format_keys(key_pair)


@admin_keypair.command("rotate")
@_ACCESS_KEY_ARGUMENT
@yes_option
async def admin_keypair_rotate(api: AsyncSession, access_key: str, yes: bool) -> Outcome:
    """Give a keypair a new secret key and print it. The old one is refused at once; sessions go on."""
    confirm(f"Refuse the present secret key of {access_key} from now on", is_confirmed=yes)
    key_pair = await api.KeyPair.rotate(access_key)
    return {"rotated": access_key, **key_pair}, _format_keys(key_pair)


def _format_keys(key_pair: dict[str, Any]) -> str:
    return f"Access Key: {key_pair['access_key']}\nSecret Key: {key_pair['secret_key']}"


@admin_keypair.command("list", cls=ListCommand)
@click.option("-u", "--user-id", metavar="EMAIL", help="Only those of one user.")
@click.option("--is-active", type=bool, help="Only active ones, or only others.")
@paging
def keypair_list(**query: Any) -> None:
    """List keypairs."""
    list_page(lambda api: api.KeyPair.paginated_list(**query), KEYPAIR_COLUMNS, "there are no such keypairs")


@admin_keypair.command("add")
@click.argument("user_id")
@click.argument("resource_policy")
@click.option(
    "-a", "--admin", "is_admin", is_flag=True, default=None, help="Tell clients that it is an administrator's."
)
@negated_flag("-i", "--inactive", "is_active", help="Make it inactive.")
@_RATE_LIMIT
@_KEYPAIR_NETWORKS
async def keypair_add(api: AsyncSession, user_id: str, **props: Any) -> Outcome:
    """Make a keypair of the user USER_ID (an e-mail address) and print it. The secret key is never shown again."""
    key_pair = await api.KeyPair.create(user_id, **given_options(**props))
    return {"added": user_id, **key_pair}, _format_keys(key_pair)


@admin_keypair.command("update")
@_ACCESS_KEY_ARGUMENT
@click.option("--resource-policy", help="Another resource policy.")
@click.option("--is-admin", type=bool, help="Whether clients are told that it is an administrator's.")
@click.option("--is-active", type=bool, help="Whether it signs.")
@_RATE_LIMIT
@_KEYPAIR_NETWORKS
def keypair_update(access_key: str, **props: Any) -> None:
    """Change a keypair; what is not named stays as it is."""
    changed_values = required_changes(props, "--resource-policy")
    change(
        lambda api: api.KeyPair.update(access_key, **changed_values), {"updated": access_key}, f"updated {access_key}"
    )


@admin_keypair.command("activate")
@_ACCESS_KEY_ARGUMENT
def keypair_activate(access_key: str) -> None:
    """Accept requests of an inactive keypair again."""
    change(lambda api: api.KeyPair.activate(access_key), {"activated": access_key}, f"activated {access_key}")


@admin_keypair.command("deactivate")
@_ACCESS_KEY_ARGUMENT
def keypair_deactivate(access_key: str) -> None:
    """Refuse all requests that a keypair signs."""
    change(lambda api: api.KeyPair.deactivate(access_key), {"deactivated": access_key}, f"deactivated {access_key}")


@admin_keypair.command("delete")
@_ACCESS_KEY_ARGUMENT
@yes_option
def keypair_delete(access_key: str, yes: bool) -> None:
    """Remove a keypair for good, except the main keypair of a user."""
    confirm(f"Remove the keypair {access_key} for good", is_confirmed=yes)
    change(lambda api: api.KeyPair.delete(access_key), {"deleted": access_key}, f"deleted {access_key}")
