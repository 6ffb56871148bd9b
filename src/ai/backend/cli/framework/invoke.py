"""Runs a command's coroutine with an open API session and turns every error into one line and an exit code.

Exit codes: 0 done; 1 refused by the platform or lost on the network; 2 wrong command line; 130 interrupted. `run` has
more (see `docs/decisions`: it exits as the user's program did).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from ai.backend.cli.framework.output import Screen
from ai.backend.cli.framework.values import SlotDisplays

if TYPE_CHECKING:
    from ai.backend.client.config import APIConfig
    from ai.backend.client.exceptions import BackendAPIError
    from ai.backend.client.session import AsyncSession

    ApiAction = Callable[[AsyncSession], Coroutine[Any, Any, "R"]]

R = TypeVar("R")


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
    """Returns the message for an error of the server, with a hint on what to do about the error.

    For an ambiguous reference the hint lists the sessions that match.
    """
    if error.status == 401:
        return f"{error}; {env_file_hint()}"
    if error.code == "proof-required":
        return f"{error}; run `backend.ai sudo` before"
    if error.code == "too-many-sessions-matched":
        matches = (error.data.get("data") or {}).get("matches") or []
        return f"{error}; matching: " + ", ".join(f"{match.get('name')} ({match.get('id')})" for match in matches)
    return str(error)


def report_error(screen: Screen, error: Exception) -> None:
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


def end_output() -> int:
    """Sends what is printed from now on nowhere; returns the exit code of who loses the reader of its output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 141


def report_os_error(screen: Screen, error: OSError, exit_code: int = 1) -> int:
    """Prints why a local file or the output cannot be read or written, such as for a full disk; returns the exit code.

    Output that is still in the buffer is given up, else Python fails once more when it exits.
    """
    with suppress(OSError):  # stderr may be full too, and a JSON document of the error goes to stdout
        screen.error(describe_os_error(error))
    end_output()
    return exit_code


def describe_os_error(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return f"{os.fsdecode(error.filename)}: {reason}" if isinstance(error.filename, str | bytes) else reason


async def fetch_slot_displays(api: AsyncSession) -> SlotDisplays:
    """Fetches the display formats of slot amounts; returns an empty mapping if the server has no such call."""
    from ai.backend.client.exceptions import BackendError

    try:
        return await api.Resource.slot_details()
    except BackendError:
        return {}


def run_and_exit(
    screen: Screen,
    action: ApiAction[int | None],
    *,
    failure_exit_code: int = 1,
    needs_keys: bool = True,
    needs_loop: bool = False,
) -> NoReturn:
    """Runs ``action`` in an API session, and exits with its result, or ``failure_exit_code`` if the platform fails.

    It runs without an event loop, whose libraries take longer to import than most commands take, unless it
    ``needs_loop``. What needs one on the way is wrapped in :func:`run_in_event_loop`.
    """
    from ai.backend.cli.framework.announcements import fetching_announcement, shows_announcements
    from ai.backend.client.config import get_config
    from ai.backend.client.exceptions import BackendError

    try:
        config = get_config()
        if needs_keys and not config.is_anonymous:
            _ = config.access_key, config.secret_key
        fetches_announcement = (
            needs_keys and not config.is_anonymous and shows_announcements(screen) and not screen.is_following
        )
        with fetching_announcement(config) if fetches_announcement else nullcontext():
            exit_code = _run_action(screen, config, action, needs_loop=needs_loop) or 0
    except BackendError as error:
        report_error(screen, error)
        exit_code = failure_exit_code
    except BrokenPipeError:
        exit_code = end_output()
    except OSError as error:
        exit_code = report_os_error(screen, error, failure_exit_code)
    except KeyboardInterrupt:
        screen.inform("interrupted")
        exit_code = 130
    sys.stdout.flush()
    sys.exit(exit_code)


def _run_action(screen: Screen, config: APIConfig, action: ApiAction[int | None], *, needs_loop: bool) -> int | None:
    from ai.backend.cli.framework.proofs import recall_proof, run_with_proof

    async def run_command(api: AsyncSession) -> int | None:
        if screen.is_following:
            from ai.backend.cli.framework.redraw import redraw

            return await redraw(screen, lambda: action(api), api.transport.pause)
        return await run_with_proof(api, action)

    recall_proof(config)
    if needs_loop:
        return _run_in_loop(config, run_command)
    from ai.backend.client.plain_transport import PlainTransport, run_plain
    from ai.backend.client.session import AsyncSession

    async def run_in_session() -> int | None:
        async with AsyncSession(config=config, transport=PlainTransport(config)) as api:
            return await run_command(api)

    return run_plain(run_in_session())


def _run_in_loop(config: APIConfig, action: ApiAction[R]) -> R:
    import asyncio

    from ai.backend.client.session import AsyncSession

    async def run_in_session() -> R:
        async with AsyncSession(config=config) as api:
            return await action(api)

    return asyncio.run(run_in_session())


async def run_in_event_loop(api: AsyncSession, action: ApiAction[R]) -> R:
    """Runs ``action`` in an event loop and returns its result. It is for streams and for several requests at once.

    Where the command has none, one runs for the time of the call, with an API session of its own.
    """
    from ai.backend.client.plain_transport import PlainTransport

    return _run_in_loop(api.config, action) if isinstance(api.transport, PlainTransport) else await action(api)
