"""Settings of each agent of a cluster: a file like ``agent.toml``, or a folder of them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings import load_settings

_OURS = (("agent", "id"), ("agent", "data-dir"), ("agent", "data_dir"))
_ALLOWED = ("allow-compute-plugins", "allowed-compute-plugins", "allow_compute_plugins")


def own_settings(place: str | None, agent_id: str) -> dict[str, Any]:
    """Returns the settings of this agent from a file for all agents, or from ``AGENT.toml`` in a folder; empty without
    one. Raises InvalidInput for a file that cannot be used."""
    path = Path(place or "")
    if path.is_dir() and place is not None:
        path = path / f"{agent_id}.toml"
        place = str(path) if path.exists() else None
    if place is None:
        return {}
    load_settings(AgentSettings, name="agent", path=path)
    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    for table, key in _OURS:
        if key in settings.get(table, {}):
            raise InvalidInput(f"{path}: {table}.{key} is what `up` says; leave it out", data={f"{table}.{key}": "set"})
    return settings


def check(place: str | None, agents: Iterable[str], *, is_new: bool) -> None:
    """Raises InvalidInput for a file that cannot be used; for a new folder also for a file of no agent."""
    names = list(agents)
    for name in names:
        own_settings(place, name)
    if is_new and place is not None and Path(place).is_dir():
        for file in sorted(Path(place).glob("*.toml")):
            if file.stem not in names:
                raise InvalidInput(f"{file} is for no agent of this cluster; it has {', '.join(names)}.")


def merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merges ``own`` over ``base``: tables key by key, anything else as a whole. Allowed plugins are added up."""
    result = dict(base)
    for key, value in own.items():
        old = result.get(key)
        if key in _ALLOWED:
            result[_ALLOWED[0]] = [*result.get(_ALLOWED[0], ()), *value]
        elif isinstance(value, dict) and isinstance(old, dict):
            result[key] = merged(old, value)
        else:
            result[key] = value
    return result
