"""Checks the structure of a YAML text of a user before values are made of it."""

from __future__ import annotations

from typing import Any

import yaml

_COLLECTION_START_EVENTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_COLLECTION_END_EVENTS = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def structure_problem(text: str, loader: Any, *, max_depth: int) -> str | None:
    """Returns the reason to refuse a YAML text, or None: the text has an alias, or collections are nested too deeply.

    By an alias a small text becomes huge values. Too deeply: deeper than ``max_depth``. Raises yaml.YAMLError.
    """
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        depth += isinstance(event, _COLLECTION_START_EVENTS) - isinstance(event, _COLLECTION_END_EVENTS)
        if depth > max_depth:
            return "it is nested too deeply"
        if isinstance(event, yaml.AliasEvent):
            return "it has an alias (*name)"
    return None
