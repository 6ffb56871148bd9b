"""Resource groups, keypair resource policies and resource presets: `backend.ai admin scaling-group` and others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.admin.tenants import HOST_PERMISSIONS
from ai.backend.cli.framework.lazy import LazyGroup, ListCommand
from ai.backend.cli.framework.objects import NamedObjects, add_object_commands, change, list_objects, parse_json_values
from ai.backend.cli.framework.output import columns
from ai.backend.cli.framework.params import json_option, negated_flag, options
from ai.backend.cli.framework.values import describe_slots, readable_size

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

resource_group = LazyGroup("scaling-group", help="Resource groups: which agents are scheduled together, and how.")
keypair_policy = LazyGroup("keypair-resource-policy", help="What keypairs may have.")
preset = LazyGroup("resource-preset", help="Named sets of resources that users choose from.")
GROUP_COLUMNS = columns(
    "name | description | is_active: Active | is_public: Public | scheduler | scheduler_opts/wide: Options"
)
POLICY_COLUMNS = columns(
    "name | slots: Resource Slots | default_for_unspecified: Others | max_concurrent_sessions/number: Sessions | "
    "max_containers_per_session/wide/number: Containers | max_session_lifetime/wide/number: Lifetime (s) | "
    "idle_timeout/number: Idle (s)"
)
PRESET_COLUMNS = columns("name | slots: Resources | shared: Shared Memory | devices/wide: Devices")
_COUNT = click.IntRange(0)


def preset_row(preset: dict[str, Any]) -> dict[str, Any]:
    """Returns a preset with its amounts in human units."""
    shared_memory = preset.get("shared_memory")
    slot_amounts = parse_json_values(preset).get("resource_slots")
    return {
        **preset,
        "slots": describe_slots(slot_amounts),
        "shared": None if shared_memory is None else readable_size(int(shared_memory)),
        "devices": " or ".join(preset.get("device_requests") or ()),
    }


def _policy_row(policy: dict[str, Any]) -> dict[str, Any]:
    return {**policy, "slots": describe_slots(parse_json_values(policy).get("total_resource_slots"))}


add_object_commands(
    resource_group,
    NamedObjects(
        area="ScalingGroup",
        noun=("resource group", "resource groups"),
        columns=GROUP_COLUMNS,
        has_detail=True,
        add_options=options(
            negated_flag("--inactive", "is_active", help="Take no sessions yet."),
            negated_flag("--private", "is_public", help="Open only to those that it is associated with."),
            click.option("--use-host-network", is_flag=True, default=None, help="Workloads use their node's network."),
        ),
        update_options=options(
            click.option("-a", "--active", "is_active", type=bool, help="Whether it takes sessions."),
            click.option(
                "--private",
                "is_public",
                type=bool,
                callback=lambda _ctx, _param, value: None if value is None else not value,
                help="Whether it is open only to those that it is associated with.",
            ),
            click.option("--use-host-network", type=bool, help="Whether workloads use the network of their node."),
        ),
        options=options(
            click.option("-d", "--description", "--desc", help="What it is for."),
            click.option("--driver", help="How agents come to be: static."),
            json_option("--driver-opts", help="Options of the driver."),
            click.option("--scheduler", help="fifo, lifo, drf or fair-share."),
            json_option("--scheduler-opts", help='Such as {"agent_selection_strategy": "concentrated"}.'),
            click.option("--wsproxy-addr", help="Address of the app proxy."),
            click.option("--wsproxy-api-token", help="Token of the app proxy."),
        ),
        example="--scheduler",
        update_note="\n\nA change of the scheduler is in force from its next pass on.",
        delete_help="Remove the resource group NAME, which may have no living agents and no sessions.",
    ),
)
add_object_commands(
    keypair_policy,
    NamedObjects(
        area="KeypairResourcePolicy",
        noun=("policy", "policies"),
        columns=POLICY_COLUMNS,
        has_detail=True,
        prints_values=True,
        options=options(
            click.option(
                "--default-for-unspecified",
                type=click.Choice(["LIMITED", "UNLIMITED"]),
                help="Slots that are not named: none of them, or any amount.",
            ),
            json_option("--total-resource-slots", help='What all sessions may have together: \'{"cpu": "8"}\'.'),
            click.option("--max-session-lifetime", type=_COUNT, help="Seconds; 0: no limit."),
            click.option("--max-concurrent-sessions", type=_COUNT, help="0: any number."),
            click.option("--max-concurrent-sftp-sessions", type=_COUNT, help="Taken, and without effect here."),
            click.option("--max-pending-session-count", type=_COUNT, help="Sessions that may wait; 0: any number."),
            json_option("--max-pending-session-resource-slots", help="What waiting sessions may ask for together."),
            click.option("--max-containers-per-session", type=click.IntRange(1), help="Kernels of one session."),
            click.option(
                "--idle-timeout",
                type=click.IntRange(-1),
                help="Seconds; 0: as the shared configuration says; -1: no limit.",
            ),
            click.option("--max-vfolder-count", type=_COUNT, help="Folders of the user; 0: any number."),
            click.option("--max-vfolder-size", type=_COUNT, help="Bytes of one folder; 0: no limit."),
            click.option("--max-claims", type=_COUNT, help="Device claims; 0: as many as the manager allows."),
            click.option(
                "--max-claim-idle-time", type=_COUNT, help="Seconds that a claim keeps unused devices; 0: any time."
            ),
            HOST_PERMISSIONS,
        ),
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
        prints_values=True,
        options=options(
            json_option("--resource-slots", help='Such as {"cpu": "4", "mem": "8g"}.'),
            click.option("--shared-memory", metavar="SIZE", help="Such as 64m; 0: as a session has without a preset."),
            click.option(
                "--device-request",
                "device_requests",
                metavar="EXPRESSION",
                multiple=True,
                callback=lambda _ctx, _param, values: None if not values else [] if values == ("",) else [*values],
                help="What its devices must be; repeat for alternatives, the preferred first. Empty: anything.",
            ),
        ),
        example="--resource-slots",
        describe=preset_row,
    ),
)


@resource_group.command("get-available", cls=ListCommand)
@click.argument("group")
def get_available(group: str) -> None:
    """List the resource groups that sessions of GROUP (a project) may use."""
    list_objects(lambda api: api.ScalingGroup.list_available(group), columns("name"), "none is open to it")


_link_arguments = options(
    click.argument("scaling_group"),
    click.argument("domain", required=False),
    click.option("--group", metavar="UUID", help="A group (project) instead of a domain, by its id."),
    click.option("--access-key", "keypair", help="A keypair instead of a domain."),
)


def _link_targets(scaling_group: str, targets: dict[str, str | None], verb: str, relation_text: str) -> None:
    chosen_targets = [(kind, target) for kind, target in targets.items() if target]
    if len(chosen_targets) != 1:
        raise click.UsageError("name one of DOMAIN, --group and --access-key")
    [(kind, target)] = chosen_targets

    async def link_target(api: AsyncSession) -> None:
        await getattr(api.ScalingGroup, f"{verb}_{kind}")(scaling_group, target)

    change(link_target, {"scaling_group": scaling_group, kind: target}, f"{scaling_group} is {relation_text} {target}")


@resource_group.command("associate-scaling-group")
@_link_arguments
def associate(scaling_group: str, **targets: str | None) -> None:
    """Open SCALING_GROUP to a DOMAIN, to a group or to a keypair."""
    _link_targets(scaling_group, targets, "associate", "open to")


@resource_group.command("dissociate-scaling-group")
@_link_arguments
def dissociate(scaling_group: str, **targets: str | None) -> None:
    """Close SCALING_GROUP to a DOMAIN, to a group or to a keypair; its sessions there go on."""
    _link_targets(scaling_group, targets, "dissociate", "closed to")
