"""Loads settings from files and the environment."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ai.backend.common.errors import InvalidInput, PluginError
from ai.backend.plugin.settings import kebab, problems_of, read_toml

M = TypeVar("M", bound=BaseModel)


def search_path(name: str) -> list[Path]:
    """Returns the paths at which ``<name>.toml`` is searched; the first match wins."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [folder / f"{name}.toml" for folder in (Path.cwd(), home / "backend.ai", Path("/etc/backend.ai"))]


def load_settings(
    model: type[M],
    *,
    name: str,
    path: Path | None = None,
    env_prefix: str | None = None,
    environ: Mapping[str, str] | None = None,
    fixed_values: Mapping[str, Any] | None = None,
) -> M:
    """Reads one daemon's settings from ``path``, or else from the first ``<name>.toml`` of :func:`search_path`, if any.

    The environment wins over the file: with the prefix ``BACKEND_AGENT_`` the variable
    ``BACKEND_AGENT_CONTAINER__KERNEL_UID`` sets ``container.kernel-uid``. ``fixed_values`` has keys that win over both.
    Raises InvalidInput for a missing file, bad TOML, an unknown key or a bad value; the message names file and key.
    """
    file = (
        path
        if path is not None
        else next((candidate_path for candidate_path in search_path(name) if candidate_path.is_file()), None)
    )
    data = _read(file) if file is not None else {}
    source_description = str(file) if file is not None else "the defaults"
    if env_prefix:
        _merge_environment(data, env_prefix, os.environ if environ is None else environ)
        source_description += f" and {env_prefix}*"
    _merge_fixed(data, fixed_values or {})
    try:
        return model.model_validate(data)
    except ValidationError as e:
        validation_errors = problems_of(e)
        problem_texts = "; ".join(f"{key}: {problem}" for key, problem in validation_errors.items())
        raise InvalidInput(f"Settings from {source_description}: {problem_texts}", data=validation_errors) from None


def _read(file: Path) -> dict[str, Any]:
    try:
        return read_toml(file)
    except PluginError as e:
        raise InvalidInput(e.message) from None


def _merge_environment(data: dict[str, Any], prefix: str, environ: Mapping[str, str]) -> None:
    for variable, value_text in environ.items():
        if not variable.startswith(prefix) or variable == prefix:
            continue
        *tables, key = (kebab(name_part.lower()) for name_part in variable.removeprefix(prefix).split("__"))
        target_table = data
        for table in tables:
            child_table = target_table.setdefault(table, {})
            if not isinstance(child_table, dict):
                raise InvalidInput(f"{variable}: {table} is not a table")
            target_table = child_table
        target_table[key] = _parse_value(value_text)


def _merge_fixed(data: dict[str, Any], fixed_values: Mapping[str, Any]) -> None:
    for key, value in fixed_values.items():
        nested_table = data.get(key)
        if isinstance(value, Mapping) and isinstance(nested_table, dict):
            _merge_fixed(nested_table, value)
        else:
            data[key] = value


def _parse_value(value_text: str) -> Any:
    """Parses a list or table in TOML's notation. Any other text stays text, and the model converts it."""
    if not value_text.startswith(("[", "{")):
        return value_text
    try:
        return tomllib.loads(f"v = {value_text}")["v"]
    except tomllib.TOMLDecodeError:
        return value_text
