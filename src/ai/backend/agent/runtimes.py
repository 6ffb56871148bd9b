"""Loads the runtime that the agent's settings name."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.plugin.entries import installed, load_class
from ai.backend.plugin.runtime import ENTRY_POINT_GROUP, AbstractRuntime, WorkloadState

_IMPORTS_OF_RUNTIME = {
    "process": (
        "ai.backend.runtime.process.runtime:ProcessRuntime",
        "ai.backend.runtime.process.settings:ProcessRuntimeSettings",
    ),
    "docker": (
        "ai.backend.runtime.docker.runtime:DockerRuntime",
        "ai.backend.runtime.docker.settings:DockerRuntimeSettings",
    ),
}
"""Runtimes in the tree: the class, made of its settings and a state directory, and the model of its settings."""


def load_runtime(settings: AgentSettings) -> AbstractRuntime:
    """Returns the runtime that ``agent.runtime`` names, on this agent's data directory.

    Raises:
        InvalidInput: there is no such runtime, or its settings are wrong, or its extra is not installed.
        Conflict: workloads of another runtime exist, which this one could not find.
    """
    name = settings.agent.runtime
    plugins = installed(ENTRY_POINT_GROUP)
    if name not in _IMPORTS_OF_RUNTIME and name not in plugins:
        names = ", ".join([*_IMPORTS_OF_RUNTIME, *plugins])
        raise InvalidInput(f"there is no runtime {name!r}; known are {names}", data={"runtime": name})
    for other_name in {*_IMPORTS_OF_RUNTIME, *plugins} - {name}:
        workloads_folder = settings.data_dir / other_name / "workloads"
        if workloads_folder.is_dir() and any(workloads_folder.iterdir()):
            message = (
                f"sessions of the runtime {other_name} are left on {settings.agent.id}; end them with that one first"
            )
            raise Conflict(message, data={"runtime": other_name})
    runtime_class, settings_model = _classes_of(name)
    try:
        parsed_settings = settings_model.model_validate(settings.runtime) if settings_model is not None else None
    except ValueError as e:
        raise InvalidInput(f"the settings of the runtime {name} are wrong: {e}") from None
    runtime: AbstractRuntime = runtime_class(parsed_settings, settings.data_dir / name)
    return runtime


def _classes_of(name: str) -> tuple[Any, Any]:
    """Returns the class of a runtime and the model of its settings. Raises InvalidInput, PluginError."""
    if name not in _IMPORTS_OF_RUNTIME:
        runtime_class = load_class(ENTRY_POINT_GROUP, name, AbstractRuntime)
        return runtime_class, runtime_class.settings_model
    try:
        runtime_class, settings_model = (
            getattr(importlib.import_module(module), attribute)
            for module, _, attribute in (path.partition(":") for path in _IMPORTS_OF_RUNTIME[name])
        )
    except ModuleNotFoundError as e:
        message = f"the runtime {name} needs {e.name}; install the extra: pip install 'backendai[{name}]'"
        raise InvalidInput(message, data={"runtime": name}) from None
    return runtime_class, settings_model


async def end_workloads(runtime: AbstractRuntime, *, grace_s: float) -> int:
    """Sets up the runtime, ends every workload, and returns their number. No agent may use the runtime meanwhile."""
    await runtime.setup()
    try:
        views = [view for view in await runtime.list_workloads() if view.state is not WorkloadState.EXITED]
        await asyncio.gather(*(runtime.stop(view.key, grace_s=grace_s) for view in views))
        return len(views)
    finally:
        await runtime.shutdown()
