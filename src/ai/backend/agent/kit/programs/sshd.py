"""The SSH server of a session: shells, commands, SFTP, SCP and forwarding, as the session's own user.

It accepts the keys of ``~/.ssh/authorized_keys``, ``id_container``, and ``/home/config/ssh``.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh

from .terminal import Terminal, open_terminal, shell_argv

HOST_KEY = ".ssh-host/host_ed25519"
SESSION_KEYS = Path("/home/config/ssh")
OWN_KEY = "id_container.pub"
MAX_KEYS = 256 * 1024
_PIECE = 64 * 1024
_GRACE_S = 5.0
_KEEP = ("LANG", "LC_", "TERM", "COLORTERM")
"""Variables that a client may bring along."""


class Server(asyncssh.SSHServer):
    """Serves one SSH connection. Keys are read for each, so that a change counts at once."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn

    def begin_auth(self, username: str) -> bool:
        """Accepts any user name, which stands for the session's user; only keys are checked."""
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
        """Allows `ssh -R`, likewise."""
        return True


class Files(asyncssh.SFTPServer):
    """Serves the workload's files with the rights of the session's user."""

    def exit(self) -> None:
        """Sends an exit status, without which `scp` and `sftp` fail at their end."""
        self.channel.exit(0)


def authorized_keys(home: Path) -> asyncssh.SSHAuthorizedKeys | None:
    """Returns all accepted keys; None without any. A malformed line does not exclude the others."""
    lines: list[str] = []
    for path in (home / ".ssh/authorized_keys", home / OWN_KEY, *sorted(SESSION_KEYS.glob("*.pub"))):
        try:
            with path.open("rb") as file:
                lines += file.read(MAX_KEYS).decode("utf-8", "replace").splitlines()
        except OSError:
            continue  # not there, or not ours to read
    valid: list[str] = []
    for line in lines:
        try:
            asyncssh.import_authorized_keys(line + "\n")
        except ValueError:
            print(f"sshd: a line of the authorized keys is no key: {line[:40]!r}", file=sys.stderr, flush=True)
            continue
        valid.append(line)
    text = "\n".join(valid)
    return asyncssh.import_authorized_keys(text + "\n") if text.strip() else None


def host_key(home: Path) -> asyncssh.SSHKey:
    """Returns the session's host key, which is made once and stored in the home; only in memory if that fails."""
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
    env = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    env |= {name: text for name, text in process.env.items() if name.startswith(_KEEP)}
    peer = process.get_extra_info("peername") or ("127.0.0.1", 0)
    own = process.get_extra_info("sockname") or ("127.0.0.1", 0)
    env["SSH_CLIENT"] = f"{peer[0]} {peer[1]} {own[1]}"
    env["SSH_CONNECTION"] = f"{peer[0]} {peer[1]} {own[0]} {own[1]}"
    return env


async def serve(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Runs one shell or command for a client."""
    try:
        if process.get_terminal_type() is not None:
            code = await _on_terminal(process)
        else:
            code = await _on_pipes(process)
    except (ConnectionError, asyncssh.Error):
        return  # the client is gone
    except OSError as e:
        process.stderr.write(f"{e}\n".encode())
        code = 127
    if code < 0:
        process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
    else:
        process.exit(code)


async def _on_terminal(process: asyncssh.SSHServerProcess[bytes]) -> int:
    columns, rows, _, _ = process.get_terminal_size()
    env = {**environment(process), "TERM": process.get_terminal_type() or "xterm"}
    terminal = await open_terminal(shell_argv(process.command), env, rows or 24, columns or 80)
    outputs = asyncio.create_task(_copy(terminal.read, process.stdout))
    inputs = asyncio.create_task(_type(terminal, process))
    try:
        code: int = await terminal.wait()
        await asyncio.wait({outputs}, timeout=_GRACE_S)  # what went to the background may hold the terminal open
        return code
    finally:
        inputs.cancel()
        outputs.cancel()
        terminal.close()


async def _type(terminal: Terminal, process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Writes the client's input to the terminal until the client hangs up, which sends SIGHUP to its shell."""
    while True:
        try:
            data = await process.stdin.read(_PIECE)
        except asyncssh.TerminalSizeChanged as change:
            terminal.resize(change.height, change.width)
            continue
        except asyncssh.BreakReceived:
            await terminal.write(b"\x03")
            continue
        except asyncssh.SignalReceived as received:
            terminal.signal(_number(received.signal))
            continue
        if not data:
            await process.wait_closed()  # it only types no more
            terminal.signal(signal.SIGHUP)
            return
        await terminal.write(data)


async def _on_pipes(process: asyncssh.SSHServerProcess[bytes]) -> int:
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
    inputs = asyncio.create_task(_feed(child, process))
    closed: asyncio.Future[Any] = asyncio.create_task(process.wait_closed())
    pairs = ((child.stdout, process.stdout), (child.stderr, process.stderr))
    outputs: asyncio.Future[Any] = asyncio.gather(
        *(_copy(partial(source.read, _PIECE), target) for source, target in pairs), return_exceptions=True
    )
    ended = asyncio.create_task(child.wait())
    try:
        await asyncio.wait({ended, closed}, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():  # the client is gone
            _signal_group(child.pid, signal.SIGHUP)
            try:
                async with asyncio.timeout(_GRACE_S):
                    await ended
            except TimeoutError:
                _signal_group(child.pid, signal.SIGKILL)
        code: int = await ended
        # As every SSH server: what went to the background and holds them open is waited for.
        await asyncio.wait({outputs, closed}, return_when=asyncio.FIRST_COMPLETED)
        return code
    finally:
        for task in (inputs, closed, outputs):
            task.cancel()


async def _feed(child: asyncio.subprocess.Process, process: asyncssh.SSHServerProcess[bytes]) -> None:
    assert child.stdin is not None
    while True:
        try:
            data = await process.stdin.read(_PIECE)
        except asyncssh.SignalReceived as received:
            _signal_group(child.pid, _number(received.signal))
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


async def _copy(read: Callable[[], Awaitable[bytes]], target: asyncssh.SSHWriter[bytes]) -> None:
    while data := await read():
        target.write(data)
        await target.drain()


def _number(name: str) -> int:
    return int(getattr(signal, f"SIG{name}", signal.SIGTERM))


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended
        os.killpg(pid, number)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="sshd: %(message)s")
    asyncssh.set_log_level(logging.WARNING)
    home = Path(os.environ.get("HOME") or Path.cwd())
    os.chdir(home)
    acceptor = await asyncssh.listen(
        options.host,
        options.port,
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
    """Serves until the session ends."""
    asyncio.run(main())
