"""`backend.ai ssh-config`: OpenSSH's programs, rsync and editors reach a session as the host SESSION.backend.ai."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ai.backend.cli.framework.invoke import run_and_exit
from ai.backend.cli.framework.lazy import LeafCommand, screen_of
from ai.backend.cli.session.commands import owner_option
from ai.backend.cli.session.ssh import FAILURE_EXIT_CODE, USER, save_private_key

if TYPE_CHECKING:
    from ai.backend.client.session import AsyncSession

DOMAIN = ".backend.ai"
_FOLDER_NAME = "backend.ai"
_INCLUDE_LINE = f"Include {_FOLDER_NAME}/config\n"
_ENVIRONMENT_PREFIX = "BACKEND_"


def _folder() -> Path:
    return Path.home() / ".ssh" / _FOLDER_NAME


def config_text(program: str) -> str:
    """Returns the text of OpenSSH's configuration by which ``ssh SESSION.backend.ai`` reaches a session.

    The tunnel authenticates the other end: host keys are not checked.
    """
    return (
        f"Host *{DOMAIN}\n"
        f"    User {USER}\n"
        f"    ProxyCommand {program} ssh-proxy %n\n"
        f"    IdentityFile ~/.ssh/{_FOLDER_NAME}/%n\n"
        "    IdentitiesOnly yes\n"
        "    StrictHostKeyChecking no\n"
        "    UserKnownHostsFile /dev/null\n"
        "    GlobalKnownHostsFile /dev/null\n"
        "    LogLevel ERROR\n"
    )


@click.command(cls=LeafCommand)
@click.option("--write", is_flag=True, help="Write it into ~/.ssh, with the endpoint and keys in force.")
def ssh_config(write: bool) -> None:
    """Print the configuration by which `ssh SESSION.backend.ai` works, or write it for good.

    With it work ssh, scp, sftp, rsync, port forwarding, and editors that open folders over SSH.
    """
    screen = screen_of()
    program = shutil.which("backend.ai") or f"{sys.executable} -m ai.backend.cli.main"
    if not write:
        click.echo(config_text(program), nl=False)
        return
    _write_files(program)
    screen.print_line(f"ssh NAME{DOMAIN} leads to your session NAME; the settings are in {_folder()}")


def _write_files(program: str) -> None:
    folder = _folder()
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _write_private_file(folder / "config", config_text(program))
    variables = {name: value for name, value in os.environ.items() if name.startswith(_ENVIRONMENT_PREFIX)}
    _write_private_file(
        folder / "env.sh", "".join(f"export {name}={shlex.quote(variables[name])}\n" for name in variables)
    )
    user_config = folder.parent / "config"
    config_content = user_config.read_text(encoding="utf-8") if user_config.exists() else ""
    if _INCLUDE_LINE not in config_content:  # first: below another `Host` it would belong to that host alone
        _write_private_file(
            user_config.resolve(), f"{_INCLUDE_LINE}\n{config_content}" if config_content else _INCLUDE_LINE
        )


def _write_private_file(path: Path, text: str) -> None:
    """Replaces a file atomically. Only its owner may read the file."""
    temporary_path = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
    temporary_path.replace(path)


def _load_environment() -> None:
    """Sets the environment variables that ``ssh-config --write`` has stored, unless BACKEND_ENDPOINT is set."""
    path = _folder() / "env.sh"
    if "BACKEND_ENDPOINT" in os.environ or not path.is_file():
        return
    for assignment in shlex.split(path.read_text(encoding="utf-8")):
        name, equals_sign, value = assignment.partition("=")
        if equals_sign and name.startswith(_ENVIRONMENT_PREFIX):
            os.environ.setdefault(name, value)


@click.command(cls=LeafCommand)
@click.argument("host")
@owner_option
def ssh_proxy(host: str, owner: str | None) -> None:
    """Connect standard input and output with the SSH server of the session HOST; OpenSSH starts this."""
    _load_environment()
    session_name = host.removesuffix(DOMAIN)
    if not session_name or "/" in session_name or session_name.startswith("."):
        raise click.UsageError(f"{host!r} is not SESSION{DOMAIN}")

    async def connect_streams(api: AsyncSession) -> int:
        from ai.backend.client.tunnels import copy_both_ways

        session = api.ComputeSession(session_name, owner)
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        await save_private_key(session, folder, f"{session_name}{DOMAIN}")
        async with session.connect_app("sshd") as stream:
            reader, writer = await _standard_streams()
            await copy_both_ways(stream, reader, writer)
        return 0

    run_and_exit(screen_of(), connect_streams, failure_exit_code=FAILURE_EXIT_CODE, needs_loop=True)


async def _standard_streams() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    writer_protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())
    transport, _ = await loop.connect_write_pipe(lambda: writer_protocol, sys.stdout)
    return reader, asyncio.StreamWriter(transport, writer_protocol, None, loop)
