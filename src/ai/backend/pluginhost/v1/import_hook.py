"""Provides the modules that v1 plugins import, inside of a plugin's host process only (decision 0068).

A v1 plugin imports ``ai.backend.agent.resources`` and the like, of packages that are not installed here and whose first
names are ours. A finder answers for these modules, and fills each with names of :mod:`ai.backend.pluginhost.v1.api`.
Of ``ai.backend.agent`` there is nothing else in a host; ``ai.backend.common`` stays ours, with these modules added.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

_V1 = "ai.backend.pluginhost.v1.api"
_AGENT = "ai.backend.agent"

MODULES: Mapping[str, Sequence[str]] = {
    _AGENT: (),
    "ai.backend.agent.alloc_map": ("alloc_maps",),
    "ai.backend.agent.exception": ("exceptions",),
    "ai.backend.agent.resources": ("plugin", "alloc_maps"),
    "ai.backend.agent.stats": ("statistics",),
    "ai.backend.agent.types": ("containers",),
    "ai.backend.agent.utils": ("logging",),
    "ai.backend.common.logging": ("logging",),
    "ai.backend.common.plugin": ("plugin",),
    "ai.backend.common.types": ("types",),
    "ai.backend.logging": ("logging",),
}
"""A published module -> the modules whose ``__all__`` it shows."""


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in MODULES:
            return spec_from_loader(fullname, self, is_package=fullname == _AGENT)
        if fullname.startswith(_AGENT + "."):
            raise ModuleNotFoundError(f"v1 plugins have no module {fullname} here", name=fullname)
        return None

    def exec_module(self, module: ModuleType) -> None:
        for source in (importlib.import_module(f"{_V1}.{name}") for name in MODULES[module.__name__]):
            module.__file__ = source.__file__  # an ImportError of a name that is not there says it
            vars(module).update({name: getattr(source, name) for name in source.__all__})


def install() -> None:
    """Make the names known to this process, which runs one plugin and nothing else. May be repeated."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
