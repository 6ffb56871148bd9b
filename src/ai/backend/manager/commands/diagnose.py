"""Implements `backend.ai mgr diagnose`, which writes a support bundle of this manager, without secrets."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path
from typing import Any

import click
from sqlalchemy import func, select

from ai.backend.common.errors import BackendError
from ai.backend.infra.config_store import ConfigStore
from ai.backend.infra.database import Database, current_revision
from ai.backend.infra.redaction import Cleaner, secrets_in
from ai.backend.manager.commands.running import run_on_config, run_on_database
from ai.backend.manager.composition.backing_services import sealer_of
from ai.backend.manager.config.settings import ManagerSettings
from ai.backend.manager.db import SCHEMA_HEAD, metadata
from ai.backend.manager.secrets.config import SealedConfigStore

_MAX_LOG_BYTES = 2 << 20
_MAX_LISTED_FILES = 1000
_WITHOUT_VALUES = frozenset({"machine.json", "disk.txt", "database.json", "configuration.json"})


def _settings_text(settings: ManagerSettings) -> str:
    return json.dumps(settings.model_dump(mode="json", by_alias=True), indent=2, default=str)


def _describe_machine() -> str:
    machine_facts = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.platform(),
        "python": sys.version,
        "processors": os.cpu_count(),
        "load": os.getloadavg(),
        "packages": {distribution.metadata["Name"]: distribution.version for distribution in distributions()},
        "variables": sorted(name for name in os.environ if name.startswith(("BACKEND", "OTEL", "PYTHON"))),
    }
    return json.dumps(machine_facts, indent=2, default=str)


def _describe_disk(settings: ManagerSettings) -> str:
    folder = settings.data_dir.expanduser()
    usage = shutil.disk_usage(folder)
    file_lines = []
    for path in sorted(islice(folder.rglob("*"), _MAX_LISTED_FILES)):
        with suppress(FileNotFoundError):  # it was removed meanwhile
            if not path.is_dir():
                file_lines.append(f"{path.relative_to(folder)}  {path.lstat().st_size}")
    return f"{usage}\n" + "\n".join(file_lines)


def _describe_tables(settings: ManagerSettings) -> str:
    """Returns the revision and how many rows each table has; no row is read."""

    async def count_rows(database: Database) -> dict[str, Any]:
        revision = await current_revision(database)
        counts = await database.run_read(
            lambda conn: {
                table.name: conn.execute(select(func.count()).select_from(table)).scalar_one()
                for table in metadata.sorted_tables
            }
        )
        return {"revision": revision, "program": SCHEMA_HEAD, "rows": counts}

    return json.dumps(run_on_database(settings, count_rows), indent=2)


def _describe_configuration(settings: ManagerSettings) -> str:
    """Returns the keys of the shared configuration with the lengths of their values."""

    async def measure_values(store: ConfigStore) -> dict[str, int]:
        return {key: len(value) for key, value in (await store.get_prefix("")).items()}

    return json.dumps(run_on_config(settings, measure_values), indent=2)


def _log_sections(settings: ManagerSettings) -> dict[str, Callable[[], str]]:
    folder = settings.logging.file.path.expanduser()
    if "file" not in settings.logging.drivers or not folder.is_dir():
        return {}
    files = [path for path in sorted(folder.glob("*.log*")) if path.is_file() and not path.is_symlink()]
    return {f"logs/{path.name}": partial(_read_tail, path) for path in files[:20]}


def _read_tail(path: Path) -> str:
    """Returns the last whole lines of a file.

    A part of a line is left out, because half of a line may be half of a secret.
    """
    with open(path, "rb", opener=_open_without_links) as file:
        skipped_bytes = max(0, os.fstat(file.fileno()).st_size - _MAX_LOG_BYTES)
        file.seek(skipped_bytes)
        tail_text = file.read(_MAX_LOG_BYTES).decode(errors="replace")
    return tail_text.partition("\n")[2] if skipped_bytes else tail_text


def _open_without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def write_bundle(settings: ManagerSettings, output: Path, known_secrets: Iterable[str] = ()) -> list[str]:
    """Writes the bundle and returns the names of its parts; a part that cannot be collected contains the reason.

    Raises OSError, after which there is no file.
    """
    cleaner = Cleaner([*secrets_in(settings), *known_secrets])
    part_makers: dict[str, Callable[[], str]] = {
        "settings.json": lambda: _settings_text(settings),
        "machine.json": _describe_machine,
        "disk.txt": lambda: _describe_disk(settings),
        "database.json": lambda: _describe_tables(settings),
        "configuration.json": lambda: _describe_configuration(settings),
        **_log_sections(settings),
    }
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as bundle:
            for name, make_text in part_makers.items():
                _add_part(bundle, name, make_text, cleaner)
    except BaseException:
        output.unlink(missing_ok=True)
        raise
    return list(part_makers)


def _add_part(bundle: tarfile.TarFile, name: str, make_text: Callable[[], str], cleaner: Cleaner) -> None:
    try:
        part_text = make_text()
    except (BackendError, OSError, click.ClickException) as e:
        part_text = f"This part cannot be had: {e}"
    encoded_text = cleaner.clean(part_text, has_values=name not in _WITHOUT_VALUES).encode(errors="backslashreplace")
    info = tarfile.TarInfo(f"backendai-diagnosis/{name}")
    info.size, info.mode, info.mtime = len(encoded_text), 0o600, int(time.time())
    bundle.addfile(info, io.BytesIO(encoded_text))


@click.command("diagnose")
@click.argument("output", type=click.Path(dir_okay=False, path_type=Path), default="backendai-diagnosis.tar.gz")
@click.pass_obj
def diagnose(settings: ManagerSettings, output: Path) -> None:
    """Write a support bundle to OUTPUT: versions, settings, sizes of tables, and the ends of logs, without secrets.

    It names no user but those in log messages. The file must not be there yet; only you may read it.
    """
    try:
        part_names = write_bundle(settings, output, _stored_secrets(settings))
    except FileExistsError:
        raise click.ClickException(f"{output} is there already: name another file") from None
    except OSError as e:
        raise click.ClickException(f"{output} cannot be written: {e.strerror}") from None
    click.echo(f"{output} has {', '.join(part_names)}. Look through it before you send it.")


def _stored_secrets(settings: ManagerSettings) -> list[str]:
    """Returns the secrets of the shared configuration, which must not be anywhere in the bundle."""

    async def read_secrets(store: ConfigStore) -> list[str]:
        entries = await SealedConfigStore(store, sealer_of(settings), opens=True).get_prefix("")
        return [value for key, value in entries.items() if re.search(r"secret|passw|token|key$", key)]

    try:
        return run_on_config(settings, read_secrets, is_raw=True)
    except (BackendError, OSError, click.ClickException):
        return []
