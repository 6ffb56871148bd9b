"""The options that `run` and `start` share: everything about a new session."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from ai.backend.cli.framework.params import options, parse_pair

if TYPE_CHECKING:
    from ai.backend.client.func.creation import CreateOptions


def parse_mount(text: str) -> tuple[str, str, str]:
    """Parses ``FOLDER[:PATH[:ro|rw]]`` or ``source=FOLDER[,target=PATH][,perm=ro|rw]`` to folder, target, permission.

    An artifact, ``artifact:NAME[@VERSION]``, may stand in the place of the folder.
    """
    from ai.backend.common.artifacts import REFERENCE_PREFIX

    if "=" not in text:
        scheme = REFERENCE_PREFIX if text.startswith(REFERENCE_PREFIX) else ""
        folder, _, target_and_permission = text.removeprefix(scheme).partition(":")
        folder = folder and scheme + folder
        target, _, permission = target_and_permission.partition(":")
        mount_fields = {"source": folder, "target": target, "perm": permission}
    else:
        mount_fields = dict(assignment.strip().partition("=")[::2] for assignment in text.split(","))
        if mount_fields.pop("type", "bind") != "bind" or set(mount_fields) - {"source", "target", "perm"}:
            raise click.BadParameter(f"{text!r} is not source=FOLDER[,target=PATH][,perm=ro|rw]")
    if not mount_fields.get("source") or mount_fields.get("perm", "") not in ("", "ro", "rw", "wd"):
        raise click.BadParameter(f"{text!r} is not FOLDER[:PATH[:ro|rw]]")
    return mount_fields["source"], mount_fields.get("target", ""), mount_fields.get("perm", "")


def random_name() -> str:
    """Returns a random name for a session."""
    return f"cli-{os.urandom(5).hex()}"


def create_options_of(option_values: Mapping[str, Any]) -> CreateOptions:
    """Converts the options of a command to the SDK's arguments for a new session, with a random name if it has none."""
    mounts: list[tuple[str, str, str]] = [*option_values.get("mounts", ())]
    create_options: dict[str, Any] = {
        **option_values,
        "name": option_values.get("name") or random_name(),
        "mounts": [folder for folder, _, _ in mounts],
        "mount_map": {folder: target for folder, target, _ in mounts if target},
        "mount_options": {folder: {"permission": perm} for folder, _, perm in mounts if perm},
    }
    return cast("CreateOptions", create_options)


def creation_config_of(option_values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the Creation Config Object for the options of a command: resources, variables, mounts and devices.

    Options that were not used are left out; an empty claim, variant or device request is none.
    """
    create_options = create_options_of(option_values)
    config = {
        "resources": option_values["resources"],
        "environ": option_values["envs"],
        **{name: create_options[name] for name in ("mounts", "mount_map", "mount_options")},
    }
    device_fields: dict[str, Any] = {
        name: [device_text for device_text in option_values[name] if device_text]
        for name in ("variant_requirements", "device_requests")
        if option_values.get(name)
    }
    if option_values.get("claim") is not None:
        device_fields["claim"] = option_values["claim"]
    return {**{name: value for name, value in config.items() if value}, **device_fields}


def _parse_pairs(_ctx: click.Context, _param: click.Parameter, pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return dict(pairs)


def _parse_plugin_options(
    _ctx: click.Context, param: click.Parameter, assignments: Iterable[str]
) -> dict[str, dict[str, object]]:
    """Parses texts such as ``fpga.image=fft.bit``; a value that is no JSON is text."""
    options_by_plugin: dict[str, dict[str, object]] = {}
    for assignment in assignments:
        name, separator, value_text = assignment.partition("=")
        plugin, dot, option = name.partition(".")
        if not (separator and dot and plugin and option):
            raise click.BadParameter(
                f"{assignment!r} is not PLUGIN.NAME=VALUE, such as fpga.image=fft.bit", param=param
            )
        try:
            value: object = json.loads(value_text)
        except ValueError:
            value = value_text
        options_by_plugin.setdefault(plugin, {})[option] = value
    return options_by_plugin


def _parse_devices(_ctx: click.Context, param: click.Parameter, device_texts: Iterable[str]) -> dict[str, list[str]]:
    ids_by_plugin: dict[str, list[str]] = {}
    for device_text in device_texts:
        plugin, separator, device_id = device_text.partition("/")
        if not (plugin and separator and device_id):
            raise click.BadParameter(f"{device_text!r} is not PLUGIN/DEVICE, such as cuda/GPU-5a7c", param=param)
        ids_by_plugin.setdefault(plugin, []).append(device_id)
    return ids_by_plugin


def _parse_ports(_ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(port) for port in value.split(",")) if value else ()
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of ports such as 8888,9999", param=param) from None


def _split_words(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...]:
    return tuple(word for word in (value or "").split(",") if word)


def _read_script(_ctx: click.Context, _param: click.Parameter, path: str | None) -> str | None:
    if path is None:
        return None
    with open(path) as script:  # noqa: PTH123  # pathlib is imported longer than most options take
        return script.read()


resources_option = click.option(
    "-r",
    "--resources",
    type=parse_pair,
    multiple=True,
    callback=_parse_pairs,
    metavar="SLOT=AMOUNT",
    help="A resource, such as cpu=1, mem=256m or mock.device=1. Repeat for more.",
)
env_option = click.option(
    "-e",
    "--env",
    "envs",
    type=parse_pair,
    multiple=True,
    callback=_parse_pairs,
    metavar="K=V",
    help="An environment variable.",
)
cluster_mode_option = click.option(
    "--cluster-mode",
    type=click.Choice(["single-node", "multi-node"]),
    default="single-node",
    show_default=True,
    help="Whether its kernels may be on several nodes.",
)
mount_option = click.option(
    "-m",
    "--mount",
    "mounts",
    type=parse_mount,
    multiple=True,
    metavar="FOLDER[:PATH[:ro|rw]]",
    help="A virtual folder to mount, at /home/work/FOLDER or PATH. Repeat for more; also written "
    "source=FOLDER,target=PATH,perm=ro. artifact:NAME[@VERSION][:PATH] mounts an artifact.",
)
claim_option = click.option(
    "--claim",
    metavar="NAME",
    help="The device claim whose devices it gets, instead of accelerators among -r; see `backend.ai claim`.",
)
variant_option = click.option(
    "--variant",
    "variant_requirements",
    multiple=True,
    metavar="NS::FEATURE::VALUE",
    help="What its devices must be, such as nvidia::compute_capability::8.0 or cuda::model::NAME. Repeat for more; "
    "`backend.ai resource variants` lists what there is.",
)
device_request_option = click.option(
    "--device-request",
    "device_requests",
    multiple=True,
    metavar="EXPRESSION",
    help="What its accelerators must be, such as 'memory >= 40g && compute_capability >= 8.0' or "
    '\'model in ["A100", "H100"] && same(numa_node)\'. Repeat for alternatives, the preferred first; '
    "each may say what it takes, such as 'amount(\"cuda.device\", 2)'.",
)
device_options = (variant_option, device_request_option, claim_option)
"""The options that choose the accelerators of a session, beside their amounts."""
creation_options = options(
    click.option("-t", "--name", metavar="NAME", help="Name of the session, 4 to 64 characters.  [default: made up]"),
    click.option("--tag", help="A word of your own, to find the session by."),
    resources_option,
    *device_options,
    click.option(
        "--plugin-option",
        "plugin_options",
        multiple=True,
        callback=_parse_plugin_options,
        metavar="PLUGIN.NAME=VALUE",
        help="What it says to an accelerator plugin, such as fpga.image=fft.bit; VALUE is JSON, or text. Repeat for "
        "more; `backend.ai resource plugin-options` lists what there is.",
    ),
    click.option(
        "--resource-opts",
        type=parse_pair,
        multiple=True,
        callback=_parse_pairs,
        metavar="K=V",
        help="Such as shmem=64m, preemptible=false, or for batch sessions restartable=true.",
    ),
    env_option,
    mount_option,
    click.option("--cluster-size", type=click.IntRange(1), default=1, show_default=True, help="How many kernels."),
    cluster_mode_option,
    click.option(
        "--runtime-class",
        default="",
        metavar="NAME",
        help="What its containers run in, such as crun or kata; `backend.ai admin agent info` lists what an agent has."
        "  [default: the agent's]",
    ),
    click.option("--domain", "domain_name", help="Domain.  [default: BACKEND_DOMAIN]"),
    click.option("--group", "--project", "group_name", help="Group.  [default: BACKEND_GROUP]"),
    click.option("--resource-group", "--scaling-group", "scaling_group", help="Resource group to run in."),
    click.option(
        "--owner", "owner_access_key", metavar="ACCESS_KEY", help="Create it for somebody else; for administrators."
    ),
    click.option(
        "--bootstrap-script",
        type=click.Path(exists=True, dir_okay=False),
        callback=_read_script,
        help="A local script that runs in the session before anything else.",
    ),
    click.option(
        "--priority",
        type=click.IntRange(0, 100),
        help="Larger ones are scheduled first; the resource group bounds it.  [default: 10]",
    ),
    click.option("--starts-at", metavar="TIME", help="Do not schedule it before: ISO time, or a delay such as 1h."),
    click.option(
        "--depends", "dependencies", multiple=True, metavar="SESSION", help="Wait for the success of that session."
    ),
    click.option(
        "--preopen",
        "preopen_ports",
        callback=_parse_ports,
        metavar="PORTS",
        help="Ports that the program will open: 8888,9999.",
    ),
    click.option("--architecture", help="Such as x86_64.  [default: any]"),
    click.option(
        "--assign-agent", callback=_split_words, metavar="AGENTS", help="Only these agents; for administrators."
    ),
    click.option(
        "--diagnose",
        "diagnosed_devices",
        multiple=True,
        callback=_parse_devices,
        metavar="PLUGIN/DEVICE",
        help="A device of the assigned agent that the session sees without holding it, also one that others hold or "
        "that has failed; for superadmins. Repeat for more.",
    ),
    click.option("--no-reuse", is_flag=True, help="Fail if a session of this name exists."),
)
