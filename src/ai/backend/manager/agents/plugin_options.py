"""Checks a session's options for accelerator plugins by the schemas that agents report (decision 0500). Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ai.backend.common.errors import InvalidInput
from ai.backend.common.slots import ResourceSlot
from ai.backend.common.states import AgentStatus
from ai.backend.manager.agents.capabilities import DeviceReader
from ai.backend.manager.agents.model import Agent
from ai.backend.plugin.options import problems_of_options

_FIELD = "config.plugin_options"


def schemas_of(agents: Iterable[Agent]) -> dict[str, list[dict[str, Any]]]:
    """Returns, by name of plugin, the distinct option schemas that living agents report."""
    schemas_by_name: dict[str, dict[str, dict[str, Any]]] = {}
    for agent in agents:
        if agent.status is not AgentStatus.ALIVE:
            continue
        for plugin in agent.plugins:
            if plugin.options_schema is not None:
                schema_text = json.dumps(plugin.options_schema, sort_keys=True)
                schemas_by_name.setdefault(plugin.name, {}).setdefault(schema_text, plugin.options_schema)
    return {name: list(schemas.values()) for name, schemas in sorted(schemas_by_name.items())}


def check_plugin_options(
    options: Mapping[str, Mapping[str, Any]],
    kernel_slots: Sequence[ResourceSlot],
    agents: Sequence[Agent],
    devices: DeviceReader,
) -> dict[str, dict[str, Any]]:
    """Returns the checked options of a session for plugins, without empty options.

    Agents may have several versions of a plugin: one that takes the options is enough, as the agent of the session
    checks them again. Raises InvalidInput, naming the plugin and the place: no agent has a plugin of that name that
    takes options; no kernel requests a slot of it; no schema allows them.
    """
    options_by_plugin = {name: dict(plugin_options) for name, plugin_options in options.items() if plugin_options}
    if not options_by_plugin:
        return {}
    schemas = schemas_of(agents)
    requested_slots = {slot for slots in kernel_slots for slot in slots.nonzero()}
    plugins_of_slots = {
        plugin.name
        for agent in agents
        for plugin in devices.plugins_of(agent)
        if any(slot.slot_name in requested_slots for device in plugin.devices for slot in device.slots)
    }
    for name, plugin_options in options_by_plugin.items():
        field_path = f"{_FIELD}.{name[:64]}"
        if name not in schemas:
            plugin_names = ", ".join(schemas) or "none"
            message = f"no agent here has a plugin {name[:64]!r} that takes options; those that do are: {plugin_names}"
            raise InvalidInput(message, data={field_path: "unknown"})
        if name not in plugins_of_slots:
            message = f"options for {name} concern its devices; request one of its slots as well"
            raise InvalidInput(message, data={field_path: "none of its slots is requested"})
        problems = [problems_of_options(plugin_options, schema) for schema in schemas[name]]
        if all(problems):
            fewest_problems = min(problems, key=len)
            problem_text = "; ".join(
                f"{option_path}: {problem}" if option_path else problem
                for option_path, problem in fewest_problems.items()
            )
            data = {
                f"{field_path}.{option_path}" if option_path else field_path: problem
                for option_path, problem in fewest_problems.items()
            }
            raise InvalidInput(f"the plugin {name} does not take these options: {problem_text}", data=data)
    return options_by_plugin
