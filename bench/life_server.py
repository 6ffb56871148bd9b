"""`backend.ai` that counts its SQL statements, commits and thread hops.

On SIGUSR1 it writes the counts as one JSON object to the file that BENCH_COUNTS names.

Usage: python -m bench.life_server up --data-dir DIR ...    (in the foreground)
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from ai.backend.cli.main import main

COUNTS: Counter[str] = Counter()
_COUNT_OF_WORD = {"COMMIT": "commits", "ROLLBACK": "read transactions"}
_run_in_executor = asyncio.BaseEventLoop.run_in_executor


def _hop(loop: asyncio.BaseEventLoop, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    COUNTS["thread hops"] += 1
    return _run_in_executor(loop, executor, function, *arguments)


def _statement(statement: str) -> None:
    """Counts what a connection of the manager's database executes; the driver names commits and rollbacks too."""
    word = statement.partition(" ")[0]
    if word in _COUNT_OF_WORD:
        COUNTS[_COUNT_OF_WORD[word]] += 1
    elif word not in ("BEGIN", "PRAGMA"):
        COUNTS["SQL statements"] += 1


def _trace(connection: sqlite3.Connection, _: object) -> None:
    connection.set_trace_callback(_statement)


def _write_counts(*_: object) -> None:
    path = Path(os.environ["BENCH_COUNTS"])
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(COUNTS))
    draft.rename(path)


if __name__ == "__main__":
    asyncio.BaseEventLoop.run_in_executor = _hop  # type: ignore[assignment, method-assign]  # every call of a thread is counted
    event.listen(Engine, "connect", _trace)
    signal.signal(signal.SIGUSR1, _write_counts)
    main()
