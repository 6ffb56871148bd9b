"""Runs the SSH server of a session: shells, commands, SFTP, SCP and forwarding, as the session's own user.

It accepts the keys of ``~/.ssh/authorized_keys``, ``id_container``, and ``/home/config/ssh``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh

from .terminal import Terminal, open_terminal, shell_argv, socket_path

HOST_KEY = ".ssh-host/host_ed25519"
SESSION_KEYS = Path("/home/config/ssh")
_OWN_KEY_FILE = "id_container.pub"
_MAX_KEYS_BYTES = 256 * 1024
_PIECE_BYTES = 64 * 1024
_GRACE_S = 5.0
_KEPT_VARIABLES = ("LANG", "LC_", "TERM", "COLORTERM")
"""Environment variables that a client may set, by the beginning of their names."""


class Server(asyncssh.SSHServer):
    """Serves one SSH connection. Each connection reads the keys anew, so that a change counts at once."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def begin_auth(self, username: str) -> bool:
        """Loads the accepted keys for the authentication of a client with any user name.

        Any user name stands for the session's user; only keys are checked.
        """
        keys = authorized_keys(self._home)
        if keys is not None and self._connection is not None:
            self._connection.set_authorized_keys(keys)
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def connection_requested(self, *_: object) -> bool:
        """Allows `ssh -L`: the user's own programs connect from inside the workload as well."""
        return True

    def server_requested(self, *_: object) -> bool:
        """Allows `ssh -R`: the user's own programs listen inside the workload as well."""
        return True


class Files(asyncssh.SFTPServer):
    """Serves the workload's files with the rights of the session's user."""

    def exit(self) -> None:
        """Sends an exit status, without which `scp` and `sftp` fail at their end."""
        self.channel.exit(0)


def authorized_keys(home: Path) -> asyncssh.SSHAuthorizedKeys | None:
    """Returns all accepted SSH keys; None if there are none. A malformed line does not exclude the other keys."""
    lines: list[str] = []
    for path in (home / ".ssh/authorized_keys", home / _OWN_KEY_FILE, *sorted(SESSION_KEYS.glob("*.pub"))):
        try:
            with path.open("rb") as file:
                lines += file.read(_MAX_KEYS_BYTES).decode("utf-8", "replace").splitlines()
        except OSError:
            continue  # not there, or not ours to read
    valid_lines: list[str] = []
    for line in lines:
        try:
            asyncssh.import_authorized_keys(line + "\n")
        except ValueError:
            print(f"sshd: a line of the authorized keys is no key: {line[:40]!r}", file=sys.stderr, flush=True)
            continue
        valid_lines.append(line)
    keys_text = "\n".join(valid_lines)
    return asyncssh.import_authorized_keys(keys_text + "\n") if keys_text.strip() else None


def host_key(home: Path) -> asyncssh.SSHKey:
    """Returns the session's SSH host key, made once and stored in the home; kept only in memory if storing fails."""
    path = home / HOST_KEY
    try:
        return asyncssh.read_private_key(path)
    except (OSError, asyncssh.KeyImportError):
        key = asyncssh.generate_private_key("ssh-ed25519")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(key.export_private_key())
    except OSError as e:
        print(f"sshd: the host key is not kept: {e}", file=sys.stderr, flush=True)
    return key


def environment(process: asyncssh.SSHServerProcess[bytes]) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {name: value for name, value in process.env.items() if name.startswith(_KEPT_VARIABLES)}
    peer_address, server_address = (
        address if isinstance(address, tuple) else ("127.0.0.1", 0)  # a unix socket has a path
        for address in map(process.get_extra_info, ("peername", "sockname"))
    )
    env["SSH_CLIENT"] = f"{peer_address[0]} {peer_address[1]} {server_address[1]}"
    env["SSH_CONNECTION"] = f"{peer_address[0]} {peer_address[1]} {server_address[0]} {server_address[1]}"
    return env


async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Runs one shell or command for a client."""
    try:
        if process.get_terminal_type() is not None:
            exit_code = await _run_on_terminal(process)
        else:
            exit_code = await _run_on_pipes(process)
    except (ConnectionError, asyncssh.Error):
        return  # the client is gone
    except OSError as e:
        process.stderr.write(f"{e}\n".encode())
        exit_code = 127
    if exit_code < 0:
        process.exit_with_signal(signal.Signals(-exit_code).name.removeprefix("SIG"))
    else:
        process.exit(exit_code)


async def _run_on_terminal(process: asyncssh.SSHServerProcess[bytes]) -> int:
    columns, rows, _, _ = process.get_terminal_size()
    env = {**environment(process), "TERM": process.get_terminal_type() or "xterm"}
    terminal = await open_terminal(shell_argv(process.command), env, rows or 24, columns or 80)
    output_task = asyncio.create_task(_copy_stream(terminal.read, process.stdout))
    input_task = asyncio.create_task(_type_input(terminal, process))
    try:
        exit_code: int = await terminal.wait()
        await asyncio.wait({output_task}, timeout=_GRACE_S)  # what went to the background may hold the terminal open
        return exit_code
    finally:
        input_task.cancel()
        output_task.cancel()
        terminal.close()


async def _type_input(terminal: Terminal, process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Writes the client's input to the terminal until the client hangs up, then sends SIGHUP to the shell."""
    while True:
        try:
            data = await process.stdin.read(_PIECE_BYTES)
        except asyncssh.TerminalSizeChanged as change:
            terminal.resize(change.height, change.width)
            continue
        except asyncssh.BreakReceived:
            await terminal.write(b"\x03")
            continue
        except asyncssh.SignalReceived as received:
            terminal.signal(_signal_number_of(received.signal))
            continue
        if not data:
            await process.wait_closed()  # it only types no more
            terminal.signal(signal.SIGHUP)
            return
        await terminal.write(data)


async def _run_on_pipes(process: asyncssh.SSHServerProcess[bytes]) -> int:
    child = await asyncio.create_subprocess_exec(
        *shell_argv(process.command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(process),
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stderr is not None
    input_task = asyncio.create_task(_feed_stdin(child, process))
    close_task: asyncio.Future[Any] = asyncio.create_task(process.wait_closed())
    pipe_pairs = ((child.stdout, process.stdout), (child.stderr, process.stderr))
    output_tasks: asyncio.Future[Any] = asyncio.gather(
        *(_copy_stream(partial(source.read, _PIECE_BYTES), target) for source, target in pipe_pairs),
        return_exceptions=True,
    )
    exit_task = asyncio.create_task(child.wait())
    try:
        await asyncio.wait({exit_task, close_task}, return_when=asyncio.FIRST_COMPLETED)
        if not exit_task.done():  # the client is gone
            _signal_group(child.pid, signal.SIGHUP)
            try:
                async with asyncio.timeout(_GRACE_S):
                    await exit_task
            except TimeoutError:
                _signal_group(child.pid, signal.SIGKILL)
        exit_code: int = await exit_task
        # As every SSH server: what went to the background and holds them open is waited for.
        await asyncio.wait({output_tasks, close_task}, return_when=asyncio.FIRST_COMPLETED)
        return exit_code
    finally:
        for task in (input_task, close_task, output_tasks):
            task.cancel()


async def _feed_stdin(child: asyncio.subprocess.Process, process: asyncssh.SSHServerProcess[bytes]) -> None:
    assert child.stdin is not None
    while True:
        try:
            data = await process.stdin.read(_PIECE_BYTES)
        except asyncssh.SignalReceived as received:
            _signal_group(child.pid, _signal_number_of(received.signal))
            continue
        except (asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
            continue
        if not data:
            break
        try:
            child.stdin.write(data)
            await child.stdin.drain()
        except (BrokenPipeError, ConnectionError):
            return  # it reads no more
    child.stdin.close()


async def _copy_stream(read: Callable[[], Awaitable[bytes]], target: asyncssh.SSHWriter[bytes]) -> None:
    while data := await read():
        target.write(data)
        await target.drain()


def _signal_number_of(signal_name: str) -> int:
    return int(getattr(signal, f"SIG{signal_name}", signal.SIGTERM))


def _signal_group(group_pid: int, signal_number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(group_pid, signal_number)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="sshd: %(message)s")
    asyncssh.set_log_level(logging.WARNING)
    home = Path(os.environ.get("HOME") or Path.cwd())
    os.chdir(home)
    listen_options: dict[str, Any] = {"host": arguments.host, "port": arguments.port}
    path = socket_path(arguments.host)
    if path is not None:
        listen_options = {"sock": socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)}
        listen_options["sock"].bind(path)
    acceptor = await asyncssh.listen(
        **listen_options,
        server_factory=lambda: Server(home),
        server_host_keys=[host_key(home)],
        process_factory=serve,
        sftp_factory=Files,
        allow_scp=True,
        encoding=None,
        agent_forwarding=False,
        keepalive_interval=60,
        login_timeout=60,
    )
    async with acceptor:
        await acceptor.wait_closed()


def run() -> None:
    """Runs the SSH server until the session ends."""
    asyncio.run(main())
