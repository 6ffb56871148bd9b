"""`backend.ai admin keypair-resource-policy` and `backend.ai admin resource-preset`."""

from __future__ import annotations

from typing import Any

import click

from ai.backend.cli.administering import change, given, json_option, list_them, show_one
from ai.backend.cli.lazy import LazyGroup, Leaf
from ai.backend.cli.tenant_commands import HOST_PERMISSIONS

keypair_policy = LazyGroup("keypair-resource-policy", help="What keypairs may have.")
preset = LazyGroup("resource-preset", help="Named sets of resources that users choose from.")
_NAME = click.argument("name")
_COLUMNS = [
    ("name", "Name"),
    ("total_resource_slots", "Resource Slots"),
    ("default_for_unspecified", "Others"),
    ("max_concurrent_sessions", "Sessions"),
    ("max_containers_per_session", "Containers"),
    ("max_session_lifetime", "Lifetime"),
    ("idle_timeout", "Idle"),
]


def _limits(command: Any) -> Any:
    """Options of `add` and `update`."""
    count = click.IntRange(0)
    for option in (
        HOST_PERMISSIONS,
        click.option("--idle-timeout", type=count, help="Seconds; 0: none."),
        click.option("--max-containers-per-session", type=click.IntRange(1), help="Kernels of one session."),
        json_option("--max-pending-session-resource-slots", help="What waiting sessions may ask for together."),
        click.option("--max-pending-session-count", type=count, help="Sessions that may wait; 0: any number."),
        click.option("--max-concurrent-sftp-sessions", type=count, help="Taken, and without effect here."),
        click.option("--max-concurrent-sessions", type=count, help="0: any number."),
        click.option("--max-session-lifetime", type=count, help="Seconds; 0: no limit."),
        json_option("--total-resource-slots", help='What all sessions may have together: \'{"cpu": "8"}\'.'),
        click.option(
            "--default-for-unspecified",
            type=click.Choice(["LIMITED", "UNLIMITED"]),
            help="Slots that are not named: none of them, or any amount.",
        ),
    ):
        command = option(command)
    return command


@keypair_policy.command("list", cls=Leaf)
def policy_list() -> None:
    """List the policies."""
    list_them(lambda api: api.KeypairResourcePolicy.list(), _COLUMNS, "there are no policies")


@keypair_policy.command("info", cls=Leaf)
@_NAME
def policy_info(name: str) -> None:
    """Show the policy NAME."""
    show_one(lambda api: api.KeypairResourcePolicy.detail(name), f"there is no policy {name}")


@keypair_policy.command("add", cls=Leaf)
@_NAME
@_limits
def policy_add(name: str, **props: Any) -> None:
    """Make the policy NAME."""
    values = given(**props)
    change(lambda api: api.KeypairResourcePolicy.create(name, **values), {"added": name}, f"added {name}")


@keypair_policy.command("update", cls=Leaf)
@_NAME
@_limits
def policy_update(name: str, **props: Any) -> None:
    """Change the policy NAME; what is not named stays as it is."""
    values = given(**props)
    if not values:
        raise click.UsageError("name something to change, such as --max-concurrent-sessions")
    change(lambda api: api.KeypairResourcePolicy.update(name, **values), {"updated": name}, f"updated {name}")


@keypair_policy.command("delete", cls=Leaf)
@_NAME
def policy_delete(name: str) -> None:
    """Remove the policy NAME, which no keypair may have."""
    change(lambda api: api.KeypairResourcePolicy.delete(name), {"deleted": name}, f"deleted {name}")


# ---- presets ----


def _preset_options(command: Any) -> Any:
    for option in (
        click.option("--shared-memory", metavar="SIZE", help="Such as 64m."),
        json_option("--resource-slots", help='Such as {"cpu": "4", "mem": "8g"}.'),
    ):
        command = option(command)
    return command


@preset.command("list", cls=Leaf)
def preset_list() -> None:
    """List the presets."""
    columns = [("name", "Name"), ("resource_slots", "Resources"), ("shared_memory", "Shared Memory")]
    list_them(lambda api: api.ResourcePreset.list(), columns, "there are no presets")


@preset.command("add", cls=Leaf)
@_NAME
@_preset_options
def preset_add(name: str, **props: Any) -> None:
    """Make the preset NAME."""
    values = given(**props)
    change(lambda api: api.ResourcePreset.create(name, **values), {"added": name}, f"added {name}")


@preset.command("update", cls=Leaf)
@_NAME
@_preset_options
def preset_update(name: str, **props: Any) -> None:
    """Change the preset NAME."""
    values = given(**props)
    change(lambda api: api.ResourcePreset.update(name, **values), {"updated": name}, f"updated {name}")


@preset.command("delete", cls=Leaf)
@_NAME
def preset_delete(name: str) -> None:
    """Remove the preset NAME."""
    change(lambda api: api.ResourcePreset.delete(name), {"deleted": name}, f"deleted {name}")
