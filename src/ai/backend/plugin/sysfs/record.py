"""Records everything that a sysfs plugin reads on this machine, for tests on other machines.

Usage: ``python -m ai.backend.plugin.sysfs.record gaudi2 > gaudi2.tree``. The recording holds exactly what the plugin
read, with serial numbers; read it before you give it away.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from uuid import UUID

from ai.backend.common.devices import DeviceAllocation, DeviceHealth
from ai.backend.common.errors import BackendError, PluginError
from ai.backend.common.ids import KernelId, SessionId
from ai.backend.plugin.accelerator import ENTRY_POINT_GROUP, StatContext, Workload
from ai.backend.plugin.discovery import load_plugin, make_plugin
from ai.backend.plugin.sysfs.base import TreePlugin
from ai.backend.plugin.sysfs.tree import RecordingTree


def plugin_named(name: str, settings: Mapping[str, Any]) -> TreePlugin:
    """Loads and makes the sysfs plugin of an entry point, or of ``package.module:Class``.

    Raises PluginError: it reads no sysfs, or its settings are wrong; Exception: anything that importing it raises.
    """
    entry_points_found = {entry_point.name: entry_point.value for entry_point in entry_points(group=ENTRY_POINT_GROUP)}
    plugin = make_plugin(load_plugin(entry_points_found.get(name, name)), settings)
    if not isinstance(plugin, TreePlugin):
        raise PluginError(f"the plugin {name} is not one that reads sysfs alone")
    return plugin


async def record(plugin: TreePlugin, hardware: str = "") -> Iterator[str]:
    """Makes a plugin read all that it reads of devices, and returns the lines of the recording."""
    tree = plugin.tree = RecordingTree(plugin.roots.sysfs_root, plugin.roots.dev_root)
    await plugin.init()
    try:
        devices = await plugin.list_devices()
        node_info = await plugin.get_node_info()
        await plugin.gather_node_metrics(StatContext(at=0.0))
        whole_allocation: dict[str, dict[str, int]] = {}
        for device in devices:
            if device.health is DeviceHealth.HEALTHY:
                whole_allocation.setdefault(device.slots[0].slot_name, {})[device.device_id] = 1
        if whole_allocation:
            workload = Workload(
                id="", type="process_tree", kernel_id=KernelId(UUID(int=0)), session_id=SessionId(UUID(int=0))
            )
            await plugin.configure(workload, DeviceAllocation(slots=whole_allocation))  # type: ignore[arg-type]  # only the ids
    finally:
        await plugin.cleanup()
    model_names = dict.fromkeys(device.model_name or "unknown" for device in devices)
    header_lines = [
        f"# hardware: {hardware or str(len(devices)) + ' x ' + ', '.join(model_names)}",
        f"# driver: {node_info.driver_version or 'unknown'}, kernel {platform.release()}",
        f"# command: python -m ai.backend.plugin.sysfs.record {plugin.key}",
    ]
    return iter([*header_lines, *tree.recorded()])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ai.backend.plugin.sysfs.record", description=__doc__)
    parser.add_argument("plugin", help="its name in allow-compute-plugins")
    parser.add_argument("--data-file", type=Path, help="a data file of your own, for the plugin sysfs")
    parser.add_argument("--hardware", default="", help="what the machine is, for the head of the file")
    arguments = parser.parse_args(argv)
    try:
        plugin = plugin_named(
            arguments.plugin, {"families": [arguments.data_file]} if arguments.data_file is not None else {}
        )
        for line in asyncio.run(record(plugin, arguments.hardware)):
            print(line)
    except (BackendError, ImportError, AttributeError) as e:
        print(e, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
