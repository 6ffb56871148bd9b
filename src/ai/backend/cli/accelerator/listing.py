"""`backend.ai accelerator list` and `show`: the plugins and devices of this node."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ai.backend.cli.framework.lazy import ListCommand, screen_of
from ai.backend.cli.framework.output import Column, columns
from ai.backend.cli.framework.values import SlotDisplays, describe_metrics, format_cell, readable_amount, readable_size

if TYPE_CHECKING:
    from ai.backend.agent.main import PluginInspection
    from ai.backend.cli.framework.output import Screen
    from ai.backend.common.devices import ComputeDevice

PLUGIN_COLUMNS = columns("name: Plugin | slots | devices | state | verified_on/wide")
DEVICE_COLUMNS = columns(
    "plugin | device | model | memory | numa_node/wide: NUMA | location/wide | slots | state: Health"
)
USAGE_COLUMNS = columns("plugin | device | model/wide | state: Health | now")
_INTRINSIC_DEVICES = frozenset({"cpu", "mem"})
_UNVERIFIED_TEXT = "unverified on hardware"
_CONFIG_OPTION = click.Option(
    ["-f", "--config", "config"], type=click.Path(path_type=Path), help="agent.toml; searched if it is not given."
)


def _survey_plugins(
    config: Path | None, plugin_key: str | None, *, is_measured: bool = False
) -> list[PluginInspection]:
    from ai.backend.agent.main import survey_node
    from ai.backend.common.errors import BackendError

    # What is wrong with a plugin is a part of the result.
    logging.getLogger("ai.backend").addHandler(logging.NullHandler())
    try:
        return survey_node(config, plugin_key, is_measured=is_measured)
    except BackendError as e:
        raise click.ClickException(e.message) from None


def _devices_of(plugin: PluginInspection) -> tuple[ComputeDevice, ...]:
    return plugin.kind.devices if plugin.kind is not None else ()


def _slot_displays(plugins: Iterable[PluginInspection]) -> SlotDisplays:
    return {
        display.slot_name: {
            "number_format": {"binary": display.number_binary, "round_length": display.number_round_length},
            "display_unit": display.display_unit,
        }
        for plugin in plugins
        for display in (plugin.kind.displays if plugin.kind is not None else ())
    }


def _plugin_row(plugin: PluginInspection, displays: SlotDisplays) -> dict[str, Any]:
    devices = _devices_of(plugin)
    unhealthy_count = sum(device.health.value != "healthy" for device in devices)
    slots = plugin.kind.slots if plugin.kind is not None else {}
    return {
        "name": plugin.name,
        "slots": ", ".join(f"{slot} {readable_amount(slot, amount, displays)}" for slot, amount in slots.items()),
        "devices": f"{len(devices)}" + (f" ({unhealthy_count} unhealthy)" if unhealthy_count else ""),
        "state": plugin.reason or ("healthy" if plugin.is_allowed else "not allowed"),
        "verified_on": plugin.verified_on or _UNVERIFIED_TEXT,
    }


@click.command("list", cls=ListCommand, can_follow=False, params=[_CONFIG_OPTION])
def accelerator_list(config: Path | None) -> None:
    """List the plugins that are installed on this node, or that its agent.toml names, with what they find.

    They are loaded and judged as an agent does it. `backend.ai admin agent info AGENT` shows what an agent of a cluster
    has, also mock devices of `backend.ai up --mock`.
    """
    screen = screen_of()
    inspections = _survey_plugins(config, None)
    displays = _slot_displays(inspections)
    if screen.is_json:
        screen.print_json([_plugin_document(plugin) for plugin in inspections])
    else:
        screen.print_table([_plugin_row(plugin, displays) for plugin in inspections], PLUGIN_COLUMNS)
        if not all(plugin.is_allowed for plugin in inspections):
            screen.inform(
                "Plugins that are not allowed are used once agent.toml names them in `allow-compute-plugins`."
            )


def _plugin_document(plugin: PluginInspection) -> dict[str, Any]:
    import msgspec

    from ai.backend.common.slots import format_quantity

    kind = plugin.kind
    return {
        "name": plugin.name,
        "version": plugin.version,
        "reference": plugin.reference,
        "package": plugin.package or None,
        "verified_on": plugin.verified_on,
        "allowed": plugin.is_allowed,
        "healthy": plugin.reason is None,
        "reason": plugin.reason,
        "slots": {slot: format_quantity(amount) for slot, amount in kind.slots.items()} if kind is not None else {},
        "info": dict(kind.info or {}) if kind is not None else {},
        "devices": [msgspec.to_builtins(device) for device in _devices_of(plugin)],
    }


@click.command("show", cls=ListCommand, can_follow=False, params=[_CONFIG_OPTION])
@click.argument("name", required=False)
@click.option("--tree", is_flag=True, help="NUMA nodes, PCIe roots and switches, and the devices below them.")
def accelerator_show(name: str | None, tree: bool, config: Path | None) -> None:
    """Show the devices of this node, or of the plugin NAME, as a table with a matrix of their links, or as a tree."""
    screen = screen_of()
    inspections = _survey_plugins(config, name)
    if name is not None and not inspections:
        screen.fail(f"no plugin {name} is installed; `backend.ai accelerator list` names those that are")
    if screen.is_json:
        screen.print_json([_plugin_document(plugin) for plugin in inspections])
        return
    displays = _slot_displays(inspections)
    devices = [device for plugin in inspections for device in _devices_of(plugin)]
    for plugin in inspections:
        if name is not None:
            verification_text = f"verified on {plugin.verified_on}" if plugin.verified_on else _UNVERIFIED_TEXT
            screen.inform(
                format_cell(
                    f"{plugin.name} {plugin.version} of {plugin.package or plugin.reference}, {verification_text}"
                )
            )
        if plugin.reason and (name is not None or plugin.is_allowed):
            screen.inform(format_cell(f"{plugin.name}: {plugin.reason}"))
    if not devices:
        screen.print_line("no devices were found")
    elif tree:
        from ai.backend.cli.accelerator.topology import tree_of

        screen.render(tree_of(devices, lambda device: _device_line(device, displays)))
    else:
        screen.print_table([_device_row(device, displays) for device in devices], DEVICE_COLUMNS)
        linked_devices = [device for device in devices if device.links]
        if linked_devices:
            screen.print_line("")
            _print_matrix(screen, linked_devices)


@click.command("top", cls=ListCommand, can_follow=False, params=[_CONFIG_OPTION])
@click.argument("name", required=False)
def accelerator_top(name: str | None, config: Path | None) -> None:
    """Show what the devices of this node, or of the plugin NAME, do now: use, memory, power, temperature.

    The plugins are asked here, without an agent. `backend.ai admin agent info AGENT` shows what an agent measures.
    """
    screen = screen_of()
    inspections = _survey_plugins(config, name, is_measured=True)
    if name is not None and not inspections:
        screen.fail(f"no plugin {name} is installed; `backend.ai accelerator list` names those that are")
    if screen.is_json:
        screen.print_json([{**_plugin_document(plugin), "metrics": plugin.metrics} for plugin in inspections])
        return
    rows = [
        {**_device_row(device, {}), "now": _describe_current_metrics(plugin, device)}
        for plugin in inspections
        for device in _devices_of(plugin)
        if name is not None or device.device_name not in _INTRINSIC_DEVICES
    ]
    for plugin in inspections:
        if plugin.reason and (name is not None or plugin.is_allowed):
            screen.inform(format_cell(f"{plugin.name}: {plugin.reason}"))
    if rows:
        screen.print_table(rows, USAGE_COLUMNS)
    else:
        screen.print_line("no devices were found")


def _describe_current_metrics(plugin: PluginInspection, device: ComputeDevice) -> str:
    return describe_metrics(plugin.metrics.get(device.device_id, {}), prefix=f"{device.device_name}_")


def _device_row(device: ComputeDevice, displays: SlotDisplays) -> Mapping[str, Any]:
    slots = [f"{slot.slot_name} {readable_amount(slot.slot_name, slot.amount, displays)}" for slot in device.slots]
    return {
        "plugin": device.device_name,
        "device": device.device_id,
        "model": device.model_name,
        "memory": readable_size(device.memory_size) if device.memory_size else None,
        "numa_node": device.numa_node,
        "location": device.hw_location,
        "slots": ", ".join(slots),
        "state": f"{device.health}: {device.health_reason}" if device.health_reason else str(device.health),
    }


def _device_line(device: ComputeDevice, displays: SlotDisplays) -> str:
    row = _device_row(device, displays)
    device_texts = [row["model"], row["memory"], row["slots"], row["state"]]
    return format_cell(
        f"{device.device_name} {device.device_id}: "
        + ", ".join(str(device_text) for device_text in device_texts if device_text)
    )


def _print_matrix(screen: Screen, devices: list[ComputeDevice]) -> None:
    """Prints a matrix of the links between devices, with their bandwidth in GiB/s where it is reported."""
    labels = {device.device_id: f"[{number}]" for number, device in enumerate(devices)}
    rows = []
    for device in devices:
        links = {link.peer: link for link in device.links}
        cells = {
            number: "x" if peer == device.device_id else _link_text(links.get(peer)) for peer, number in labels.items()
        }
        rows.append({"device": f"{labels[device.device_id]} {device.device_id}", **cells})
    screen.print_table(rows, [Column("device", "Links"), *(Column(number, number) for number in labels.values())])


def _link_text(link: Any) -> str:
    if link is None:
        return "-"
    return f"{link.kind} {link.bandwidth_gib_s:g}" if link.bandwidth_gib_s else str(link.kind)
