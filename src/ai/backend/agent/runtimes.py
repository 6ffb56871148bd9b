"""Loads the runtime that the agent's settings name."""

from __future__ import annotations

import asyncio
from pkgutil import resolve_name
from typing import Any

from pydantic import ValidationError

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import Conflict, InvalidInput
from ai.backend.plugin.entries import installed, load_class
from ai.backend.plugin.runtime import ENTRY_POINT_GROUP, AbstractRuntime, WorkloadState
from ai.backend.plugin.settings import problems_of

CLUSTER_RUNTIME = "kubernetes"
"""The runtime of which one process serves many nodes, each with a runtime of its own."""
_IMPORTS_OF_RUNTIME = {
    "process": (
        "ai.backend.runtime.process.runtime:ProcessRuntime",
        "ai.backend.runtime.process.settings:ProcessRuntimeSettings",
    ),
    "docker": (
        "ai.backend.runtime.docker.runtime:DockerRuntime",
        "ai.backend.runtime.docker.settings:DockerRuntimeSettings",
    ),
    "kubernetes": (
        "ai.backend.runtime.kubernetes.runtime:KubernetesRuntime",
        "ai.backend.runtime.kubernetes.settings:KubernetesRuntimeSettings",
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
    parsed_settings = parse_runtime_settings(settings)
    for workloads_folder in settings.data_dir.glob("*/workloads"):
        other_name = workloads_folder.parent.name
        if (
            other_name != name
            and _is_known(other_name)
            and workloads_folder.is_dir()
            and any(workloads_folder.iterdir())
        ):
            message = (
                f"sessions of the runtime {other_name} are left on {settings.agent.id}; end them with that one first"
            )
            raise Conflict(message, data={"runtime": other_name})
    runtime: AbstractRuntime = _class_of(name)(parsed_settings, settings.data_dir / name)
    return runtime


def _is_known(name: str) -> bool:
    return name in _IMPORTS_OF_RUNTIME or name in installed(ENTRY_POINT_GROUP)  # which looks at every distribution


def _class_of(name: str) -> Any:
    """Returns the class of a runtime. Raises InvalidInput, PluginError."""
    if name not in _IMPORTS_OF_RUNTIME:
        return load_class(ENTRY_POINT_GROUP, name, AbstractRuntime)
    try:
        return resolve_name(_IMPORTS_OF_RUNTIME[name][0])
    except ModuleNotFoundError as e:
        problem = f"the runtime {name} needs {e.name}; install the extra: pip install 'backendai[{name}]'"
        raise InvalidInput(problem, data={"agent.runtime": problem}) from None


def parse_runtime_settings(settings: AgentSettings) -> Any:
    """Returns the checked settings of the runtime that ``agent.runtime`` names, or None for a runtime without settings.
    Raises InvalidInput: there is no such runtime, or its settings are wrong.
    """
    name = settings.agent.runtime
    if not _is_known(name):
        names = ", ".join([*_IMPORTS_OF_RUNTIME, *installed(ENTRY_POINT_GROUP)])
        problem = f"there is no runtime {name!r}; known are {names}"
        raise InvalidInput(problem, data={"agent.runtime": problem})
    if name in _IMPORTS_OF_RUNTIME:
        model, values = resolve_name(_IMPORTS_OF_RUNTIME[name][1]), settings.runtime_settings
    else:
        model, values = _class_of(name).settings_model, settings.runtime
    if model is None:
        return None
    try:
        return model.model_validate(values)
    except ValidationError as e:
        problems = {f"runtime.{key}": problem for key, problem in problems_of(e).items()}
        problem_texts = "; ".join(f"{key}: {problem}" for key, problem in problems.items())
        raise InvalidInput(f"the settings of the runtime {name} are wrong: {problem_texts}", data=problems) from None


async def end_workloads(runtime: AbstractRuntime, *, grace_s: float) -> int:
    """Sets up the runtime, ends every workload, and returns their number. No agent may use the runtime meanwhile."""
    await runtime.setup()
    try:
        views = [view for view in await runtime.list_workloads() if view.state is not WorkloadState.EXITED]
        await asyncio.gather(*(runtime.stop(view.key, grace_s=grace_s) for view in views))
        return len(views)
    finally:
        await runtime.shutdown()
