"""Python programs that tests start again and again, forked from a process that has imported what they import.

Half of the time of the slow lanes would go into the imports of daemons that are killed a second later. Nothing is left
out: it is the same program, with the same environment, folder and streams, and its death is as real. Programs that
are given a terminal, or whose start is what a test is about, are executed.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DAEMONS = (
    "ai.backend.accelerator.intrinsic",
    "ai.backend.accelerator.mock.plugin",
    "ai.backend.agent.main",
    "ai.backend.cli.conflicts",
    "ai.backend.cli.session.ps",
    "ai.backend.cli.main",
    "ai.backend.cli.run.command",
    "ai.backend.client.session",
    "ai.backend.infra.rpc.zmq.agent",
    "ai.backend.infra.rpc.zmq.manager",
    "ai.backend.manager.main",
    "ai.backend.pluginhost.zygote",
    "ai.backend.runtime.process",
    "ai.backend.standalone.cluster",
    "ai.backend.standalone.agent_daemon",
    "ai.backend.standalone.manager_daemon",
    "ai.backend.standalone.main",
    "ai.backend.storage.main",
    "ai.backend.volume.vfs.volume",
    "alembic.operations",
    "alembic.runtime.migration",
    "alembic.script",
)


class ForkServer:
    """A server for the programs of one interpreter, started with the first of them.

    Args:
        modules: what it imports.
        forget: prefixes of modules that every program imports anew all the same, what they import being there.
    """

    def __init__(self, python: str, modules: Sequence[str], *, forget: Sequence[str] = ()) -> None:
        self.python = python
        self._options = json.dumps({"modules": list(modules), "forget": list(forget)})
        self._requests: socket.socket | None = None
        self._owner = 0

    def ask(self, request: dict[str, Any], fds: Sequence[int]) -> None:
        if self._requests is None or self._owner != os.getpid():
            self._requests = self._start()
        try:
            socket.send_fds(self._requests, [json.dumps(request).encode()], fds)
        except BrokenPipeError:  # a test has killed whatever it found
            self._requests = self._start()
            socket.send_fds(self._requests, [json.dumps(request).encode()], fds)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        with theirs:
            process = subprocess.Popen(
                [self.python, str(Path(__file__).with_name("fork_server.py")), str(theirs.fileno()), self._options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=ROOT,
                env=None if self.python == sys.executable else {**os.environ, "PYTHONPATH": ""},
            )
        self._owner = os.getpid()
        atexit.register(_end, ours, process)
        return ours


def _end(requests: socket.socket, process: subprocess.Popen[bytes]) -> None:
    requests.close()
    process.kill()
    process.wait()


OURS = ForkServer(sys.executable, DAEMONS)


class ForkedPopen(subprocess.Popen[Any]):
    """``subprocess.Popen`` for a command that begins with the interpreter of ``server``, on anything but a terminal."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        server: ForkServer = OURS,
        start_new_session: bool = False,
        **options: Any,
    ) -> None:
        python, *words = map(str, command)
        assert python == server.python, f"{python} is not the interpreter of the server"
        self._server = server
        self._session = start_new_session
        super().__init__(words, **options)

    def _execute_child(self, args: Any, *given: Any) -> None:
        """In place of a fork and an execution. The parameters are those of CPython 3.11 to 3.14."""
        cwd, env = given[4], given[5]
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = given[9:15]
        self._life, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        streams = [fd if fd >= 0 else number for number, fd in enumerate((p2cread, c2pwrite, errwrite))]
        environment = dict(os.environ if env is None else env)
        request = {"words": args, "env": environment, "cwd": str(cwd or Path.cwd()), "session": self._session}
        with theirs:
            try:
                self._server.ask(request, [*streams, theirs.fileno()])
            except BaseException:
                self._life.close()
                raise
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]  # of CPython
        said = self._life.recv(64)
        if not said:
            raise OSError(f"the fork server did not start {args}")
        self.pid = int(said)
        self._child_created = True

    def _internal_poll(self, _deadstate: Any = None) -> int | None:
        if self.returncode is None and select.select([self._life], [], [], 0)[0]:
            self._take_status()
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self.returncode is None:
            if not select.select([self._life], [], [], timeout)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._take_status()
        return int(self.returncode)

    def _take_status(self) -> None:
        said = self._life.recv(64)
        self.returncode = int(said) if said else -9
        self._life.close()

    async def ended(self) -> int:
        """Its return code, once it has one."""
        while (code := self.poll()) is None:  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.01)
        return code


def run(
    command: Sequence[str | Path], *, timeout: float | None = None, input_: str | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` with its output captured as text. Raises TimeoutExpired, once the program is killed."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    stdin = subprocess.DEVNULL if input_ is None else subprocess.PIPE
    with ForkedPopen(command, stdin=stdin, text=True, **streams) as process:
        try:
            out, err = process.communicate(input_, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
