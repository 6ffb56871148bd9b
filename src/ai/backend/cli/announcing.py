"""What administrators want everybody to read, shown beside the results of commands (client wire contract 1.4).

Only people at a terminal see it. What was dismissed is remembered by its hash, in the file of the published client.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ai.backend.cli.output import Screen, harmless

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

_PATIENCE_S = 0.5
"""How long a command that has ended waits for it."""


def state_file() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "backend.ai" / "announcement.json"


def _state() -> dict[str, Any]:
    try:
        found = json.loads(state_file().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _keep(state: dict[str, Any]) -> None:
    path = state_file()
    with contextlib.suppress(OSError):  # where nothing can be kept, it is shown again
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(state))


def tell(message: str) -> None:
    """Show it on stderr, unless it was dismissed."""
    digest, known = hashlib.sha256(message.encode()).hexdigest(), _state()
    if known.get("hash") != digest:
        known = {"hash": digest, "dismissed": False}
        _keep(known)
    if not known.get("dismissed"):
        lines = "\n".join(f"│ {line}" for line in harmless(message).splitlines())
        print(f"│ Announcement of the server:\n{lines}", file=sys.stderr, flush=True)


def dismiss() -> bool:
    """Show the last one no more. False where none was seen yet."""
    known = _state()
    if "hash" not in known:
        return False
    _keep({**known, "dismissed": True})
    return True


def is_wanted(screen: Screen) -> bool:
    return not screen.is_quiet and sys.stderr.isatty()


@contextlib.asynccontextmanager
async def announcing(api: AsyncSession) -> AsyncIterator[None]:
    """Ask for it while a command works, and show it at the end; no trouble with it is one of the command."""
    from ai.backend.client.exceptions import BackendError

    asking = asyncio.create_task(api.Manager.get_announcement())
    try:
        yield
    finally:
        with contextlib.suppress(BackendError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                found = await asking
            if found.get("enabled") and found.get("message"):
                tell(str(found["message"]))
