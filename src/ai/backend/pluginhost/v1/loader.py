"""Loads a plugin of either version of the interface in its host process."""

from __future__ import annotations

import inspect
import sys

from ai.backend.common.errors import PluginError
from ai.backend.plugin.accelerator import AbstractComputePlugin
from ai.backend.plugin.discovery import load_plugin
from ai.backend.pluginhost.v1 import import_hook


def load_any_version(reference: str) -> type[AbstractComputePlugin]:
    """Loads a plugin as :func:`load_plugin` does; a v1 plugin is returned as its adapter.

    Raises:
        PluginError, Exception: as :func:`load_plugin`.
    """
    import_hook.install()
    return load_plugin(reference, adapt=adapted)


def adapted(shown: object, reference: str) -> object:
    """Returns the adapter of the only v1 plugin that a module shows, or of a v1 class; anything else as it is.

    Raises:
        PluginError: it shows classes of v1, and not one plugin.
    """
    if "ai.backend.pluginhost.v1.api.plugin" not in sys.modules:
        return shown  # nobody has asked for a name of v1
    from ai.backend.pluginhost.v1.adapter import adapter_of
    from ai.backend.pluginhost.v1.api.plugin import AbstractComputePlugin as V1Plugin

    candidates = [shown] if inspect.isclass(shown) else list(vars(shown).values())
    classes = {c for c in candidates if inspect.isclass(c)}
    found = {c for c in classes if issubclass(c, V1Plugin) and c is not V1Plugin}
    concrete = {c for c in found if not inspect.isabstract(c)}
    is_present = any(issubclass(c, AbstractComputePlugin) and not inspect.isabstract(c) for c in classes)
    if not found or is_present:
        return shown  # a module may show the plugin of both versions
    if len(concrete) != 1:
        missing = sorted(name for c in found for name in getattr(c, "__abstractmethods__", ()))
        without = f" (without {', '.join(missing)})" if missing and not concrete else ""
        raise PluginError(f"{reference} shows {len(concrete)} v1 plugins instead of one{without}")
    return adapter_of(concrete.pop())
