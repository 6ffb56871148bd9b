"""Writes the manual pages of all commands, and the completions for shells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import click
from click_man.core import generate_man_page

from ai.backend.cli.framework.output import PROGRAM
from ai.backend.cli.main import root

_SHELLS = ("bash", "zsh", "fish")


def write_manual(folder: Path, version: str, moment: datetime) -> None:
    """Writes a page of section 1 for each command and group, dated ``moment``."""
    folder.mkdir(parents=True)
    date = moment.strftime("%Y-%m-%d")
    for context in _contexts(click.Context(root, info_name=PROGRAM)):
        name = context.command_path.replace(" ", "-")
        (folder / f"{name}.1").write_text(generate_man_page(context, version=version, date=date))


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """Yields the contexts of a command and of all below it that are not hidden. The library's own walk knows no groups
    that load their commands when they are used."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            if command is not None and not command.hidden:
                yield from _contexts(click.Context(command, info_name=name, parent=context))


def write_completions(folder: Path) -> None:
    """Writes a file for each shell, named as the shell. Raises subprocess.CalledProcessError."""
    folder.mkdir(parents=True)
    for shell in _SHELLS:
        command = [sys.executable, "-m", "ai.backend.cli.main", "completion", shell]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        (folder / shell).write_text(done.stdout)
