"""Reads the settings of a cluster's manager from a file like ``manager.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings import load_settings
from ai.backend.manager.config.settings import ManagerSettings

_RESERVED_TABLES = (
    *("data_dir", "listen", "manager", "agent_link", "database", "db", "etcd", "redis", "secrets", "logging"),
    *("debug", "otel"),
)
"""What `up` decides: where the manager listens and keeps its data, its process and its logs."""


def manager_settings(given_path: str | None, data_dir: Path) -> ManagerSettings:
    """Returns the settings of the manager from a file.

    Without a file, returns the defaults. Raises InvalidInput for an unusable file, and for a table that `up` decides.
    """
    if given_path is None:
        return ManagerSettings(data_dir=data_dir)
    path = Path(given_path)
    settings = load_settings(ManagerSettings, name="manager", path=path, fixed_values={"data-dir": str(data_dir)})
    present_tables = {key.replace("-", "_") for key in tomllib.loads(path.read_text(encoding="utf-8"))}
    for table_name in _RESERVED_TABLES:
        if table_name in present_tables:
            name = table_name.replace("_", "-")
            raise InvalidInput(f"{path}: {name} is what `up` says; leave it out", data={name: "set"})
    return settings
