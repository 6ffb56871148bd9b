"""`backend.ai admin scaling-group`: which agents are scheduled together, how, and for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import LazyGroup, Leaf, ListCommand
from ai.backend.cli.framework.objects import change, given, list_them, show_one, some_changes
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.params import json_option

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

resource_group = LazyGroup("scaling-group", help="Resource groups: which agents are scheduled together, and how.")
_NAME = click.argument("name")
COLUMNS = [
    Column("name", "Name"),
    Column("description", "Description"),
    Column("is_active", "Active"),
    Column("is_public", "Public"),
    Column("scheduler", "Scheduler"),
    Column("scheduler_opts", "Options", is_wide=True),
]


def _described(command: Any) -> Any:
    """Options of `add` and `update`."""
    for option in (
        click.option("--wsproxy-api-token", help="Token of the app proxy."),
        click.option("--wsproxy-addr", help="Address of the app proxy."),
        json_option("--scheduler-opts", help='Such as {"agent_selection_strategy": "concentrated"}.'),
        click.option("--scheduler", help="fifo, lifo, drf or fair-share."),
        json_option("--driver-opts", help="Options of the driver."),
        click.option("--driver", help="How agents come to be: static."),
        click.option("-d", "--description", "--desc", help="What it is for."),
    ):
        command = option(command)
    return command


@resource_group.command("list", cls=ListCommand)
def list_() -> None:
    """List the resource groups."""
    list_them(lambda api: api.ScalingGroup.list(), COLUMNS, "there are no resource groups")


@resource_group.command("info", cls=Leaf)
@_NAME
def info(name: str) -> None:
    """Show the resource group NAME."""
    show_one(lambda api: api.ScalingGroup.detail(name), f"there is no resource group {name}")


@resource_group.command("get-available", cls=ListCommand)
@click.argument("group")
def get_available(group: str) -> None:
    """List the resource groups that sessions of GROUP (a project) may use."""
    list_them(lambda api: api.ScalingGroup.list_available(group), [Column("name", "Name")], "none is open to it")


@resource_group.command("add", cls=Leaf)
@_NAME
@click.option("--inactive", is_flag=True, help="Take no sessions yet.")
@click.option("--private", is_flag=True, help="Open only to those that it is associated with.")
@click.option("--use-host-network", is_flag=True, default=None, help="Workloads use the network of their node.")
@_described
def add(name: str, inactive: bool, private: bool, **props: Any) -> None:
    """Make the resource group NAME."""
    props = {"is_active": not inactive, "is_public": not private, **given(**props)}
    change(lambda api: api.ScalingGroup.create(name, **props), {"added": name}, f"added {name}")


@resource_group.command("update", cls=Leaf)
@_NAME
@click.option("-a", "--active", type=bool, help="Whether it takes sessions.")
@click.option("--private", type=bool, help="Whether it is open only to those that it is associated with.")
@click.option("--use-host-network", type=bool, help="Whether workloads use the network of their node.")
@_described
def update(name: str, active: bool | None, private: bool | None, **props: Any) -> None:
    """Change the resource group NAME; what is not named stays as it is.

    A change of the scheduler is in force from its next pass on.
    """
    is_public = None if private is None else not private
    props = some_changes({"is_active": active, "is_public": is_public, **props}, "--scheduler")
    change(lambda api: api.ScalingGroup.update(name, **props), {"updated": name}, f"updated {name}")


@resource_group.command("delete", cls=Leaf)
@_NAME
def delete(name: str) -> None:
    """Remove the resource group NAME, which may have no living agents and no sessions."""
    change(lambda api: api.ScalingGroup.delete(name), {"deleted": name}, f"deleted {name}")


def _link(name: str, domain: str | None, group: str | None, access_key: str | None, verb: str, done: str) -> None:
    chosen = {kind: value for kind, value in _kinds(domain, group, access_key).items() if value}
    if len(chosen) != 1:
        raise click.UsageError("name one of DOMAIN, --group and --access-key")
    [(kind, whom)] = chosen.items()

    async def work(api: AsyncSession) -> None:
        await getattr(api.ScalingGroup, f"{verb}_{kind}")(name, whom)

    change(work, {"scaling_group": name, kind: whom}, f"{name} is {done} {whom}")


def _kinds(domain: str | None, group: str | None, access_key: str | None) -> dict[str, str | None]:
    return {"domain": domain, "group": group, "keypair": access_key}


def _link_arguments(command: Any) -> Any:
    for option in (
        click.option("--access-key", help="A keypair instead of a domain."),
        click.option("--group", metavar="UUID", help="A group (project) instead of a domain, by its id."),
        click.argument("domain", required=False),
        click.argument("scaling_group"),
    ):
        command = option(command)
    return command


@resource_group.command("associate-scaling-group", cls=Leaf)
@_link_arguments
def associate(scaling_group: str, domain: str | None, group: str | None, access_key: str | None) -> None:
    """Open SCALING_GROUP to a DOMAIN, to a group or to a keypair."""
    _link(scaling_group, domain, group, access_key, "associate", "open to")


@resource_group.command("dissociate-scaling-group", cls=Leaf)
@_link_arguments
def dissociate(scaling_group: str, domain: str | None, group: str | None, access_key: str | None) -> None:
    """Close SCALING_GROUP to a DOMAIN, to a group or to a keypair; its sessions there go on."""
    _link(scaling_group, domain, group, access_key, "dissociate", "closed to")
