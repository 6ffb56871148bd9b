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

from ai.backend.cli.framework.invoke import call
from ai.backend.cli.framework.lazy import CONTEXT_SETTINGS, Leaf, screen_of
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
    cls=Leaf, context_settings={**CONTEXT_SETTINGS, "allow_interspersed_args": False, "ignore_unknown_options": False}
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
    if malformed := next((text for text in variables if "=" not in text), None):
        raise click.UsageError(f"--env {malformed!r} is not NAME=VALUE")
    has_terminal = (sys.stdin.isatty() and sys.stdout.isatty()) if tty is None else tty

    async def work(api: AsyncSession) -> int:
        handle = api.ComputeSession(session, owner)
        program = handle.exec(
            *(command[1:] if command[:1] == ("--",) else command),  # as kubectl exec takes it
            tty=has_terminal,
            size=_terminal_size(),
            env=dict(text.split("=", 1) for text in variables),
            cwd=workdir,
            kernel=kernel,
        )
        async with program as stream:
            with _passed_signals(stream, has_terminal=has_terminal):
                exit_code = await _connect(stream, has_terminal=has_terminal)
        if exit_code == _KILLED:
            screen.inform(
                "The command was killed (137), as happens where it needs more memory than the session has: "
                f"`backend.ai info {session}` names that, `-r mem=1g` gives more to the next session."
            )
        return exit_code

    call(screen, work, failure=FAILURE_EXIT_CODE, needs_loop=True)


async def _connect(stream: ProgramStream, *, has_terminal: bool) -> int:
    """Connects the standard streams with the program until it ends; returns its exit code."""
    input_task = asyncio.create_task(_copy_input(stream))
    outputs = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
    try:
        with _raw_terminal() if has_terminal and sys.stdin.isatty() else contextlib.nullcontext():
            async for name, data in stream.output():
                if isinstance(data, int):
                    return data
                await asyncio.to_thread(_write_all, outputs[name].fileno(), data)
    finally:
        input_task.cancel()
    return FAILURE_EXIT_CODE


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


async def _copy_input(stream: ProgramStream) -> None:
    """Copies this command's input to the program, as the program reads it."""
    loop = asyncio.get_running_loop()
    while True:
        data = await _read_input(loop)
        if not data:
            break
        await stream.write(data)
    await stream.write_eof()


async def _read_input(loop: asyncio.AbstractEventLoop) -> bytes:
    """Reads standard input; empty at its end. A file or /dev/null cannot be waited for, and is read at once."""
    try:
        fd = sys.stdin.fileno()
    except (OSError, ValueError):
        return b""  # it is closed
    readable = asyncio.Event()
    try:
        loop.add_reader(fd, readable.set)
    except PermissionError:
        return os.read(fd, _READ_BYTES)
    try:
        await readable.wait()
        return os.read(fd, _READ_BYTES)
    except OSError:
        return b""
    finally:
        loop.remove_reader(fd)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Gives every key to the program while the block lasts."""
    import termios
    import tty

    fd = sys.stdin.fileno()
    settings = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, settings)


@contextlib.contextmanager
def _passed_signals(stream: ProgramStream, *, has_terminal: bool) -> Iterator[None]:
    """Passes signals to the program, and the size of the terminal, while the block lasts."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def passing(name: str) -> Callable[[], None]:
        def send() -> None:
            task = loop.create_task(stream.resize(*_terminal_size()) if name == "WINCH" else stream.signal(name))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return send

    names = [*_PASSED_SIGNALS, *(["WINCH"] if has_terminal else [])]
    for name in names:
        loop.add_signal_handler(signal.Signals[f"SIG{name}"], passing(name))
    try:
        yield
    finally:
        for name in names:
            loop.remove_signal_handler(signal.Signals[f"SIG{name}"])


def _terminal_size() -> tuple[int, int]:
    for stream in (sys.stdout, sys.stdin, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            size = os.get_terminal_size(stream.fileno())
            if size.lines and size.columns:  # both are 0 on a terminal that nobody has given a size
                return min(size.lines, 1000), min(size.columns, 1000)
    return 24, 80
