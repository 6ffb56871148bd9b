"""Applies the edits of CDI devices to the configuration of a workload that no OCI runtime starts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from ai.backend.common.errors import CreationDenied
from ai.backend.common.structs import replace
from ai.backend.node.cdi.registry import CdiRegistry, DescribedDevice
from ai.backend.node.cdi.specification import ContainerEdits
from ai.backend.plugin.accelerator import DeviceMapping, Mount, WorkloadConfig, check_config

T = TypeVar("T")


def apply_cdi_edits(
    config: WorkloadConfig, registry: CdiRegistry, *, visible_folders: Sequence[str] = ()
) -> WorkloadConfig:
    """Returns a configuration in which each CDI name is replaced by the edits that its specification describes.

    A device whose edits cannot all be applied (hooks, Intel RDT, network interfaces, mounts of file systems) or that
    nothing describes is taken by its device file, where the plugin names one.

    Args:
        config: of a workload.
        registry: where names are looked up.
        visible_folders: folders of the host that the workload sees as they are; what is mounted there from the same
            path needs no mount.

    Raises:
        CreationDenied: with ``field`` and ``key`` in its data, for a device that has neither, or edits that contradict
            the configuration.
    """
    if not any(device.cdi_name for device in config.devices):
        return config
    described_devices = registry.devices()
    plain_devices: list[DeviceMapping] = []
    device_of_name: dict[str, DescribedDevice] = {}
    for device in config.devices:
        name = device.cdi_name
        described_device = described_devices.get(name) if name is not None else None
        problem = "" if name is None else _edit_problem(name, described_device, registry)
        if name is not None and described_device is not None and not problem:
            device_of_name[name] = described_device
        elif device.source:
            plain_devices.append(replace(device, cdi_name=None))
        else:
            raise CreationDenied(problem, data={"field": "devices", "key": name})
    config = replace(config, devices=tuple(plain_devices))
    common_edits = {described_device.path: described_device.common for described_device in device_of_name.values()}
    for name, described_device in device_of_name.items():
        config = _with_edits(
            config,
            [common_edits.pop(described_device.path, ContainerEdits()), described_device.edits],
            name,
            visible_folders,
        )
    return config


def _edit_problem(name: str, described: DescribedDevice | None, registry: CdiRegistry) -> str:
    """Returns why the edits of a device cannot be applied; empty if they can."""
    if described is None:
        directories = ", ".join(map(str, registry.directories)) or "no directory"
        return f"no CDI specification in {directories} describes {name!r}, and it names no device file"
    unsupported_parts = sorted(set(_unsupported_parts([described.common, described.edits])))
    return (
        f"{described.path} has for {name!r} what this runtime does not apply: {', '.join(unsupported_parts)}"
        if unsupported_parts
        else ""
    )


def _unsupported_parts(edits: Iterable[ContainerEdits]) -> Iterable[str]:
    for edit in edits:
        yield from (f"the hook {hook.hook_name} ({hook.path})" for hook in edit.hooks)
        yield from (f"a mount of type {mount.type}" for mount in edit.mounts if mount.type not in ("", "bind", "none"))
        if edit.intel_rdt is not None:
            yield "intelRdt"
        if edit.net_devices:
            yield "netDevices"


def _with_edits(
    config: WorkloadConfig, edits: Sequence[ContainerEdits], name: str, visible_folders: Sequence[str]
) -> WorkloadConfig:
    variables = dict(config.env_vars)
    mounts = {mount.target: mount for mount in config.mounts}
    devices = {device.target or device.source: device for device in config.devices}
    for edit in edits:
        for variable, _, value in (assignment.partition("=") for assignment in edit.env):
            _set_once(variables, variable, value, "environment variable", name)
        for mount in edit.mounts:
            if mount.host_path == mount.container_path and _is_below(mount.container_path, visible_folders):
                continue
            cdi_mount = Mount(source=mount.host_path, target=mount.container_path, read_only="ro" in mount.options)
            _set_once(mounts, mount.container_path, cdi_mount, "mount", name)
        for device_node in edit.device_nodes:
            source = device_node.host_path or device_node.path
            devices[device_node.path] = DeviceMapping(
                source=source, target=device_node.path, permissions=device_node.permissions or "rw"
            )
    group_ids = dict.fromkeys([*config.extra_gids, *(gid for edit in edits for gid in edit.additional_gids)])
    edited_config = replace(
        config,
        env_vars=variables,
        mounts=tuple(mount for _, mount in sorted(mounts.items())),
        devices=tuple(devices.values()),
        extra_gids=tuple(group_ids),
    )
    try:
        check_config(
            replace(edited_config, mounts=tuple(mount for mount in edited_config.mounts if mount not in config.mounts))
        )
    except ValueError as e:
        raise CreationDenied(f"the CDI device {name!r}: {e}", data={"field": "devices", "key": name}) from None
    return edited_config


def _set_once(values: dict[str, T], key: str, value: T, kind: str, name: str) -> None:
    if values.setdefault(key, value) != value:
        message = f"the CDI device {name!r} wants another value of the {kind} {key}"
        raise CreationDenied(message, data={"field": "devices", "key": name})


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(folder + "/") for folder in folders)
