"""`backend.ai quota` for everybody; `admin quota-scope` and what bounds users and groups for superadmins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from ai.backend.cli.calling import call
from ai.backend.cli.lazy import LazyGroup, Leaf, screen_of
from ai.backend.cli.transfer_bar import readable_size
from ai.backend.cli.vfolder_group import show, tell

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

quota_scope = LazyGroup("quota-scope", help="How much a user or a project may keep on a storage host.")
user_policy = LazyGroup("user-resource-policy", help="Storage limits of users.")
project_policy = LazyGroup("project-resource-policy", help="Storage limits of groups.")

_COLUMNS = [
    ("host", "Host"),
    ("scope", "Quota scope"),
    ("used", "Used"),
    ("limit", "Limit"),
    ("enforcement", "Enforcement"),
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
        found = await api.Admin.query("query($who: String) { user(email: $who) { uuid } }", {"who": who})
        return f"user:{found['user']['uuid']}"
    groups = (await api.Admin.query("query($who: String!) { groups_by_name(name: $who) { id } }", {"who": who}))[
        "groups_by_name"
    ]
    if not groups:
        raise click.ClickException(f"there is no group {who!r}")
    if len(groups) > 1:
        raise click.ClickException(f"{len(groups)} groups are called {who!r}: use an id")
    return f"project:{groups[0]['id']}"


async def _usage(api: AsyncSession, host: str, scope: str, name: str) -> dict[str, Any]:
    """One row; ``name`` is the scope as people write it."""
    found = await api.QuotaScope.get(host, scope)
    limit = found["hard_limit_bytes"]
    return {
        "host": host,
        "quota_scope_id": scope,
        "scope": name,
        **found,
        "used": readable_size(int(found["usage_bytes"])),
        "limit": "none" if limit is None else readable_size(int(limit)),
    }


@click.command("quota", cls=Leaf)
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
        show(screen, rows, _COLUMNS, "no storage host is open to you")

    call(screen, work)


@quota_scope.command("get", cls=Leaf)
@click.argument("host")
@click.argument("scope")
def get(host: str, scope: str) -> None:
    """Show what SCOPE (user:EMAIL, project:NAME, or either with a UUID) keeps on HOST, and may keep."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        show(screen, [await _usage(api, host, await _scope_id(api, scope), scope)], _COLUMNS, "")

    call(screen, work)


@quota_scope.command("set", cls=Leaf)
@click.argument("host")
@click.argument("scope")
@click.argument("size")
def set_(host: str, scope: str, size: str) -> None:
    """Let SCOPE keep SIZE (such as 100g) on HOST."""
    screen = screen_of()
    limit = _bytes(size)

    async def work(api: AsyncSession) -> None:
        scope_id = await _scope_id(api, scope)
        await api.QuotaScope.set(host, scope_id, limit)
        told = {"host": host, "quota_scope_id": scope_id, "hard_limit_bytes": limit}
        tell(screen, told, f"{scope} may keep {readable_size(limit)} on {host}")

    call(screen, work)


@quota_scope.command("unset", cls=Leaf)
@click.argument("host")
@click.argument("scope")
def unset(host: str, scope: str) -> None:
    """Take the limit of SCOPE on HOST away; what the policy of its owner says goes on."""
    screen = screen_of()

    async def work(api: AsyncSession) -> None:
        scope_id = await _scope_id(api, scope)
        await api.QuotaScope.unset(host, scope_id)
        tell(screen, {"host": host, "quota_scope_id": scope_id}, f"{scope} has no limit of its own on {host}")

    call(screen, work)


def _bytes(size: str) -> int:
    from ai.backend.common.errors import InvalidQuantity
    from ai.backend.common.slots import BinarySize

    try:
        return int(BinarySize.parse(size))
    except InvalidQuantity as error:
        raise click.UsageError(f"{size!r}: {error.message}") from error


# ---- storage policies ----


def _area(api: AsyncSession, kind: str) -> Any:
    return api.UserResourcePolicy if kind == "user" else api.ProjectResourcePolicy


def _put(kind: str, method: str, done: str, name: str, max_quota_scope_size: str | None, count: int | None) -> None:
    screen = screen_of()
    size = (
        -1 if max_quota_scope_size in ("none", "-1") else _bytes(max_quota_scope_size) if max_quota_scope_size else None
    )
    given = {"max_quota_scope_size": size, "max_vfolder_count": count}
    props = {key: value for key, value in given.items() if value is not None}

    async def work(api: AsyncSession) -> None:
        await getattr(_area(api, kind), method)(name, **props)
        tell(screen, {done: name, **props}, f"{done} {name}")

    call(screen, work)


def _size(limit: int | None) -> str:
    return "any" if limit is None or limit < 0 else readable_size(limit)


def _count(policy: Mapping[str, Any]) -> str:
    return str(policy["max_vfolder_count"] or "any")


def _add_policy_commands(target: LazyGroup, kind: str) -> None:
    size = click.option("--max-quota-scope-size", metavar="SIZE", help="Such as 100g on each volume; none: no limit.")
    count = click.option("--max-vfolder-count", "count", type=click.IntRange(0), help="Folders; 0: any number.")

    def list_policies() -> None:
        """List the policies."""
        screen = screen_of()

        async def work(api: AsyncSession) -> None:
            found = await _area(api, kind).list()
            rows = [{**one, "size": _size(one["max_quota_scope_size"]), "count": _count(one)} for one in found]
            columns = [("name", "Name"), ("count", "Folders"), ("size", "Size on each volume")]
            show(screen, rows, columns, "there are no policies")

        call(screen, work)

    def add(name: str, max_quota_scope_size: str | None, count: int | None) -> None:
        """Make the policy NAME; that of the name `default` is in force for who has no other."""
        _put(kind, "create", "added", name, max_quota_scope_size, count)

    def update(name: str, max_quota_scope_size: str | None, count: int | None) -> None:
        """Change the policy NAME."""
        _put(kind, "update", "updated", name, max_quota_scope_size, count)

    def delete(name: str) -> None:
        """Remove the policy NAME."""
        screen = screen_of()

        async def work(api: AsyncSession) -> None:
            await _area(api, kind).delete(name)
            tell(screen, {"deleted": name}, f"deleted {name}")

        call(screen, work)

    named = click.argument("name")
    target.command("list", cls=Leaf)(list_policies)
    target.command("add", cls=Leaf)(named(size(count(add))))
    target.command("update", cls=Leaf)(named(size(count(update))))
    target.command("delete", cls=Leaf)(named(delete))


_add_policy_commands(user_policy, "user")
_add_policy_commands(project_policy, "project")
