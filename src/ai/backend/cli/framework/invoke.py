"""Runs a command's coroutine with an open API session and turns every error into one line and an exit code.

Exit codes: 0 done; 1 refused by the platform or lost on the network; 2 wrong command line; 130 interrupted. `run` has
more (see `docs/decisions`: it exits as the user's program did).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn

from ai.backend.cli.framework.output import Screen
from ai.backend.cli.framework.values import SlotDisplays

if TYPE_CHECKING:
    from ai.backend.client.exceptions import BackendAPIError
    from ai.backend.client.session import AsyncSession


def env_file_hint() -> str:
    """Returns a hint on how to get credentials."""
    from pathlib import Path

    data_home = os.environ.get("XDG_DATA_HOME")
    path = (Path(data_home) if data_home else Path.home() / ".local" / "share") / "backend.ai" / "env.sh"
    if path.is_file():
        return f"run `source {path}`"
    return (
        "start a cluster with `backend.ai up` and `source` the env.sh that it names, or set BACKEND_ENDPOINT, "
        "BACKEND_ACCESS_KEY and BACKEND_SECRET_KEY"
    )


def describe_api_error(error: BackendAPIError) -> str:
    """Returns the server's message, with the remedy or the sessions that a reference may mean."""
    if error.status == 401:
        return f"{error}; {env_file_hint()}"
    if error.code == "too-many-sessions-matched":
        matches = (error.data.get("data") or {}).get("matches") or []
        return f"{error}; matching: " + ", ".join(f"{match.get('name')} ({match.get('id')})" for match in matches)
    return str(error)


def report(screen: Screen, error: Exception) -> None:
    """Prints an error and its remedy."""
    from ai.backend.client.exceptions import BackendAPIError, EndpointUnreachable, MissingCredentials

    if isinstance(error, MissingCredentials):
        screen.error(f"{error}; {env_file_hint()}", code="missing-credentials")
    elif isinstance(error, EndpointUnreachable):
        screen.error(f"{error}; is the cluster up (`backend.ai up`), and BACKEND_ENDPOINT right?", code="unreachable")
    elif isinstance(error, BackendAPIError):
        screen.error(describe_api_error(error), code=error.code, status=error.status)
    else:
        screen.error(str(error) or type(error).__name__)


async def slot_displays(api: AsyncSession) -> SlotDisplays:
    """Fetches the display formats of slot amounts; returns an empty mapping if the server has no such call."""
    from ai.backend.client.exceptions import BackendError

    try:
        return await api.Resource.slot_details()
    except BackendError:
        return {}


def call(
    screen: Screen, work: Callable[[AsyncSession], Awaitable[int | None]], *, failure: int = 1, needs_keys: bool = True
) -> NoReturn:
    """Runs ``work`` with an open session and exits: with its result, or with ``failure`` if the platform fails."""
    import asyncio

    from ai.backend.cli.framework.announcements import is_visible, with_announcements
    from ai.backend.cli.framework.redraw import repeat
    from ai.backend.client.config import get_config
    from ai.backend.client.exceptions import BackendError
    from ai.backend.client.session import AsyncSession

    async def main() -> int | None:
        config = get_config()
        if needs_keys and not config.is_anonymous:
            _ = config.access_key, config.secret_key
        async with AsyncSession(config=config) as api:
            if screen.is_following:
                return await repeat(screen, lambda: work(api))
            if config.is_anonymous or not needs_keys or not is_visible(screen):
                return await work(api)
            async with with_announcements(api):
                return await work(api)

    try:
        exit_code = asyncio.run(main()) or 0
    except BackendError as error:
        report(screen, error)
        exit_code = failure
    except BrokenPipeError:
        # The reader of our output has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        exit_code = 141
    except KeyboardInterrupt:
        screen.inform("interrupted")
        exit_code = 130
    sys.stdout.flush()
    sys.exit(exit_code)
