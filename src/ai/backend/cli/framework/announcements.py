"""Shows the announcement of administrators beside the results of commands (client wire contract 1.4).

Only people at a terminal see it. A dismissed one is remembered by its hash, in the file of the published client.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ai.backend.cli.framework.output import Screen

if TYPE_CHECKING:
    from ai.backend.client.config import APIConfig

PATIENCE_S = 0.5
"""How long a command that has ended waits for the announcement."""


def state_file() -> Path:
    state_home = os.environ.get("XDG_STATE_HOME")
    return (Path(state_home) if state_home else Path.home() / ".local" / "state") / "backend.ai" / "announcement.json"


def _read_state() -> dict[str, Any]:
    try:
        state = json.loads(state_file().read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _write_state(state: dict[str, Any]) -> None:
    path = state_file()
    with contextlib.suppress(OSError):  # an announcement that cannot be remembered is shown again
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(state))


def show_announcement(message: str) -> None:
    """Prints an announcement to stderr, unless it was dismissed."""
    message_digest, state = hashlib.sha256(message.encode()).hexdigest(), _read_state()
    if state.get("hash") != message_digest:
        state = {"hash": message_digest, "dismissed": False}
        _write_state(state)
    if not state.get("dismissed"):
        from ai.backend.cli.framework.terminal import make_panel, write

        write(make_panel("Announcement", message), sys.stderr)


def dismiss() -> bool:
    """Hides the last announcement in later commands. Returns False if none was shown yet."""
    state = _read_state()
    if "hash" not in state:
        return False
    _write_state({**state, "dismissed": True})
    return True


def shows_announcements(screen: Screen) -> bool:
    """True if announcements are printed: stderr is a terminal, and the command prints progress to people."""
    return not screen.is_quiet and sys.stderr.isatty()


@contextlib.contextmanager
def fetching_announcement(config: APIConfig) -> Iterator[None]:
    """Fetches the announcement in a thread while the block runs, and prints it at the end of the block.

    A failure of the request is ignored.
    """
    messages: list[str] = []
    request_thread = threading.Thread(target=lambda: messages.extend(_fetch_announcement(config)), daemon=True)
    request_thread.start()
    try:
        yield
    finally:
        request_thread.join(PATIENCE_S)
        for message in messages:
            show_announcement(message)


def _fetch_announcement(config: APIConfig) -> list[str]:
    """Returns the announcement, if there is one."""
    from ai.backend.client.exceptions import BackendError
    from ai.backend.client.plain_transport import PlainTransport, run_plain
    from ai.backend.client.session import AsyncSession

    async def request() -> dict[str, Any]:
        async with AsyncSession(config=config, transport=PlainTransport(config)) as api:
            return await api.Manager.get_announcement()

    try:
        reply = run_plain(request())
    except BackendError:
        return []
    return [str(reply["message"])] if reply.get("enabled") and reply.get("message") else []
