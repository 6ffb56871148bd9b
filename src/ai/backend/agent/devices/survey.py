"""Inspects the plugins of this node without a running agent, for `backend.ai accelerator list`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

import msgspec

from ai.backend.agent.config.settings import INTRINSIC_PLUGINS, AgentSettings
from ai.backend.agent.devices.inventory import Inventory
from ai.backend.agent.devices.kinds import DeviceKind
from ai.backend.agent.devices.plugins import PluginSet
from ai.backend.plugin.accelerator import ENTRY_POINT_GROUP
from ai.backend.plugin.discovery import LEGACY_GROUPS, PluginSource, find_plugins
from ai.backend.plugin.programs import is_program
from ai.backend.pluginhost.handle import PluginHandle


class PluginInspection(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the state of one plugin, as an agent with these settings has it.

    ``name`` is the device name, or the source's name of a plugin that could not be loaded. ``package`` is the name and
    version of the distribution that declares it. ``is_allowed``: the agent's settings load it.
    """

    name: str
    version: str
    reference: str
    package: str
    verified_on: str | None
    is_allowed: bool
    reason: str | None
    kind: DeviceKind | None
    metrics: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    """Device -> key -> metric, if the plugin was measured."""


Measure = Callable[[PluginHandle, DeviceKind], Awaitable[Mapping[str, Mapping[str, Any]]]]


async def survey(
    settings: AgentSettings, only: str | None = None, *, measure: Measure | None = None
) -> list[PluginInspection]:
    """Starts the plugins as an agent does, lists their devices, measures them by ``measure``, and stops the plugins.

    ``only`` is the device name, entry point or package of the only plugin to inspect.
    """
    node = settings.agent
    # The plugins of this project run in this process, because a process for each takes time to start.
    blocked_names, in_process_names = (
        node.block_compute_plugins,
        (*node.in_process_compute_plugins, "ai.backend.accelerator"),
    )
    source_of_allowed = {
        source.reference: source
        for source in find_plugins(node.allow_compute_plugins, blocked_names, INTRINSIC_PLUGINS, in_process_names)
    }
    plugin_names = (
        "*",
        *(entry_point.name for group in LEGACY_GROUPS for entry_point in entry_points(group=group)),
    )
    source_of_reference = {
        source.reference: source for source in find_plugins(plugin_names, (), INTRINSIC_PLUGINS, in_process_names)
    }
    candidate_sources = list({**source_of_reference, **source_of_allowed}.values())
    # A device name is known only after its plugin was loaded, so all are loaded if no source matches.
    sources = [
        source for source in candidate_sources if only is not None and _matches_selection(only, source)
    ] or candidate_sources
    plugins = PluginSet(sources, settings)
    inventory = Inventory(plugins, 0)
    try:
        await inventory.refresh(asyncio.get_running_loop().time())
        package_of_reference = _packages()
        measured_handles = [
            handle for handle in plugins.started() if handle.key in inventory.kinds and _is_selected(only, handle)
        ]
        metrics_of_plugin: dict[str, Mapping[str, Mapping[str, Any]]] = {}
        if measure is not None:
            answers = await asyncio.gather(
                *(measure(handle, inventory.kinds[handle.key]) for handle in measured_handles)
            )
            metrics_of_plugin = {handle.key: answer for handle, answer in zip(measured_handles, answers, strict=True)}
        return [
            PluginInspection(
                name=handle.key,
                version=handle.version,
                reference=handle.source.reference or "",
                package=package_of_reference.get(handle.source.reference or "", ""),
                verified_on=handle.verified_on,
                is_allowed=handle.source.reference in source_of_allowed,
                reason=handle.reason,
                kind=inventory.kinds.get(handle.key) if handle.started else None,
                metrics=metrics_of_plugin.get(handle.key, {}),
            )
            for handle in plugins.handles
            if _is_selected(only, handle)
        ]
    finally:
        await inventory.close()
        await plugins.stop()


def _is_selected(only: str | None, handle: PluginHandle) -> bool:
    return only is None or only == handle.key or _matches_selection(only, handle.source)


def _matches_selection(only: str, source: PluginSource) -> bool:
    reference = source.reference or ""
    package = reference if is_program(reference) else reference.partition(":")[0]
    return only in (source.name, source.reference, package)


def _packages() -> Mapping[str, str]:
    """Maps the references and modules of entry points to the distributions that declare them."""
    return {
        reference: f"{entry_point.dist.name} {entry_point.dist.version}"
        for group in (ENTRY_POINT_GROUP, *LEGACY_GROUPS)
        for entry_point in entry_points(group=group)
        if entry_point.dist is not None
        for reference in (entry_point.value, entry_point.module)
    }
