"""Converts plugins' workload configurations into CDI files and into replies of the device plugin interface."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

from ai.backend.common.errors import BackendError, CreationDenied, InvalidInput
from ai.backend.kubeacc.node_plugin import wire
from ai.backend.node.cdi.registry import SYSTEM_DIRECTORIES, CdiRegistry
from ai.backend.node.cdi.writing import remove_specification, write_specification
from ai.backend.plugin.accelerator import CdiProvider, WorkloadConfig
from ai.backend.pluginhost.handle import PluginHandle

log = logging.getLogger(__name__)
_UNSUPPORTED = ("networks", "extra_syscalls", "cpuset", "memory_nodes", "cpu_limit", "memory_limit_bytes")
"""Fields of a config that the kubelet, not a plugin, decides for pods."""


def check_supported(plugin_key: str, config: WorkloadConfig) -> None:
    """Raises CreationDenied if a plugin's workload configuration has a part that cannot be applied to a pod.

    Without this check the part would be missing silently.
    """
    unsupported_fields = [name for name in _UNSUPPORTED if getattr(config, name)]
    if unsupported_fields:
        message = f"the plugin {plugin_key} sets {', '.join(unsupported_fields)}, which no plugin can set for a pod"
        raise CreationDenied(message, data={"field": unsupported_fields[0], "plugin": plugin_key})


def check_no_conflict(configs: Mapping[str, WorkloadConfig]) -> None:
    """Raises CreationDenied if two plugins set the same variable or the same path. The error names both plugins."""
    owners: dict[tuple[str, str], tuple[str, object]] = {}
    for plugin_key, config in configs.items():
        values: list[tuple[str, str, object]] = [
            *(("environment variable", name, value) for name, value in config.env_vars.items()),
            *(("mount", mount.target, mount) for mount in config.mounts),
            *(("device", device.target or device.source, device) for device in config.devices if device.source),
        ]
        for kind, key, value in values:
            other_plugin, other_value = owners.setdefault((kind, key), (plugin_key, value))
            if other_plugin != plugin_key and other_value != value:
                raise CreationDenied(
                    f"the plugins {other_plugin} and {plugin_key} want different values of the {kind} {key}"
                )


class CdiFiles:
    """Writes the CDI files of plugins and claims into the folder that the container engine reads."""

    def __init__(self, directory: Path, driver_name: str) -> None:
        self._directory = directory
        self._driver_name = driver_name
        folders = [folder for folder in SYSTEM_DIRECTORIES if Path(folder) != directory]
        self._registry = CdiRegistry([*folders, directory])

    async def filter_described(self, handle: PluginHandle, names: Collection[str]) -> frozenset[str]:
        """Returns the given names that a CDI file describes. If a file is missing, the plugin is asked for it."""
        described_devices = await asyncio.to_thread(self._registry.devices)
        if not described_devices.keys() >= set(names) and handle.plugin.capabilities.cdi_provider:
            try:
                specification = await handle.call("cdi_spec", lambda plugin: cast("CdiProvider", plugin).cdi_spec())
                await asyncio.to_thread(
                    write_specification, self._directory, self._driver_name, f"plugin-{handle.key}", specification
                )
            except InvalidInput as e:
                handle.complain("cdi_spec", f"cdi_spec: {e.message}")
            except BackendError as e:
                log.debug("the CDI file of %s is not renewed: %s", handle.key, e)
            described_devices = await asyncio.to_thread(self._registry.devices)
        return frozenset(names) & described_devices.keys()

    def write(
        self, uid: str, configs: Mapping[str, WorkloadConfig], described_names: Collection[str]
    ) -> dict[str, list[str]]:
        """Writes the file of a workload and returns the CDI names of each plugin's part. Raises InvalidInput, OSError.

        A device with a described CDI name is taken by that name, and by its device file otherwise."""
        cdi_kind = f"{self._driver_name}/claim"
        devices: list[dict[str, Any]] = []
        names: dict[str, list[str]] = {}
        for plugin_key, config in configs.items():
            names[plugin_key] = [
                device.cdi_name
                for device in config.devices
                if device.cdi_name is not None and device.cdi_name in described_names
            ]
            edits = _edits(config, described_names)
            if edits:
                devices.append({"name": f"{uid}-{plugin_key}", "containerEdits": edits})
                names[plugin_key].append(f"{cdi_kind}={uid}-{plugin_key}")
        if devices:
            specification = {"kind": cdi_kind, "devices": devices}
            write_specification(self._directory, self._driver_name, _file_key(uid), specification)
        return names

    def remove(self, uid: str) -> None:
        """Removes the CDI file of a workload. A missing file is no error. Raises OSError."""
        remove_specification(self._directory, self._driver_name, _file_key(uid))


def _file_key(uid: str) -> str:
    return f"claim-{uid}"


def _edits(config: WorkloadConfig, described_names: Collection[str]) -> dict[str, Any]:
    nodes = []
    for device in config.devices:
        if device.cdi_name is not None and device.cdi_name in described_names:
            continue
        if not device.source:
            raise CreationDenied(f"no CDI file describes {device.cdi_name!r}, and it names no device file")
        node = {"path": device.target or device.source, "permissions": device.permissions}
        nodes.append(node | ({"hostPath": device.source} if device.target not in (None, device.source) else {}))
    edits = {
        "env": [f"{name}={value}" for name, value in config.env_vars.items()],
        "deviceNodes": nodes,
        "mounts": [
            {
                "hostPath": mount.source,
                "containerPath": mount.target,
                "options": ["ro" if mount.read_only else "rw", "rbind", "nosuid", "nodev"],
            }
            for mount in config.mounts
        ],
        "additionalGids": list(config.extra_gids),
    }
    return {key: value for key, value in edits.items() if value}


def allocate_response(configs: Mapping[str, WorkloadConfig], described_names: Collection[str]) -> Any:
    """Returns the answer to ``Allocate`` for one container, from the workload configurations of the plugins.

    Raises CreationDenied for a configuration that the device plugin interface cannot express.
    """
    answer = wire.device_plugin.ContainerAllocateResponse()
    for plugin_key, config in configs.items():
        if config.extra_gids:
            raise CreationDenied(f"the plugin {plugin_key} adds groups, which only resource claims can do")
        answer.envs.update(config.env_vars)
        for mount in config.mounts:
            answer.mounts.add(container_path=mount.target, host_path=mount.source, read_only=mount.read_only)
        for device in config.devices:
            if device.cdi_name is not None and device.cdi_name in described_names:
                answer.cdi_devices.add(name=device.cdi_name)
            elif device.source:
                path = device.target or device.source
                answer.devices.add(container_path=path, host_path=device.source, permissions=device.permissions)
            else:
                raise CreationDenied(f"no CDI file describes {device.cdi_name!r}, and it names no device file")
    return answer
