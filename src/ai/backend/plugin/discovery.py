"""Finds plugins by their names and imports them, in the agent or in a host process."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from ai.backend.common.errors import InvalidInput, PluginError
from ai.backend.common.names import check_slot_name
from ai.backend.plugin.accelerator import ENTRY_POINT_GROUP, AbstractComputePlugin
from ai.backend.plugin.programs import is_program
from ai.backend.plugin.settings import NO_SUCH_KEY, problems_of

log = logging.getLogger(__name__)
SPI_VERSION = 30
LEGACY_GROUPS = ("backendai_accelerator_v21", "backendai_accelerator_v20")
"""Entry points of v1 plugins, newer ones first; see :mod:`ai.backend.pluginhost.v1`."""


def plugin_of(module_or_class: object, where: str) -> type[AbstractComputePlugin]:
    """Returns the plugin class of a module or class: the class itself, its ``Plugin``, or the only visible subclass.

    Raises PluginError: there is none, or more than one.
    """
    if inspect.isclass(module_or_class) and issubclass(module_or_class, AbstractComputePlugin):
        return module_or_class
    plugin_attribute = getattr(module_or_class, "Plugin", None)
    candidates = [plugin_attribute] if plugin_attribute is not None else list(vars(module_or_class).values())
    classes = {
        candidate
        for candidate in candidates
        if inspect.isclass(candidate)
        and issubclass(candidate, AbstractComputePlugin)
        and not inspect.isabstract(candidate)
    }
    if len(classes) > 1:  # imported base classes stand beside the plugin
        module_name = getattr(module_or_class, "__name__", "")
        classes = {cls for cls in classes if _is_within(cls.__module__, module_name)} or classes
        classes = {cls for cls in classes if not any(cls in other_class.__mro__[1:] for other_class in classes)}
    if len(classes) != 1:
        raise PluginError(
            f"{where} shows {len(classes)} compute plugins instead of one{_describe_abstract_methods(candidates)}"
        )
    return classes.pop()


def _describe_abstract_methods(candidates: Sequence[object]) -> str:
    """Returns a text about the abstract methods that the candidate plugin classes lack; empty if they lack none."""
    problems = {
        f"{candidate.__name__} lacks {', '.join(sorted(candidate.__abstractmethods__))}"
        for candidate in candidates
        if inspect.isclass(candidate)
        and issubclass(candidate, AbstractComputePlugin)
        and inspect.isabstract(candidate)
        and candidate is not AbstractComputePlugin
    }
    return f": {'; '.join(sorted(problems))}" if problems else ""


def load_plugin(
    reference: str, *, adapt: Callable[[object, str], object] = lambda shown, _: shown
) -> type[AbstractComputePlugin]:
    """Imports the plugin class that ``package.module`` or ``package.module:Name`` names, and returns the class.

    ``adapt`` makes a plugin class of a class of another version. Raises PluginError if it shows no plugin of this
    version, and anything that importing it raises.
    """
    module_name, _, attribute_path = reference.partition(":")
    try:
        loaded_object: object = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name is None or not _is_within(module_name, e.name):
            raise  # the plugin was found, and imports what is not there
        raise PluginError(_describe_missing_plugin(reference, e.name)) from None
    for attribute_name in attribute_path.split(".") if attribute_path else ():
        loaded_object = getattr(loaded_object, attribute_name)
    cls = plugin_of(adapt(loaded_object, reference), reference)
    if not isinstance(getattr(cls, "key", None), str) or "." in check_slot_name(cls.key):
        raise PluginError(f"{reference} has no key that slot names can begin with")
    if cls.spi_version != SPI_VERSION:
        raise PluginError(f"{reference} is written for version {cls.spi_version} of the interface, not {SPI_VERSION}")
    return cls


def _describe_missing_plugin(reference: str, module: str) -> str:
    groups = (ENTRY_POINT_GROUP, *LEGACY_GROUPS)
    plugin_names = sorted({entry_point.name for group in groups for entry_point in entry_points(group=group)})
    return (
        f"no plugin {reference} is installed, and {sys.prefix} has no module {module}; install it there (a running"
        f" agent sees it after a restart). Installed are {', '.join(plugin_names) or 'none'}."
    )


def make_plugin(cls: type[AbstractComputePlugin], values: Mapping[str, Any]) -> AbstractComputePlugin:
    """Creates a plugin with its settings.

    Raises InvalidInput for wrong ones, each named ``plugins.<device>.<key>``, and anything that the constructor raises.
    """
    return cls(_parse_settings(cls, values))


def _parse_settings(cls: type[AbstractComputePlugin], values: Mapping[str, Any]) -> BaseModel | None:
    model = cls.settings_model
    fields = model.model_fields if model is not None else {}
    field_names = {
        field_name
        for attribute_name, field in fields.items()
        for field_name in (attribute_name, field.alias or attribute_name)
    }
    extra_mode = model.model_config.get("extra") if model is not None else None
    if extra_mode in (None, "ignore") and (unknown_keys := sorted(set(values) - field_names)):
        raise _settings_error(cls, dict.fromkeys(unknown_keys, NO_SUCH_KEY))
    if model is None:
        return None
    try:
        return model.model_validate(dict(values))
    except ValidationError as e:
        raise _settings_error(cls, problems_of(e)) from None


def _settings_error(cls: type[AbstractComputePlugin], problems: Mapping[str, str]) -> InvalidInput:
    fields = cls.settings_model.model_fields if cls.settings_model is not None else {}
    key_list = ", ".join(sorted(field.alias or field_name for field_name, field in fields.items())) or "none"
    problems = {
        key: f"{problem}; the keys are {key_list}" if problem == NO_SUCH_KEY and "." not in key else problem
        for key, problem in problems.items()
    }
    problem_by_place = {
        f"plugins.{cls.key}.{key}" if key else f"plugins.{cls.key}": problem for key, problem in problems.items()
    }
    return InvalidInput(
        "; ".join(f"{place}: {problem}" for place, problem in problem_by_place.items()), data=problem_by_place
    )


@dataclass(frozen=True, slots=True)
class PluginSource:
    """Describes the origin of a plugin: its name, and the means by which the agent or a host imports it.

    ``load`` imports it here, and may raise anything. ``reference`` is what a host process would import; ``isolated``:
    only a host process may.
    """

    name: str
    load: Callable[[], type[AbstractComputePlugin]]
    reference: str | None = None
    isolated: bool = False


def find_plugins(
    allowed: Sequence[str], blocked: Sequence[str], intrinsic: Sequence[str], in_process: Sequence[str] = ("*",)
) -> list[PluginSource]:
    """Returns the plugins to load: the intrinsic and the allowed plugins, without the blocked ones.

    Nothing is imported.

    A name is the absolute path of an executable (:mod:`.programs`), a package path, an entry point of
    ``backendai_accelerator_v30``, or else of a v1 plugin; that and an executable always get a host process. A package
    stands for its entry point too. ``*`` allows every installed entry point but those of v1. A name that matches
    nothing is warned of; an allowed one is still tried, so that its failure is listed among the plugins.

    Args:
        allowed, blocked, intrinsic: names.
        in_process: names, or ``*``, of those that run in the agent's own process, besides the intrinsic ones.
    """
    installed_entry_points = entry_points()  # once: it reads a file of each installed distribution
    entry_point_by_name = {
        entry_point.name: entry_point for entry_point in installed_entry_points.select(group=ENTRY_POINT_GROUP)
    }
    legacy_entry_points = [
        entry_point for group in LEGACY_GROUPS for entry_point in installed_entry_points.select(group=group)
    ]
    sources: dict[str, PluginSource] = {}
    for plugin_name in [
        *intrinsic,
        *(listed_name for listed_name in allowed if listed_name != "*"),
        *(entry_point_by_name if "*" in allowed else ()),
    ]:
        entry = entry_point_by_name.get(plugin_name) or next(
            (
                legacy_entry_point
                for legacy_entry_point in legacy_entry_points
                if plugin_name == legacy_entry_point.name or _is_within(legacy_entry_point.module, plugin_name)
            ),
            None,
        )
        package, reference = (entry.module, entry.value) if entry is not None else (plugin_name, plugin_name)
        if is_program(plugin_name):
            if plugin_name not in blocked:
                sources[plugin_name] = PluginSource(
                    plugin_name, partial(_refuse_program, plugin_name), plugin_name, isolated=True
                )
            continue
        place = reference.replace(":", ".")  # one module may show several plugins
        is_listed = any(_is_within(place, other_place) or _is_within(other_place, place) for other_place in sources)
        if plugin_name in blocked or package in blocked or is_listed:
            continue
        if entry is None and not _is_importable(plugin_name):
            log.warning("allow-compute-plugins names %s, which is no installed plugin and no package", plugin_name)
        is_legacy = entry is not None and plugin_name not in entry_point_by_name
        is_local = plugin_name in intrinsic or any(
            listed_name in ("*", plugin_name) or _is_within(package, listed_name) for listed_name in in_process
        )
        sources[place] = PluginSource(
            plugin_name, partial(load_plugin, reference), reference, isolated=is_legacy or not is_local
        )
    for plugin_name in blocked:
        is_installed = plugin_name in entry_point_by_name or any(
            plugin_name == legacy_entry_point.name for legacy_entry_point in legacy_entry_points
        )
        if not is_installed and not is_program(plugin_name) and not _is_importable(plugin_name):
            log.warning("block-compute-plugins names %s, which is no installed plugin and no package", plugin_name)
    return list(sources.values())


def _refuse_program(path: str) -> type[AbstractComputePlugin]:
    raise PluginError(f"{path} is an executable, which runs in a process of its own only")


def _is_within(package: str, root: str) -> bool:
    return package == root or package.startswith(root + ".")


def _is_importable(name: str) -> bool:
    """True if the top-level package of the name exists.

    The rest of the name is unknown before an import.
    """
    top_package = name.partition(":")[0].partition(".")[0]
    try:
        return top_package.isidentifier() and importlib.util.find_spec(top_package) is not None
    except (ImportError, ValueError):
        return False
