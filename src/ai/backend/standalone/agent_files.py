"""Reads the settings of each agent of a cluster, from a file like ``agent.toml`` or a folder of such files."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ai.backend.agent.config.settings import AgentSettings
from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings import load_settings

_RESERVED_SETTINGS = (("agent", "id"), ("agent", "data-dir"), ("agent", "data_dir"))
_ALLOWED_PLUGINS_KEYS = ("allow-compute-plugins", "allowed-compute-plugins", "allow_compute_plugins")


def own_settings(given_path: str | None, agent_id: str) -> dict[str, Any]:
    """Returns the settings of one agent, from a file for all agents or from ``AGENT.toml`` in a folder.

    Raises InvalidInput.
    """
    path = Path(given_path or "")
    if path.is_dir() and given_path is not None:
        path = path / f"{agent_id}.toml"
        given_path = str(path) if path.exists() else None
    if given_path is None:
        return {}
    load_settings(AgentSettings, name="agent", path=path)
    settings = tomllib.loads(path.read_text(encoding="utf-8"))
    for table_name, key in _RESERVED_SETTINGS:
        if key in settings.get(table_name, {}):
            raise InvalidInput(
                f"{path}: {table_name}.{key} is what `up` says; leave it out", data={f"{table_name}.{key}": "set"}
            )
    return settings


def check_agent_files(given_path: str | None, agents: Iterable[str], *, is_new: bool) -> None:
    """Raises InvalidInput if a settings file is not usable.

    With ``is_new``, also if a file names no agent of the cluster.
    """
    agent_ids = list(agents)
    for agent_id in agent_ids:
        own_settings(given_path, agent_id)
    if is_new and given_path is not None and Path(given_path).is_dir():
        for file in sorted(Path(given_path).glob("*.toml")):
            if file.stem not in agent_ids:
                raise InvalidInput(f"{file} is for no agent of this cluster; it has {', '.join(agent_ids)}.")


def merge_settings(base_settings: Mapping[str, Any], own_values: Mapping[str, Any]) -> dict[str, Any]:
    """Merges an agent's own settings over the base settings.

    Tables are merged key by key, and other values are replaced as a whole. Allowed plugins are added up.
    """
    result = dict(base_settings)
    for key, value in own_values.items():
        base_value = result.get(key)
        if key in _ALLOWED_PLUGINS_KEYS:
            result[_ALLOWED_PLUGINS_KEYS[0]] = [*result.get(_ALLOWED_PLUGINS_KEYS[0], ()), *value]
        elif isinstance(value, dict) and isinstance(base_value, dict):
            result[key] = merge_settings(base_value, value)
        else:
            result[key] = value
    return result
