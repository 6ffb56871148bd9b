"""Structured logs: one line each, with the ids of the request, session and kernel that they belong to."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from pathlib import Path
from typing import Literal

import msgspec

_context: ContextVar[Mapping[str, str]] = ContextVar("log_context", default={})  # noqa: B039  # never mutated: replaced
_MAX_MESSAGE = 8192
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class _Binding:
    """A block with more ids; a class, since a request enters one and a generator costs twice as much."""

    __slots__ = ("_ids", "_token")

    def __init__(self, ids: dict[str, object]) -> None:
        self._ids = ids
        self._token: Token[Mapping[str, str]]

    def __enter__(self) -> None:
        self._token = _context.set({**_context.get(), **{k: str(v) for k, v in self._ids.items() if v is not None}})

    def __exit__(self, *_: object) -> None:
        _context.reset(self._token)


def bind_log_context(**ids: object) -> AbstractContextManager[None]:
    """Add ids (``request_id=``, ``session_id=``, ``kernel_id=``, ...) to every record of this task inside the block."""
    return _Binding(ids)


def log_context() -> Mapping[str, str]:
    return _context.get()


class _ContextFilter(logging.Filter):
    """Copies the ids where the record is made; a handler may format it in another task."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.ids = dict(_context.get())
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
            "logger": record.name,
            "msg": record.getMessage()[:_MAX_MESSAGE],
            **getattr(record, "ids", {}),
        }
        if record.exc_info:
            entry["exc"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()


class _ConsoleFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        ids = " ".join(f"{k}={v}" for k, v in getattr(record, "ids", {}).items())
        # A message may hold what a user wrote: one record stays one line, and no terminal that shows it obeys.
        message = _CONTROL.sub(lambda found: repr(found[0])[1:-1], record.getMessage()[:_MAX_MESSAGE])
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = (
            f"{clock}.{int(record.msecs):03d} {record.levelname:<7} {record.name}: {message}{'  ' + ids if ids else ''}"
        )
        return line + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def configure_logging(
    daemon: str, *, level: str = "INFO", style: Literal["console", "json"] = "console", file: Path | None = None
) -> None:
    """Set up the root logger of this process.

    Args:
        daemon: named in every JSON record.
        level: of our own loggers; libraries stay at WARNING.
        style: ``console`` for people, ``json`` for collectors.
        file: write there (rotated at 10 MiB, 3 kept) instead of to standard error.
    """
    handler: logging.Handler
    if file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        from logging.handlers import RotatingFileHandler

        handler = RotatingFileHandler(file, maxBytes=10 << 20, backupCount=3, encoding="utf-8", delay=True)
    handler.setFormatter(_JSONFormatter(daemon) if style == "json" else _ConsoleFormatter())
    handler.addFilter(_ContextFilter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("ai.backend").setLevel(level)
