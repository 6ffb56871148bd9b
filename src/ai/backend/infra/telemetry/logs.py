"""Writes structured logs, one line for each record, with the ids of its request, session and kernel."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Literal

import msgspec

from ai.backend.common.errors import InvalidInput
from ai.backend.infra.settings.tables import LoggingSettings
from ai.backend.infra.telemetry.recent import RecentRecords, escape_unencodable, message_of
from ai.backend.infra.telemetry.tracing import trace_ids

log = logging.getLogger(__name__)
_context: ContextVar[Mapping[str, str]] = ContextVar("log_context", default={})  # noqa: B039  # never mutated: replaced
_PLATFORM_LOGGER = "ai.backend"
_configured_levels: dict[str, str] = {}
"""The levels of this process by logger, as they were set last."""
_COLORS = {
    logging.DEBUG: "\x1b[2m",
    logging.WARNING: "\x1b[33m",
    logging.ERROR: "\x1b[31m",
    logging.CRITICAL: "\x1b[1;31m",
}
_RESET_COLOR = "\x1b[0m"
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def _escape_control_characters(line: str) -> str:
    return _CONTROL_CHARACTERS.sub(lambda match: repr(match[0])[1:-1], line)


class _Binding:
    """Adds ids to log records while a block runs.

    It is a class, because each request enters one and a generator costs twice as much.
    """

    __slots__ = ("_ids", "_token")

    def __init__(self, ids: dict[str, object]) -> None:
        self._ids = ids
        self._token: Token[Mapping[str, str]]

    def __enter__(self) -> None:
        self._token = _context.set(
            {**_context.get(), **{name: str(value) for name, value in self._ids.items() if value is not None}}
        )

    def __exit__(self, *_: object) -> None:
        _context.reset(self._token)


def bind_log_context(**ids: object) -> AbstractContextManager[None]:
    """Adds ids (``request_id=``, ``session_id=`` ...) to every record of this task inside the block."""
    return _Binding(ids)


def log_context() -> Mapping[str, str]:
    return _context.get()


class ContextFilter(logging.Filter):
    """Copies the context's ids into a record when the record is created, because another task may format the record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.ids = {**_context.get(), **trace_ids()}
        return True


class _JSONFormatter(logging.Formatter):
    def __init__(self, daemon: str) -> None:
        super().__init__()
        self._daemon = daemon

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "daemon": self._daemon,
            "process": record.process,
            "logger": record.name,
            "msg": message_of(record),
            **{name: escape_unencodable(value) for name, value in getattr(record, "ids", {}).items()},
        }
        if record.exc_info:
            entry["exc"] = escape_unencodable(self.formatException(record.exc_info))
        return msgspec.json.encode(entry).decode()


class _ConsoleFormatter(logging.Formatter):
    def __init__(self, *, is_simple: bool = False, colored: bool = False) -> None:
        super().__init__()
        self._is_simple = is_simple
        self._colors = _COLORS if colored else {}

    def format(self, record: logging.LogRecord) -> str:
        ids = " ".join(f"{name}={value}" for name, value in getattr(record, "ids", {}).items())
        # A message may hold input of users: it stays one line, and controls no terminal.
        message = _escape_control_characters(message_of(record))
        message += f"  {ids}" if ids else ""
        level = f"{self._colors.get(record.levelno, '')}{record.levelname:<7}{_RESET_COLOR if self._colors else ''}"
        time_text = time.strftime("%H:%M:%S", time.localtime(record.created))
        source = f"{time_text}.{int(record.msecs):03d} {record.process} "
        line = f"{level} {message}" if self._is_simple else f"{source}{level} {record.name}: {message}"
        if not record.exc_info:
            return line
        # Indented, since the text of an error may hold what looks like a record.
        return "\n  ".join([line, *map(_escape_control_characters, self.formatException(record.exc_info).split("\n"))])


def configure_logging(
    daemon: str, *, level: str = "INFO", style: Literal["console", "json"] = "console", file: Path | None = None
) -> None:
    """Sets up the root logger of this process without settings; libraries log from WARNING on.

    Records go to standard error or to ``file`` (rotated at 10 MiB, 3 kept), in the style ``console`` for people or
    ``json`` for collectors.
    """
    handler = (
        _rotating_handler(file, max_bytes=10 << 20, backup_count=3, delay=True)
        if file
        else logging.StreamHandler(sys.stderr)
    )
    handler.setFormatter(_JSONFormatter(daemon) if style == "json" else _ConsoleFormatter())
    _install_handlers([handler, RecentRecords(daemon)], {"": "WARNING", _PLATFORM_LOGGER: level})


def configure_logging_by_settings(
    daemon: str, settings: LoggingSettings, *, level: str | None = None, process_number: int = 0
) -> None:
    """Sets up the root logger of this process from its settings (spec 03-02, ``[logging]``). ``level`` overrides the
    settings.

    Further processes of a daemon have a ``process_number`` and a file of their own. Raises InvalidInput if it cannot be
    written.
    """
    handlers: list[logging.Handler] = []
    if "file" in settings.drivers:
        name = Path(settings.file.filename or f"{daemon}.log")
        path = settings.file.path.expanduser() / (
            f"{name.stem}-{process_number}{name.suffix}" if process_number else name
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = _rotating_handler(
                path, max_bytes=settings.file.rotation_size, backup_count=settings.file.backup_count
            )
        except OSError as e:
            raise InvalidInput(f"The log file {path} cannot be written: {e.strerror}.") from None
        file.setFormatter(_JSONFormatter(daemon))
        handlers.append(file)
    if "console" in settings.drivers or not handlers:
        console = logging.StreamHandler(sys.stderr)
        colored = settings.console.colored and sys.stderr.isatty() and not os.environ.get("NO_COLOR")
        console.setFormatter(_ConsoleFormatter(is_simple=settings.console.format == "simple", colored=colored))
        handlers.append(console)
    for handler in handlers:
        handler.setLevel(level or settings.level)
    _install_handlers([*handlers, RecentRecords(daemon)], _levels_of(settings, level))


def change_levels(settings: LoggingSettings, *, level: str | None = None) -> None:
    """Sets the log levels of a running daemon from its present settings.

    ``level`` overrides the settings. Where logs go stays as it is.
    """
    root_logger, levels = logging.getLogger(), _levels_of(settings, level)
    for handler in root_logger.handlers:
        if isinstance(handler.formatter, _JSONFormatter | _ConsoleFormatter):
            handler.setLevel(level or settings.level)
    for name in _configured_levels.keys() - levels.keys():
        logging.getLogger(name).setLevel(logging.NOTSET)
    _apply_levels(levels)


def _levels_of(settings: LoggingSettings, level: str | None) -> dict[str, str]:
    levels: dict[str, str] = {"": "WARNING", _PLATFORM_LOGGER: settings.level, **settings.pkg_ns}
    return {**levels, _PLATFORM_LOGGER: level} if level else levels


def _rotating_handler(file: Path, *, max_bytes: int, backup_count: int, delay: bool = False) -> logging.Handler:
    from logging.handlers import RotatingFileHandler

    return RotatingFileHandler(file, maxBytes=max_bytes, backupCount=backup_count, encoding="utf-8", delay=delay)


def _install_handlers(handlers: Iterable[logging.Handler], levels: Mapping[str, str]) -> None:
    root_logger = logging.getLogger()
    for old_handler in root_logger.handlers[:]:
        root_logger.removeHandler(old_handler)
        if isinstance(old_handler.formatter, _JSONFormatter | _ConsoleFormatter):
            old_handler.close()
    for handler in handlers:
        handler.addFilter(ContextFilter())
        root_logger.addHandler(handler)
    _apply_levels(levels)


def _apply_levels(levels: Mapping[str, str]) -> None:
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    _configured_levels.clear()
    _configured_levels.update(levels)
