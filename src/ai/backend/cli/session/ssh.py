"""OpenSSH's programs on a session: ssh, scp, sftp (spec 03-11, "Accessing sessions via native SSH/SFTP").

The session's private key is fetched into a directory that only this user can enter, and removed with it. The tunnel
authenticates the other end: host keys, which every session makes anew, are not checked.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ai.backend.cli.framework.invoke import run_and_exit
from ai.backend.cli.framework.lazy import CONTEXT_SETTINGS, LeafCommand, screen_of
from ai.backend.cli.framework.params import options
from ai.backend.cli.session.commands import owner_option

if TYPE_CHECKING:
    from ai.backend.client.func.session import AsyncComputeSession
    from ai.backend.client.session import AsyncSession

KEY_FILE = "id_container"
USER = "work"
FAILURE_EXIT_CODE = 255
"""The exit code of OpenSSH for errors of its own."""
_LOCAL = "127.0.0.1"
_SSH_OPTIONS = (
    "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "GlobalKnownHostsFile=/dev/null", "IdentitiesOnly=yes",
    "LogLevel=ERROR",
)  # fmt: skip
_OPTIONS_WITH_VALUE = frozenset("BbcDEeFIiJLlmOopQRSWw")
"""Options of ssh that have a value."""
_PASS_ON_SETTINGS = {**CONTEXT_SETTINGS, "ignore_unknown_options": True}
_common_arguments = options(
    click.argument("session"),
    click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
    click.option(
        "-p",
        "--port",
        type=click.IntRange(0, 65_535),
        default=0,
        help="Local port of the tunnel; any free one by default.",
    ),
    owner_option,
)


@click.command(cls=LeafCommand, context_settings=_PASS_ON_SETTINGS)
@_common_arguments
def ssh(session: str, arguments: tuple[str, ...], port: int, owner: str | None) -> None:
    """Open a shell in SESSION by OpenSSH, or run the command in ARGUMENTS there.

    What begins with a dash is an option of ssh; put -- before a command that has options of its own.
    """
    ssh_options = _leading_options(arguments)
    command = list(arguments[len(ssh_options) :])
    _run_client(
        "ssh",
        session,
        owner,
        port,
        lambda local_port: ["-p", str(local_port), *ssh_options, f"{USER}@{_LOCAL}", *command],
    )


@click.command(cls=LeafCommand, context_settings=_PASS_ON_SETTINGS)
@_common_arguments
@click.option("-r", "--recursive", is_flag=True, help="Copy folders with what is in them.")
def scp(session: str, arguments: tuple[str, ...], port: int, recursive: bool, owner: str | None) -> None:
    """Copy files to or from SESSION by OpenSSH; a path in the session begins with a colon.

    \b
      backend.ai scp mysession results.csv :data/
      backend.ai scp -r mysession :outputs .
    """
    scp_paths = [scp_path(path, session) for path in arguments]
    if len([path for path in scp_paths if not path.startswith("-")]) < 2:
        raise click.UsageError("what is to be copied, and where to?")
    extra_options = ["-r"] if recursive else []
    _run_client("scp", session, owner, port, lambda local_port: ["-P", str(local_port), *extra_options, *scp_paths])


@click.command(cls=LeafCommand, context_settings=_PASS_ON_SETTINGS)
@_common_arguments
def sftp(session: str, arguments: tuple[str, ...], port: int, owner: str | None) -> None:
    """Browse and transfer the files of SESSION by OpenSSH; ARGUMENTS are options of sftp."""
    _run_client(
        "sftp", session, owner, port, lambda local_port: ["-P", str(local_port), *arguments, f"{USER}@{_LOCAL}"]
    )


def _leading_options(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments before the first word of the remote command: options of ssh with their values."""
    ssh_options: list[str] = []
    remaining_arguments = list(arguments)
    while remaining_arguments and remaining_arguments[0].startswith("-") and remaining_arguments[0] != "-":
        ssh_options.append(remaining_arguments.pop(0))
        if len(ssh_options[-1]) == 2 and ssh_options[-1][1] in _OPTIONS_WITH_VALUE and remaining_arguments:
            ssh_options.append(remaining_arguments.pop(0))
    return ssh_options


def scp_path(path: str, session: str) -> str:
    """Returns a path as scp takes it; a path in the session is written ``:PATH`` or ``HOST:PATH``."""
    hosts = ("", session, "localhost", _LOCAL, USER, f"{USER}@localhost", f"{USER}@{_LOCAL}", f"{USER}@{session}")
    host, colon, inner_path = path.partition(":")
    return f"{USER}@{_LOCAL}:{inner_path}" if colon and host in hosts else path


def _run_client(
    program: str, session: str, owner: str | None, port: int, arguments_for: Callable[[int], list[str]]
) -> None:
    screen = screen_of()
    executable = shutil.which(program)
    if executable is None:
        raise click.ClickException(f"there is no {program} on this computer: install OpenSSH's client")

    async def run_client(api: AsyncSession) -> int:
        compute_session = api.ComputeSession(session, owner)
        with tempfile.TemporaryDirectory(prefix="backend.ai-") as folder:
            key_path = await save_private_key(compute_session, Path(folder), KEY_FILE)
            async with compute_session.forward_app(
                "sshd", (_LOCAL, port), report=lambda error: screen.error(str(error))
            ) as local_port:
                ssh_options = [argument for option in _SSH_OPTIONS for argument in ("-o", option)]
                return await _run_on_terminal(
                    executable, "-i", str(key_path), *ssh_options, *arguments_for(local_port.port)
                )

    run_and_exit(screen, run_client, failure_exit_code=FAILURE_EXIT_CODE, needs_loop=True)


class NoSshServer(click.ClickException):
    exit_code = FAILURE_EXIT_CODE


async def save_private_key(session: AsyncComputeSession, folder: Path, name: str) -> Path:
    """Saves the private SSH key of a session in a file of ``folder``. Raises NoSshServer if there is no SSH server."""
    from ai.backend.client.exceptions import BackendAPIError

    try:
        with tempfile.TemporaryDirectory(dir=folder) as temporary_folder:
            key_path = next(iter(await session.download([KEY_FILE], temporary_folder)))
            key_path.chmod(0o600)
            return key_path.rename(folder / name)
    except BackendAPIError as e:
        if e.status != 404 or "sshd" in {app["name"] for app in await session.list_apps()}:
            raise
        raise NoSshServer("that session offers no sshd: try `backend.ai exec`") from None


async def _run_on_terminal(*command: str) -> int:
    """Runs a program on the terminal, passes signals on to it, and returns its exit code as a shell counts it."""
    client_process = await asyncio.create_subprocess_exec(*command)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)  # the terminal sends it to the child too
    for signal_number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signal_number, client_process.terminate)
    try:
        return_code = await client_process.wait()
    finally:
        if client_process.returncode is None:
            client_process.kill()
            await client_process.wait()
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(signal_number)
    return 128 - return_code if return_code < 0 else return_code
