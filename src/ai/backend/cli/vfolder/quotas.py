"""`backend.ai quota` for everybody; `admin quota-scope` and what bounds users and groups for superadmins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import LazyGroup, Leaf, ListCommand, screen_of
from ai.backend.cli.framework.objects import NamedObjects, add_object_commands, change
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.printing import print_rows
from ai.backend.cli.framework.values import readable_size

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

quota_scope = LazyGroup("quota-scope", help="How much a user or a project may keep on a storage host.")
user_policy = LazyGroup("user-resource-policy", help="Storage limits of users.")
project_policy = LazyGroup("project-resource-policy", help="Storage limits of groups.")

COLUMNS = [
    Column("host", "Host"),
    Column("scope", "Quota scope"),
    Column("used", "Used", is_number=True),
    Column("limit", "Limit", is_number=True),
    Column("enforcement", "Enforcement"),
]


async def _scope_id(api: AsyncSession, scope: str) -> str:
    """``user:EMAIL`` and ``project:NAME`` as the ids that they mean.

    Raises:
        click.ClickException: there is no such user or group, or it is neither.
    """
    kind, _, who = scope.partition(":")
    if kind not in ("user", "project") or not who:
        raise click.ClickException(f"{scope!r}: write user:EMAIL, project:NAME, or either with a UUID")
    try:
        return f"{kind}:{UUID(who)}"
    except ValueError:
        pass
    if kind == "user":
        reply = await api.Admin.query("query($who: String) { user(email: $who) { uuid } }", {"who": who})
        return f"user:{reply['user']['uuid']}"
    groups = (await api.Admin.query("query($who: String!) { groups_by_name(name: $who) { id } }", {"who": who}))[
        "groups_by_name"
    ]
    if not groups:
        raise click.ClickException(f"there is no group {who!r}")
    if len(groups) > 1:
        raise click.ClickException(f"{len(groups)} groups are called {who!r}: use an id")
    return f"project:{groups[0]['id']}"


async def _usage(api: AsyncSession, host: str, scope: str, name: str) -> dict[str, Any]:
    """Returns a row of the list; ``name`` is the scope as people write it."""
    usage = await api.QuotaScope.get(host, scope)
    limit = usage["hard_limit_bytes"]
    return {
        "host": host,
        "quota_scope_id": scope,
        "scope": name,
        **usage,
        "used": readable_size(int(usage["usage_bytes"])),
        "limit": "none" if limit is None else readable_size(int(limit)),
    }


@click.command("quota", cls=ListCommand)
def quota() -> None:
    """Show what you and your projects keep on each storage host, and may keep.

    A hard limit is kept by the storage itself; a soft one is looked at when files are uploaded or folders cloned.
    """
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        user = (await api.Admin.query("{ user { uuid email groups { id name } } }"))["user"]
        scopes = {f"user:{user['uuid']}": f"user:{user['email']}"}
        scopes |= {f"project:{group['id']}": f"project:{group['name']}" for group in user["groups"]}
        hosts = (await api.VFolder.list_hosts())["allowed"]
        rows = [await _usage(api, host, scope, name) for host in hosts for scope, name in scopes.items()]
        print_rows(screen, rows, COLUMNS, "no storage host is open to you")

    call(screen, work)


@quota_scope.command("get", cls=ListCommand)
@click.argument("host")
@click.argument("scope")
def get(host: str, scope: str) -> None:
    """Show what SCOPE (user:EMAIL, project:NAME, or either with a UUID) keeps on HOST, and may keep."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        print_rows(screen, [await _usage(api, host, await _scope_id(api, scope), scope)], COLUMNS, "")

    call(screen, work)


@quota_scope.command("set", cls=Leaf)
@click.argument("host")
@click.argument("scope")
@click.argument("size")
def set_(host: str, scope: str, size: str) -> None:
    """Let SCOPE keep SIZE (such as 100g) on HOST."""
    limit = _bytes(size)

    async def work(api: AsyncSession) -> dict[str, Any]:
        scope_id = await _scope_id(api, scope)
        await api.QuotaScope.set(host, scope_id, limit)
        return {"quota_scope_id": scope_id}

    change(work, {"host": host, "hard_limit_bytes": limit}, f"{scope} may keep {readable_size(limit)} on {host}")


@quota_scope.command("unset", cls=Leaf)
@click.argument("host")
@click.argument("scope")
def unset(host: str, scope: str) -> None:
    """Take the limit of SCOPE on HOST away; what the policy of its owner says goes on."""

    async def work(api: AsyncSession) -> dict[str, Any]:
        scope_id = await _scope_id(api, scope)
        await api.QuotaScope.unset(host, scope_id)
        return {"quota_scope_id": scope_id}

    change(work, {"host": host}, f"{scope} has no limit of its own on {host}")


def _bytes(size: str) -> int:
    from ai.backend.common.errors import InvalidQuantity
    from ai.backend.common.slots import BinarySize

    try:
        return int(BinarySize.parse(size))
    except InvalidQuantity as error:
        raise click.UsageError(f"{size!r}: {error.message}") from error


# ---- storage policies ----


def _policy_size(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    if value in ("none", "-1"):
        return -1
    return _bytes(value) if value else None


def _policy_options(command: Any) -> Any:
    for option in (
        click.option("--max-vfolder-count", type=click.IntRange(0), help="Folders; 0: any number."),
        click.option(
            "--max-quota-scope-size",
            metavar="SIZE",
            callback=_policy_size,
            help="Such as 100g on each volume; none: no limit.",
        ),
    ):
        command = option(command)
    return command


def _policy_row(policy: dict[str, Any]) -> dict[str, Any]:
    size = policy["max_quota_scope_size"]
    return {
        **policy,
        "size": "any" if size is None or size < 0 else readable_size(size),
        "count": str(policy["max_vfolder_count"] or "any"),
    }


for _group, _area in ((user_policy, "UserResourcePolicy"), (project_policy, "ProjectResourcePolicy")):
    add_object_commands(
        _group,
        NamedObjects(
            area=_area,
            noun=("policy", "policies"),
            columns=[
                Column("name", "Name"),
                Column("count", "Folders", is_number=True),
                Column("size", "Size on each volume", is_number=True),
            ],
            options=_policy_options,
            example="--max-quota-scope-size",
            describe=_policy_row,
            add_help="Make the policy NAME; that of the name `default` is in force for who has no other.",
        ),
    )
