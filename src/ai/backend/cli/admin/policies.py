"""`backend.ai admin keypair-resource-policy` and `backend.ai admin resource-preset`."""

from __future__ import annotations

from typing import Any

import click

from ai.backend.cli.admin.tenants import HOST_PERMISSIONS
from ai.backend.cli.framework.lazy import LazyGroup, Leaf
from ai.backend.cli.framework.objects import NamedObjects, add_object_commands, readable, show_one
from ai.backend.cli.framework.output import Column
from ai.backend.cli.framework.params import json_option
from ai.backend.cli.framework.values import describe_slots, readable_size

keypair_policy = LazyGroup("keypair-resource-policy", help="What keypairs may have.")
preset = LazyGroup("resource-preset", help="Named sets of resources that users choose from.")
COLUMNS = [
    Column("name", "Name"),
    Column("slots", "Resource Slots"),
    Column("default_for_unspecified", "Others"),
    Column("max_concurrent_sessions", "Sessions", is_number=True),
    Column("max_containers_per_session", "Containers", is_wide=True, is_number=True),
    Column("max_session_lifetime", "Lifetime (s)", is_wide=True, is_number=True),
    Column("idle_timeout", "Idle (s)", is_number=True),
]
PRESET_COLUMNS = [Column("name", "Name"), Column("slots", "Resources"), Column("shared", "Shared Memory")]


def preset_row(preset: dict[str, Any]) -> dict[str, Any]:
    """Return a preset with its amounts in human units."""
    shared = preset.get("shared_memory")
    slots = readable(preset).get("resource_slots")
    return {**preset, "slots": describe_slots(slots), "shared": None if shared is None else readable_size(int(shared))}


def _policy_row(policy: dict[str, Any]) -> dict[str, Any]:
    return {**policy, "slots": describe_slots(readable(policy).get("total_resource_slots"))}


def _policy_options(command: Any) -> Any:
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


def _preset_options(command: Any) -> Any:
    for option in (
        click.option("--shared-memory", metavar="SIZE", help="Such as 64m."),
        json_option("--resource-slots", help='Such as {"cpu": "4", "mem": "8g"}.'),
    ):
        command = option(command)
    return command


@keypair_policy.command("info", cls=Leaf)
@click.argument("name")
def policy_info(name: str) -> None:
    """Show the policy NAME."""
    show_one(lambda api: api.KeypairResourcePolicy.detail(name), f"there is no policy {name}")


add_object_commands(
    keypair_policy,
    NamedObjects(
        area="KeypairResourcePolicy",
        noun=("policy", "policies"),
        columns=COLUMNS,
        options=_policy_options,
        example="--max-concurrent-sessions",
        describe=_policy_row,
        delete_help="Remove the policy NAME, which no keypair may have.",
    ),
)
add_object_commands(
    preset,
    NamedObjects(
        area="ResourcePreset",
        noun=("preset", "presets"),
        columns=PRESET_COLUMNS,
        options=_preset_options,
        example="--resource-slots",
        describe=preset_row,
    ),
)
