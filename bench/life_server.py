"""`backend.ai` that counts its SQL statements, commits and thread hops.

On SIGUSR1 it writes the counts as one JSON object to the file that BENCH_COUNTS names.

Usage: python -m bench.life_server up --data-dir DIR ...    (in the foreground)
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event

from ai.backend.cli.main import main

COUNTS: Counter[str] = Counter()
_run_in_executor = asyncio.BaseEventLoop.run_in_executor


def _hop(loop: asyncio.BaseEventLoop, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    COUNTS["thread hops"] += 1
    return _run_in_executor(loop, executor, function, *arguments)


def _statement(connection: object, cursor: object, statement: str, *_: object) -> None:
    if not statement.startswith("BEGIN"):
        COUNTS["SQL statements"] += 1


def _commit(_: object) -> None:
    COUNTS["commits"] += 1


def _read_end(_: object) -> None:
    COUNTS["read transactions"] += 1


def _write_counts(*_: object) -> None:
    path = Path(os.environ["BENCH_COUNTS"])
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(COUNTS))
    draft.rename(path)


if __name__ == "__main__":
    asyncio.BaseEventLoop.run_in_executor = _hop  # type: ignore[assignment, method-assign]
    event.listen(Engine, "before_cursor_execute", _statement)
    event.listen(Engine, "commit", _commit)
    event.listen(Engine, "rollback", _read_end)
    signal.signal(signal.SIGUSR1, _write_counts)
    main()
