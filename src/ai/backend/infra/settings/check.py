"""Implements ``config check FILE``, which prints the keys of a settings file that have no effect or are refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
import msgspec

from ai.backend.common.errors import BackendError
from ai.backend.infra.settings.load import load_settings
from ai.backend.infra.settings.published import keys_without_effect
from ai.backend.plugin.settings import read_toml


class SettingsFile(msgspec.Struct, frozen=True):
    """Holds the import names of the settings model of a kind of file, and of a function with further checks.

    Model and function are imported when they are needed.
    """

    model: str
    further_check: str | None = None


SETTINGS_FILES = {
    "manager": SettingsFile("ai.backend.manager.config.settings:ManagerSettings"),
    "agent": SettingsFile(
        "ai.backend.agent.config.settings:AgentSettings", "ai.backend.agent.runtimes:parse_runtime_settings"
    ),
    "storage-proxy": SettingsFile("ai.backend.storage.config.settings:StorageSettings"),
    "proxy-worker": SettingsFile("ai.backend.appproxy.worker.config.settings:WorkerSettings"),
    "proxy-coordinator": SettingsFile("ai.backend.appproxy.coordinator.config.settings:CoordinatorSettings"),
    "webserver": SettingsFile("ai.backend.web.config.settings:WebSettings"),
}


@click.group("config")
def config() -> None:
    """Check files of settings."""


@config.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Say which settings of FILE have effect, have none, or are refused.

    FILE is the file of a manager, an agent, a storage proxy, a web server, or of the app proxy. The environment is not
    read.
    """
    try:
        data = read_toml(file)
        kind = _kind(file, data)
        settings = load_settings(resolve_name(SETTINGS_FILES[kind].model), name=kind, path=file)
        further_check = SETTINGS_FILES[kind].further_check
        if further_check is not None:
            resolve_name(further_check)(settings)
    except BackendError as e:
        click.echo(f"{file} is refused:", err=True)
        for key, problem in (e.data or {"": e.message}).items():
            click.echo(f"  {key}: {problem}" if key else f"  {problem}", err=True)
        sys.exit(1)  # the exit of a click context is lost in a command that is no program of its own
    reasons = dict(keys_without_effect(settings))
    click.echo(f"The {kind.replace('-', ' ')} can use {file}.")
    click.echo("Without effect:" if reasons else "All its settings have effect.")
    for key, reason in reasons.items():
        click.echo(f"  {key}: {reason}")


def _kind(file: Path, data: Mapping[str, Any]) -> str:
    """Returns the kind of a settings file: the kind whose model has the most of the tables in the file.

    If several kinds have equally many of the tables, the kind with the name of the file is chosen.
    """

    def fitness(kind: str) -> tuple[int, bool]:
        fields = resolve_name(SETTINGS_FILES[kind].model).model_fields
        keys = {field.alias or name for name, field in fields.items()}
        return len(keys & data.keys()), file.stem == kind

    return max(SETTINGS_FILES, key=fitness)
