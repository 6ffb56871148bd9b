"""`backend.ai exec`: a shell or a command in a session, as `docker exec -it` and `kubectl exec`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from ai.backend.cli.framework.invoke import run_and_exit
from ai.backend.cli.framework.lazy import CONTEXT_SETTINGS, LeafCommand, screen_of
from ai.backend.cli.session.commands import owner_option

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession
    from ai.backend.client.streams import ProgramStream

FAILURE_EXIT_CODE = 125
"""The exit code of docker exec for errors of its own."""
_READ_BYTES = 64 * 1024
_KILLED = 128 + signal.SIGKILL
_PASSED_SIGNALS = ("INT", "TERM", "HUP", "QUIT")


@click.command(
    cls=LeafCommand,
    context_settings={**CONTEXT_SETTINGS, "allow_interspersed_args": False, "ignore_unknown_options": False},
)
@click.argument("session")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "-t/-T", "--tty/--no-tty", default=None, help="On a terminal, or on pipes; by default as this command itself."
)
@click.option("-i", "--interactive", is_flag=True, hidden=True, help="Always so; accepted as docker's option.")
@click.option("-e", "--env", "variables", multiple=True, metavar="NAME=VALUE", help="A variable of the command.")
@click.option("-w", "--workdir", default="", metavar="DIR", help="Folder to start in; the home by default.")
@click.option("--kernel", metavar="HOST", help="Kernel of a cluster session, such as sub1; the main one by default.")
@owner_option
def exec_(
    session: str,
    command: tuple[str, ...],
    tty: bool | None,
    interactive: bool,
    variables: tuple[str, ...],
    workdir: str,
    kernel: str | None,
    owner: str | None,
) -> None:
    """Run COMMAND in SESSION, or a shell without one; exits as it does.

    \b
      backend.ai exec mysession                          a shell
      backend.ai exec mysession python train.py          a command
      tar c data | backend.ai exec mysession tar x       with its input and output
    """
    screen = screen_of()
    if malformed_variable := next((assignment for assignment in variables if "=" not in assignment), None):
        raise click.UsageError(f"--env {malformed_variable!r} is not NAME=VALUE")
    has_terminal = (sys.stdin.isatty() and sys.stdout.isatty()) if tty is None else tty

    async def run_program(api: AsyncSession) -> int:
        compute_session = api.ComputeSession(session, owner)
        program_context = compute_session.exec(
            *(command[1:] if command[:1] == ("--",) else command),  # as kubectl exec takes it
            tty=has_terminal,
            size=_terminal_size(),
            env=dict(assignment.split("=", 1) for assignment in variables),
            cwd=workdir,
            kernel=kernel,
        )
        async with program_context as stream:
            with _passing_signals(stream, has_terminal=has_terminal):
                exit_code = await _connect_streams(stream, has_terminal=has_terminal)
        if exit_code == _KILLED:
            screen.inform(
                "The command was killed (137), as happens where it needs more memory than the session has: "
                f"`backend.ai info {session}` names that, `-r mem=1g` gives more to the next session."
            )
        return exit_code

    run_and_exit(screen, run_program, failure_exit_code=FAILURE_EXIT_CODE, needs_loop=True)


async def _connect_streams(stream: ProgramStream, *, has_terminal: bool) -> int:
    """Connects the standard streams with the program until it ends; returns its exit code."""
    input_task = asyncio.create_task(_copy_input(stream))
    output_streams = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
    try:
        with _raw_terminal() if has_terminal and sys.stdin.isatty() else contextlib.nullcontext():
            async for stream_name, data in stream.output():
                if isinstance(data, int):
                    return data
                await asyncio.to_thread(_write_all, output_streams[stream_name].fileno(), data)
    finally:
        input_task.cancel()
    return FAILURE_EXIT_CODE


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


async def _copy_input(stream: ProgramStream) -> None:
    """Sends the standard input of this command to the program in the session, until the input ends.

    No more is read until the program has taken the data.
    """
    loop = asyncio.get_running_loop()
    while True:
        data = await _read_input(loop)
        if not data:
            break
        await stream.write(data)
    await stream.write_eof()


async def _read_input(loop: asyncio.AbstractEventLoop) -> bytes:
    """Returns the next bytes of standard input, or no bytes at its end.

    A file or /dev/null cannot be waited for, and is read at once.
    """
    try:
        fd = sys.stdin.fileno()
    except (OSError, ValueError):
        return b""  # it is closed
    readable_event = asyncio.Event()
    try:
        loop.add_reader(fd, readable_event.set)
    except PermissionError:
        return os.read(fd, _READ_BYTES)
    try:
        await readable_event.wait()
        return os.read(fd, _READ_BYTES)
    except OSError:
        return b""
    finally:
        loop.remove_reader(fd)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Passes every key of the terminal to the program unchanged while the block lasts."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    terminal_settings = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, terminal_settings)


@contextlib.contextmanager
def _passing_signals(stream: ProgramStream, *, has_terminal: bool) -> Iterator[None]:
    """Passes signals to the program, and the size of the terminal, while the block lasts."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def make_handler(signal_name: str) -> Callable[[], None]:
        def pass_signal() -> None:
            task = loop.create_task(
                stream.resize(*_terminal_size()) if signal_name == "WINCH" else stream.signal(signal_name)
            )
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return pass_signal

    signal_names = [*_PASSED_SIGNALS, *(["WINCH"] if has_terminal else [])]
    for signal_name in signal_names:
        loop.add_signal_handler(signal.Signals[f"SIG{signal_name}"], make_handler(signal_name))
    try:
        yield
    finally:
        for signal_name in signal_names:
            loop.remove_signal_handler(signal.Signals[f"SIG{signal_name}"])


def _terminal_size() -> tuple[int, int]:
    for stream in (sys.stdout, sys.stdin, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            terminal_size = os.get_terminal_size(stream.fileno())
            if terminal_size.lines and terminal_size.columns:  # both are 0 on a terminal that nobody has given a size
                return min(terminal_size.lines, 1000), min(terminal_size.columns, 1000)
    return 24, 80
