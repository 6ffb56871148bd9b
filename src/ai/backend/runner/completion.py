"""Completes names from the live namespace, in the interpreter child. Looks names up without calling anything."""

from __future__ import annotations

import builtins
import keyword
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List

__builtins__ = dict(vars(builtins))  # type: ignore[assignment]  # a module or its dict, both are allowed

MAX_MATCHES = 200
_DOTTED = re.compile(r"(?:(?P<owner>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\.)?(?P<prefix>[^\W\d]\w*)?$")
_IMPORT = re.compile(r"^\s*(?:import|from)\s+(?:[\w.]+\s*,\s*)*(?P<module>[\w.]*)$")
_FROM = re.compile(r"^\s*from\s+(?P<module>[\w.]+)\s+import\s+(?:[\w]+\s*,\s*)*\(?\s*(?P<prefix>\w*)$")


def complete(before: str, namespace: Dict[str, Any]) -> List[bytes]:
    """Returns whole dotted names for the one before the cursor (`os.pa` -> `os.path`), sorted, private ones last."""
    before = before.rsplit("\n", 1)[-1]
    found = _FROM.match(before)
    if found:
        return _sorted(_from_module(found.group("module")), found.group("prefix"))
    found = _IMPORT.match(before)
    if found:
        return _sorted(_modules(), found.group("module"))
    name = _DOTTED.search(before)
    if name is None or (name.start() and before[name.start() - 1] in ".)]}'\""):
        return []
    owner, prefix = name.group("owner"), name.group("prefix") or ""
    if owner is None:
        if not prefix:
            return []
        return _sorted([*namespace, *vars(builtins), *keyword.kwlist], prefix)
    value = _resolve(owner.split("."), namespace)
    return _sorted(
        [f"{owner}.{attribute}" for attribute in dir(value) if isinstance(attribute, str)], f"{owner}.{prefix}"
    )


def _resolve(names: List[str], namespace: Dict[str, Any]) -> Any:
    first = names[0]
    value = namespace[first] if first in namespace else vars(builtins)[first]
    for name in names[1:]:
        value = getattr(value, name)
    return value


def _from_module(name: str) -> List[str]:
    module = sys.modules.get(name)
    return [] if module is None else dir(module)  # completing must not run the code of a module


def _modules() -> List[str]:
    import pkgutil

    return [*sys.builtin_module_names, *(info.name for info in pkgutil.iter_modules()), *sys.modules]


def _sorted(names: List[str], prefix: str) -> List[bytes]:
    wants_private = prefix.rpartition(".")[2].startswith("_")
    matches = {n for n in names if n.startswith(prefix) and (wants_private or not n.rpartition(".")[2].startswith("_"))}
    return [n.encode("utf-8", "replace") for n in sorted(matches)[:MAX_MATCHES]]
