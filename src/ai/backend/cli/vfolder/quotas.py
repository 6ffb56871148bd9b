"""`backend.ai quota` for everybody; `admin quota-scope` and storage policies of users and groups for superadmins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ai.backend.cli.framework.lazy import LazyGroup, ListCommand, Outcome, screen_of
from ai.backend.cli.framework.objects import NamedObjects, add_object_commands
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import options
from ai.backend.cli.framework.values import readable_size

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

quota_scope = LazyGroup("quota-scope", help="How much a user or a project may keep on a storage host.")
user_policy = LazyGroup("user-resource-policy", help="Storage limits of users.")
project_policy = LazyGroup("project-resource-policy", help="Storage limits of groups.")
COLUMNS = columns("host | scope: Quota scope | used/number | limit/number | enforcement")
_HOST_ARGUMENT = click.argument("host")
_SCOPE_ARGUMENT = click.argument("scope")


async def _scope_id(api: AsyncSession, scope: str) -> str:
    """Returns a quota scope with the name or e-mail address replaced by its id, as ``user:<uuid>``.

    Raises click.ClickException if there is no such group or several, or the scope is of neither a user nor a group;
    BackendAPIError if there is no such user.
    """
    owner_kind, _, owner_name = scope.partition(":")
    if owner_kind not in ("user", "project") or not owner_name:
        raise click.ClickException(f"{scope!r}: write user:EMAIL, project:NAME, or either with a UUID")
    try:
        return f"{owner_kind}:{UUID(owner_name)}"
    except ValueError:
        pass  # it is an e-mail address or a name
    if owner_kind == "user":
        return f"user:{(await api.User.detail(owner_name, ['uuid']))['uuid']}"
    groups = await api.Group.from_name(owner_name, fields=["id"])
    if not groups:
        raise click.ClickException(f"there is no group {owner_name!r}")
    if len(groups) > 1:
        raise click.ClickException(f"{len(groups)} groups are called {owner_name!r}: use an id")
    return f"project:{groups[0]['id']}"


async def _usage_row(api: AsyncSession, host: str, scope: str, shown_scope: str) -> dict[str, Any]:
    """Returns the row of a quota scope on a host; ``shown_scope`` is the scope as people write it."""
    quota_usage = await api.QuotaScope.get(host, scope)
    limit_bytes = quota_usage["hard_limit_bytes"]
    return {
        "host": host,
        "quota_scope_id": scope,
        "scope": shown_scope,
        **quota_usage,
        "used": readable_size(int(quota_usage["usage_bytes"])),
        "limit": "none" if limit_bytes is None else readable_size(int(limit_bytes)),
    }


@click.command("quota", cls=ListCommand)
async def quota(api: AsyncSession) -> None:
    """Show the usage and limits of you and your projects on each storage host.

    A hard limit is kept by the storage itself; a soft one is looked at when files are uploaded or folders cloned.
    """
    user = await api.User.detail(None, ["uuid", "email", "groups { id name }"])
    names_by_scope = {f"user:{user['uuid']}": f"user:{user['email']}"}
    names_by_scope |= {f"project:{group['id']}": f"project:{group['name']}" for group in user["groups"]}
    hosts = (await api.VFolder.list_hosts())["allowed"]
    rows = [await _usage_row(api, host, scope, name) for host in hosts for scope, name in names_by_scope.items()]
    screen_of().print_rows(rows, COLUMNS, "no storage host is open to you")


@quota_scope.command("get", cls=ListCommand)
@_HOST_ARGUMENT
@_SCOPE_ARGUMENT
async def get(api: AsyncSession, host: str, scope: str) -> None:
    """Show the usage and the limit of SCOPE (user:EMAIL, project:NAME, or either with a UUID) on HOST."""
    screen_of().print_rows([await _usage_row(api, host, await _scope_id(api, scope), scope)], COLUMNS, "")


@quota_scope.command("set")
@_HOST_ARGUMENT
@_SCOPE_ARGUMENT
@click.argument("size", callback=lambda _ctx, _param, value: _parse_size(value))
async def set_(api: AsyncSession, host: str, scope: str, size: int) -> Outcome:
    """Limit the storage of SCOPE on HOST to SIZE (such as 100g).

    The limit is soft, unless the volume keeps it itself (xfs): uploads and clones are refused, sessions can exceed it.
    """
    scope_id = await _scope_id(api, scope)
    await api.QuotaScope.set(host, scope_id, size)
    enforcement = (await api.QuotaScope.get(host, scope_id))["enforcement"]
    document = {"host": host, "hard_limit_bytes": size, "quota_scope_id": scope_id, "enforcement": enforcement}
    message = f"{scope} may keep {readable_size(size)} on {host}"
    if enforcement == "soft":
        message += ", a soft limit: uploads and clones keep to it, and sessions can write more"
    return document, message


@quota_scope.command("unset")
@_HOST_ARGUMENT
@_SCOPE_ARGUMENT
async def unset(api: AsyncSession, host: str, scope: str) -> Outcome:
    """Remove the limit of SCOPE on HOST; the policy of the owner limits SCOPE again."""
    scope_id = await _scope_id(api, scope)
    await api.QuotaScope.unset(host, scope_id)
    return {"host": host, "quota_scope_id": scope_id}, f"{scope} has no limit of its own on {host}"


def _parse_size(size: str) -> int:
    from ai.backend.common.errors import InvalidQuantity
    from ai.backend.common.slots import BinarySize

    try:
        return int(BinarySize.parse(size))
    except InvalidQuantity as error:
        raise click.UsageError(f"{size!r}: {error.message}") from error


# ---- storage policies ----


def _parse_policy_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    if value in ("none", "-1"):
        return -1
    return _parse_size(value) if value else None


def _policy_row(policy: dict[str, Any]) -> dict[str, Any]:
    size_bytes = policy["max_quota_scope_size"]
    return {
        **policy,
        "size": "any" if size_bytes is None or size_bytes < 0 else readable_size(size_bytes),
        "count": str(policy["max_vfolder_count"] or "any"),
    }


for _group, _area in ((user_policy, "UserResourcePolicy"), (project_policy, "ProjectResourcePolicy")):
    add_object_commands(
        _group,
        NamedObjects(
            area=_area,
            noun=("policy", "policies"),
            columns=columns("name | count/number: Folders | size/number: Size on each volume"),
            prints_values=True,
            options=options(
                click.option(
                    "--max-quota-scope-size",
                    metavar="SIZE",
                    callback=_parse_policy_size,
                    help="Such as 100g on each volume; none: no limit.",
                ),
                click.option("--max-vfolder-count", type=click.IntRange(0), help="Folders; 0: any number."),
            ),
            example="--max-quota-scope-size",
            describe=_policy_row,
            add_help="Make the policy NAME; that of the name `default` is in force for who has no other.",
        ),
    )
