"""Finds and calls the programs of PostgreSQL: psql, pg_dump, pg_restore."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import URL

_DEBIAN = Path("/usr/lib/postgresql")


def find_program(name: str) -> str | None:
    """Returns the newest installed program of PostgreSQL, from Debian's folders of versions or from the path.

    The newest, because pg_dump refuses servers that are newer than itself.
    """
    installed_paths = sorted(_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: _version_number(path.parent.parent.name))
    return str(installed_paths[-1]) if installed_paths else shutil.which(name)


def _version_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def connection_options(url: URL) -> Sequence[str]:
    """Returns the command-line options by which PostgreSQL's programs connect to a database.

    The password is not among them, since everybody may read command lines.
    """
    value_of_flag = {
        "-h": url.host or url.query.get("host"),
        "-p": url.port or url.query.get("port"),
        "-U": url.username,
    }
    return [argument for flag, value in value_of_flag.items() if value for argument in (flag, str(value))] + [
        "-d",
        str(url.database),
    ]


def connection_environment(url: URL) -> Mapping[str, str]:
    """Returns the environment of this process with the password of the database."""
    return {**os.environ, **({"PGPASSWORD": str(url.password)} if url.password else {})}
