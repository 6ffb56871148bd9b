"""Completes names from the live namespace, in the interpreter child, without calling any code of the user."""

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
_DOTTED_NAME_PATTERN = re.compile(r"(?:(?P<owner>[^\W\d]\w*(?:\.[^\W\d]\w*)*)\.)?(?P<prefix>[^\W\d]\w*)?$")
_IMPORT_PATTERN = re.compile(r"^\s*(?:import|from)\s+(?:[\w.]+\s*,\s*)*(?P<module>[\w.]*)$")
_FROM_IMPORT_PATTERN = re.compile(r"^\s*from\s+(?P<module>[\w.]+)\s+import\s+(?:[\w]+\s*,\s*)*\(?\s*(?P<prefix>\w*)$")


def complete(text_before_cursor: str, namespace: Dict[str, Any]) -> List[bytes]:
    """Returns the dotted names that complete the text before the cursor (`os.pa` -> `os.path`), private ones last."""
    text_before_cursor = text_before_cursor.rsplit("\n", 1)[-1]
    import_match = _FROM_IMPORT_PATTERN.match(text_before_cursor)
    if import_match:
        module = sys.modules.get(import_match.group("module"))  # completing must not run the code of a module
        return _sorted_matches([] if module is None else dir(module), import_match.group("prefix"))
    import_match = _IMPORT_PATTERN.match(text_before_cursor)
    if import_match:
        import pkgutil

        installed_modules = [module_info.name for module_info in pkgutil.iter_modules()]
        return _sorted_matches(
            [*sys.builtin_module_names, *installed_modules, *sys.modules], import_match.group("module")
        )
    dotted_match = _DOTTED_NAME_PATTERN.search(text_before_cursor)
    if dotted_match is None or (dotted_match.start() and text_before_cursor[dotted_match.start() - 1] in ".)]}'\""):
        return []
    owner_name, prefix = dotted_match.group("owner"), dotted_match.group("prefix") or ""
    if owner_name is None:
        if not prefix:
            return []
        return _sorted_matches([*namespace, *vars(builtins), *keyword.kwlist], prefix)
    root_name, *attribute_names = owner_name.split(".")
    owner_object: Any = namespace[root_name] if root_name in namespace else vars(builtins)[root_name]
    for attribute_name in attribute_names:
        owner_object = getattr(owner_object, attribute_name)
    attributes = [f"{owner_name}.{attribute}" for attribute in dir(owner_object) if isinstance(attribute, str)]
    return _sorted_matches(attributes, f"{owner_name}.{prefix}")


def _sorted_matches(dotted_names: List[str], prefix: str) -> List[bytes]:
    wants_private = prefix.rpartition(".")[2].startswith("_")
    matches = {
        dotted_name
        for dotted_name in dotted_names
        if dotted_name.startswith(prefix) and (wants_private or not dotted_name.rpartition(".")[2].startswith("_"))
    }
    return [dotted_name.encode("utf-8", "replace") for dotted_name in sorted(matches)[:MAX_MATCHES]]
