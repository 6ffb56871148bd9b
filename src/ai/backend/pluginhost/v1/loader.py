"""Loads a plugin of either version of the interface in its host process."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

from ai.backend.common.errors import PluginError
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.discovery import load_plugin

_V1_PACKAGES = "ai.backend.pluginhost.v1.api"
_AGENT_PACKAGE = "ai.backend.agent"

MODULES: Mapping[str, Sequence[str]] = {
    _AGENT_PACKAGE: (),
    "ai.backend.agent.alloc_map": ("alloc_maps",),
    "ai.backend.agent.exception": ("exceptions",),
    "ai.backend.agent.resources": ("plugin", "alloc_maps"),
    "ai.backend.agent.stats": ("statistics",),
    "ai.backend.agent.types": ("types",),
    "ai.backend.agent.utils": ("logging",),
    "ai.backend.common.logging": ("logging",),
    "ai.backend.common.plugin": ("plugin",),
    "ai.backend.common.types": ("types",),
    "ai.backend.logging": ("logging",),
}
"""Maps each published module to the modules whose ``__all__`` it shows."""


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MODULES:
            return spec_from_loader(fullname, self, is_package=fullname == _AGENT_PACKAGE)
        if fullname.startswith(_AGENT_PACKAGE + "."):
            raise ModuleNotFoundError(f"v1 plugins have no module {fullname} here", name=fullname)
        return None

    def exec_module(self, module: ModuleType) -> None:
        for source_module in (importlib.import_module(f"{_V1_PACKAGES}.{name}") for name in MODULES[module.__name__]):
            module.__file__ = source_module.__file__  # an ImportError of a name that is not there says it
            vars(module).update({name: getattr(source_module, name) for name in source_module.__all__})


def install() -> None:
    """Makes the module names of v1 importable in this process, which runs one plugin. Safe twice."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def load_any_version(reference: str) -> type[AbstractComputePlugin]:
    """Loads a plugin as :func:`load_plugin` does; a v1 plugin is returned as its adapter.

    Raises PluginError, Exception: as :func:`load_plugin`.
    """
    install()
    return load_plugin(reference, adapt=adapt_class)


def adapt_class(loaded_object: object, reference: str) -> object:
    """Returns the adapter of the only v1 plugin of a module, or of a v1 class. Returns any other object unchanged.
    Raises PluginError: the module shows classes of v1, and not one plugin.
    """
    if "ai.backend.pluginhost.v1.api.plugin" not in sys.modules:
        return loaded_object  # no name of v1 was imported
    from ai.backend.pluginhost.v1.adapter import adapter_of
    from ai.backend.pluginhost.v1.api.plugin import AbstractComputePlugin as V1Plugin

    candidates = [loaded_object] if inspect.isclass(loaded_object) else list(vars(loaded_object).values())
    classes = {cls for cls in candidates if inspect.isclass(cls)}
    v1_classes = {cls for cls in classes if issubclass(cls, V1Plugin) and cls is not V1Plugin}
    concrete_classes = {cls for cls in v1_classes if not inspect.isabstract(cls)}
    has_present_plugin = any(issubclass(cls, AbstractComputePlugin) and not inspect.isabstract(cls) for cls in classes)
    if not v1_classes or has_present_plugin:
        return loaded_object  # a module may show the plugin of both versions
    if len(concrete_classes) != 1:
        missing_methods = sorted(
            method_name for cls in v1_classes for method_name in getattr(cls, "__abstractmethods__", ())
        )
        missing_text = f" (without {', '.join(missing_methods)})" if missing_methods and not concrete_classes else ""
        raise PluginError(f"{reference} shows {len(concrete_classes)} v1 plugins instead of one{missing_text}")
    return adapter_of(concrete_classes.pop())
