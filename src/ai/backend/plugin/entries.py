"""Finds installed plugins of a group by their entry points, for every group but accelerators (:mod:`.discovery`)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from ai.backend.common.errors import InvalidInput, PluginError
from ai.backend.plugin.settings import problems_of


def installed(group: str) -> list[str]:
    """Returns the names of the installed plugins of a group, including those that cannot be loaded."""
    return sorted({entry.name for entry in entry_points(group=group)})


def load_class(group: str, name: str, base_class: Any) -> Any:
    """Returns the class of an installed plugin.

    Raises:
        InvalidInput: no package has a plugin of this name; the message names the others.
        PluginError: it cannot be imported, is no subclass of ``base_class``, or is written for another version.
    """
    matching_entries = list(entry_points(group=group, name=name))
    if not matching_entries:
        plugin_names = ", ".join(installed(group)) or "none"
        raise InvalidInput(f"No installed package has {name!r} in the entry points {group}; there is {plugin_names}.")
    if len({entry.value for entry in matching_entries}) > 1:
        raise PluginError(f"Several packages have {name!r} in the entry points {group}: remove all but one.")
    try:
        loaded_class: Any = matching_entries[0].load()
    except Exception as e:
        raise PluginError(f"The plugin {name!r} of {group} cannot be loaded: {type(e).__name__}: {e}") from e
    return check_class(loaded_class, name, base_class)


def settings_for(cls: Any, values: Mapping[str, Any], *, settings_path: str) -> BaseModel | None:
    """Returns the settings object of a plugin class.

    ``settings_path`` is the key of the settings in the file. Raises InvalidInput.
    """
    model = cls.settings_model
    if model is None:
        if values:
            raise InvalidInput(f"{settings_path}: the plugin has no settings.")
        return None
    try:
        settings: BaseModel = model.model_validate(values)
    except ValidationError as e:
        problems = {f"{settings_path}.{key}": problem for key, problem in problems_of(e).items()}
        problem_text = "; ".join(f"{key}: {problem}" for key, problem in problems.items())
        raise InvalidInput(problem_text, data=problems) from None
    return settings


def check_class(loaded_class: Any, name: str, base_class: Any) -> Any:
    """Checks that a class is a plugin of ``base_class`` in the supported version, and returns the class.

    Raises PluginError.
    """
    if not inspect.isclass(loaded_class) or not issubclass(loaded_class, base_class):
        raise PluginError(f"{name!r} is no subclass of {base_class.__module__}.{base_class.__name__}.")
    expected_version, plugin_version = (
        getattr(base_class, "spi_version", None),
        getattr(loaded_class, "spi_version", None),
    )
    if plugin_version != expected_version:
        raise PluginError(f"{name!r} is written for version {plugin_version} of the SPI, not {expected_version}.")
    return loaded_class
