"""Provides the common parts of the daemons' commands."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from ai.backend.common.errors import BackendError
from ai.backend.infra.process.memory import reuse_receive_buffers
from ai.backend.infra.settings.tables import LoggingSettings
from ai.backend.infra.telemetry import change_levels, telemetry_sending

log = logging.getLogger(__name__)
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_level_option: Decorator = click.option(
    "--log-level",
    type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
    help="From which level on is logged; else as `logging.level` says.",
)


def _default_to_debug(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.default_map = {**(ctx.default_map or {}), "log_level": "DEBUG"}


_debug_option: Decorator = click.option(
    "--debug",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_default_to_debug,
    help="The same as --log-level DEBUG.",
)


def log_level_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options ``--log-level`` and ``--debug`` to a command.

    ``--debug`` has the manual's words (spec 03-04:203).
    """
    return _level_option(_debug_option(command))


def config_option(name: str) -> Decorator:
    """Returns the option for the path of ``<name>.toml``, which is searched if the option is missing."""
    return click.option(
        "-f", "--config", "config", type=click.Path(path_type=Path), help=f"{name}.toml; searched if not given."
    )


@contextmanager
def reported_errors() -> Iterator[None]:
    """Prints an error of the platform or of the operating system as one line for the user."""
    try:
        yield
    except (BackendError, OSError) as e:
        raise click.ClickException(str(e)) from e


on_hang_up: list[Callable[[], None]] = []
"""Functions that a SIGHUP of this process calls too: the first process of a daemon notifies its others."""


def level_reload(load_settings: Callable[[], LoggingSettings], *, level: str | None) -> Callable[[], None]:
    """Returns a function that sets the logging levels from the settings that ``load_settings`` reads.

    ``level`` wins over the settings.
    """

    def reload_levels() -> None:
        change_levels(load_settings(), level=level)
        log.warning("levels of logging are set as the settings say now")

    return reload_levels


def _reload_on_hang_up(reload: Callable[[], None]) -> None:
    for hang_up_function in (reload, *on_hang_up):
        try:
            hang_up_function()
        except (BackendError, OSError, click.ClickException) as e:
            log.error("SIGHUP: everything stays as it is: %s", e)


def quickest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Returns a factory of uvloop's event loops if uvloop is installed. Returns None if asyncio's own loop is used."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    new_loop: Callable[[], asyncio.AbstractEventLoop] = new_event_loop
    return new_loop


def run_daemon(
    serve: Callable[[asyncio.Event], Awaitable[None]],
    *,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    debug: bool | None = None,
    reload: Callable[[], None] | None = None,
) -> None:
    """Runs ``serve`` with an event that is set by SIGINT and SIGTERM. Raises ClickException with the message of its
    error.

    SIGHUP calls ``reload``, which reads the settings of logging again (:func:`level_reload`); an error of it is logged.
    """

    async def run_until_stopped() -> None:
        stop_event = asyncio.Event()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(signal_number, stop_event.set)
        if reload is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload_on_hang_up, reload)
        async with telemetry_sending():
            await serve(stop_event)

    reuse_receive_buffers()
    with reported_errors(), asyncio.Runner(debug=debug, loop_factory=loop_factory) as runner:
        runner.run(run_until_stopped())
